//! Readings of the kernel's state that are under way: lets the newer live word win over an older snapshot.
//!
//! Invariant: while a reading is under way, every key that a live observation changed is known with its place in
//! the order; with none under way nothing is remembered.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
};

use super::observation::{IfIndex, Mac, Peer, ReadToken, Route};

/// What one fact of the kernel's state is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    Link(IfIndex),
    Pod(Peer, IpAddr),
    Host(IfIndex, IpAddr),
    Neighbour(IfIndex, IpAddr),
    Fdb(IfIndex, Mac),
    Route(Route),
}

/// Keys remembered at most; more change only under a storm, and then the reading is begun anew.
const TOUCHED: usize = 262_144;

#[derive(Debug, Default)]
pub(super) struct Reads {
    sequence: u64,
    begun: BTreeMap<ReadToken, u64>,
    touched: HashMap<Key, u64>,
    overflowed: bool,
}

/// Says which keys of a finished reading are older than what was said live.
#[derive(Debug)]
pub(super) struct Finished {
    begun: u64,
    touched: HashMap<Key, u64>,
}

impl Finished {
    /// Whether the live word about `key` is newer than this reading.
    pub(super) fn outdated(&self, key: &Key) -> bool {
        self.touched.get(key).is_some_and(|at| *at > self.begun)
    }
}

impl Reads {
    pub(super) fn begin(&mut self, token: ReadToken) {
        self.begun.insert(token, self.sequence);
    }

    pub(super) fn touch(&mut self, key: Key) {
        if self.begun.is_empty() {
            return;
        }
        self.sequence += 1;
        if self.touched.len() >= TOUCHED && !self.touched.contains_key(&key) {
            self.overflowed = true;
            return;
        }
        self.touched.insert(key, self.sequence);
    }

    /// Ends a reading. `None` where it was not begun, or so much changed meanwhile that it says nothing.
    pub(super) fn finish(&mut self, token: ReadToken) -> Option<Finished> {
        let begun = self.begun.remove(&token)?;
        let usable = !self.overflowed;
        let touched = if self.begun.is_empty() {
            self.overflowed = false;
            std::mem::take(&mut self.touched)
        } else {
            self.touched
                .iter()
                .filter(|(_, at)| **at > begun)
                .map(|(key, at)| (*key, *at))
                .collect()
        };
        usable.then_some(Finished { begun, touched })
    }
}
