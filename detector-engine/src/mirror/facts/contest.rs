//! What is accepted beyond a device's bound: claims of addresses that others claim too. Without them, a device that fills its own
//! bound would hide a conflict.
//!
//! Bounds: a device gets [`CONTESTED_FACTOR`] times its bound for addresses that any other claims, and no limit for those of
//! claimants within their own bounds, which are few.

use std::net::IpAddr;

use crate::{
    mirror::facts::{AddressFacts, AssignedOn, Facts},
    model::{IfIndex, Peer},
};

/// How many times its bound a device may exceed by addresses that are claimed by others beyond their bounds.
pub(super) const CONTESTED_FACTOR: usize = 4;

/// The device that makes a claim, and its peer if it is known: claims of its own do not contest each other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claimer {
    pub(crate) device: IfIndex,
    pub(crate) peer: Option<Peer>,
}

impl Claimer {
    fn is_peer(self, other: Peer) -> bool {
        self.peer.is_some_and(|own| own.nsid == other.nsid)
    }
}

/// How another claimant of an address compares with its own bound.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rival {
    BeyondBound,
    WithinBound,
}

impl Facts {
    /// Whether a claim is accepted although its device, which has `count` of the kind, is at its bound.
    pub(super) fn is_accepted_beyond(
        &self,
        address: IpAddr,
        claimer: Claimer,
        count: usize,
    ) -> bool {
        let share = self.bounds.claims_per_device;
        match self.rival_of(address, claimer, share) {
            Some(Rival::WithinBound) => true,
            Some(Rival::BeyondBound) => count < share.saturating_mul(CONTESTED_FACTOR),
            None => false,
        }
    }

    /// Whether anyone but the pod behind this device and peer claims an address, within or beyond
    /// its bound.
    pub(crate) fn is_claimed_by_another(
        &self,
        address: IpAddr,
        (device, peer): (IfIndex, Peer),
    ) -> bool {
        let claimer = Claimer {
            device,
            peer: Some(peer),
        };
        self.rival_of(address, claimer, usize::MAX).is_some()
    }

    fn rival_of(&self, address: IpAddr, claimer: Claimer, share: usize) -> Option<Rival> {
        let facts = self.by_address.get(&address);
        let rival = facts.and_then(|facts| self.strongest_rival(facts, claimer, share));
        let of_overflow = || {
            let mut peers = self.overflow.peers_with(address);
            peers
                .any(|peer| !claimer.is_peer(peer))
                .then_some(Rival::BeyondBound)
        };
        rival.or_else(of_overflow)
    }

    fn strongest_rival(
        &self,
        facts: &AddressFacts,
        claimer: Claimer,
        share: usize,
    ) -> Option<Rival> {
        let rival = |count: usize| {
            if count < share {
                Rival::WithinBound
            } else {
                Rival::BeyondBound
            }
        };
        let assigned = facts.assigned.iter();
        let assigned = assigned.filter(|a| !a.peer().is_some_and(|peer| claimer.is_peer(peer)));
        let assigned = assigned.map(|a| match a.on {
            AssignedOn::Pod(peer, _) => rival(self.assigned_count(peer)),
            AssignedOn::Node(_) | AssignedOn::Internal(..) => Rival::WithinBound,
        });
        let others = |ifindex: IfIndex| ifindex != claimer.device;
        let neighbours = facts.neighbours.iter().filter(|n| others(n.ifindex));
        let neighbours = neighbours.map(|n| rival(self.neighbours.of(&n.ifindex)));
        let frames = facts.frames.iter().filter(|f| others(f.ifindex));
        let frames = frames.map(|f| rival(self.frames.of(&f.ifindex)));
        assigned.chain(neighbours).chain(frames).max()
    }
}
