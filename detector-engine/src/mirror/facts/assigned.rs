//! Addresses assigned to the pods' ends of devices, to internal interfaces of pods and to the node's own links.
//!
//! Linux may have one IPv4 address several times on one link, each added and removed on its own
//! ([`AssignmentId`]). All of them are one fact, which ends with the last of them.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::{
    mirror::{
        StoreOutcome,
        facts::{Facts, contest::Claimer},
    },
    model::{
        AssignedAddress, AssignmentId, Beginning, IfIndex, InternalPlace, Mac, Owner, Peer, Seen,
        Timestamp, UnknownBeginning, Vlan, is_like, is_link_local,
    },
    small_set::{SmallSet, push_compact},
};

/// Bound on the remembered assignments of one address on one link: a pod may add an address once
/// for every peer address that it can think of.
pub const MAX_ASSIGNMENTS: usize = 16;

/// The assignments of one address on one link.
#[derive(Clone, Debug, Default)]
pub(super) struct Assignments {
    known: SmallSet<IpNet>,
    /// There were more than are known. Which of those still exist, only a snapshot shows.
    overflowed: bool,
}

/// What is left of an address on a link once an assignment was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RemovedAssignment {
    /// Nothing: it was the last one, or the address was not assigned.
    Last,
    /// Other assignments of the same address.
    OthersRemain,
    /// Possibly some of those beyond [`MAX_ASSIGNMENTS`].
    Unknown,
}

impl Assignments {
    pub(super) fn new(id: AssignmentId) -> Self {
        Self {
            known: SmallSet::One(id.prefix),
            overflowed: false,
        }
    }

    pub(super) fn add(&mut self, id: AssignmentId) {
        if self.known.contains(&id.prefix) {
            return;
        }
        if self.known.len() < MAX_ASSIGNMENTS {
            self.known.insert(id.prefix);
        } else {
            self.overflowed = true;
        }
    }

    pub(super) fn remove(&mut self, id: AssignmentId) -> RemovedAssignment {
        self.known.remove(&id.prefix);
        match (self.known.is_empty(), self.overflowed) {
            (false, _) => RemovedAssignment::OthersRemain,
            (true, true) => RemovedAssignment::Unknown,
            (true, false) => RemovedAssignment::Last,
        }
    }

    pub(super) fn ids(&self, address: IpAddr) -> impl Iterator<Item = AssignmentId> + '_ {
        let id = move |prefix: &IpNet| AssignmentId {
            address,
            prefix: *prefix,
        };
        self.known.iter().map(id)
    }
}

/// The interface that has an address.
#[derive(Clone, Debug)]
pub(crate) enum AssignedOn {
    /// A link of the node.
    Node(IfIndex),
    /// The pod's end of a device; the address as last reported.
    Pod(Peer, AssignedAddress),
    /// Another interface of a pod, as it concerns the device of this peer. Only snapshots show these.
    Internal(Peer, InternalInterface),
}

/// An internal interface of a pod with an address.
#[derive(Clone, Debug)]
pub(crate) struct InternalInterface {
    pub(crate) name: String,
    /// The hardware address that it answers with, if it is not the peer's.
    pub(crate) mac: Option<Mac>,
    pub(crate) place: InternalPlace,
}

/// An address that an interface of the node or of a pod has.
#[derive(Clone, Debug)]
pub(crate) struct Assigned {
    pub(crate) on: AssignedOn,
    /// None on internal interfaces.
    assignments: Assignments,
    pub(crate) seen: Seen,
}

impl Assigned {
    pub(super) fn on_pod(
        peer: Peer,
        info: AssignedAddress,
        assignments: Assignments,
        seen: Seen,
    ) -> Self {
        Self {
            on: AssignedOn::Pod(peer, info),
            assignments,
            seen,
        }
    }

    pub(super) fn on_internal(peer: Peer, interface: InternalInterface, seen: Seen) -> Self {
        Self {
            on: AssignedOn::Internal(peer, interface),
            assignments: Assignments::default(),
            seen,
        }
    }

    pub(crate) fn owner(&self) -> Owner {
        match self.on {
            AssignedOn::Node(ifindex) => Owner::Link(ifindex),
            AssignedOn::Pod(peer, _) => Owner::Peer(peer),
            AssignedOn::Internal(peer, _) => Owner::Internal(peer),
        }
    }

    /// The peer of the device that it concerns; `None` on the node.
    pub(crate) fn peer(&self) -> Option<Peer> {
        match self.on {
            AssignedOn::Node(_) => None,
            AssignedOn::Pod(peer, _) | AssignedOn::Internal(peer, _) => Some(peer),
        }
    }

