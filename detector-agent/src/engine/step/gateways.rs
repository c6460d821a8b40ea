//! A pod asks for one address again and again: is it its gateway, and is it really not answered?
//!
//! What is told comes from ingress alone. Before something is raised, the pod's own tables are looked into where that can
//! be done: they say whether the address was resolved after all, and whether it is a gateway. Where it cannot be done, an
//! address counts as a gateway that is link-local, the node's own, or on no subnet of the pod's: peers on a subnet are
//! asked for in vain whenever one of them is down.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{Effect, Engine};
use crate::engine::{
    anomaly::{
        AnomalyCause, AnomalyEffect, Inside, Key, LOOK_AGAIN, Look, News, QUIET, ResolveReason,
    },
    conflict::{Claimant, ClaimantId},
    facts::Owner,
    lifecycle::Moment,
    links::LinkState,
    observation::{IfIndex, Question, Timestamp, Vlan},
    scope::{claimable, link_local},
};

impl Engine {
    /// A pod asked again and again.
    pub(super) fn asked(&mut self, question: &Question, at: Timestamp, effects: &mut Vec<Effect>) {
        let link = self.links.pod(question.ifindex).filter(|l| l.since <= at);
        let Some(link) = link else {
            self.drops.unknown_device += 1;
            return;
        };
        if !self.first_read || !claimable(question.target) {
            // Told again while it goes on.
            return;
        }
        let (generation, peer) = (link.generation, link.link.peer);
        let target = question.target;
        let key = Key::asked(target, question.ifindex, generation, question.vlan);
        self.anomalies.look_at(target, at + LOOK_AGAIN);
        let is_open = self.anomalies.is_open(&key);
        let Some(asking) = self.anomalies.gateways.note(key, question, at) else {
            return;
        };
        if is_open || asking.looking {
            return;
        }
        match peer.filter(|_| question.vlan == Vlan::default()) {
            Some(peer) => {
                asking.looking = true;
                effects.push(Effect::Anomaly(AnomalyEffect::LookInside(Look {
                    ifindex: question.ifindex,
                    generation,
                    peer,
                    target,
                })));
            }
            None => {
                let moment = Moment {
                    now: at,
                    decided_at: at,
                };
                self.judge_question(key, None, moment, effects);
            }
        }
    }

    /// What a pod's own tables say; `None` where they cannot be read.
    pub fn looked_inside(
        &mut self,
        now: Timestamp,
        look: &Look,
        inside: Option<Inside>,
        effects: &mut Vec<Effect>,
    ) {
        let key = Key::asked(look.target, look.ifindex, look.generation, Vlan::default());
        let Some(asking) = self.anomalies.gateways.get_mut(&key) else {
            return;
        };
        asking.looking = false;
        let at = Moment {
            now,
            decided_at: asking.last,
        };
        if inside.is_some_and(|i| i.resolved == Some(true)) {
            self.anomalies.gateways.remove(&key);
            self.end(&key, ResolveReason::Answered, now, effects);
        } else {
            self.judge_question(key, inside, at, effects);
        }
    }

    fn judge_question(
        &mut self,
        key: Key,
        inside: Option<Inside>,
        at: Moment,
        effects: &mut Vec<Effect>,
    ) {
        let Some((ifindex, generation)) = key.device else {
            return;
        };
        let Some(link) = self
            .links
            .pod(ifindex)
            .filter(|l| l.generation == generation)
        else {
            return;
        };
        let is_gateway =
            inside.is_some_and(|i| i.is_gateway) || self.looks_like_gateway(link, key.address);
        let Some(asking) = self.anomalies.gateways.get_mut(&key).filter(|_| is_gateway) else {
            return;
        };
        let device = &link.link.name;
        let confirmed = if inside.is_some_and(|i| i.resolved == Some(false)) {
            ", and the pod has no neighbour entry for it that works"
        } else {
            ""
        };
        let detail = format!(
            "the pod on {device} asks for {} again and again ({} times within five seconds, as {}) and gets no answer{confirmed}: it reaches nothing beyond itself",
            key.address, asking.times, asking.asker
        );
        let holder = Claimant {
            id: ClaimantId::Device(ifindex, generation),
            device: device.clone(),
            ifindex,
            mac: link.peer_mac,
            master: None,
            peer: link.link.peer,
            since: link.since,
            evidence: Vec::new(),
            left: None,
        };
        let news = News {
            cause: AnomalyCause::NoAnswer,
            holders: vec![holder],
            source: None,
            owner: None,
            detail,
        };
        let mut said = Vec::new();
        self.anomalies
            .raise(key, news, at, &self.settings.bounds, &mut said);
        effects.extend(said.into_iter().map(Effect::Anomaly));
    }

    fn looks_like_gateway(&self, link: &LinkState, target: IpAddr) -> bool {
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

    /// Ends, or looks again into, those that ask for an address no more.
    pub(super) fn judge_gateways(
        &mut self,
        address: IpAddr,
        at: Moment,
        effects: &mut Vec<Effect>,
    ) {
        if self.anomalies.gateways.is_empty() {
            return;
        }
        for (key, asking) in self.anomalies.gateways.of(address) {
            let Some((ifindex, generation)) = key.device else {
                continue;
            };
            let silent = at.now.since(asking.last);
            if silent >= QUIET {
                self.anomalies.gateways.remove(&key);
                self.end(&key, ResolveReason::Quiet, at.now, effects);
                continue;
            }
            self.anomalies.look_at(address, at.now + LOOK_AGAIN);
            if silent < LOOK_AGAIN || asking.looking || !self.anomalies.is_open(&key) {
                continue;
            }
            let peer = self.links.pod(ifindex).and_then(|l| l.link.peer);
            if let Some(peer) = peer.filter(|_| key.vlan == Vlan::default()) {
                if let Some(asking) = self.anomalies.gateways.get_mut(&key) {
                    asking.looking = true;
                }
                effects.push(Effect::Anomaly(AnomalyEffect::LookInside(Look {
                    ifindex,
                    generation,
                    peer,
                    target: address,
                })));
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
