//! Addresses on further interfaces of a pod: its `lo`, a dummy, a macvlan on top of one of its devices' peers.
//!
//! Bound: as many of one peer as it may have assigned, and more if others claim them. Of those beyond, only the addresses are
//! remembered; a snapshot lists a bounded number of them.

use std::{collections::BTreeSet, net::IpAddr};

use crate::{
    mirror::facts::{Facts, contest::CONTESTED_FACTOR},
    model::{
        beginning::{Beginning, Seen},
        observation::{Mac, Peer, Timestamp},
        settings::Bounds,
        snapshot::{FurtherAddress, FurtherPlace},
    },
};

/// An address on a further interface, as it concerns the device of `peer`.
#[derive(Clone, Debug)]
pub(crate) struct FurtherFact {
    pub(crate) peer: Peer,
    /// The name of the interface that has the address.
    pub(crate) interface: String,
    /// The hardware address that it answers with, if it is not the peer's.
    pub(crate) mac: Option<Mac>,
    pub(crate) place: FurtherPlace,
    pub(crate) seen: Seen,
}

impl Facts {
    /// Replaces what further interfaces have that concerns the device of `peer`. Returns the addresses that were added or are on
    /// another kind of interface now, and those that were removed.
    pub(crate) fn set_further(
        &mut self,
        peer: Peer,
        found: Vec<FurtherAddress>,
        (at, beginning): (Timestamp, Beginning),
        bounds: &Bounds,
    ) -> (Vec<IpAddr>, Vec<IpAddr>) {
        let mut found = found;
        self.further_beyond.remove(&peer);
        if found.len() > bounds.claims_per_device {
            found.sort_by_cached_key(|f| !self.may_contest_further(f.address, peer));
            let contested = found.partition_point(|f| self.may_contest_further(f.address, peer));
            let most = bounds.claims_per_device.saturating_mul(CONTESTED_FACTOR);
            let kept = contested.clamp(bounds.claims_per_device, most);
            let beyond = found.split_off(kept.min(found.len()));
            self.further_beyond
                .insert(peer, beyond.into_iter().map(|f| f.address).collect());
        }
        let mut gone = self.further.remove(&peer).unwrap_or_default();
        let mut added = Vec::new();
        for FurtherAddress {
            address,
            interface,
            mac,
            place,
        } in found
        {
            let entry = self.by_address.entry(address).or_default();
            if let Some(known) = entry.further.iter_mut().find(|f| f.peer == peer) {
                known.seen.last = at;
                known.interface = interface;
                known.mac = mac;
                if known.place != place {
                    known.place = place;
                    added.push(address);
                }
            } else {
                entry.further.push(FurtherFact {
                    peer,
                    interface,
                    mac,
                    place,
                    seen: Seen::once(at, beginning),
                });
                added.push(address);
                self.promote(address, at, bounds);
            }
            gone.remove(&address);
            self.further.entry(peer).or_default().insert(address);
        }
        for address in &gone {
            self.remove_further(peer, *address);
        }
        (added, gone.into_iter().collect())
    }

    /// Removes everything that further interfaces have that concerns the device of `peer`.
    pub(super) fn remove_further_of(&mut self, peer: Peer) -> Vec<IpAddr> {
        self.further_beyond.remove(&peer);
        let addresses: Vec<_> = self.further.remove(&peer).into_iter().flatten().collect();
        for address in &addresses {
            self.remove_further(peer, *address);
        }
        addresses
    }

    /// The addresses on further interfaces that concern the device of `peer`.
    pub(crate) fn further_of(&self, peer: Peer) -> impl Iterator<Item = IpAddr> + '_ {
        self.further.get(&peer).into_iter().flatten().copied()
    }

    /// Whether anything may conflict with the address on a further interface of the pod with this peer.
    fn may_contest_further(&self, address: IpAddr, peer: Peer) -> bool {
        self.by_address.get(&address).is_some_and(|facts| {
            let is_other = |other: Peer| other.nsid != peer.nsid;
            let mut further = facts.further.iter();
            facts.assigned.iter().any(|a| is_other(a.peer))
                || !facts.frames.is_empty()
                || !facts.neighbours.is_empty()
                || further.any(|f| f.place == FurtherPlace::Above && is_other(f.peer))
        })
    }

    /// Another claim of the address was stored: pods that have it beyond their bounds are to be read.
    pub(super) fn note_contested_further(&mut self, address: IpAddr) {
        let beyond = self.further_beyond.iter();
        let peers = beyond.filter(|(_, addresses)| addresses.contains(&address));
        self.further_contested.extend(peers.map(|(peer, _)| *peer));
    }

    /// The peers of pods that are to be read, because another claims an address that they have beyond their bounds.
    pub(crate) fn take_contested_further(&mut self) -> BTreeSet<Peer> {
        std::mem::take(&mut self.further_contested)
    }

    fn remove_further(&mut self, peer: Peer, address: IpAddr) {
        if let Some(entry) = self.by_address.get_mut(&address) {
            entry.further.retain(|f| f.peer != peer);
        }
        self.drop_if_empty(address);
    }
}

impl crate::mirror::facts::AddressFacts {
    /// Whether a further interface has the address, in a way that concerns the device of `peer`.
    pub(crate) fn is_further_on(&self, peer: Peer) -> bool {
        self.further.iter().any(|f| f.peer == peer)
    }
}
