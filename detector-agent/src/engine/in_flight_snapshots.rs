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
pub(super) enum StateKey {
    /// How a link is.
    Link(IfIndex),
    /// That a link is the one it was: touched when it goes or is another. What a reading says of such a link's neighbours,
    /// addresses and ports is said of the earlier one, or was also said live of the later.
    LinkIdentity(IfIndex),
    /// A pod's address, with its prefix length.
    PodAddress(Peer, IpAddr, u8),
    /// A node's address, with its prefix length.
    HostAddress(IfIndex, IpAddr, u8),
    /// A neighbour entry.
    Neighbour(IfIndex, IpAddr),
    /// A forwarding entry.
    Fdb(IfIndex, Mac, Option<u16>),
    /// The route of a destination, prefix length, metric and table: a new one takes the old one's place.
    Route(IpAddr, u8, u32, u32),
    /// The routes of a link, which end without a word when it goes down.
    LinkRoutes(IfIndex),
    /// The forwarding entries of a port, which end with its leaving the bridge.
    PortFdb(IfIndex),
}

impl From<&Route> for StateKey {
    fn from(route: &Route) -> Self {
        Self::Route(
            route.destination,
            route.prefix_len,
            route.metric,
            route.table,
        )
    }
}

impl From<&FdbEntry> for StateKey {
    fn from(entry: &FdbEntry) -> Self {
        Self::Fdb(entry.bridge, entry.mac, entry.vlan)
    }
}

/// Keys remembered at most; more change only under a storm, and then the readings are started anew.
const MAX_TOUCHED_KEYS: usize = 262_144;

#[derive(Debug, Default)]
pub(super) struct InFlightSnapshots {
    sequence: u64,
    started: BTreeMap<SnapshotToken, u64>,
    touched: HashMap<StateKey, u64>,
    /// Where the newest_node_start merged reading of the whole node began.
    newest_node_start: u64,
}

/// Says which keys of a finished reading are older than what was said live.
#[derive(Debug)]
pub(super) struct FinishedSnapshot {
    started: u64,
    touched: HashMap<StateKey, u64>,
}

/// What became of a reading.
#[derive(Debug)]
pub(super) enum SnapshotOutcome {
    Usable(FinishedSnapshot),
    /// A newer reading of everything has been merged already.
    Superseded,
    /// It was not started, or so much changed meanwhile that it says nothing.
    Unusable,
}

impl FinishedSnapshot {
    /// Whether a pod's address was told live since this reading began, with whatever prefix length.
    pub(super) fn has_live_update(&self, peer: Peer, address: IpAddr) -> bool {
        (0..=128).any(|length| self.is_outdated(&StateKey::PodAddress(peer, address, length)))
    }

    /// Whether the live word about `key` is newer than this reading.
    pub(super) fn is_outdated(&self, key: &StateKey) -> bool {
        self.touched.get(key).is_some_and(|at| *at > self.started)
    }
}

impl InFlightSnapshots {
    pub(super) fn start(&mut self, token: SnapshotToken) {
        self.sequence += 1;
        self.started.insert(token, self.sequence);
    }

    pub(super) fn touch(&mut self, key: StateKey) {
        if self.started.is_empty() {
            return;
        }
        self.sequence += 1;
        if self.touched.len() >= MAX_TOUCHED_KEYS && !self.touched.contains_key(&key) {
            // Nothing can be said any more of the readings under way; those started from here on are sound again.
            self.started.clear();
            self.touched.clear();
            return;
        }
        self.touched.insert(key, self.sequence);
    }

    /// Ends a reading that failed.
    pub(super) fn fail(&mut self, token: SnapshotToken) {
        self.started.remove(&token);
        if self.started.is_empty() {
            self.touched.clear();
        }
    }

    /// Ends a reading that is to be merged.
    pub(super) fn finish(&mut self, token: SnapshotToken, scope: SnapshotScope) -> SnapshotOutcome {
        let Some(started) = self.started.remove(&token) else {
            return SnapshotOutcome::Unusable;
        };
        let touched = if self.started.is_empty() {
            std::mem::take(&mut self.touched)
        } else {
            self.touched.clone()
        };
        if started < self.newest_node_start {
            return SnapshotOutcome::Superseded;
        }
        if scope == SnapshotScope::Node {
            self.newest_node_start = started;
        }
        SnapshotOutcome::Usable(FinishedSnapshot { started, touched })
    }
}
