//! Addresses on further interfaces of a pod (its `lo`, a dummy, a macvlan on top) that the pod answers for on one of its
//! devices.

use std::net::IpAddr;

use super::Facts;
use crate::engine::{
    beginning::Beginning,
    observation::{Mac, Peer, Timestamp},
    settings::Bounds,
    snapshot::FurtherAddress,
};

/// An address on a further interface, for which the pod answers on the device of `peer`.
#[derive(Clone, Debug)]
pub(in crate::engine) struct FurtherFact {
    pub(in crate::engine) peer: Peer,
    /// The name of the interface that has the address.
    pub(in crate::engine) interface: String,
    /// The hardware address that it answers with, if it is not the peer's.
    pub(in crate::engine) mac: Option<Mac>,
    pub(in crate::engine) first: Timestamp,
    pub(in crate::engine) beginning: Beginning,
    pub(in crate::engine) last: Timestamp,
}

impl Facts {
    /// Replaces what the pod answers for on the device of `peer`. Returns the addresses that were added, and those that
    /// were removed.
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
        } in found
        {
            let entry = self.by_address.entry(address).or_default();
            if let Some(known) = entry.further.iter_mut().find(|f| f.peer == peer) {
                known.last = at;
                known.interface = interface;
                known.mac = mac;
            } else {
                entry.further.push(FurtherFact {
                    peer,
                    interface,
                    mac,
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

    /// Removes everything that the pod answers for on the device of `peer`.
    pub(super) fn remove_further_of(&mut self, peer: Peer) -> Vec<IpAddr> {
        let addresses: Vec<_> = self.further.remove(&peer).into_iter().flatten().collect();
        for address in &addresses {
            self.remove_further(peer, *address);
        }
        addresses
    }

    /// The addresses that the pod answers for on the device of `peer`.
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
    /// Whether the pod answers for the address on the device of `peer` because a further interface has it.
    pub(in crate::engine) fn is_further_on(&self, peer: Peer) -> bool {
        self.further.iter().any(|f| f.peer == peer)
    }
}
