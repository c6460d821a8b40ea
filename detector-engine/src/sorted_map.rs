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

    /// The value of a key, which is inserted if there is none.
    pub(crate) fn get_or_insert_with(&mut self, key: K, new: impl FnOnce() -> V) -> &mut V {
        let position = self.position(&key).unwrap_or_else(|position| {
            self.0.insert(position, (key, new()));
            position
        });
        &mut self.0[position].1
    }

    pub(crate) fn contains_key(&self, key: &K) -> bool {
        self.position(key).is_ok()
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let position = self.position(key).ok()?;
        Some(self.0.remove(position).1)
    }

    /// In the order of the keys.
    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.0.iter().map(|(_, value)| value)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.0.iter_mut().map(|(_, value)| value)
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
                        let known = sorted.get_or_insert_with(key, || value);
                        prop_assert_eq!(known, model.entry(key).or_insert(value));
                    }
                    _ => {
                        sorted.values_mut().for_each(|known| *known ^= value);
                        model.values_mut().for_each(|known| *known ^= value);
                    }
                }
                prop_assert_eq!(sorted.get(&key), model.get(&key));
                prop_assert_eq!(sorted.contains_key(&key), model.contains_key(&key));
                prop_assert!(sorted.values().eq(model.values()));
            }
            prop_assert!(sorted.into_iter().eq(model));
        }
    }
}
