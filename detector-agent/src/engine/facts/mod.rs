//! Evidence by address: the only place where it is stored.
//!
//! Invariants: an address without facts has no entry; `owners` lists exactly the addresses that an
//! owner has facts for; `behind` lists exactly the hardware addresses in bridges' neighbour
//! entries, former ones included; what a pod can make grow stays within
//! [`Bounds::claims_per_device`], everything else within [`Bounds::kernel_entries`].

mod frames;
mod neighbours;
mod removals;

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
};

pub(super) use frames::FrameFact;
pub(super) use neighbours::{NeighbourFact, NeighbourUpdateContext};

use super::{
    observation::{AssignedAddress, IfIndex, Mac, Peer, Timestamp, Vlan},
    settings::Bounds,
};
use removals::RecentRemovals;

/// The prefix lengths that one address has on one link: IPv4 allows several, each added and removed
/// separately.
#[derive(Clone, Debug)]
struct Prefixes(Vec<u8>);

impl Prefixes {
    fn add(&mut self, length: u8) {
        if !self.0.contains(&length) {
            self.0.push(length);
        }
    }

    /// Removes one if another remains; `false` if it was the last, so that the address is gone.
    fn remove(&mut self, length: u8) -> bool {
        if self.0.iter().all(|known| *known == length) {
            return false;
        }
        self.0.retain(|known| *known != length);
        true
    }
}

/// An address assigned inside a pod's namespace.
#[derive(Clone, Debug)]
pub(super) struct Assigned {
    pub(super) peer: Peer,
    /// As last reported.
    pub(super) info: AssignedAddress,
    prefixes: Prefixes,
    pub(super) first: Timestamp,
    pub(super) last: Timestamp,
}

/// An address of the node itself.
#[derive(Clone, Debug)]
pub(super) struct HostAddress {
    pub(super) ifindex: IfIndex,
    prefixes: Prefixes,
    pub(super) first: Timestamp,
    pub(super) last: Timestamp,
}

/// All facts about one address.
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

    /// Whether these facts can make two claimants.
    pub(super) fn can_conflict(&self) -> bool {
        let by_neighbours = self.neighbours.iter().map(|n| 1 + n.former.len());
        self.assigned.len() + self.host.len() + self.frames.len() + by_neighbours.sum::<usize>() > 1
    }

    pub(super) fn is_assigned_on(&self, peer: Peer) -> bool {
        self.assigned.iter().any(|a| a.peer == peer)
    }
}

/// The owner of facts: a link of the node, or the pod's end of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Owner {
    Link(IfIndex),
    Peer(Peer),
}

/// The result of storing a fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoreOutcome {
    /// The set of claimants may have changed.
    Changed,
    /// Only timestamps changed.
    Refreshed,
    /// Rejected at a bound.
    Refused,
}

/// Number of facts of one kind by link.
#[derive(Debug, Default)]
struct LinkCounts(HashMap<IfIndex, usize>);

impl LinkCounts {
    fn of(&self, ifindex: IfIndex) -> usize {
        self.0.get(&ifindex).copied().unwrap_or_default()
    }

    fn add(&mut self, ifindex: IfIndex) {
        *self.0.entry(ifindex).or_default() += 1;
    }

