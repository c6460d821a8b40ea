//! Snapshots that are being read, and what changed meanwhile: a live update takes precedence over a
//! snapshot that is older.
//!
//! Invariants: while a snapshot is in flight, every key that a live update touched is recorded with
//! its position in the order; with none in flight nothing is recorded. The one that is being merged
//! holds the record until then. A snapshot that started
//! before another one of the whole node, and finishes after it, is discarded.

use std::{collections::BTreeMap, net::IpAddr};

use crate::{
    hash::HashMap,
    model::{
        AssignmentId, FdbEntry, IfIndex, Mac, Observation, Owner, Peer, Route, RouteKey,
        RoutingChange, SnapshotScope, SnapshotToken,
    },
};

/// Identifies one item of the kernel's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum StateKey {
    /// The state of a link.
    Link(IfIndex),
    /// The PVID of a port.
    PortVlan(IfIndex),
    /// The identity of a link: touched when the link is removed or replaced. What an older snapshot
    /// contains about the neighbours, addresses and ports of such a link belongs to the earlier
    /// link, or was also reported live for the later one.
    LinkIdentity(IfIndex),
    /// The hardware address of a pod's end.
    PodLink(Peer),
    /// What was reported about a peer while it was not certain whose that is.
    UnappliedUpdate(Peer),
    /// All assignments of an address: touched with each of them.
    Address(Owner, IpAddr),
    /// One assignment of an address.
    Assignment(Owner, AssignmentId),
    /// A neighbour entry.
    Neighbour(IfIndex, IpAddr),
    /// What a neighbour entry is evidence of: touched when the kernel reports a new entry, another hardware address, or that
    /// the neighbour answered.
    NeighbourEvidence(IfIndex, IpAddr),
    /// A forwarding entry.
    Fdb(IfIndex, Mac, Option<u16>),
    /// The routes at a place.
    Route(RouteKey),
    /// The routes of a link; the kernel drops them without a notification when the link goes down.
    LinkRoutes(IfIndex),
    /// The forwarding entries of a port; they end when it leaves the bridge.
    PortFdb(IfIndex),
}

impl StateKey {
    /// The items that an observation updates live. What follows for others is touched where it is applied.
    pub(crate) fn of(observation: &Observation) -> [Option<Self>; 2] {
        let one = |key| [Some(key), None];
        let assignment = |owner, id: AssignmentId| {
            let address = Self::Address(owner, id.address);
            [Some(address), Some(Self::Assignment(owner, id))]
        };
        match observation {
            Observation::Link(link) => one(Self::Link(link.ifindex)),
            Observation::LinkGone(ifindex) => one(Self::Link(*ifindex)),
            Observation::PortVlan(vlan) => one(Self::PortVlan(vlan.ifindex)),
            Observation::PodAddress(peer, info) => assignment(Owner::Peer(*peer), info.id()),
            Observation::PodAddressGone(peer, id) => assignment(Owner::Peer(*peer), *id),
            Observation::HostAddress(link, info) => assignment(Owner::Link(*link), info.id()),
            Observation::HostAddressGone(link, id) => assignment(Owner::Link(*link), *id),
            Observation::Neighbour(n) => one(Self::Neighbour(n.ifindex, n.address)),
            Observation::NeighbourGone(ifindex, address) => {
                one(Self::Neighbour(*ifindex, *address))
            }
            Observation::Fdb(entry) | Observation::FdbGone(entry) => one(Self::from(entry)),
            Observation::Route(route)
            | Observation::RouteInserted(route, _)
            | Observation::RouteGone(route) => one(Self::from(route)),
            Observation::RoutingChanged(RoutingChange::Replaced(place)) => one(Self::Route(*place)),
            Observation::NamespaceIdFreed(_)
            | Observation::PeerMoved(_)
            | Observation::PodLink(..)
            | Observation::NotificationsLost
            | Observation::RoutingChanged(_)
            | Observation::RoutesLookedUp(_)
            | Observation::Frame(_)
            | Observation::UnansweredProbe(_)
            | Observation::RouterAdvertisement(_)
            | Observation::SnapshotStarted(_)
            | Observation::SelfCheckStarted(_)
            | Observation::Snapshot(..)
            | Observation::SnapshotFailed(_)
            | Observation::Pool(_)
            | Observation::PodsKnown(_)
            | Observation::NetworksKnown(_)
            | Observation::ClaimedTableLost
            | Observation::DeadlineReached => [None, None],
        }
    }
}

