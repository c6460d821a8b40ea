//! Addresses assigned to the pods' ends of devices and to the node's own links.
//!
//! Linux may have one IPv4 address several times on one link, each added and removed on its own
//! ([`AssignmentId`]). All of them are one fact, which ends with the last of them.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::{
    mirror::facts::{Facts, Owner, StoreOutcome, contest::Claimer},
    model::{
        beginning::{Beginning, Seen, UnknownBeginning},
        observation::{AssignedAddress, AssignmentId, IfIndex, Peer, Timestamp, Vlan},
        scope::{is_like, is_link_local},
        settings::Bounds,
    },
    small_set::{SmallSet, push_compact},
};

/// Bound on the remembered assignments of one address on one link: a pod may add an address once
/// for every peer address that it can think of.
pub const MAX_ASSIGNMENTS: usize = 16;

/// The assignments of one address on one link.
#[derive(Clone, Debug)]
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

/// An address assigned inside a pod's namespace.
#[derive(Clone, Debug)]
pub(crate) struct Assigned {
    pub(crate) peer: Peer,
    /// As last reported.
    pub(crate) info: AssignedAddress,
    assignments: Assignments,
    pub(crate) seen: Seen,
}

impl Assigned {
    pub(super) fn new(
        peer: Peer,
        info: AssignedAddress,
        assignments: Assignments,
        seen: Seen,
    ) -> Self {
        Self {
            peer,
            info,
            assignments,
            seen,
        }
    }

    /// The assignments of `address`, whose claim this is.
    pub(super) fn ids(&self, address: IpAddr) -> impl Iterator<Item = AssignmentId> + '_ {
        self.assignments.ids(address)
    }
}

/// An address of the node itself.
#[derive(Clone, Debug)]
pub(crate) struct HostAddress {
    pub(crate) ifindex: IfIndex,
    assignments: Assignments,
    pub(crate) seen: Seen,
}

impl Facts {
    /// Adds an address of a pod. Beyond the bound of its peer it is remembered, and counts once
    /// another claims it too.
    pub(crate) fn assign(
        &mut self,
        (device, peer): (IfIndex, Peer),
        info: AssignedAddress,
        (at, mut beginning): (Timestamp, Beginning),
        bounds: &Bounds,
    ) -> StoreOutcome {
        let address = info.address;
        if let Some(known) = self.assigned_mut(peer, address) {
            known.seen.last = at;
            known.assignments.add(info.id());
            // The state of duplicate address detection does not affect claims. It is shown in the evidence, and an address
            // for which it failed may be an anomaly.
            let is_same = known.info.dad_failed == info.dad_failed;
            known.info = info;
            return if is_same {
                StoreOutcome::Refreshed
            } else {
                StoreOutcome::Changed
            };
        }
        let claimer = Claimer {
            device,
            peer: Some(peer),
        };
        let count = self.assigned_count(peer);
        if count >= bounds.claims_per_device
            && !self.is_accepted_beyond(address, claimer, count, bounds)
        {
            return self.overflow(peer, info, bounds);
        }
        let known = self.overflow.take(peer, address);
        if known.is_some() {
            beginning = Beginning::unknown(UnknownBeginning::BeyondBound);
        }
        let mut assignments = known.unwrap_or_else(|| Assignments::new(info.id()));
        assignments.add(info.id());
        self.push_assigned(Assigned::new(
            peer,
            info,
            assignments,
            Seen::once(at, beginning),
        ));
        self.promote(address, at, bounds);
        StoreOutcome::Changed
    }

    pub(super) fn push_assigned(&mut self, assigned: Assigned) {
        let address = assigned.info.address;
        let owned = self.owners.entry(Owner::Peer(assigned.peer)).or_default();
        owned.insert(address);
        let entry = self.by_address.entry(address).or_default();
        push_compact(&mut entry.assigned, assigned);
    }

    /// How many addresses are assigned on `peer`.
    pub(crate) fn assigned_count(&self, peer: Peer) -> usize {
        self.owners.get(&Owner::Peer(peer)).map_or(0, SmallSet::len)
    }

    /// Whether an address of the family of `address` is assigned on `peer`; one that is not
    /// link-local, unless `address` is.
    pub(crate) fn has_address_like(&self, peer: Peer, address: IpAddr) -> bool {
        let owned = self.owners.get(&Owner::Peer(peer));
        owned.is_some_and(|owned| owned.iter().any(|known| is_like(*known, address)))
    }

    /// Whether only link-local addresses are assigned on `peer`, or none.
    pub(crate) fn is_bare(&self, peer: Peer) -> bool {
        let owned = self.owners.get(&Owner::Peer(peer));
        owned.is_none_or(|owned| owned.iter().all(|address| is_link_local(*address)))
    }

    /// Removes one assignment of an address on `peer`. The address itself stays until
    /// [`Facts::unassign`].
    pub(crate) fn remove_assignment(&mut self, peer: Peer, id: AssignmentId) -> RemovedAssignment {
        match self.assigned_mut(peer, id.address) {
            Some(known) => known.assignments.remove(id),
            None => self
                .overflow
                .remove(peer, id)
                .unwrap_or(RemovedAssignment::Last),
        }
    }

    /// The known assignments on `peer`.
    pub(crate) fn assignments(&self, peer: Peer) -> Vec<AssignmentId> {
        let assigned = self.assigned_on(peer);
        let ids = assigned.flat_map(|(address, a)| a.assignments.ids(address));
        ids.chain(self.overflow.ids(peer)).collect()
    }

