//! Addresses assigned in a pod beyond its bound. They are kept in a compact form, count as claims only once another claims them
//! too, and hide no conflict therefore.
//!
//! Invariant: at most [`Bounds::overflow_addresses`](crate::model::Bounds) in all. At that bound, the peer that has the
//! most loses some.

use std::{collections::hash_map::Entry, net::IpAddr};

use crate::{
    hash::HashMap,
    mirror::{
        StoreOutcome,
        facts::{
            Assigned, Facts,
            assigned::{Assignments, RemovedAssignment},
        },
    },
    model::{
        AssignedAddress, AssignmentId, Beginning, Owner, Peer, Seen, Timestamp, UnknownBeginning,
        host_prefix_len,
    },
};

/// At the bound of all, which share of the largest peer's addresses makes room: few scans for many addresses.
const EVICTED_SHARE: usize = 8;

#[derive(Debug, Default)]
pub(super) struct AddressOverflow {
    by_peer: HashMap<Peer, HashMap<IpAddr, Assignments>>,
    len: usize,
}

impl AddressOverflow {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The peers that have the address.
    pub(super) fn peers_with(&self, address: IpAddr) -> impl Iterator<Item = Peer> + '_ {
        let peers = self.by_peer.iter();
        peers
            .filter(move |(_, addresses)| addresses.contains_key(&address))
            .map(|(peer, _)| *peer)
    }

    fn count(&self, peer: Peer) -> usize {
        self.by_peer.get(&peer).map_or(0, HashMap::len)
    }

    /// Adds an assignment; the peer that lost others because of it, or this one if there is no room.
    fn insert(&mut self, peer: Peer, id: AssignmentId, bound: usize) -> Result<Option<Peer>, ()> {
        let known = self.by_peer.get_mut(&peer);
        if let Some(known) = known.and_then(|addresses| addresses.get_mut(&id.address)) {
            known.add(id);
            return Ok(None);
        }
        let mut loser = None;
        if self.len >= bound {
            loser = Some(self.evict_for(peer).ok_or(())?);
        }
        let addresses = self.by_peer.entry(peer).or_default();
        addresses.insert(id.address, Assignments::new(id));
        self.len += 1;
        Ok(loser)
    }

    /// Removes addresses of the peer that has the most, if that is another one; returns it.
    fn evict_for(&mut self, peer: Peer) -> Option<Peer> {
        let (largest, count) = self
            .by_peer
            .iter()
            .map(|(peer, addresses)| (*peer, addresses.len()))
            .max_by_key(|(_, count)| *count)?;
        if largest == peer || count <= self.count(peer) + 1 {
            return None;
        }
        let addresses = self.by_peer.get_mut(&largest)?;
        let mut excess = count.div_ceil(EVICTED_SHARE);
        addresses.retain(|_, _| {
            let is_kept = excess == 0;
            excess = excess.saturating_sub(1);
            is_kept
        });
        self.len -= count - addresses.len();
        Some(largest)
    }

    pub(super) fn take(&mut self, peer: Peer, address: IpAddr) -> Option<Assignments> {
        let Entry::Occupied(mut entry) = self.by_peer.entry(peer) else {
            return None;
        };
        let taken = entry.get_mut().remove(&address)?;
        self.len -= 1;
        if entry.get().is_empty() {
            entry.remove();
        }
        Some(taken)
    }

    pub(super) fn remove_peer(&mut self, peer: Peer) {
        let removed = self.by_peer.remove(&peer);
        self.len -= removed.map_or(0, |addresses| addresses.len());
    }

    /// Removes one assignment; `None` if the address is not among these.
    pub(super) fn remove(&mut self, peer: Peer, id: AssignmentId) -> Option<RemovedAssignment> {
        let addresses = self.by_peer.get_mut(&peer)?;
        let outcome = addresses.get_mut(&id.address)?.remove(id);
        if outcome == RemovedAssignment::Last {
            self.take(peer, id.address);
        }
        Some(outcome)
    }

    /// The assignments of a peer.
    pub(super) fn ids(&self, peer: Peer) -> impl Iterator<Item = AssignmentId> + '_ {
        let addresses = self.by_peer.get(&peer).into_iter().flatten();
        addresses.flat_map(|(address, assignments)| assignments.ids(*address))
    }
}

