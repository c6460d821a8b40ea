//! Evidence by address: the only place where it is stored.
//!
//! Invariants: an address without facts has no entry; `owners` lists exactly the addresses that an
//! owner has facts for; `behind` lists exactly the hardware addresses in bridges' neighbour
//! entries, former ones included; what a pod can make grow stays within
//! [`Bounds::claims_per_device`](crate::model::Bounds::claims_per_device), except for what others claim too
//! ([`contest`]), everything else within [`Bounds::kernel_entries`](crate::model::Bounds::kernel_entries).

mod assigned;
mod contest;
mod frames;
mod internal;
mod neighbours;
mod overflow;
mod removals;
mod restored;

use std::{collections::BTreeSet, net::IpAddr};

pub use assigned::MAX_ASSIGNMENTS;
pub(crate) use assigned::{Assigned, AssignedOn, InternalInterface, RemovedAssignment};
pub(crate) use contest::Claimer;
pub(crate) use neighbours::{FormerLladdr, NeighbourFact, NeighbourUpdateContext};

pub(crate) use crate::model::Owner;
use crate::{
    counts::Counts,
    hash::{HashMap, HashSet},
    index::Index,
    mirror::topology::L3Presence,
    model::{Bounds, FrameFact, IfIndex, Link, Mac, NsId, Peer},
};
use overflow::AddressOverflow;
use removals::RecentRemovals;

/// All facts about one address.
#[derive(Clone, Debug, Default)]
pub(crate) struct AddressFacts {
    pub(crate) assigned: Vec<Assigned>,
    pub(crate) neighbours: Vec<NeighbourFact>,
    pub(crate) frames: Vec<FrameFact>,
}

impl AddressFacts {
    fn is_empty(&self) -> bool {
        self.assigned.is_empty() && self.neighbours.is_empty() && self.frames.is_empty()
    }

    /// Whether these facts can make two claimants.
    pub(crate) fn can_conflict(&self) -> bool {
        let by_neighbours = self.neighbours.iter().map(|n| 1 + n.former.len());
        self.assigned.len() + self.frames.len() + by_neighbours.sum::<usize>() > 1
    }

    /// The address as this owner has it assigned.
    pub(crate) fn assigned_to(&self, owner: Owner) -> Option<&Assigned> {
        self.assigned.iter().find(|a| a.owner() == owner)
    }

    pub(crate) fn is_assigned_on(&self, peer: Peer) -> bool {
        self.assigned_to(Owner::Peer(peer)).is_some()
    }

    /// Whether an internal interface has the address, in a way that concerns the device of `peer`.
    pub(crate) fn is_internal_on(&self, peer: Peer) -> bool {
        self.assigned_to(Owner::Internal(peer)).is_some()
    }

    /// Whether the pod behind a device has the address on the device's peer, or on an internal interface that concerns it.
    pub(crate) fn is_held_by(&self, device: &Link) -> bool {
        let has = |peer| self.is_assigned_on(peer) || self.is_internal_on(peer);
        device.peer.is_some_and(has)
    }

    /// The neighbour entry on a link.
    pub(crate) fn neighbour_on(&self, ifindex: IfIndex) -> Option<&NeighbourFact> {
        self.neighbours.iter().find(|n| n.ifindex == ifindex)
    }

    fn neighbour_on_mut(&mut self, ifindex: IfIndex) -> Option<&mut NeighbourFact> {
        self.neighbours.iter_mut().find(|n| n.ifindex == ifindex)
    }

    /// Whether an interface in this namespace has the address.
    pub(crate) fn is_in(&self, nsid: NsId) -> bool {
        let mut peers = self.assigned.iter().filter_map(Assigned::peer);
        peers.any(|peer| peer.nsid == nsid)
    }

    /// Whether the node has the address.
    pub(crate) fn is_on_node(&self) -> bool {
        let on_node = |a: &Assigned| matches!(a.on, AssignedOn::Node(_));
        self.assigned.iter().any(on_node)
    }

