//! The claims that are certain, for the comparison with other nodes, and which of them may have changed.
//!
//! Off the hot path: a step only notes addresses, and the event loop takes them after its round.

use std::net::IpAddr;

use super::Engine;
use crate::{
    conflict::{Claimant, ClaimantId},
    facts::Owner,
    observation::{IfIndex, NudState, Timestamp},
    scope::{NODE_WIDE, is_link_local},
};

/// A claim of a pod device with certain evidence, in what the node routes by its main table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertainClaim {
    /// The claimant.
    pub claimant: Claimant,
    /// The address is on the pod's end of the device, and not on another interface of the pod.
    pub is_on_device: bool,
    /// The node's packets for the address go there; only derived if there are several claimants.
    pub receives_traffic: bool,
}

impl Engine {
    /// From now on notes the addresses whose claims may have changed.
    pub fn follow_claims(&mut self) {
        let known = self.mirror.facts.addresses();
        self.noted.changed.get_or_insert_with(|| known.collect());
    }

    /// Whether there is something to take.
    #[must_use]
    pub fn has_changed_claims(&self) -> bool {
        let changed = self.noted.changed.as_ref();
        changed.is_some_and(|changed| !changed.is_empty())
    }

    /// Takes at most `limit` addresses whose claims may have changed.
    pub fn take_changed_claims(&mut self, limit: usize) -> Vec<IpAddr> {
        let Some(changed) = &mut self.noted.changed else {
            return Vec::new();
        };
        std::iter::from_fn(|| changed.pop_first())
            .take(limit)
            .collect()
    }

    /// Notes an address, because something else that decides about it changed.
    pub fn recheck_claims(&mut self, addresses: impl IntoIterator<Item = IpAddr>) {
        if let Some(changed) = &mut self.noted.changed {
            changed.extend(addresses);
        }
    }

    /// The same for every address that there are facts about on a pod device (index and generation).
    pub fn recheck_claims_on(&mut self, (ifindex, generation): (IfIndex, u64)) {
        let Some(changed) = &mut self.noted.changed else {
            return;
        };
        let link = self.mirror.links.pod(ifindex);
        let Some(link) = link.filter(|link| link.generation == generation) else {
            return;
        };
        changed.extend(self.mirror.facts.owned_by(Owner::Link(ifindex)));
        if let Some(peer) = link.link.peer {
            changed.extend(self.mirror.facts.owned_by(Owner::Peer(peer)));
        }
    }

    /// The certain claims of an address, oldest first. For an address that was only heard, this costs a look at its facts.
    #[must_use]
    pub fn certain_claims(&self, address: IpAddr, now: Timestamp) -> Vec<CertainClaim> {
        let Some(facts) = self.mirror.facts.get(address) else {
            return Vec::new();
        };
        let may_be_certain = !facts.assigned.is_empty()
            || !facts.further.is_empty()
            || facts
                .neighbours
                .iter()
                .any(|n| n.state == NudState::Permanent);
        if !may_be_certain || is_link_local(address) {
            return Vec::new();
        }
        let context = self.claim_context();
        let Some(claimants) = context.derive(address, now).remove(&NODE_WIDE) else {
            return Vec::new();
        };
        let is_contested = claimants.len() > 1;
        let receiver = is_contested
            .then(|| context.traffic_receiver(address, NODE_WIDE, &claimants))
            .flatten()
            .map(|claimant| claimant.id);
        let claimants = claimants.into_iter();
        claimants
            .filter(|c| matches!(c.id, ClaimantId::Device(..)) && c.is_certain())
            .map(|claimant| CertainClaim {
                is_on_device: claimant.peer.is_some_and(|peer| facts.is_assigned_on(peer)),
                receives_traffic: receiver == Some(claimant.id),
                claimant,
            })
            .collect()
    }
}
