//! Addresses on internal interfaces of a pod: its `lo`, a dummy, a macvlan on top of one of its devices' peers.
//!
//! Bound: as many of one peer as it may have assigned, and more if others claim them. Of those beyond, only the addresses are
//! remembered; a snapshot lists a bounded number of them.

use std::net::IpAddr;

use crate::{
    hash::HashSet,
    mirror::facts::{
        Assigned, AssignedOn, Facts, InternalInterface, Owner, contest::CONTESTED_FACTOR,
    },
    model::{Beginning, InternalAddress, InternalPlace, Peer, Seen, Timestamp},
};

impl Facts {
    /// Replaces what internal interfaces have that concerns the device of `peer`. Returns the addresses that were added or are on
    /// another kind of interface now, and those that were removed.
    pub(crate) fn set_internal(
        &mut self,
        peer: Peer,
        found: Vec<InternalAddress>,
        (at, beginning): (Timestamp, Beginning),
    ) -> (Vec<IpAddr>, Vec<IpAddr>) {
        let mut found = found;
        self.internal_beyond_bound.remove(&peer);
        if found.len() > self.bounds.claims_per_device {
            found.sort_by_cached_key(|f| !self.may_contest_internal(f.address, peer));
            let contested = found.partition_point(|f| self.may_contest_internal(f.address, peer));
            let most = self
                .bounds
                .claims_per_device
                .saturating_mul(CONTESTED_FACTOR);
            let kept = contested.clamp(self.bounds.claims_per_device, most);
            let beyond = found.split_off(kept.min(found.len()));
            self.internal_beyond_bound
                .insert(peer, beyond.into_iter().map(|f| f.address).collect());
        }
        let owner = Owner::Internal(peer);
        let mut gone: HashSet<_> = self.owned_by(owner).into_iter().collect();
        let mut added = Vec::new();
        for InternalAddress {
            address,
            interface: name,
            mac,
            place,
        } in found
        {
            gone.remove(&address);
            let interface = InternalInterface { name, mac, place };
            if let Some(known) = self.assigned_mut(owner, address) {
                known.seen.last = at;
                let before =
                    std::mem::replace(&mut known.on, AssignedOn::Internal(peer, interface));
                if !matches!(before, AssignedOn::Internal(_, before) if before.place == place) {
                    added.push(address);
                }
            } else {
                let seen = Seen::once(at, beginning);
                self.insert_assigned(address, Assigned::on_internal(peer, interface, seen));
                added.push(address);
                self.promote(address, at);
            }
        }
        for address in &gone {
            self.unassign(owner, *address);
        }
        (added, gone.into_iter().collect())
    }

    /// Whether anything may conflict with the address on an internal interface of the pod with this peer.
    fn may_contest_internal(&self, address: IpAddr, peer: Peer) -> bool {
        self.by_address.get(&address).is_some_and(|facts| {
            let is_other = |other: Peer| other.nsid != peer.nsid;
            let may_contest = |a: &Assigned| match &a.on {
                AssignedOn::Node(_) => false,
                AssignedOn::Pod(peer, _) => is_other(*peer),
                AssignedOn::Internal(peer, interface) => {
                    interface.place == InternalPlace::Above && is_other(*peer)
                }
            };
            facts.assigned.iter().any(may_contest)
                || !facts.frames.is_empty()
                || !facts.neighbours.is_empty()
        })
    }

    /// Another claim of the address was stored: pods that have it beyond their bounds are to be read.
    pub(super) fn note_contested_internal(&mut self, address: IpAddr) {
        let beyond = self.internal_beyond_bound.iter();
        let peers = beyond.filter(|(_, addresses)| addresses.contains(&address));
        let contested = &mut self.side_effects.contested_internal;
        contested.extend(peers.map(|(peer, _)| *peer));
    }
}
