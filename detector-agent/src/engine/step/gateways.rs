//! A pod device requests one address again and again: is that address its gateway?
//!
//! Only frames that the pod sends are seen, so an unanswered gateway is recognised by repeated requests for an address
//! that must be a gateway: a link-local one, one of the node's own, or one on no subnet of the pod. Requests for a peer
//! on a subnet of the pod stay unanswered whenever that peer is down, and raise nothing.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{Effect, Engine};
use crate::engine::{
    anomaly::{AnomalyCause, Key, News, QUIET, ResolveReason},
    conflict::{Claimant, ClaimantId},
    facts::Owner,
    lifecycle::Moment,
    links::LinkState,
    observation::{IfIndex, Timestamp, UnansweredProbe},
    scope::{claimable, link_local},
};

impl Engine {
    /// A pod requested an address again and again.
    pub(super) fn asked(
        &mut self,
        question: &UnansweredProbe,
        at: Moment,
        effects: &mut Vec<Effect>,
    ) {
        let target = question.target;
        let link = self.links.pod(question.ifindex);
        let Some(link) = link.filter(|l| l.since <= at.decided_at) else {
            self.drops.unknown_device += 1;
            return;
        };
        if !self.first_read || !claimable(target) {
            // Before the first snapshot is merged: the pod's next requests will be judged.
            return;
        }
        let key = Key::asked(target, question.ifindex, link.generation, question.vlan);
        let is_open = self.anomalies.is_open(&key);
        if !is_open && !self.is_gateway(link, target) {
            return;
        }
        if !self.anomalies.gateways.note(key, at.decided_at) {
            return;
        }
        self.anomalies.look_at(target, at.decided_at + QUIET);
        if is_open {
            return;
        }
        let news = unanswered(link, question);
        let mut said = Vec::new();
        self.anomalies
            .raise(key, news, at, &self.settings.bounds, &mut said);
        effects.extend(said.into_iter().map(Effect::Anomaly));
    }

    fn is_gateway(&self, link: &LinkState, target: IpAddr) -> bool {
        let on_node = self.facts.get(target).is_some_and(|f| !f.host.is_empty());
        if link_local(target) || on_node {
            return true;
        }
        let Some(peer) = link.link.peer else {
            return false;
        };
        let mut subnets = self
            .facts
            .owned_by(Owner::Peer(peer))
            .into_iter()
            .filter_map(|address| {
                let assigned = self.facts.get(address)?.assigned.iter();
                let mut of_peer = assigned.filter(|a| a.peer == peer);
                IpNet::new(address, of_peer.next()?.info.prefix_len).ok()
            })
            .filter(|net| net.addr().is_ipv4() == target.is_ipv4())
            .peekable();
        // A pod whose addresses are not known may ask for anything.
        subnets.peek().is_some() && !subnets.any(|subnet| subnet.contains(&target))
    }

    /// Resolves the anomalies of devices that have not requested the address for [`QUIET`].
    pub(super) fn judge_gateways(
        &mut self,
        address: IpAddr,
        at: Moment,
        effects: &mut Vec<Effect>,
    ) {
        if self.anomalies.gateways.is_empty() {
            return;
        }
        for (key, last) in self.anomalies.gateways.of(address) {
            if at.now.since(last) >= QUIET {
                self.anomalies.gateways.remove(&key);
                self.end(&key, ResolveReason::Quiet, at.now, effects);
            } else {
                self.anomalies.look_at(address, last + QUIET);
            }
        }
    }

    /// Ends what devices asked for that are gone.
    pub(super) fn end_gone_askers(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        if self.anomalies.gateways.is_empty() {
            return;
        }
        let links = &self.links;
        let lives = |(ifindex, generation): (IfIndex, u64)| {
            links
                .pod(ifindex)
                .is_some_and(|l| l.generation == generation)
        };
        let keys = self.anomalies.gateways.keys().copied();
        let gone: Vec<Key> = keys.filter(|k| !k.device.is_some_and(lives)).collect();
        for key in gone {
            self.anomalies.gateways.remove(&key);
            self.end(&key, ResolveReason::DeviceGone, now, effects);
        }
    }

    fn end(
        &mut self,
        key: &Key,
        because: ResolveReason,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        let at = Moment {
            now,
            decided_at: now,
        };
        let mut said = Vec::new();
        self.anomalies.resolve(key, because, at, &mut said);
        effects.extend(said.into_iter().map(Effect::Anomaly));
    }
}

/// The anomaly of a device whose requests for its gateway get no answer.
fn unanswered(link: &LinkState, question: &UnansweredProbe) -> News {
    let device = &link.link.name;
    let holder = Claimant {
        id: ClaimantId::Device(question.ifindex, link.generation),
        device: device.clone(),
        ifindex: question.ifindex,
        mac: link.peer_mac,
        master: None,
        peer: link.link.peer,
        since: link.since,
        evidence: Vec::new(),
        left: None,
    };
    News {
        cause: AnomalyCause::NoAnswer,
        holders: vec![holder],
        source: None,
        owner: None,
        detail: format!(
            "the pod on {device} asks for {} again and again ({} times within five seconds, as {}) and gets no answer: it reaches nothing beyond itself",
            question.target, question.times, question.asker
        ),
    }
}