impl Facts {
    /// Remembers an address beyond the peer's bound.
    pub(super) fn overflow(&mut self, peer: Peer, info: AssignedAddress) -> StoreOutcome {
        let bound = self.bounds.overflow_addresses;
        match self.overflow.insert(peer, info.id(), bound) {
            Ok(None) => StoreOutcome::Known,
            Ok(Some(loser)) => {
                self.side_effects.overflow_losers.push(loser);
                StoreOutcome::Known
            }
            Err(()) => StoreOutcome::Refused,
        }
    }

    /// Another claim of the address was stored: those beyond the bounds of peers count now.
    pub(super) fn promote(&mut self, address: IpAddr, at: Timestamp) {
        if !self.internal_beyond_bound.is_empty() {
            self.note_contested_internal(address);
        }
        if self.overflow.len() == 0 {
            return;
        }
        let peers: Vec<Peer> = self.overflow.peers_with(address).collect();
        for peer in peers {
            if self.assigned_count(peer) >= self.bounds.claims_per_device * 2 {
                self.demote_uncontested(peer);
            }
            let Some(assignments) = self.overflow.take(peer, address) else {
                continue;
            };
            // What else was reported about it is not remembered.
            let info = AssignedAddress {
                address,
                prefix_len: host_prefix_len(address),
                other_end: None,
                tentative: false,
                dad_failed: false,
                no_dad: false,
                autoconfigured: false,
            };
            let seen = Seen::once(at, Beginning::unknown(UnknownBeginning::BeyondBound));
            self.insert_assigned(address, Assigned::on_pod(peer, info, assignments, seen));
        }
    }

    /// Of a peer beyond its bound, moves the addresses that no other claims any more back.
    fn demote_uncontested(&mut self, peer: Peer) {
        let excess = self.assigned_count(peer) - self.bounds.claims_per_device;
        let mut uncontested = self.owned_by(Owner::Peer(peer));
        uncontested.retain(|address| {
            let facts = self.by_address.get(address);
            facts.is_some_and(|facts| !facts.can_conflict())
        });
        uncontested.truncate(excess);
        for address in uncontested {
            let assigned = self.assigned_mut(Owner::Peer(peer), address);
            let Some(ids) = assigned.map(|a| a.ids(address).collect::<Vec<_>>()) else {
                continue;
            };
            self.unassign(Owner::Peer(peer), address);
            self.side_effects.demoted.push(address);
            for id in ids {
                match self
                    .overflow
                    .insert(peer, id, self.bounds.overflow_addresses)
                {
                    Ok(loser) => self.side_effects.overflow_losers.extend(loser),
                    Err(()) => self.side_effects.overflow_losers.push(peer),
                }
            }
        }
    }

    /// How many addresses are beyond the bounds of their peers.
    pub(crate) fn overflow_count(&self) -> usize {
        self.overflow.len()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot continue fails")]

    use super::*;

    const BOUND: usize = 60;

    fn id(peer: Peer, n: u8) -> AssignmentId {
        let address = IpAddr::from([10, u8::try_from(peer.nsid).unwrap(), 0, n]);
        AssignmentId {
            address,
            prefix: address.into(),
        }
    }

    #[test]
    fn largest_peer_makes_room_at_the_bound() {
        let [first, second] = [1, 2].map(|nsid| Peer { nsid, ifindex: 2 });
        let mut overflow = AddressOverflow::default();
        for n in 0..200 {
            let is_kept = overflow.insert(first, id(first, n), BOUND).is_ok();
            assert_eq!(is_kept, usize::from(n) < BOUND, "{n}");
        }
        assert_eq!(overflow.len(), BOUND);
        for n in 0..40 {
            // Refused once both have about the same number.
            let _ = overflow.insert(second, id(second, n), BOUND);
            assert!(overflow.len() <= BOUND);
        }
        assert!(overflow.count(first) <= overflow.count(second) + 1);
        overflow.remove_peer(first);
        assert_eq!(overflow.len(), overflow.count(second));
    }
}
