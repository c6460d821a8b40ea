//! Addresses on further interfaces of a pod: its `lo`, a dummy, a macvlan on top of one of its devices' peers.

use std::net::IpAddr;

use super::Facts;
use crate::engine::{
    beginning::Beginning,
    observation::{Mac, Peer, Timestamp},
    settings::Bounds,
    snapshot::{FurtherAddress, FurtherPlace},
};

/// An address on a further interface, as it concerns the device of `peer`.
#[derive(Clone, Debug)]
pub(in crate::engine) struct FurtherFact {
    pub(in crate::engine) peer: Peer,
    /// The name of the interface that has the address.
    pub(in crate::engine) interface: String,
    /// The hardware address that it answers with, if it is not the peer's.
    pub(in crate::engine) mac: Option<Mac>,
    pub(in crate::engine) place: FurtherPlace,
    pub(in crate::engine) first: Timestamp,
    pub(in crate::engine) beginning: Beginning,
    pub(in crate::engine) last: Timestamp,
}

impl Facts {
    /// Replaces what further interfaces have that concerns the device of `peer`. Returns the addresses that were added or are on
    /// another kind of interface now, and those that were removed.
    pub(in crate::engine) fn set_further(
        &mut self,
        peer: Peer,
        found: Vec<FurtherAddress>,
        (at, beginning): (Timestamp, Beginning),
        bounds: &Bounds,
    ) -> (Vec<IpAddr>, Vec<IpAddr>) {
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
                known.last = at;
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
                    first: at,
                    beginning,
                    last: at,
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
        let addresses: Vec<_> = self.further.remove(&peer).into_iter().flatten().collect();
        for address in &addresses {
            self.remove_further(peer, *address);
        }
        addresses
    }

    /// The addresses on further interfaces that concern the device of `peer`.
    pub(in crate::engine) fn further_of(&self, peer: Peer) -> impl Iterator<Item = IpAddr> + '_ {
        self.further.get(&peer).into_iter().flatten().copied()
    }

    fn remove_further(&mut self, peer: Peer, address: IpAddr) {
        if let Some(entry) = self.by_address.get_mut(&address) {
            entry.further.retain(|f| f.peer != peer);
        }
        self.drop_if_empty(address);
    }
}

impl super::AddressFacts {
    /// Whether a further interface has the address, in a way that concerns the device of `peer`.
    pub(in crate::engine) fn is_further_on(&self, peer: Peer) -> bool {
        self.further.iter().any(|f| f.peer == peer)
    }
}
