//! How many there are of each key. Keys without any take no room.

use std::{collections::hash_map::Entry, hash::Hash};

use crate::hash::{HashMap, with_room};

/// See the module.
#[derive(Debug)]
pub(crate) struct Counts<K>(HashMap<K, usize>);

impl<K> Default for Counts<K> {
    fn default() -> Self {
        Self(with_room())
    }
}

impl<K: Eq + Hash> Counts<K> {
    pub(crate) fn of(&self, key: &K) -> usize {
        self.0.get(key).copied().unwrap_or_default()
    }

    /// `true` for the first one.
    pub(crate) fn add(&mut self, key: K) -> bool {
        let count = self.0.entry(key).or_default();
        *count += 1;
        *count == 1
    }

    /// `true` for the last one.
    pub(crate) fn subtract(&mut self, key: K) -> bool {
        let Entry::Occupied(mut count) = self.0.entry(key) else {
            return false;
        };
        *count.get_mut() -= 1;
        let is_last = *count.get() == 0;
        if is_last {
            count.remove();
        }
        is_last
    }
}