impl From<&Route> for StateKey {
    fn from(route: &Route) -> Self {
        Self::Route(route.key())
    }
}

impl From<&FdbEntry> for StateKey {
    fn from(entry: &FdbEntry) -> Self {
        Self::Fdb(entry.bridge, entry.mac, entry.vlan)
    }
}

/// Bound on recorded keys. If a storm of updates exceeds it, the snapshots in flight are discarded
/// and taken again.
const MAX_TOUCHED_KEYS: usize = 262_144;

#[derive(Debug, Default)]
pub(crate) struct InFlightSnapshots {
    sequence: u64,
    started: BTreeMap<SnapshotToken, SnapshotStart>,
    touched: HashMap<StateKey, u64>,
    /// The position at which the newest merged snapshot of the whole node started.
    newest_node_start: u64,
}

/// How a snapshot started.
#[derive(Clone, Copy, Debug)]
struct SnapshotStart {
    sequence: u64,
    is_self_check: bool,
}

/// A finished snapshot; knows which of its keys are older than a live update.
#[derive(Debug)]
pub(crate) struct FinishedSnapshot {
    started: u64,
    /// It was taken to be compared with the engine's state.
    pub(crate) is_self_check: bool,
    touched: HashMap<StateKey, u64>,
}

/// What to do with a finished snapshot.
#[derive(Debug)]
pub(crate) enum SnapshotOutcome {
    Usable(FinishedSnapshot),
    /// A newer snapshot of the whole node is already merged.
    Superseded,
    /// It was never started, or more changed meanwhile than could be recorded.
    Unusable,
}

impl FinishedSnapshot {
    /// The position at which it started.
    pub(crate) fn started(&self) -> u64 {
        self.started
    }

    /// Whether a live update of `key` is newer than this snapshot.
    pub(crate) fn is_outdated(&self, key: &StateKey) -> bool {
        self.touched.get(key).is_some_and(|at| *at > self.started)
    }
}

impl InFlightSnapshots {
    /// `is_self_check`: it will be compared with the engine's state.
    pub(crate) fn start(&mut self, token: SnapshotToken, is_self_check: bool) {
        self.sequence += 1;
        let start = SnapshotStart {
            sequence: self.sequence,
            is_self_check,
        };
        self.started.insert(token, start);
    }

    /// The present position in the order of live updates and starts of snapshots; advances only
    /// while a snapshot is in flight.
    pub(crate) fn position(&self) -> u64 {
        self.sequence
    }

    pub(crate) fn touch(&mut self, key: StateKey) {
        if self.started.is_empty() {
            return;
        }
        self.sequence += 1;
        if self.touched.len() >= MAX_TOUCHED_KEYS && !self.touched.contains_key(&key) {
            // The snapshots in flight cannot be merged any more; those started from here on can.
            self.discard_all();
            return;
        }
        self.touched.insert(key, self.sequence);
    }

    /// Whether a snapshot is in flight.
    pub(crate) fn is_any(&self) -> bool {
        !self.started.is_empty()
    }

    /// Makes every snapshot in flight unusable.
    pub(crate) fn discard_all(&mut self) {
        self.started.clear();
        self.touched.clear();
    }

    /// Removes a snapshot that failed.
    pub(crate) fn fail(&mut self, token: SnapshotToken) {
        self.started.remove(&token);
        self.clear_if_none();
    }

    /// Removes a snapshot that was read, and decides whether it can be merged.
    pub(crate) fn finish(&mut self, token: SnapshotToken, scope: SnapshotScope) -> SnapshotOutcome {
        let Some(start) = self.started.remove(&token) else {
            return SnapshotOutcome::Unusable;
        };
        let started = start.sequence;
        if started < self.newest_node_start {
            self.clear_if_none();
            return SnapshotOutcome::Superseded;
        }
        if scope == SnapshotScope::Node {
            self.newest_node_start = started;
        }
        SnapshotOutcome::Usable(FinishedSnapshot {
            started,
            is_self_check: start.is_self_check,
            touched: std::mem::take(&mut self.touched),
        })
    }

    /// The snapshot is merged: takes back what it was compared with, for those that are still in flight.
    pub(crate) fn merged(&mut self, finished: FinishedSnapshot) {
        let touched_since = std::mem::replace(&mut self.touched, finished.touched);
        self.touched.extend(touched_since);
        self.clear_if_none();
    }

    fn clear_if_none(&mut self) {
        if self.started.is_empty() {
            self.touched.clear();
        }
    }
}

#[cfg(test)]
mod tests;
