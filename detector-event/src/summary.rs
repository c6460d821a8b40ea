//! A conflict or an anomaly in one line, for logs, chats, pagers and alerts.

use std::borrow::Cow;

use detector_engine::{AnomalyKind, ConflictKind, ConflictScope, Network, ResolveReason};

use super::{AnomalyData, ClaimantData, ConflictData, ResolvedBecause, text::receives_traffic};
use crate::Pod;

/// Claimants named in a line; the others are counted.
const NAMED: usize = 4;

/// `10.244.2.10 is claimed by default/a (veth1) and default/b (veth2) on n; traffic goes to veth1`.
#[must_use]
pub fn conflict_line(data: &ConflictData) -> String {
    let address = scoped_address(data);
    let node = on_node(data.scope, &data.node, data.cluster.as_deref());
    if data.is_resolved() {
        let kept = survivor(data).map(|kept| format!("; {} kept it", claimant(data.scope, kept)));
        return format!(
            "{address} is no longer in conflict{node}{}",
            kept.unwrap_or_default()
        );
    }
    let claimants = claimants(data);
    let mut text = match data.kind {
        ConflictKind::Flapping => {
            format!("{address} moves too often between {claimants}{node}")
        }
        ConflictKind::Duplicate | ConflictKind::Host => {
            format!("{address} is claimed by {claimants}{node}")
        }
    };
    if let Some(device) = &data.traffic_goes_to {
        text += &format!("; traffic goes to {device}");
    }
    text
}

/// ` on n (cluster east)`; in the fleet, where each claimant has its node, ` in cluster east`.
#[must_use]
pub fn on_node(scope: ConflictScope, node: &str, cluster: Option<&str>) -> String {
    match (scope, cluster) {
        (ConflictScope::Node, Some(cluster)) => format!(" on {node} (cluster {cluster})"),
        (ConflictScope::Node, None) => format!(" on {node}"),
        (ConflictScope::Fleet, Some(cluster)) => format!(" in cluster {cluster}"),
        (ConflictScope::Fleet, None) => String::new(),
    }
}

/// Of a resolved conflict, the only claimant that did not leave.
#[must_use]
pub fn survivor(data: &ConflictData) -> Option<&ClaimantData> {
    let mut present = data.present();
    let first = present.next()?;
    present.next().is_none().then_some(first)
}

/// `10.244.2.10 of default/a (veth1) on n: ` and what is wrong with it, or why it was resolved.
#[must_use]
pub fn anomaly_line(data: &AnomalyData) -> String {
    let text = if data.is_resolved() {
        format!("resolved, {}", resolve_reason(data))
    } else {
        data.detail.clone()
    };
    let node = on_node(ConflictScope::Node, &data.node, data.cluster.as_deref());
    format!("{}{node}: {text}", anomaly_subject(data))
}

/// What an anomaly is about: `10.244.2.10 of default/a (veth1)`, or for a sweep the pod alone.
#[must_use]
pub fn anomaly_subject(data: &AnomalyData) -> String {
    let holder = match (&data.pod, &data.device) {
        (Some(pod), Some(device)) => Some(format!("{} ({device})", pod_name(pod))),
        (None, Some(device)) => Some(device.clone()),
        _ => None,
    };
    match (data.kind, holder) {
        (AnomalyKind::PodCidrOverlap, _) => data
            .source
            .clone()
            .unwrap_or_else(|| data.address.to_string()),
        (AnomalyKind::AddressSweep, Some(holder)) => holder,
        (_, Some(holder)) => format!("{} of {holder}", data.address),
        (_, None) => data.address.to_string(),
    }
}

/// An anomaly's kind as a title: `IPAM drift`.
#[must_use]
pub fn anomaly_title(kind: AnomalyKind) -> &'static str {
    match kind {
        AnomalyKind::IpamDrift => "IPAM drift",
        AnomalyKind::IpamLeak => "IPAM leak",
        AnomalyKind::GatewayUnresolved => "Unresolved gateway",
        AnomalyKind::RouteAstray => "Misdirected route",
        AnomalyKind::AddressSweep => "Address sweep",
        AnomalyKind::PodCidrOverlap => "podCIDR overlap",
        AnomalyKind::RogueRouter => "Rogue router",
        AnomalyKind::MacDuplicate => "Duplicate MAC address",
        AnomalyKind::MacMoved => "Moved MAC address",
        AnomalyKind::AddressUnusable => "Unusable address",
    }
}

/// Why an anomaly was resolved, as a clause: `the address is allocated again`.
#[must_use]
pub fn resolve_reason(data: &AnomalyData) -> &'static str {
    match data.resolved_because {
        Some(ResolvedBecause::Seen(reason)) => match reason {
            ResolveReason::Allocated => "the address is allocated again",
            ResolveReason::Released => "IPAM released the address",
            ResolveReason::AddressGone => "no pod has the address any more",
            ResolveReason::InUse => "the address is in use again",
            ResolveReason::Quiet if data.kind == AnomalyKind::RogueRouter => {
                "the pod sends no router advertisements any more"
            }
            ResolveReason::Quiet => "the pod stopped asking for the gateway",
            ResolveReason::DeviceGone => "the device was removed",
            ResolveReason::Usable => "the pod can use the address",
            ResolveReason::InConflict => "the address is in conflict",
            ResolveReason::RouteRight => "the route leads to a claimant again",
            ResolveReason::ContestsFew => {
                "the pod claims few addresses of others any more, or none"
            }
            ResolveReason::RangeUnique => "at most one node has the range now",
            ResolveReason::MacUnique => "the MAC address is that of one port again",
            ResolveReason::NotSeen => "it was not found again",
        },
        Some(ResolvedBecause::Answered) => "the gateway answered",
        Some(ResolvedBecause::Unseen) | None => {
            "it ended while the agent was down, or its last event was lost"
        }
    }
}