    /// The address as reported of the pod's end of a device.
    pub(crate) fn info(&self) -> Option<&AssignedAddress> {
        match &self.on {
            AssignedOn::Pod(_, info) => Some(info),
            AssignedOn::Node(_) | AssignedOn::Internal(..) => None,
        }
    }

    /// The internal interface of a pod that has it.
    pub(crate) fn internal_interface(&self) -> Option<(Peer, &InternalInterface)> {
        match &self.on {
            AssignedOn::Internal(peer, interface) => Some((*peer, interface)),
            AssignedOn::Node(_) | AssignedOn::Pod(..) => None,
        }
    }

    /// The assignments of `address`, whose claim this is.
    pub(super) fn ids(&self, address: IpAddr) -> impl Iterator<Item = AssignmentId> + '_ {
        self.assignments.ids(address)
    }
}

impl Facts {
    /// Adds an address of a pod. Beyond the bound of its peer it is remembered, and counts once
    /// another claims it too.
    pub(crate) fn assign(
        &mut self,
        (device, peer): (IfIndex, Peer),
        info: AssignedAddress,
        (at, mut beginning): (Timestamp, Beginning),
    ) -> StoreOutcome {
        let address = info.address;
        if let Some(known) = self.assigned_mut(Owner::Peer(peer), address) {
            known.seen.last = at;
            known.assignments.add(info.id());
            // The state of duplicate address detection does not affect claims. It is shown in the evidence, and an address
            // for which it failed may be an anomaly.
            let is_same = known.info().map(|known| known.dad_failed) == Some(info.dad_failed);
            known.on = AssignedOn::Pod(peer, info);
            return if is_same {
                StoreOutcome::Known
            } else {
                StoreOutcome::Changed
            };
        }
        let claimer = Claimer {
            device,
            peer: Some(peer),
        };
        let count = self.assigned_count(peer);
        if count >= self.bounds.claims_per_device
            && !self.is_accepted_beyond(address, claimer, count)
        {
            return self.overflow(peer, info);
        }
        let known = self.overflow.take(peer, address);
        if known.is_some() {
            beginning = Beginning::unknown(UnknownBeginning::BeyondBound);
        }
        let mut assignments = known.unwrap_or_else(|| Assignments::new(info.id()));
        assignments.add(info.id());
        let seen = Seen::once(at, beginning);
        let added = Assigned::on_pod(peer, info, assignments, seen);
        self.insert_assigned(address, added);
        self.promote(address, at);
        StoreOutcome::Changed
    }

    pub(super) fn insert_assigned(&mut self, address: IpAddr, assigned: Assigned) {
        self.owners.insert(assigned.owner(), address);
        let entry = self.by_address.entry(address).or_default();
        push_compact(&mut entry.assigned, assigned);
    }

    /// How many addresses are assigned on `peer`.
    pub(crate) fn assigned_count(&self, peer: Peer) -> usize {
        self.owners.len_of(&Owner::Peer(peer))
    }

    /// Whether an address of the family of `address` is assigned on `peer`; one that is not
    /// link-local, unless `address` is.
    pub(crate) fn has_address_like(&self, peer: Peer, address: IpAddr) -> bool {
        let mut owned = self.owners.of(&Owner::Peer(peer));
        owned.any(|known| is_like(*known, address))
    }

    /// Whether only link-local addresses are assigned on `peer`, or none.
    pub(crate) fn is_bare(&self, peer: Peer) -> bool {
        let mut owned = self.owners.of(&Owner::Peer(peer));
        owned.all(|address| is_link_local(*address))
    }

    /// Removes one assignment of an address. The address itself stays until [`Facts::unassign`].
    pub(crate) fn remove_assignment(
        &mut self,
        owner: Owner,
        id: AssignmentId,
    ) -> RemovedAssignment {
        if let Some(known) = self.assigned_mut(owner, id.address) {
            return known.assignments.remove(id);
        }
        let beyond = match owner {
            Owner::Peer(peer) => self.overflow.remove(peer, id),
            Owner::Link(_) | Owner::Internal(_) => None,
        };
        beyond.unwrap_or(RemovedAssignment::Last)
    }

    /// The known assignments of an owner.
    pub(crate) fn assignments(&self, owner: Owner) -> Vec<AssignmentId> {
        let assigned = self.assigned_of(owner);
        let ids = assigned.flat_map(|(address, a)| a.ids(address));
        match owner {
            Owner::Peer(peer) => ids.chain(self.overflow.ids(peer)).collect(),
            Owner::Link(_) | Owner::Internal(_) => ids.collect(),
        }
    }

    /// The addresses that have, or had, more assignments than are known.
    pub(crate) fn overflowed_assignments(&self, owner: Owner) -> Vec<IpAddr> {
        self.assigned_of(owner)
            .filter(|(_, a)| a.assignments.overflowed)
            .map(|(address, _)| address)
            .collect()
    }

