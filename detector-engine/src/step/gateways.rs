//! A pod device requests one address repeatedly: is that address its gateway?
//! (`docs/detection-rules.md`, section 14.3.)
//!
//! Only frames that the pod sends are seen: a pod whose gateway does not answer repeats its requests,
//! but so does one that checks a gateway that answers (arping). The anomaly therefore says that the pod
//! asks, and never that it got no answer. The address must be a gateway: 169.254.1.1, a link-local one of
//! IPv6, one of the node's own, or one on no subnet of the pod. Requests for a peer on a subnet of the pod are repeated
//! whenever that peer is down, and raise nothing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::{
    mirror::{
        facts::{AddressFacts, Owner},
        links::LinkState,
    },
    model::{
        AnomalyCause, AnomalyKind, ResolveReason, UnansweredProbe, is_claimable, is_link_local,
    },
    step::{Engine, anomalies::device_as_holder},
    track::{
        Step,
        anomaly::{AnomalyDetails, AnomalyKey, quiet_after},
    },
};

/// The gateway that network plugins give pods with a /32 (Calico, the plugins of Amazon VPC, Azure and Alibaba Cloud). Any other
/// address of 169.254.0.0/16 is asked for on the link by every host with a route for it (RFC 3927 section 2.6.2).
const PLUGIN_GATEWAY: IpAddr = IpAddr::V4(Ipv4Addr::new(169, 254, 1, 1));

/// Services of clouds that are on no subnet of a pod, and no gateway: a pod with a route to its link asks for them itself.
const CLOUD_SERVICES: [IpAddr; 9] = [
    // Metadata of nearly every cloud. (Other IPv4 link-local services are no gateways anyway.)
    IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)),
    // Metadata of OpenStack.
    IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0xa9fe, 0xa9fe)),
    // Metadata, DNS and time of Amazon.
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x253)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x123)),
    // Metadata of Google.
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
    // Metadata of Scaleway.
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42)),
    // Azure's WireServer.
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    // Metadata of Alibaba Cloud.
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
];

impl Engine {
    /// A pod requested an address repeatedly.
    pub(super) fn unanswered_probe(&mut self, probe: &UnansweredProbe, step: &mut Step<'_>) {
        let target = probe.target;
        let link = self.mirror.links.pod(probe.ifindex);
        let Some(link) = link.filter(|l| l.since <= step.at) else {
            self.drops.unknown_device += 1;
            return;
        };
        if !self.mirror.is_complete || !is_claimable(target) {
            // Before the first snapshot is merged: the pod's next requests will be judged.
            return;
        }
        let kind = AnomalyKind::GatewayUnresolved;
        let key = AnomalyKey::of_frames(kind, target, link.key(), probe.vlan);
        let is_open = self.tracked.anomalies.is_open(&key);
        if !is_open && !self.is_gateway(link, target) {
            return;
        }
        let details = repeated_requests(link, probe);
        self.frame_seen(key, details, step);
    }

    /// A frame shows an anomaly: raises it, or keeps it open.
    pub(super) fn frame_seen(
        &mut self,
        key: AnomalyKey,
        details: AnomalyDetails,
        step: &mut Step<'_>,
    ) {
        if !self.tracked.anomalies.frames.record(key, step.at) {
            return;
        }
        let due = step.at + quiet_after(key.kind);
        self.tracked.anomalies.schedule(key.address, due);
        self.tracked.anomalies.raise(key, details, step);
    }

    fn is_gateway(&self, link: &LinkState, target: IpAddr) -> bool {
        if CLOUD_SERVICES.contains(&target) {
            return false;
        }
        let is_on_node = self
            .mirror
            .facts
            .get(target)
            .is_some_and(AddressFacts::is_on_node);
        match target {
            IpAddr::V4(_) if is_link_local(target) => {
                target == PLUGIN_GATEWAY || (is_on_node && self.is_on_subnet(link, target))
            }
            IpAddr::V6(_) if is_link_local(target) => true,
            _ if is_on_node => true,
            // If no address of the pod is known in this family, its subnets are unknown too.
            _ => self.subnets(link, target).next().is_some() && !self.is_on_subnet(link, target),
        }
    }

    fn is_on_subnet(&self, link: &LinkState, target: IpAddr) -> bool {
        self.subnets(link, target)
            .any(|subnet| subnet.contains(&target))
    }

    /// The subnets of a pod's addresses of the family of `target`.
    fn subnets(&self, link: &LinkState, target: IpAddr) -> impl Iterator<Item = IpNet> {
        let owner = link.link.peer.map(Owner::Peer);
        let addresses = owner.map(|owner| self.mirror.facts.owned_by(owner));
        addresses
            .into_iter()
            .flatten()
            .filter(move |address| address.is_ipv4() == target.is_ipv4())
            .filter_map(move |address| {
                let facts = self.mirror.facts.get(address)?;
                let assigned = facts.assigned_to(owner?)?.info()?;
                IpNet::new(address, assigned.prefix_len).ok()
            })
    }

    /// Resolves anomalies about `address` without a recent frame.
    pub(super) fn check_device_frames(&mut self, address: IpAddr, step: &mut Step<'_>) {
        if self.tracked.anomalies.frames.is_empty() {
            return;
        }
        for (key, last) in self.tracked.anomalies.frames.of(address) {
            let quiet = quiet_after(key.kind);
            if step.now.since(last) >= quiet {
                self.resolve_device_frames(&key, ResolveReason::Quiet, step);
            } else {
                self.tracked.anomalies.schedule(address, last + quiet);
            }
        }
    }

    /// Resolves the anomalies of devices that were removed.
    pub(super) fn resolve_frames_of_removed_devices(&mut self, step: &mut Step<'_>) {
        if self.tracked.anomalies.frames.is_empty()
            || !std::mem::take(&mut self.mirror.links.has_lost_pods)
        {
            return;
        }
        let links = &self.mirror.links;
        let exists = |device| links.device(device).is_some();
        let keys = self.tracked.anomalies.frames.keys().copied();
        let gone: Vec<AnomalyKey> = keys.filter(|k| !k.device.is_some_and(exists)).collect();
        for key in gone {
            self.resolve_device_frames(&key, ResolveReason::DeviceGone, step);
        }
    }

    fn resolve_device_frames(
        &mut self,
        key: &AnomalyKey,
        reason: ResolveReason,
        step: &mut Step<'_>,
    ) {
        self.tracked.anomalies.frames.remove(key);
        self.tracked
            .anomalies
            .resolve(key, reason, &mut step.by_time());
    }
}

/// The anomaly of a device that requests its gateway repeatedly.
fn repeated_requests(link: &LinkState, probe: &UnansweredProbe) -> AnomalyDetails {
    let detail = format!(
        "the pod on {} asked for the hardware address of its gateway {} again and again, {} times within five seconds (as {})",
        link.link.name, probe.target, probe.count, probe.sender
    );
    let holders = vec![device_as_holder(link)];
    AnomalyDetails::new(AnomalyCause::RepeatedRequests, holders, detail)
}