/// The address, with its network unless that is `node`, and its VLAN: `10.244.2.10 (bridge:br1, VLAN 7)`.
#[must_use]
pub fn scoped_address(data: &ConflictData) -> String {
    match scope(&data.network, data.vlan, data.inner_vlan) {
        None => data.address.to_string(),
        Some(scope) => format!("{} ({scope})", data.address),
    }
}

/// The network unless that is `node`, and the VLAN: `bridge:br1, VLAN 7`.
#[must_use]
pub fn scope(network: &Network, vlan: Option<u16>, inner_vlan: Option<u16>) -> Option<String> {
    let network = (*network != Network::Node).then(|| network.to_string());
    let vlan = vlan_id(vlan, inner_vlan).map(|id| format!("VLAN {id}"));
    let scope: Vec<String> = network.into_iter().chain(vlan).collect();
    (!scope.is_empty()).then(|| scope.join(", "))
}

/// The tags of a claim: `7`, or `100.7` with an inner one.
#[must_use]
pub fn vlan_id(outer: Option<u16>, inner: Option<u16>) -> Option<String> {
    match (outer, inner) {
        (Some(outer), Some(inner)) => Some(format!("{outer}.{inner}")),
        (Some(vlan), None) => Some(vlan.to_string()),
        (None, _) => None,
    }
}

/// The claimants that have not left, or all of them if every one has.
#[must_use]
pub fn claimants(data: &ConflictData) -> String {
    let present: Vec<&ClaimantData> = data.present().collect();
    let mut shown = if present.is_empty() {
        data.claimants.iter().collect()
    } else {
        present
    };
    let more = shown.len().saturating_sub(NAMED) + data.claimants_omitted;
    // The receiver of the traffic is always named.
    let receiver = shown.iter().position(|c| receives_traffic(data, c));
    if let Some(position) = receiver.filter(|position| *position >= NAMED) {
        shown.swap(NAMED - 1, position);
    }
    let names = shown.iter().take(NAMED);
    let names = names.map(|c| claimant(data.scope, c)).collect();
    enumeration(names, more).unwrap_or_else(|| "no device".to_owned())
}

/// `a, b and 2 more`; `None` if there is nothing to list.
#[must_use]
pub fn enumeration(mut names: Vec<String>, more: usize) -> Option<String> {
    if more > 0 {
        names.push(format!("{more} more"));
    }
    let last = names.pop()?;
    Some(if names.is_empty() {
        last
    } else {
        format!("{} and {last}", names.join(", "))
    })
}

/// `default/a (veth1)`, `the node (node-a, eth0)`, or the device alone; in the fleet `default/a (veth1 on node-a)`.
#[must_use]
pub fn claimant(scope: ConflictScope, claimant: &ClaimantData) -> String {
    let device = device(scope, claimant);
    match &claimant.pod {
        Some(pod) => format!("{} ({device})", pod_name(pod)),
        None if claimant.is_node => format!("the node ({}, {})", claimant.node, claimant.device),
        None => device.into_owned(),
    }
}

/// `veth1`, in the fleet `veth1 on node-a`.
#[must_use]
pub fn device(scope: ConflictScope, claimant: &ClaimantData) -> Cow<'_, str> {
    match scope {
        ConflictScope::Node => (&*claimant.device).into(),
        ConflictScope::Fleet => format!("{} on {}", claimant.device, claimant.node).into(),
    }
}

/// `default/a`.
#[must_use]
pub fn pod_name(pod: &Pod) -> String {
    format!("{}/{}", pod.namespace, pod.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn node_is_named_as_such() {
        let mut node = samples::claimant("eth0", None);
        node.is_node = true;
        assert_eq!(claimant(ConflictScope::Node, &node), "the node (n, eth0)");
    }

    #[test]
    fn address_has_its_network_and_vlan() {
        let bridge = || Network::Bridge("br1".to_owned());
        let cases = [
            (Network::Node, None, None, "10.0.0.1"),
            (Network::Node, Some(7), None, "10.0.0.1 (VLAN 7)"),
            (Network::Node, Some(100), Some(7), "10.0.0.1 (VLAN 100.7)"),
            (bridge(), None, None, "10.0.0.1 (bridge:br1)"),
            (bridge(), Some(7), None, "10.0.0.1 (bridge:br1, VLAN 7)"),
        ];
        for (network, vlan, inner_vlan, expected) in cases {
            let mut data = samples::raised("10.0.0.1").data;
            (data.network, data.vlan, data.inner_vlan) = (network, vlan, inner_vlan);
            assert_eq!(scoped_address(&data), expected);
            let line = conflict_line(&data);
            assert!(
                line.starts_with(&format!("{expected} is claimed by ")),
                "{line}"
            );
        }
    }
}