    /// A snapshot is about to name all assignments of an address that has more than are known.
    /// `true` if none is known, so that the address is gone unless the snapshot contains it.
    pub(crate) fn forget_overflow(&mut self, owner: Owner, address: IpAddr) -> bool {
        self.assigned_mut(owner, address).is_some_and(|known| {
            known.assignments.overflowed = false;
            known.assignments.known.is_empty()
        })
    }

    fn assigned_of(&self, owner: Owner) -> impl Iterator<Item = (IpAddr, &Assigned)> {
        self.owners.of(&owner).filter_map(move |address| {
            let facts = self.by_address.get(address)?;
            Some((*address, facts.assigned_to(owner)?))
        })
    }

    pub(super) fn assigned_mut(&mut self, owner: Owner, address: IpAddr) -> Option<&mut Assigned> {
        let entry = self.by_address.get_mut(&address)?;
        entry.assigned.iter_mut().find(|a| a.owner() == owner)
    }

    /// The owner no longer has the address. `true` if it had.
    pub(crate) fn unassign(&mut self, owner: Owner, address: IpAddr) -> bool {
        let Some(entry) = self.by_address.get_mut(&address) else {
            return false;
        };
        let before = entry.assigned.len();
        entry.assigned.retain(|a| a.owner() != owner);
        let was_assigned = entry.assigned.len() != before;
        match owner {
            Owner::Link(ifindex) => {
                if was_assigned {
                    self.host_count -= 1;
                    self.presence.remove(ifindex, address);
                }
                self.unindex_link(ifindex, address);
            }
            Owner::Peer(_) | Owner::Internal(_) => {
                self.owners.remove(owner, &address);
            }
        }
        self.drop_if_empty(address);
        was_assigned
    }

    /// The address was removed in the pod behind `device`: removes its untagged frame claims.
    /// `true` if there were any.
    pub(crate) fn withdraw_frames(
        &mut self,
        device: IfIndex,
        address: IpAddr,
        at: Timestamp,
    ) -> bool {
        self.removals.record(device, address, at);
        self.remove_frames(device, address, |f| f.vlan == Vlan::default())
    }

    /// Removes the addresses assigned on a pod's end, and those that the pod answers for there.
    pub(crate) fn remove_peer(&mut self, peer: Peer) -> Vec<IpAddr> {
        self.overflow.remove_peer(peer);
        self.internal_beyond_bound.remove(&peer);
        let mut removed = Vec::new();
        for owner in [Owner::Peer(peer), Owner::Internal(peer)] {
            for address in self.owned_by(owner) {
                self.unassign(owner, address);
                removed.push(address);
            }
        }
        removed
    }

    /// Adds an address of the node.
    pub(crate) fn assign_host(
        &mut self,
        ifindex: IfIndex,
        info: AssignedAddress,
        (at, beginning): (Timestamp, Beginning),
    ) -> StoreOutcome {
        let address = info.address;
        if let Some(known) = self.assigned_mut(Owner::Link(ifindex), address) {
            known.seen.last = at;
            known.assignments.add(info.id());
            return StoreOutcome::Known;
        }
        if self.host_count >= self.bounds.kernel_entries {
            return StoreOutcome::Refused;
        }
        let added = Assigned {
            on: AssignedOn::Node(ifindex),
            assignments: Assignments::new(info.id()),
            seen: Seen::once(at, beginning),
        };
        self.insert_assigned(address, added);
        self.host_count += 1;
        self.presence.add(ifindex, address);
        self.promote(address, at);
        StoreOutcome::Changed
    }

    /// The links of the node that have addresses.
    pub(crate) fn links_with_addresses(&self) -> Vec<Owner> {
        let is_assigned = |owner: &Owner| {
            matches!(owner, Owner::Link(_)) && self.assigned_of(*owner).next().is_some()
        };
        self.owners.keys().copied().filter(is_assigned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assignments_of_one_address_are_bounded() {
        let address = IpAddr::from([10, 0, 0, 5]);
        let id = |n| AssignmentId {
            address,
            prefix: IpAddr::from([10, 1, 0, n]).into(),
        };
        let mut assignments = Assignments::new(id(0));
        for n in [0].into_iter().chain(0..40) {
            assignments.add(id(n));
        }
        assert_eq!(assignments.ids(address).count(), MAX_ASSIGNMENTS);
        for n in 0..39 {
            let left = assignments.remove(id(n));
            assert_ne!(left, RemovedAssignment::Last, "{n}");
        }
        assert_eq!(assignments.remove(id(39)), RemovedAssignment::Unknown);
    }
}
