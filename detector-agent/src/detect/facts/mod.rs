//! What the kernel and the pods said, by address: the only place where evidence is kept.
//!
//! Invariants: an address without facts has no entry; `owners` lists exactly the addresses an owner has facts for;
//! `behind` lists exactly the hardware addresses that bridges' neighbour entries give or lately gave; what a pod can
//! make grow stays within [`Bounds::claims_per_device`], everything else within [`Bounds::kernel_entries`].

mod frames;
mod neighbours;
mod removals;

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
};

pub(super) use frames::FrameFact;
pub(super) use neighbours::{NeighbourFact, Telling};

use super::{
    observation::{AssignedAddress, IfIndex, Mac, Peer, Timestamp, Vlan},
    settings::Bounds,
};
use removals::Removals;

/// An address assigned inside a pod's namespace.
#[derive(Clone, Debug)]
pub(super) struct Assigned {
    pub(super) peer: Peer,
    pub(super) info: AssignedAddress,
    pub(super) first: Timestamp,
    pub(super) last: Timestamp,
}

/// An address of the node itself.
#[derive(Clone, Debug)]
pub(super) struct HostAddress {
    pub(super) ifindex: IfIndex,
    pub(super) first: Timestamp,
    pub(super) last: Timestamp,
}

/// Everything known of one address.
#[derive(Clone, Debug, Default)]
pub(super) struct AddressFacts {
    pub(super) assigned: Vec<Assigned>,
    pub(super) host: Vec<HostAddress>,
    pub(super) neighbours: Vec<NeighbourFact>,
    pub(super) frames: Vec<FrameFact>,
}

impl AddressFacts {
    fn is_empty(&self) -> bool {
        self.assigned.is_empty()
            && self.host.is_empty()
            && self.neighbours.is_empty()
            && self.frames.is_empty()
    }

    /// Whether these facts could make two claimants.
    pub(super) fn may_conflict(&self) -> bool {
        let by_neighbours = self.neighbours.iter().map(|n| 1 + n.former.len());
        self.assigned.len() + self.host.len() + self.frames.len() + by_neighbours.sum::<usize>() > 1
    }

    pub(super) fn assigned_on(&self, peer: Peer) -> bool {
        self.assigned.iter().any(|a| a.peer == peer)
    }
}

/// Whose facts: those of a link of the node, or of a pod's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Owner {
    Link(IfIndex),
    Peer(Peer),
}

/// What storing a fact came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    /// The set of claimants may have changed.
    Changed,
    /// Only a time moved.
    Refreshed,
    /// A bound was reached.
    Refused,
}

/// How many facts of one sort each link has.
#[derive(Debug, Default)]
struct PerLink(HashMap<IfIndex, usize>);

impl PerLink {
    fn of(&self, ifindex: IfIndex) -> usize {
        self.0.get(&ifindex).copied().unwrap_or_default()
    }

    fn add(&mut self, ifindex: IfIndex) {
        *self.0.entry(ifindex).or_default() += 1;
    }