    /// The addresses on `peer` that have, or had, more assignments than are known.
    pub(crate) fn overflowed_assignments(&self, peer: Peer) -> Vec<IpAddr> {
        self.assigned_on(peer)
            .filter(|(_, a)| a.assignments.overflowed)
            .map(|(address, _)| address)
            .collect()
    }

    /// A snapshot is about to name all assignments of an address that has more than are known.
    /// `true` if none is known, so that the address is gone unless the snapshot contains it.
    pub(crate) fn forget_overflow(&mut self, peer: Peer, address: IpAddr) -> bool {
        self.assigned_mut(peer, address).is_some_and(|known| {
            known.assignments.overflowed = false;
            known.assignments.known.is_empty()
        })
    }

    fn assigned_on(&self, peer: Peer) -> impl Iterator<Item = (IpAddr, &Assigned)> {
        let owned = self.owners.get(&Owner::Peer(peer));
        let addresses = owned.into_iter().flat_map(SmallSet::iter);
        addresses.filter_map(move |address| {
            let mut assigned = self.by_address.get(address)?.assigned.iter();
            Some((*address, assigned.find(|a| a.peer == peer)?))
        })
    }

    fn assigned_mut(&mut self, peer: Peer, address: IpAddr) -> Option<&mut Assigned> {
        let entry = self.by_address.get_mut(&address)?;
        entry.assigned.iter_mut().find(|a| a.peer == peer)
    }

    /// The address is no longer assigned on `peer`. `true` if it was.
    pub(crate) fn unassign(&mut self, peer: Peer, address: IpAddr) -> bool {
        let mut removed = false;
        if let Some(entry) = self.by_address.get_mut(&address) {
            let before = entry.assigned.len();
            entry.assigned.retain(|a| a.peer != peer);
            removed = entry.assigned.len() != before;
        }
        self.unindex(Owner::Peer(peer), address);
        self.drop_if_empty(address);
        removed
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
        let mut addresses = self.owned_by(Owner::Peer(peer));
        for address in &addresses {
            if let Some(entry) = self.by_address.get_mut(address) {
                entry.assigned.retain(|a| a.peer != peer);
            }
            self.drop_if_empty(*address);
        }
        self.owners.remove(&Owner::Peer(peer));
        self.overflow.remove_peer(peer);
        addresses.extend(self.remove_further_of(peer));
        addresses
    }

    pub(crate) fn assign_host(
        &mut self,
        ifindex: IfIndex,
        info: AssignedAddress,
        (at, beginning): (Timestamp, Beginning),
        bounds: &Bounds,
    ) -> StoreOutcome {
        let address = info.address;
        if let Some(known) = self.host_mut(ifindex, address) {
            known.seen.last = at;
            known.assignments.add(info.id());
            return StoreOutcome::Refreshed;
        }
        if self.host_count >= bounds.kernel_entries {
            return StoreOutcome::Refused;
        }
        let entry = self.by_address.entry(address).or_default();
        let added = HostAddress {
            ifindex,
            assignments: Assignments::new(info.id()),
            seen: Seen::once(at, beginning),
        };
        push_compact(&mut entry.host, added);
        self.host_count += 1;
        self.presence.add(ifindex, address);
        self.index_link(ifindex, address);
        self.promote(address, at, bounds);
        StoreOutcome::Changed
    }

    /// Removes one assignment of a node's address. The address itself stays until
    /// [`Facts::unassign_host`].
    pub(crate) fn remove_host_assignment(
        &mut self,
        ifindex: IfIndex,
        id: AssignmentId,
    ) -> RemovedAssignment {
        self.host_mut(ifindex, id.address)
            .map_or(RemovedAssignment::Last, |known| {
                known.assignments.remove(id)
            })
    }

    pub(crate) fn unassign_host(&mut self, ifindex: IfIndex, address: IpAddr) -> bool {
        let Some(entry) = self.by_address.get_mut(&address) else {
            return false;
        };
        let before = entry.host.len();
        entry.host.retain(|h| h.ifindex != ifindex);
        let gone = before - entry.host.len();
        self.host_count -= gone;
        if gone > 0 {
            self.presence.remove(ifindex, address);
        }
        self.unindex_link(ifindex, address);
        self.drop_if_empty(address);
        gone > 0
    }

    /// The known assignments of the node's own addresses, with their links.
    pub(crate) fn host_assignments(&self) -> impl Iterator<Item = (IfIndex, AssignmentId)> + '_ {
        self.by_address.iter().flat_map(|(address, facts)| {
            facts.host.iter().flat_map(|h| {
                let ids = h.assignments.ids(*address);
                ids.map(|id| (h.ifindex, id))
            })
        })
    }

    /// The node's addresses that have, or had, more assignments than are known.
    pub(crate) fn overflowed_host_assignments(&self) -> Vec<(IfIndex, IpAddr)> {
        let addresses = self.by_address.iter();
        addresses
            .flat_map(|(address, facts)| {
                let overflowed = facts.host.iter().filter(|h| h.assignments.overflowed);
                overflowed.map(|h| (h.ifindex, *address))
            })
            .collect()
    }

    /// As [`Facts::forget_overflow`], for an address of the node.
    pub(crate) fn forget_host_overflow(&mut self, ifindex: IfIndex, address: IpAddr) -> bool {
        self.host_mut(ifindex, address).is_some_and(|known| {
            known.assignments.overflowed = false;
            known.assignments.known.is_empty()
        })
    }

    fn host_mut(&mut self, ifindex: IfIndex, address: IpAddr) -> Option<&mut HostAddress> {
        let entry = self.by_address.get_mut(&address)?;
        entry.host.iter_mut().find(|h| h.ifindex == ifindex)
    }
}