    fn subtract(&mut self, ifindex: IfIndex, count: usize) {
        if let Some(known) = self.0.get_mut(&ifindex) {
            *known = known.saturating_sub(count);
            if *known == 0 {
                self.0.remove(&ifindex);
            }
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Facts {
    by_address: HashMap<IpAddr, AddressFacts>,
    owners: HashMap<Owner, HashSet<IpAddr>>,
    frames: LinkCounts,
    neighbours: LinkCounts,
    neighbour_count: usize,
    host_count: usize,
    /// The addresses for which neighbour entries of a bridge have a hardware address.
    behind: HashMap<(IfIndex, Mac), HashSet<IpAddr>>,
    /// What was removed from `behind` since last taken.
    unreferenced: Vec<(IfIndex, Mac)>,
    removals: RecentRemovals,
}

impl Facts {
    pub(super) fn get(&self, address: IpAddr) -> Option<&AddressFacts> {
        self.by_address.get(&address)
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
    ) -> StoreOutcome {
        let owner = Owner::Peer(peer);
        let count = self.owners.get(&owner).map_or(0, HashSet::len);
        let entry = self.by_address.entry(info.address).or_default();
        if let Some(known) = entry.assigned.iter_mut().find(|a| a.peer == peer) {
            known.last = at;
            known.prefixes.add(info.prefix_len);
            // The state of duplicate address detection is shown in the evidence; it does not affect
            // decisions.
            known.info = info;
            return StoreOutcome::Refreshed;
        }
        if count >= bounds.claims_per_device {
            self.drop_if_empty(info.address);
            return StoreOutcome::Refused;
        }
        entry.assigned.push(Assigned {
            peer,
            info,
            prefixes: Prefixes(vec![info.prefix_len]),
            first: at,
            last: at,
        });
        self.owners.entry(owner).or_default().insert(info.address);
        StoreOutcome::Changed
    }

    /// The address is no longer assigned on `peer` with this prefix length; `true` if it remains
    /// with another one.
    pub(super) fn remove_prefix(&mut self, peer: Peer, address: IpAddr, prefix_len: u8) -> bool {
        let entry = self.by_address.get_mut(&address);
        entry
            .and_then(|entry| entry.assigned.iter_mut().find(|a| a.peer == peer))
            .is_some_and(|known| known.prefixes.remove(prefix_len))
    }

    /// The addresses assigned on `peer`, once for each prefix length.
    pub(super) fn assigned_prefixes(&self, peer: Peer) -> Vec<(IpAddr, u8)> {
        let addresses = self.owners.get(&Owner::Peer(peer)).into_iter().flatten();
        let known = addresses.filter_map(|address| {
            let assigned = &self.by_address.get(address)?.assigned;
            Some((*address, assigned.iter().find(|a| a.peer == peer)?))
        });
        known
            .flat_map(|(address, a)| a.prefixes.0.iter().map(move |length| (address, *length)))
            .collect()
    }

    /// The address is no longer assigned on `peer`. Untagged frame claims of `device`, the pod
    /// device there, are removed too. `true` if there was anything to remove.
    pub(super) fn unassign(
        &mut self,
        peer: Peer,
        address: IpAddr,
        device: IfIndex,
        at: Timestamp,
    ) -> bool {
        let mut removed = false;
        if let Some(entry) = self.by_address.get_mut(&address) {
            let before = entry.assigned.len();
            entry.assigned.retain(|a| a.peer != peer);
            removed = entry.assigned.len() != before;
        }
        self.unindex(Owner::Peer(peer), address);
        self.removals.record(device, address, at);
        removed |= self.remove_frames(device, address, |f| f.vlan == Vlan::default());
        self.drop_if_empty(address);
        removed
    }

    pub(super) fn assign_host(
        &mut self,
        ifindex: IfIndex,
        info: AssignedAddress,
        at: Timestamp,
        bounds: &Bounds,
    ) -> StoreOutcome {
        let address = info.address;
        let entry = self.by_address.entry(address).or_default();
        if let Some(known) = entry.host.iter_mut().find(|h| h.ifindex == ifindex) {
            known.last = at;
            known.prefixes.add(info.prefix_len);
            return StoreOutcome::Refreshed;
        }
        if self.host_count >= bounds.kernel_entries {
            self.drop_if_empty(address);
            return StoreOutcome::Refused;
        }
        entry.host.push(HostAddress {
            ifindex,
            prefixes: Prefixes(vec![info.prefix_len]),
            first: at,
            last: at,
        });
        self.host_count += 1;
        self.index_link(ifindex, address);
        StoreOutcome::Changed
    }

    /// The node's address is no longer on a link with this prefix length; `true` if it remains with
    /// another one.
    pub(super) fn remove_host_prefix(
        &mut self,
        ifindex: IfIndex,
        address: IpAddr,
        prefix_len: u8,
    ) -> bool {
        let entry = self.by_address.get_mut(&address);
        entry
            .and_then(|entry| entry.host.iter_mut().find(|h| h.ifindex == ifindex))
            .is_some_and(|known| known.prefixes.remove(prefix_len))
    }

    pub(super) fn unassign_host(&mut self, ifindex: IfIndex, address: IpAddr) -> bool {
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

    /// The node's own addresses with their links, once for each prefix length.
    pub(super) fn host_addresses(&self) -> impl Iterator<Item = (IfIndex, IpAddr, u8)> + '_ {
        self.by_address.iter().flat_map(|(address, facts)| {
            facts.host.iter().flat_map(|h| {
                let lengths = h.prefixes.0.iter();
                lengths.map(|length| (h.ifindex, *address, *length))
            })
        })
    }

    /// Removes the facts of a link of the node (frames, neighbours, node addresses).
    pub(super) fn remove_link(&mut self, ifindex: IfIndex) -> Vec<IpAddr> {
        let addresses = self.owned_by(Owner::Link(ifindex));
        for address in &addresses {
            self.remove_frames(ifindex, *address, |_| true);
            self.remove_neighbour(ifindex, *address);
            self.unassign_host(ifindex, *address);
        }
        addresses
    }

    /// Removes the facts of a link as a pod device (frames, neighbours).
    pub(super) fn remove_pod_claims(&mut self, ifindex: IfIndex) -> Vec<IpAddr> {
        let addresses = self.owned_by(Owner::Link(ifindex));
        for address in &addresses {
            self.remove_frames(ifindex, *address, |_| true);
            self.remove_neighbour(ifindex, *address);
        }
        addresses
    }

    /// Removes the addresses assigned on a pod's end.
    pub(super) fn remove_peer(&mut self, peer: Peer) -> Vec<IpAddr> {
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

    fn index_link(&mut self, ifindex: IfIndex, address: IpAddr) {
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
