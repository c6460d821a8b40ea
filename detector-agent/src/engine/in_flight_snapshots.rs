//! Readings of the kernel's state that are under way: lets the newer live word win over an older snapshot.
//!
//! Invariants: while a reading is under way, every key that a live observation changed is known with its place in
//! the order; with none under way nothing is remembered. A reading that began before another of the whole node, and
//! is done after it, says nothing.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
};

use super::observation::{FdbEntry, IfIndex, Mac, Peer, Route, SnapshotScope, SnapshotToken};

/// What one fact of the kernel's state is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    /// How a link is.
    Link(IfIndex),
    /// That a link is the one it was: touched when it goes or is another. What a reading says of such a link's neighbours,
    /// addresses and ports is said of the earlier one, or was also said live of the later.
    Life(IfIndex),
    /// A pod's address, with its prefix length.
    Pod(Peer, IpAddr, u8),
    /// A node's address, with its prefix length.
    Host(IfIndex, IpAddr, u8),
    /// A neighbour entry.
    Neighbour(IfIndex, IpAddr),
    /// A forwarding entry.
    Fdb(IfIndex, Mac, Option<u16>),
    /// The route of a destination, prefix length, metric and table: a new one takes the old one's place.
    Route(IpAddr, u8, u32, u32),
    /// The routes of a link, which end without a word when it goes down.
    RoutesOf(IfIndex),
    /// The forwarding entries of a port, which end with its leaving the bridge.
    StationsOf(IfIndex),
}

impl From<&Route> for Key {
    fn from(route: &Route) -> Self {
        Self::Route(
            route.destination,
            route.prefix_len,
            route.metric,
            route.table,
        )
    }
}

impl From<&FdbEntry> for Key {
    fn from(entry: &FdbEntry) -> Self {
        Self::Fdb(entry.bridge, entry.mac, entry.vlan)
    }
}

/// Keys remembered at most; more change only under a storm, and then the readings are begun anew.
const TOUCHED: usize = 262_144;

#[derive(Debug, Default)]
pub(super) struct Reads {
    sequence: u64,
    begun: BTreeMap<SnapshotToken, u64>,
    touched: HashMap<Key, u64>,
    /// Where the newest merged reading of the whole node began.
    newest: u64,
}

/// Says which keys of a finished reading are older than what was said live.
#[derive(Debug)]
pub(super) struct Finished {
    begun: u64,
    touched: HashMap<Key, u64>,
}

/// What became of a reading.
#[derive(Debug)]
pub(super) enum Outcome {
    Usable(Finished),
    /// A newer reading of everything has been merged already.
    Superseded,
    /// It was not begun, or so much changed meanwhile that it says nothing.
    Unusable,
}

impl Finished {
    /// Whether a pod's address was told live since this reading began, with whatever prefix length.
    pub(super) fn told_of(&self, peer: Peer, address: IpAddr) -> bool {
        (0..=128).any(|length| self.outdated(&Key::Pod(peer, address, length)))
    }

    /// Whether the live word about `key` is newer than this reading.
    pub(super) fn outdated(&self, key: &Key) -> bool {
        self.touched.get(key).is_some_and(|at| *at > self.begun)
    }
}

impl Reads {
    pub(super) fn begin(&mut self, token: SnapshotToken) {
        self.sequence += 1;
        self.begun.insert(token, self.sequence);
    }

    pub(super) fn touch(&mut self, key: Key) {
        if self.begun.is_empty() {
            return;
        }
        self.sequence += 1;
        if self.touched.len() >= TOUCHED && !self.touched.contains_key(&key) {
            // Nothing can be said any more of the readings under way; those begun from here on are sound again.
            self.begun.clear();
            self.touched.clear();
            return;
        }
        self.touched.insert(key, self.sequence);
    }

    /// Ends a reading that failed.
    pub(super) fn fail(&mut self, token: SnapshotToken) {
        self.begun.remove(&token);
        if self.begun.is_empty() {
            self.touched.clear();
        }
    }

    /// Ends a reading that is to be merged.
    pub(super) fn finish(&mut self, token: SnapshotToken, scope: SnapshotScope) -> Outcome {
        let Some(begun) = self.begun.remove(&token) else {
            return Outcome::Unusable;
        };
        let touched = if self.begun.is_empty() {
            std::mem::take(&mut self.touched)
        } else {
            self.touched.clone()
        };
        if begun < self.newest {
            return Outcome::Superseded;
        }
        if scope == SnapshotScope::Node {
            self.newest = begun;
        }
        Outcome::Usable(Finished { begun, touched })
    }
}
