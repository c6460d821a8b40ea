//! What is found by a key. Keys without anything take no room.

use std::{collections::hash_map::Entry, hash::Hash};

use crate::{
    hash::{HashMap, with_room},
    small_set::SmallSet,
};

/// See the module.
#[derive(Debug)]
pub(crate) struct Index<K, V>(HashMap<K, SmallSet<V>>);

impl<K, V> Default for Index<K, V> {
    fn default() -> Self {
        Self(with_room())
    }
}

impl<K: Eq + Hash, V: Ord> Index<K, V> {
    pub(crate) fn insert(&mut self, key: K, value: V) {
        self.0.entry(key).or_default().insert(value);
    }

    /// `true` if it was the last one.
    pub(crate) fn remove(&mut self, key: K, value: &V) -> bool {
        let Entry::Occupied(mut values) = self.0.entry(key) else {
            return false;
        };
        values.get_mut().remove(value);
        let is_last = values.get().is_empty();
        if is_last {
            values.remove();
        }
        is_last
    }

    /// What is found by a key, in order.
    pub(crate) fn of(&self, key: &K) -> impl Iterator<Item = &V> + use<'_, K, V> {
        self.0.get(key).into_iter().flat_map(SmallSet::iter)
    }

    pub(crate) fn len_of(&self, key: &K) -> usize {
        self.0.get(key).map_or(0, SmallSet::len)
    }

    pub(crate) fn contains_key(&self, key: &K) -> bool {
        self.0.contains_key(key)
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &K> {
        self.0.keys()
    }

    /// How many keys have something.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
