//! When a new pod device is attached to.
//!
//! Attaching takes locks (RTNL) and processor time from the network plugin that is setting up the pod at that moment. The
//! addresses that the plugin assigns are reported by notifications, so little is missed by waiting until it is done: until
//! nothing changed on the device for [`QUIET_FOR`].
//!
//! Invariant: a device waits at most [`MAX_WAIT`], whatever happens to it or to others.

use std::{collections::HashMap, time::Duration};

use crate::engine::{ExpiryQueue, IfIndex, Observation, Peer, PodDevice, Timestamp};

/// A plugin's changes to a device follow each other within this time, except while it waits for IPAM.
const QUIET_FOR: Duration = Duration::from_millis(20);
/// A pod that changes its own addresses all the time is observed from then on.
const MAX_WAIT: Duration = Duration::from_millis(200);

#[derive(Debug)]
struct Waiting {
    device: PodDevice,
    last_change: Timestamp,
    until: Timestamp,
}

impl Waiting {
    fn attaches_at(&self) -> Timestamp {
        self.until.min(self.last_change + QUIET_FOR)
    }
}

/// The devices that wait.
#[derive(Debug, Default)]
pub(super) struct AttachSchedule {
    waiting: HashMap<IfIndex, Waiting>,
    by_peer: HashMap<Peer, IfIndex>,
    /// When each device is looked at next, not later than it is due. A change does not move the entry, because there may
    /// be tens of thousands a second.
    checks: ExpiryQueue<IfIndex>,
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
        let until = before.map_or(now + MAX_WAIT, |before| before.until);
        let waiting = Waiting {
            device,
            last_change: now,
            until,
        };
        if let Some(peer) = waiting.device.peer {
            self.by_peer.insert(peer, ifindex);
        }
        self.checks.schedule(ifindex, waiting.attaches_at());
        self.waiting.insert(ifindex, waiting);
    }

    /// Removes a device that is gone, or is attached to at once; `None` if it does not wait.
    pub(super) fn remove(&mut self, ifindex: IfIndex) -> Option<PodDevice> {
        self.take(ifindex).map(|waited| waited.device)
    }

    fn take(&mut self, ifindex: IfIndex) -> Option<Waiting> {
        let waiting = self.waiting.remove(&ifindex)?;
        self.checks.cancel(ifindex);
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
        let changed = match observation {
            Observation::Link(link) => Some(link.ifindex),
            Observation::PortVlan(vlan) => Some(vlan.ifindex),
            Observation::HostAddress(ifindex, _) | Observation::HostAddressGone(ifindex, _) => {
                Some(*ifindex)
            }
            Observation::Route(route)
            | Observation::RouteBeside(route, _)
            | Observation::RouteGone(route) => Some(route.ifindex),
            Observation::PodLink(peer, _)
            | Observation::PodAddress(peer, _)
            | Observation::PodAddressGone(peer, _) => self.by_peer.get(peer).copied(),
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
            | Observation::RouterAdvertisement(_)
            | Observation::SnapshotStarted(_)
            | Observation::SelfCheckStarted(_)
            | Observation::Snapshot(..)
            | Observation::SnapshotFailed(_) => return,
        };
        if let Some(waiting) = changed.and_then(|ifindex| self.waiting.get_mut(&ifindex)) {
            waiting.last_change = at;
        }
    }

    /// When [`Self::take_due`] has to be called next.
    pub(super) fn next_due(&self) -> Option<Timestamp> {
        self.checks.next_due()
    }

    /// The devices that are to be attached to by now. They wait no longer.
    pub(super) fn take_due(&mut self, now: Timestamp) -> Vec<PodDevice> {
        let mut due = Vec::new();
        while let Some(ifindex) = self.checks.pop_due(now) {
            match self.waiting.get(&ifindex).map(Waiting::attaches_at) {
                Some(at) if at > now => self.checks.schedule(ifindex, at),
                _ => due.extend(self.remove(ifindex)),
            }
        }
        due
    }
}

#[cfg(test)]
mod tests;
