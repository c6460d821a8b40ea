//! A conflict in one line, for chats, pagers and alerts.

use super::{AnomalyData, ClaimantData, ConflictData, any_event::AnyEvent};

/// Claimants named in a line; the rest are counted.
const NAMED: usize = 4;

/// What an event tells of, in one line.
#[must_use]
pub fn line_of(event: &AnyEvent) -> String {
    match event {
        AnyEvent::Conflict(event) => line(&event.data),
        AnyEvent::Anomaly(event) => anomaly_line(&event.data),
    }
}

/// `10.244.2.10 of default/a (veth1) on n: what is wrong with it`.
#[must_use]
pub fn anomaly_line(data: &AnomalyData) -> String {
    let holder = match (&data.pod, &data.device) {
        (Some(pod), Some(device)) => format!(" of {}/{} ({device})", pod.namespace, pod.name),
        (None, Some(device)) => format!(" of {device}"),
        _ => String::new(),
    };
    let over = if data.state == "resolved" {
        "no longer: "
    } else {
        ""
    };
    format!(
        "{}{holder} on {}: {over}{}",
        data.address, data.node, data.detail
    )
}

/// `10.244.2.10 is claimed by default/a (veth1) and default/b (veth2) on n; traffic goes to veth1`.
#[must_use]
pub fn line(data: &ConflictData) -> String {
    let over = data.state == "resolved";
    let mut text = match (data.kind.as_str(), over) {
        (_, true) => format!("{} is no longer in conflict on {}", place(data), data.node),
        ("flapping", _) => format!(
            "{} moves too often between {} on {}",
            place(data),
            claimants(data),
            data.node
        ),
        _ => format!(
            "{} is claimed by {} on {}",
            place(data),
            claimants(data),
            data.node
        ),
    };
    if let (Some(device), false) = (&data.traffic_goes_to, over) {
        text += &format!("; traffic goes to {device}");
    }
    text
}

/// The address, with its VLAN.
#[must_use]
pub fn place(data: &ConflictData) -> String {
    match (data.vlan, data.inner_vlan) {
        (Some(outer), Some(inner)) => format!("{} (VLAN {outer}.{inner})", data.address),
        (Some(vlan), None) => format!("{} (VLAN {vlan})", data.address),
        _ => data.address.clone(),
    }
}

/// The claimants that have not left, or, where all have, those that were.
#[must_use]
pub fn claimants(data: &ConflictData) -> String {
    let present: Vec<&ClaimantData> = data.claimants.iter().filter(|c| c.left.is_none()).collect();
    let shown = if present.is_empty() {
        data.claimants.iter().collect()
    } else {
        present
    };
    let more = shown.len().saturating_sub(NAMED) + data.claimants_omitted;
    let mut names: Vec<String> = shown.iter().take(NAMED).map(|c| claimant(c)).collect();
    if more > 0 {
        names.push(format!("{more} more"));
    }
    match names.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        Some((only, _)) => only.clone(),
        None => "nobody".to_owned(),
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
