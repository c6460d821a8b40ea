//! A map that nearly always has one or two entries: a sorted list, which takes a fraction of a tree's instructions. With thousands of
//! them an insertion moves what follows, so values should be small.

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct SortedMap<K, V>(Vec<(K, V)>);

impl<K, V> Default for SortedMap<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Ord, V> SortedMap<K, V> {
    fn position(&self, key: &K) -> Result<usize, usize> {
        self.0.binary_search_by(|(known, _)| known.cmp(key))
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        let position = self.position(key).ok()?;
        self.0.get(position).map(|(_, value)| value)
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let position = self.position(key).ok()?;
        self.0.get_mut(position).map(|(_, value)| value)
    }

    pub(crate) fn contains_key(&self, key: &K) -> bool {
        self.position(key).is_ok()
    }

    /// Inserts or replaces.
    pub(crate) fn insert(&mut self, key: K, value: V) {
        match self.position(&key) {
            Ok(position) => self.0[position].1 = value,
            Err(position) => self.0.insert(position, (key, value)),
        }
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let position = self.position(key).ok()?;
        Some(self.0.remove(position).1)
    }

    /// In the order of the keys.
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, (K, V)> {
        self.0.iter()
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.0.iter().map(|(_, value)| value)
    }
}

impl<K, V> IntoIterator for SortedMap<K, V> {
    type Item = (K, V);
    type IntoIter = std::vec::IntoIter<(K, V)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_like_a_tree_map(ops in proptest::collection::vec((0..3_u8, 0..6_u8, any::<u8>()), 0..60)) {
            let (mut sorted, mut model) = (SortedMap::default(), BTreeMap::new());
            for (op, key, value) in ops {
                match op {
                    0 => prop_assert_eq!(sorted.remove(&key), model.remove(&key)),
                    1 => {
                        sorted.insert(key, value);
                        model.insert(key, value);
                    }
                    _ => prop_assert_eq!(sorted.get_mut(&key), model.get_mut(&key)),
                }
                prop_assert_eq!(sorted.get(&key), model.get(&key));
                prop_assert_eq!(sorted.contains_key(&key), model.contains_key(&key));
                prop_assert!(sorted.values().eq(model.values()));
                prop_assert!(sorted.iter().map(|(key, _)| key).eq(model.keys()));
            }
            prop_assert!(sorted.into_iter().eq(model));
        }
    }
}
