//! A pod device requests one address repeatedly: is that address its gateway?
//! (`docs/detection-rules.md`, section 14.3.)
//!
//! Only frames that the pod sends are seen: a pod whose gateway does not answer repeats its requests,
//! but so does one that checks a gateway that answers (arping). The anomaly therefore says that the pod
//! asks, and never that it got no answer. The address must be a gateway: a link-local one, one of the
//! node's own, or one on no subnet of the pod. Requests for a peer on a subnet of the pod are repeated
//! whenever that peer is down, and raise nothing.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{Effect, Engine, anomalies::device_as_holder};
use crate::engine::{
    anomaly::{AnomalyCause, AnomalyDetails, AnomalyKey, QUIET, ResolveReason},
    facts::Owner,
    lifecycle::DecisionTime,
    links::LinkState,
    observation::{IfIndex, Timestamp, UnansweredProbe},
    scope::{is_claimable, is_link_local},
};

impl Engine {
    /// A pod requested an address repeatedly.
    pub(super) fn unanswered_probe(
        &mut self,
        probe: &UnansweredProbe,
        at: DecisionTime,
        effects: &mut Vec<Effect>,
    ) {
        let target = probe.target;
        let link = self.links.pod(probe.ifindex);
        let Some(link) = link.filter(|l| l.since <= at.decided_at) else {
            self.drops.unknown_device += 1;
            return;
        };
        if !self.has_full_snapshot || !is_claimable(target) {
            // Before the first snapshot is merged: the pod's next requests will be judged.
            return;
        }
        let key = AnomalyKey::of_gateway(target, probe.ifindex, link.generation, probe.vlan);
        let is_open = self.anomalies.is_open(&key);
        if !is_open && !self.is_gateway(link, target) {
            return;
        }
        if !self.anomalies.gateways.record(key, at.decided_at) {
            return;
        }
        self.anomalies.schedule(target, at.decided_at + QUIET);
        if is_open {
            return;
        }
        let details = repeated_requests(link, probe);
        let mut anomaly_effects = Vec::new();
        self.anomalies.raise(
            key,
            details,
            at,
            &self.settings.bounds,
            &mut anomaly_effects,
        );
        effects.extend(anomaly_effects.into_iter().map(Effect::Anomaly));
    }

    fn is_gateway(&self, link: &LinkState, target: IpAddr) -> bool {
        let is_on_node = self.facts.get(target).is_some_and(|f| !f.host.is_empty());
        if is_link_local(target) || is_on_node {
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
        // If no address of the pod is known in this family, its subnets are unknown too.
        subnets.peek().is_some() && !subnets.any(|subnet| subnet.contains(&target))
    }

    /// Resolves the anomalies of devices that have not requested `address` for [`QUIET`].
    pub(super) fn check_gateways(
        &mut self,
        address: IpAddr,
        at: DecisionTime,
        effects: &mut Vec<Effect>,
    ) {
        if self.anomalies.gateways.is_empty() {
            return;
        }
        for (key, last) in self.anomalies.gateways.of(address) {
            if at.now.since(last) >= QUIET {
                self.resolve_gateway(&key, ResolveReason::Quiet, at.now, effects);
            } else {
                self.anomalies.schedule(address, last + QUIET);
            }
        }
    }

    /// Resolves the gateway anomalies of devices that were removed.
    pub(super) fn resolve_gateways_of_removed_devices(
        &mut self,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        if self.anomalies.gateways.is_empty() {
            return;
        }
        let links = &self.links;
        let exists = |(ifindex, generation): (IfIndex, u64)| {
            links
                .pod(ifindex)
                .is_some_and(|l| l.generation == generation)
        };
        let keys = self.anomalies.gateways.keys().copied();
        let gone: Vec<AnomalyKey> = keys.filter(|k| !k.device.is_some_and(exists)).collect();
        for key in gone {
            self.resolve_gateway(&key, ResolveReason::DeviceGone, now, effects);
        }
    }

    fn resolve_gateway(
        &mut self,
        key: &AnomalyKey,
        reason: ResolveReason,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        self.anomalies.gateways.remove(key);
        let at = DecisionTime {
            now,
            decided_at: now,
        };
        let mut anomaly_effects = Vec::new();
        self.anomalies
            .resolve(key, reason, at, &mut anomaly_effects);
        effects.extend(anomaly_effects.into_iter().map(Effect::Anomaly));
    }
}

/// The anomaly of a device that requests its gateway repeatedly.
fn repeated_requests(link: &LinkState, probe: &UnansweredProbe) -> AnomalyDetails {
    let device = &link.link.name;
    AnomalyDetails {
        cause: AnomalyCause::RepeatedRequests,
        holders: vec![device_as_holder(link)],
        source: None,
        owner: None,
        contested: None,
        detail: format!(
            "the pod on {device} asked for the hardware address of its gateway {} again and again, {} times within five seconds (as {})",
            probe.target, probe.count, probe.sender
        ),
    }
}
