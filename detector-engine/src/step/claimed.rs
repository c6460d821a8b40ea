//! What others follow of the claims: the table of claimed addresses ([`ClaimedAddresses`](crate::limits::claimed_addresses)), which is
//! kept equal to the facts, and which claims may have changed.

use std::{collections::BTreeSet, net::IpAddr};

use crate::{
    limits::claimed_addresses::{AddressClaim, ClaimedUpdate, ShareOwner, Support},
    mirror::{facts::AddressFacts, links::LinkState},
    model::{NudState, is_claimable},
    step::Engine,
};

impl Engine {
    /// What changed in the table of claimed addresses since it was last taken.
    pub fn take_claimed_update(&mut self) -> Option<ClaimedUpdate> {
        self.update_claimed();
        self.noted.table.take_update()
    }

    /// Takes the addresses whose claims may have changed, if [`Settings::follow_claims`](crate::Settings::follow_claims) is set: for
    /// the comparison with other nodes. A step only notes them, off the hot path.
    pub fn take_changed_claims(&mut self) -> BTreeSet<IpAddr> {
        self.noted
            .changed
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    /// Brings the table up to date. Not part of a step: no event waits for the table.
    fn update_claimed(&mut self) {
        while let Some(address) = self.noted.outdated.pop_first() {
            let claims = self.address_claims(address);
            self.noted.table.update(address, claims);
        }
    }

    /// Every claimant that facts name. Whether a claim is live and in which network it counts does not matter here: a claim
    /// too many in the table only lets others' claims be published.
    fn address_claims(&self, address: IpAddr) -> Vec<AddressClaim> {
        let facts = self
            .mirror
            .facts
            .get(address)
            .filter(|_| is_claimable(address));
        let mut claims: Vec<_> = facts.map_or_else(Vec::new, |facts| self.claims_in(facts));
        claims.sort_unstable();
        claims.dedup_by_key(|(owner, _)| *owner);
        claims
    }

    fn claims_in(&self, facts: &AddressFacts) -> Vec<AddressClaim> {
        let pod = |link: Option<&LinkState>| link.map(|link| ShareOwner::Device(link.link.ifindex));
        let assigned = facts.assigned.iter().filter_map(|a| match a.peer() {
            None => Some(ShareOwner::Node),
            Some(peer) => pod(self.mirror.links.pod_by_peer(peer)),
        });
        let in_frames = facts.frames.iter().filter(|frame| !frame.tentative);
        let in_frames = in_frames.filter_map(|frame| pod(self.mirror.links.pod(frame.ifindex)));
        let by_neighbours = facts.neighbours.iter().filter_map(|entry| {
            if !self.mirror.links.is_bridge(entry.ifindex) {
                return pod(self.mirror.links.pod(entry.ifindex));
            }
            let port = self.mirror.fdb.port(entry.ifindex, entry.lladdr);
            let port = port.and_then(|port| self.mirror.links.pod(port));
            let is_claiming = |link: &&LinkState| {
                facts.is_held_by(&link.link)
                    || facts.frames.iter().any(|f| f.ifindex == link.link.ifindex)
            };
            match port {
                Some(link) if is_claiming(&link) => pod(Some(link)),
                // Others may have written the entry: it takes no place of the port's share.
                Some(_) => Some(ShareOwner::Device(entry.ifindex)),
                None => (entry.state == NudState::Permanent)
                    .then_some(ShareOwner::Device(entry.ifindex)),
            }
        });
        let observed = in_frames.chain(by_neighbours);
        assigned
            .map(|owner| (owner, Support::Assigned))
            .chain(observed.map(|owner| (owner, Support::Observed)))
            .collect()
    }

    /// The addresses that the table has other claimants for than the facts.
    #[cfg(test)]
    pub(crate) fn outdated_claimed(&mut self) -> Vec<IpAddr> {
        self.update_claimed();
        let addresses: Vec<_> = self.mirror.facts.addresses().collect();
        let in_table = |address: &&IpAddr| !self.noted.table.claims_of(**address).is_empty();
        assert_eq!(
            addresses.iter().filter(in_table).count(),
            self.noted.table.len()
        );
        let is_outdated = |address: &IpAddr| {
            self.noted.table.claims_of(*address) != self.address_claims(*address)
        };
        addresses.into_iter().filter(is_outdated).collect()
    }
}