    fn take(&mut self, ifindex: IfIndex, count: usize) {
        if let Some(held) = self.0.get_mut(&ifindex) {
            *held = held.saturating_sub(count);
            if *held == 0 {
                self.0.remove(&ifindex);
            }
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Facts {
    by_address: HashMap<IpAddr, AddressFacts>,
    owners: HashMap<Owner, HashSet<IpAddr>>,
    frames: PerLink,
    neighbours: PerLink,
    neighbour_count: usize,
    host_count: usize,
    /// Which addresses a bridge's neighbour entries give for a hardware address.
    behind: HashMap<(IfIndex, Mac), HashSet<IpAddr>>,
    /// What was taken out of `behind` since last asked.
    unasked: Vec<(IfIndex, Mac)>,
    removals: Removals,
}

impl Facts {
    pub(super) fn get(&self, address: IpAddr) -> Option<&AddressFacts> {
        self.by_address.get(&address)
    }

    pub(super) fn len(&self) -> usize {
        self.by_address.len()
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.by_address.keys().copied()
    }

    pub(super) fn owned_by(&self, owner: Owner) -> Vec<IpAddr> {
        self.owners
            .get(&owner)
            .map(|set| set.iter().copied().collect())
            .unwrap_or_default()
    }

    pub(super) fn assign(
        &mut self,
        peer: Peer,
        info: AssignedAddress,
        at: Timestamp,
        bounds: &Bounds,
    ) -> Stored {
        let owner = Owner::Peer(peer);
        let held = self.owners.get(&owner).map_or(0, HashSet::len);
        let entry = self.by_address.entry(info.address).or_default();
        if let Some(known) = entry.assigned.iter_mut().find(|a| a.peer == peer) {
            known.last = at;
            let changed = known.info != info;
            known.info = info;
            return if changed {
                Stored::Changed
            } else {
                Stored::Refreshed
            };
        }
        if held >= bounds.claims_per_device {
            self.drop_if_empty(info.address);
            return Stored::Refused;
        }
        entry.assigned.push(Assigned {
            peer,
            info,
            first: at,
            last: at,
        });
        self.owners.entry(owner).or_default().insert(info.address);
        Stored::Changed
    }

    /// The address is no longer assigned on `peer`; `device` is the pod device there, whose untagged frames for it are
    /// no longer believed. Says whether there was anything to forget.
    pub(super) fn unassign(
        &mut self,
        peer: Peer,
        address: IpAddr,
        device: IfIndex,
        at: Timestamp,
    ) -> bool {
        let mut forgotten = false;
        if let Some(entry) = self.by_address.get_mut(&address) {
            let before = entry.assigned.len();
            entry.assigned.retain(|a| a.peer != peer);
            forgotten = entry.assigned.len() != before;
        }
        self.unindex(Owner::Peer(peer), address);
        self.removals.note(device, address, at);
        forgotten |= self.forget_frames(device, address, |f| f.vlan == Vlan::default());
        self.drop_if_empty(address);
        forgotten
    }

    pub(super) fn host(
        &mut self,
        ifindex: IfIndex,
        address: IpAddr,
        at: Timestamp,
        bounds: &Bounds,
    ) -> Stored {
        let entry = self.by_address.entry(address).or_default();
        if let Some(known) = entry.host.iter_mut().find(|h| h.ifindex == ifindex) {
            known.last = at;
            return Stored::Refreshed;
        }
        if self.host_count >= bounds.kernel_entries {
            self.drop_if_empty(address);
            return Stored::Refused;
        }
        entry.host.push(HostAddress {
            ifindex,
            first: at,
            last: at,
        });
        self.host_count += 1;
        self.own(ifindex, address);
        Stored::Changed
    }

    pub(super) fn unhost(&mut self, ifindex: IfIndex, address: IpAddr) -> bool {
        let Some(entry) = self.by_address.get_mut(&address) else {
            return false;
        };
        let before = entry.host.len();
        entry.host.retain(|h| h.ifindex != ifindex);
        let gone = before - entry.host.len();
        self.host_count -= gone;
        self.unindex_link(ifindex, address);
        self.drop_if_empty(address);
        gone > 0
    }

    /// The node's own addresses, with the links they stand on.
    pub(super) fn hosts(&self) -> impl Iterator<Item = (IfIndex, IpAddr)> + '_ {
        self.by_address
            .iter()
            .flat_map(|(address, facts)| facts.host.iter().map(|h| (h.ifindex, *address)))
    }

    /// Forgets what a link of the node said itself (frames, neighbours, node addresses).
    pub(super) fn forget_link(&mut self, ifindex: IfIndex) -> Vec<IpAddr> {
        let addresses = self.owned_by(Owner::Link(ifindex));
        for address in &addresses {
            self.forget_frames(ifindex, *address, |_| true);
            self.forget_neighbour(ifindex, *address);
            self.unhost(ifindex, *address);
        }
        addresses
    }

    /// Forgets what was believed of a link as a pod's device (frames, neighbours).
    pub(super) fn forget_pod(&mut self, ifindex: IfIndex) -> Vec<IpAddr> {
        let addresses = self.owned_by(Owner::Link(ifindex));
        for address in &addresses {
            self.forget_frames(ifindex, *address, |_| true);
            self.forget_neighbour(ifindex, *address);
        }
        addresses
    }

    /// Forgets the addresses assigned on a pod's end.
    pub(super) fn forget_peer(&mut self, peer: Peer) -> Vec<IpAddr> {
        let addresses = self.owned_by(Owner::Peer(peer));
        for address in &addresses {
            if let Some(entry) = self.by_address.get_mut(address) {
                entry.assigned.retain(|a| a.peer != peer);
            }
            self.drop_if_empty(*address);
        }
        self.owners.remove(&Owner::Peer(peer));
        addresses
    }

    fn own(&mut self, ifindex: IfIndex, address: IpAddr) {
        self.owners
            .entry(Owner::Link(ifindex))
            .or_default()
            .insert(address);
    }

    fn unindex_link(&mut self, ifindex: IfIndex, address: IpAddr) {
        let still = self.by_address.get(&address).is_some_and(|entry| {
            entry.frames.iter().any(|f| f.ifindex == ifindex)
                || entry.neighbours.iter().any(|n| n.ifindex == ifindex)
                || entry.host.iter().any(|h| h.ifindex == ifindex)
        });
        if !still {
            self.unindex(Owner::Link(ifindex), address);
        }
    }

    fn unindex(&mut self, owner: Owner, address: IpAddr) {
        if let Some(set) = self.owners.get_mut(&owner) {
            set.remove(&address);
            if set.is_empty() {
                self.owners.remove(&owner);
            }
        }
    }

    fn drop_if_empty(&mut self, address: IpAddr) {
        if self
            .by_address
            .get(&address)
            .is_some_and(AddressFacts::is_empty)
        {
            self.by_address.remove(&address);
        }
    }
}
