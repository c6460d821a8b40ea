//! When a new pod device is attached to and read for the first time.
//!
//! Both take locks (RTNL) and processor time from the network plugin that is setting up the pod at that moment: together they
//! were half of what the agent added to an ADD. The addresses that the plugin assigns are reported by notifications, so
//! little is missed by waiting until it is done: until nothing changed on the device for [`QUIET_FOR`]. Plugins that assign
//! them before the device is in the node's namespace (Calico, Amazon VPC) cause no notification; if there is none soon, the
//! device is read before it is attached to.
//!
//! Invariant: a device waits at most [`MAX_WAIT`], whatever happens to it or to others.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    time::Duration,
};

use crate::engine::{IfIndex, Observation, Peer, PodDevice, Timestamp};

/// A plugin's changes to a device follow each other within this time, except while it waits for IPAM.
const QUIET_FOR: Duration = Duration::from_millis(20);
/// A pod that changes its own addresses all the time is observed from then on.
const MAX_WAIT: Duration = Duration::from_millis(200);
/// A plugin that assigns addresses afterwards does so within this time after the device was connected, or calls IPAM first and
/// holds no lock meanwhile.
const READ_AFTER: Duration = Duration::from_millis(3);

/// What is to be done with a device that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DueStep {
    /// Read it. It goes on waiting.
    Read(PodDevice),
    /// Attach to it, and read it. It waits no longer.
    Attach(PodDevice),
}

#[derive(Debug)]
struct Waiting {
    device: PodDevice,
    last_change: Timestamp,
    until: Timestamp,
    /// When it is read unless an address is reported earlier; `None` if one was, or if its peer is unknown.
    reads_at: Option<Timestamp>,
    /// Its entry in [`AttachSchedule::checks`].
    next_check: Timestamp,
}

impl Waiting {
    fn attaches_at(&self) -> Timestamp {
        self.until.min(self.last_change + QUIET_FOR)
    }

    fn next_step(&self) -> Timestamp {
        let attach = self.attaches_at();
        self.reads_at.map_or(attach, |read| read.min(attach))
    }
}

/// The devices that wait.
#[derive(Debug, Default)]
pub(super) struct AttachSchedule {
    waiting: HashMap<IfIndex, Waiting>,
    by_peer: HashMap<Peer, IfIndex>,
    /// When each device is looked at next, not later than its next step. A change does not move the entry, because there may
    /// be tens of thousands a second.
    checks: BTreeSet<(Timestamp, IfIndex)>,
}

impl AttachSchedule {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn contains(&self, ifindex: IfIndex) -> bool {
        self.waiting.contains_key(&ifindex)
    }

    /// A device appeared, or changed while it waits. One that takes over the index of a waiting device does not wait longer
    /// than that one would have.
    pub(super) fn insert(&mut self, device: PodDevice, now: Timestamp) {
        let ifindex = device.ifindex;
        let before = self.take(ifindex);
        let until = before
            .as_ref()
            .map_or(now + MAX_WAIT, |before| before.until);
        let reads_at = match before {
            Some(before) if before.device.peer == device.peer => before.reads_at,
            _ => device.peer.map(|_| now + READ_AFTER),
        };
        let mut waiting = Waiting {
            device,
            last_change: now,
            until,
            reads_at,
            next_check: now,
        };
        waiting.next_check = waiting.next_step();
        if let Some(peer) = waiting.device.peer {
            self.by_peer.insert(peer, ifindex);
        }
        self.checks.insert((waiting.next_check, ifindex));
        self.waiting.insert(ifindex, waiting);
    }

    /// Removes a device that is gone, or is attached to at once; `false` if it does not wait.
    pub(super) fn remove(&mut self, ifindex: IfIndex) -> bool {
        self.take(ifindex).is_some()
    }

    fn take(&mut self, ifindex: IfIndex) -> Option<Waiting> {
        let waiting = self.waiting.remove(&ifindex)?;
        self.checks.remove(&(waiting.next_check, ifindex));
        if let Some(peer) = waiting.device.peer
            && self.by_peer.get(&peer) == Some(&ifindex)
        {
            self.by_peer.remove(&peer);
        }
        Some(waiting)
    }

    /// Notes a change of a device that waits.
    pub(super) fn observe(&mut self, observation: &Observation, at: Timestamp) {
        if self.waiting.is_empty() {
            return;
        }
        let (changed, address) = match observation {
            Observation::Link(link) => (Some(link.ifindex), None),
            Observation::PortVlan(vlan) => (Some(vlan.ifindex), None),
            Observation::HostAddress(ifindex, _) | Observation::HostAddressGone(ifindex, _) => {
                (Some(*ifindex), None)
            }
            Observation::Route(route)
            | Observation::RouteBeside(route, _)
            | Observation::RouteGone(route) => (Some(route.ifindex), None),
            Observation::PodAddress(peer, assigned) => {
                (self.by_peer.get(peer).copied(), Some(assigned.address))
            }
            Observation::PodAddressGone(peer, _) | Observation::PodLink(peer, _) => {
                (self.by_peer.get(peer).copied(), None)
            }
            // Traffic, and what concerns no single device. A removal and a moved peer are effects of the engine.
            Observation::LinkGone(_)
            | Observation::NamespaceIdFreed(_)
            | Observation::PeerMoved(_)
            | Observation::NotificationsLost
            | Observation::Neighbour(_)
            | Observation::NeighbourGone(..)
            | Observation::Fdb(_)
            | Observation::FdbGone(_)
            | Observation::RoutingChanged(_)
            | Observation::RoutesLookedUp(_)
            | Observation::Frame(_)
            | Observation::UnansweredProbe(_)
            | Observation::SnapshotStarted(_)
            | Observation::SelfCheckStarted(_)
            | Observation::Snapshot(..)
            | Observation::SnapshotFailed(_) => return,
        };
        let Some(waiting) = changed.and_then(|ifindex| self.waiting.get_mut(&ifindex)) else {
            return;
        };
        waiting.last_change = at;
        if address.is_some_and(|address| !is_link_local(address)) {
            waiting.reads_at = None;
        }
    }

    /// When [`Self::take_due`] has to be called next.
    pub(super) fn next_due(&self) -> Option<Timestamp> {
        self.checks.first().map(|(at, _)| *at)
    }

    /// What is due by now.
    pub(super) fn take_due(&mut self, now: Timestamp) -> Vec<DueStep> {
        let mut due = Vec::new();
        while let Some((at, ifindex)) = self.checks.first().copied()
            && at <= now
        {
            self.checks.remove(&(at, ifindex));
            let Some(waiting) = self.waiting.get_mut(&ifindex) else {
                continue;
            };
            if waiting.attaches_at() <= now {
                due.extend(
                    self.take(ifindex)
                        .map(|waited| DueStep::Attach(waited.device)),
                );
                continue;
            }
            if waiting.reads_at.take_if(|at| *at <= now).is_some() {
                due.push(DueStep::Read(waiting.device.clone()));
            }
            waiting.next_check = waiting.next_step();
            self.checks.insert((waiting.next_check, ifindex));
        }
        due
    }
}

/// The kernel assigns such addresses itself.
fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests;
