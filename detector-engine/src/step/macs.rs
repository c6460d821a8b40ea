//! Where the hardware addresses of pods are (`docs/detection-rules.md`, sections 14.8 and 14.9).
//!
//! Both findings follow from links and forwarding tables, and from no frame: what an interface has,
//! the kernel says, and a forwarding entry names the port that a frame came in on. A pod can give
//! its interface any hardware address, so one that it has changed counts for `mac_duplicate` alone,
//! which names no culprit.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv6Addr},
};

use crate::{
    mirror::{facts::Owner, links::LinkState},
    model::{IfIndex, Mac, ResolveReason, Vlan, is_claimable, is_link_local},
    step::{Engine, anomalies::device_as_holder},
    track::{
        Step,
        anomaly::{MacFault, MacKey},
    },
};

/// The most devices listed in addition to the first.
const LISTED: usize = 16;

impl Engine {
    /// Checks the hardware addresses of pods for which something changed, or whose time has come.
    pub(super) fn check_macs(&mut self, step: &mut Step<'_>) {
        if !self.mirror.is_complete {
            return;
        }
        let mut macs = self.mirror.links.take_changed_macs();
        while let Some(mac) = self.tracked.anomalies.macs.pop_due(step.now) {
            macs.insert(mac);
        }
        for mac in macs {
            let mut ports = self.ports_with(mac);
            for key in self.tracked.anomalies.macs.watched(mac) {
                ports.entry(key).or_default();
            }
            for (key, ports) in ports {
                self.check_mac(key, &ports, step);
            }
        }
    }

    fn check_mac(&mut self, key: MacKey, ports: &[IfIndex], step: &mut Step<'_>) {
        let fault = self.mac_fault(key, ports);
        let named = self.tracked.anomalies.macs.named_device(&key);
        let exists = named.is_none_or(|device| self.mirror.links.device(device).is_some());
        let gone = match (ports, exists) {
            (_, false) => Some(ResolveReason::DeviceGone),
            ([], true) => Some(ResolveReason::MacUnique),
            _ => None,
        };
        let anomalies = &mut self.tracked.anomalies;
        // Of what is wrong among the others, another finding follows.
        if fault.is_none() || gone.is_some() {
            anomalies.mac_right(key, gone, step);
        }
        if let Some(fault) = fault {
            anomalies.mac_wrong(key, fault, step);
        }
    }

    /// The ports that pass packets to a pod with this hardware address, by L2 domain. Other switches
    /// than bridges are left out: nothing shows which of their ports are in one network.
    fn ports_with(&self, mac: Mac) -> BTreeMap<MacKey, Vec<IfIndex>> {
        let mut ports = BTreeMap::<_, Vec<_>>::new();
        for link in self.mirror.links.pods_with_mac(mac) {
            let port = link.link.ifindex;
            if let Some(bridge) = self.mirror.links.bridge_of(port)
                && self.mirror.links.is_running(port)
            {
                let domain = self.mirror.links.l2_domain(&link.link, Vlan::default());
                let vlan = domain.vlan.outer;
                ports
                    .entry(MacKey { mac, bridge, vlan })
                    .or_default()
                    .push(port);
            }
        }
        ports
    }

    /// What is wrong with a hardware address that pods behind these ports have.
    fn mac_fault(&self, key: MacKey, ports: &[IfIndex]) -> Option<MacFault> {
        let mut links: Vec<_> = ports
            .iter()
            .filter_map(|port| self.mirror.links.pod(*port))
            .collect();
        // Pods that took the hardware address later are listed later.
        links.sort_by_key(|link| (link.has_changed_mac, link.since, link.link.ifindex));
        let first = *links.first()?;
        let pod = |link: &LinkState| self.mirror.links.pod_identity(link.id());
        let pods: BTreeSet<_> = links.iter().map(|link| pod(link)).collect();
        // Several ports of one pod may share one, as those of a bond do: whichever of them the
        // packets go to, they reach the pod.
        let (learned_on, others) = if pods.len() > 1 {
            (None, links.into_iter().skip(1).take(LISTED).collect())
        } else {
            if first.has_changed_mac {
                return None;
            }
            let learned_on = self.mirror.fdb.live_port(key.bridge, key.mac, key.vlan)?;
            let other = self.mirror.links.get(learned_on)?;
            let is_other_port = self.mirror.links.switch_of(learned_on) == Some(key.bridge);
            if !is_other_port || pods.contains(&pod(other)) {
                return None;
            }
            (Some(learned_on), vec![other])
        };
        Some(MacFault {
            learned_on,
            device: (device_as_holder(first), first.key()),
            others: others.into_iter().map(device_as_holder).collect(),
            address: self.address_of(first, key.mac),
            bridge: self.mirror.links.get(key.bridge)?.link.name.clone(),
        })
    }

    /// An address of a pod: assigned if one is known, else seen in frames, else the link-local one
    /// that follows from its hardware address (RFC 4291, appendix A).
    fn address_of(&self, link: &LinkState, mac: Mac) -> IpAddr {
        let of_owner = |owner| {
            let addresses = self.mirror.facts.owned_by(owner).into_iter();
            addresses
                .filter(|address| is_claimable(*address))
                .min_by_key(|address| (is_link_local(*address), *address))
        };
        let assigned = link.link.peer.and_then(|peer| of_owner(Owner::Peer(peer)));
        assigned
            .or_else(|| of_owner(Owner::Link(link.link.ifindex)))
            .unwrap_or_else(|| IpAddr::V6(link_local(mac)))
    }
}

fn link_local(mac: Mac) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.0;
    let pair = u16::from_be_bytes;
    Ipv6Addr::new(
        0xfe80,
        0,
        0,
        0,
        pair([a ^ 2, b]),
        pair([c, 0xff]),
        pair([0xfe, d]),
        pair([e, f]),
    )
}
