//! Schedules checks of what may end without an observation, such as the claims of an address: at most one per key.

use std::{collections::BTreeSet, hash::Hash, net::IpAddr};

use crate::{
    hash::{HashMap, with_room},
    model::Timestamp,
};

/// What to check, each at one time. An early check is harmless: it changes nothing by itself and schedules the next.
#[derive(Debug)]
pub(crate) struct ExpiryQueue<K = IpAddr> {
    queue: BTreeSet<(Timestamp, K)>,
    scheduled: HashMap<K, Timestamp>,
}

impl<K> Default for ExpiryQueue<K> {
    fn default() -> Self {
        Self {
            queue: BTreeSet::new(),
            scheduled: with_room(),
        }
    }
}

impl<K: Copy + Ord + Hash> ExpiryQueue<K> {
    /// Schedules a check at `at`, unless an earlier one is scheduled: every check schedules the
    /// next.
    pub(crate) fn schedule(&mut self, key: K, at: Timestamp) {
        match self.scheduled.get(&key) {
            Some(scheduled) if *scheduled <= at => return,
            Some(scheduled) => {
                self.queue.remove(&(*scheduled, key));
            }
            None => {}
        }
        self.scheduled.insert(key, at);
        self.queue.insert((at, key));
    }

    pub(crate) fn cancel(&mut self, key: K) {
        if let Some(scheduled) = self.scheduled.remove(&key) {
            self.queue.remove(&(scheduled, key));
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        self.queue.first().map(|(at, _)| *at)
    }

    pub(crate) fn pop_due(&mut self, now: Timestamp) -> Option<K> {
        let (at, key) = *self.queue.first()?;
        if at > now {
            return None;
        }
        self.queue.pop_first();
        self.scheduled.remove(&key);
        Some(key)
    }
}
