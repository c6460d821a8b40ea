//! A conflict or an anomaly in one line, for logs, chats, pagers and alerts.

use super::{AnomalyData, ClaimantData, ConflictData, ResolvedBecause, text::receives_traffic};
use crate::engine::{AnomalyKind, ConflictKind, ResolveReason};

/// Claimants named in a line; the others are counted.
const NAMED: usize = 4;

/// `10.244.2.10 is claimed by default/a (veth1) and default/b (veth2) on n; traffic goes to veth1`.
#[must_use]
pub fn conflict_line(data: &ConflictData) -> String {
    let (address, node) = (vlan_address(data), &data.node);
    if data.is_resolved() {
        return format!("{address} is no longer in conflict on {node}");
    }
    let claimants = claimants(data);
    let mut text = match data.kind {
        ConflictKind::Flapping => {
            format!("{address} moves too often between {claimants} on {node}")
        }
        ConflictKind::Duplicate | ConflictKind::Host => {
            format!("{address} is claimed by {claimants} on {node}")
        }
    };
    if let Some(device) = &data.traffic_goes_to {
        text += &format!("; traffic goes to {device}");
    }
    text
}

/// `10.244.2.10 of default/a (veth1) on n: ` and what is wrong with it, or why it was resolved.
#[must_use]
pub fn anomaly_line(data: &AnomalyData) -> String {
    let holder = match (&data.pod, &data.device) {
        (Some(pod), Some(device)) => format!(" of {}/{} ({device})", pod.namespace, pod.name),
        (None, Some(device)) => format!(" of {device}"),
        _ => String::new(),
    };
    let text = if data.is_resolved() {
        format!("resolved, {}", resolve_reason(data))
    } else {
        data.detail.clone()
    };
    format!("{}{holder} on {}: {text}", data.address, data.node)
}

/// An anomaly's kind as a title: `IPAM drift`.
#[must_use]
pub fn anomaly_title(kind: AnomalyKind) -> &'static str {
    match kind {
        AnomalyKind::IpamDrift => "IPAM drift",
        AnomalyKind::IpamLeak => "IPAM leak",
        AnomalyKind::GatewayUnresolved => "Unresolved gateway",
        AnomalyKind::RouteAstray => "Misdirected route",
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
            ResolveReason::Quiet => "the pod stopped asking for the gateway",
            ResolveReason::DeviceGone => "the device was removed",
            ResolveReason::RouteRight => "the route leads to a claimant again",
            ResolveReason::NotSeen => "it was not found again",
        },
        Some(ResolvedBecause::Answered) => "the gateway answered",
        Some(ResolvedBecause::Unseen) | None => {
            "it ended while the agent was down, or its last event was lost"
        }
    }
}

/// The address, with its VLAN.
#[must_use]
pub fn vlan_address(data: &ConflictData) -> String {
    match (data.vlan, data.inner_vlan) {
        (Some(outer), Some(inner)) => format!("{} (VLAN {outer}.{inner})", data.address),
        (Some(vlan), None) => format!("{} (VLAN {vlan})", data.address),
        (None, _) => data.address.to_string(),
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
    let mut names: Vec<String> = shown.iter().take(NAMED).map(|c| claimant(c)).collect();
    if more > 0 {
        names.push(format!("{more} more"));
    }
    match names.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        Some((only, _)) => only.clone(),
        None => "no device".to_owned(),
    }
}

/// `default/a (veth1)`, or the device alone.
#[must_use]
pub fn claimant(claimant: &ClaimantData) -> String {
    match &claimant.pod {
        Some(pod) => format!("{}/{} ({})", pod.namespace, pod.name, claimant.device),
        None => claimant.device.clone(),
    }
}