    /// The internal interfaces of pods that have the address.
    pub(crate) fn internal_interfaces(&self) -> impl Iterator<Item = (Peer, &InternalInterface)> {
        self.assigned
            .iter()
            .filter_map(Assigned::internal_interface)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Facts {
    bounds: Bounds,
    /// Boxed: a table has up to twice as many places as entries.
    by_address: HashMap<IpAddr, Box<AddressFacts>>,
    owners: Index<Owner, IpAddr>,
    /// Addresses on internal interfaces beyond the bound of their peer: stored once another claims the address too.
    internal_beyond_bound: HashMap<Peer, HashSet<IpAddr>>,
    /// Claims in frames, and neighbour entries, by link.
    frames: Counts<IfIndex>,
    neighbours: Counts<IfIndex>,
    neighbour_count: usize,
    host_count: usize,
    /// The addresses for which neighbour entries of a bridge have a hardware address.
    behind: Index<(IfIndex, Mac), IpAddr>,
    removals: RecentRemovals,
    /// Withdrawn neighbour entries.
    withdrawals: RecentRemovals,
    overflow: AddressOverflow,
    /// The node's addresses by link.
    pub(crate) presence: L3Presence,
    /// To be taken at the end of a step.
    pub(crate) side_effects: SideEffects,
}

/// What became of others while facts were stored and removed.
#[derive(Debug, Default)]
pub(crate) struct SideEffects {
    /// Peers that have addresses in `internal_beyond_bound` which another claims: they are to be read.
    pub(crate) contested_internal: BTreeSet<Peer>,
    /// Peers that lost addresses at the bound of all that are beyond the bounds of peers, once for each time.
    pub(crate) overflow_losers: Vec<Peer>,
    /// Addresses beyond the bounds of peers that are no claims any more.
    pub(crate) demoted: Vec<IpAddr>,
    /// Hardware addresses that left the last neighbour entry of their bridge.
    pub(crate) unreferenced: Vec<(IfIndex, Mac)>,
}

impl Facts {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            ..Self::default()
        }
    }

    pub(crate) fn get(&self, address: IpAddr) -> Option<&AddressFacts> {
        self.by_address.get(&address).map(Box::as_ref)
    }

    pub(crate) fn neighbour_count(&self) -> usize {
        self.neighbour_count
    }

    /// How many neighbour entries are on one link.
    pub(crate) fn neighbours_on(&self, ifindex: IfIndex) -> usize {
        self.neighbours.of(&ifindex)
    }

    /// How many addresses the node itself has, once for each link.
    pub(crate) fn host_count(&self) -> usize {
        self.host_count
    }

    pub(crate) fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.by_address.keys().copied()
    }

    pub(crate) fn owned_by(&self, owner: Owner) -> Vec<IpAddr> {
        self.owners.of(&owner).copied().collect()
    }

    /// Removes the facts of a link of the node (frames, neighbours, node addresses).
    pub(crate) fn remove_link(&mut self, ifindex: IfIndex) -> Vec<IpAddr> {
        let addresses = self.owned_by(Owner::Link(ifindex));
        for address in &addresses {
            self.remove_frames(ifindex, *address, |_| true);
            self.remove_neighbour(ifindex, *address);
            self.unassign(Owner::Link(ifindex), *address);
        }
        addresses
    }

    /// Removes the facts of a link as a pod device (frames, neighbours).
    pub(crate) fn remove_pod_claims(&mut self, ifindex: IfIndex) -> Vec<IpAddr> {
        let addresses = self.owned_by(Owner::Link(ifindex));
        for address in &addresses {
            self.remove_frames(ifindex, *address, |_| true);
            self.remove_neighbour(ifindex, *address);
        }
        addresses
    }

    fn unindex_link(&mut self, ifindex: IfIndex, address: IpAddr) {
        let still = self.by_address.get(&address).is_some_and(|entry| {
            entry.frames.iter().any(|f| f.ifindex == ifindex)
                || entry.neighbour_on(ifindex).is_some()
                || entry.assigned_to(Owner::Link(ifindex)).is_some()
        });
        if !still {
            self.owners.remove(Owner::Link(ifindex), &address);
        }
    }

    fn drop_if_empty(&mut self, address: IpAddr) {
        if self
            .by_address
            .get(&address)
            .is_some_and(|facts| facts.is_empty())
        {
            self.by_address.remove(&address);
        }
    }
}
