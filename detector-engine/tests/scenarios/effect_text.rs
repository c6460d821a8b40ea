//! Effects as text.

use super::*;

pub(super) fn conflict_effect_text(effect: &Effect) -> Option<String> {
    match effect {
        Effect::Raised(c) => Some(format!("raised {}", conflict_text(c))),
        Effect::Updated(c) => Some(format!("updated {}", conflict_text(c))),
        Effect::Resolved(c) => Some(format!("resolved {}", conflict_text(c))),
        Effect::Attach(_)
        | Effect::Renamed(_)
        | Effect::Detach { .. }
        | Effect::Resync
        | Effect::Corrected(_)
        | Effect::ReadDevice(_)
        | Effect::ReadNode(_)
        | Effect::BoundReached(_)
        | Effect::Anomaly(_) => None,
    }
}

pub(super) fn device_effect_text(effect: &Effect) -> Option<String> {
    match effect {
        Effect::Attach(d) => Some(format!("attach {}#{}", d.name, d.generation)),
        Effect::Renamed(d) => Some(format!("rename {}#{}", d.name, d.generation)),
        Effect::Detach { device: d, .. } => Some(format!("detach {}#{}", d.name, d.generation)),
        Effect::Resync => Some("resync".to_owned()),
        Effect::ReadDevice(d) => Some(format!("read {}#{}", d.name, d.generation)),
        Effect::ReadNode(reason) => Some(format!("read the node: {reason:?}")),
        Effect::BoundReached(reached) => {
            let device = reached.device.as_ref();
            let of = device.map_or("the node", |device| device.name.as_str());
            Some(format!("bound of {of}: {}", reached.bound.name()))
        }
        Effect::Raised(_)
        | Effect::Updated(_)
        | Effect::Resolved(_)
        | Effect::Corrected(_)
        | Effect::Anomaly(_) => None,
    }
}

/// `ADDRESS[@VLAN[.INNER]] KIND CONFIDENCE: CLAIMANT… [left NAME(REASON)…] [-> RECEIVER]`
pub(super) fn conflict_text(c: &Conflict) -> String {
    let mut text = c.address.to_string();
    if let Some(outer) = c.vlan.outer {
        text += &format!("@{outer}");
    }
    if let Some(inner) = c.vlan.inner {
        text += &format!(".{inner}");
    }
    text += &format!(" {} {}:", c.kind.name(), c.confidence.name());
    for claimant in c.present() {
        text += &format!(" {}", claimant_text(claimant));
    }
    if c.claimants_omitted > 0 {
        text += &format!(" +{}", c.claimants_omitted);
    }
    for claimant in &c.claimants {
        if let Some(left) = claimant.left {
            text += &format!(" left {}({})", claimant_text(claimant), left.name());
        }
    }
    if let Some(receiver) = &c.traffic_goes_to {
        text += &format!(" -> {receiver}");
    }
    text
}

pub(super) fn claimant_text(claimant: &Claimant) -> String {
    match claimant.id {
        ClaimantId::Host => format!("node/{}", claimant.device),
        ClaimantId::Device(..) | ClaimantId::Registered(_) => claimant.device.clone(),
        ClaimantId::BehindBridge(_, mac) => format!("{}/{mac}", claimant.device),
    }
}

/// Kind and detail of each piece of evidence.
pub(super) fn evidence_text(claimant: &Claimant) -> Vec<String> {
    let text = |e: &Evidence| match &e.detail {
        Some(detail) => format!("{} {detail}", e.kind.name()),
        None => e.kind.name().to_owned(),
    };
    claimant.evidence.iter().map(text).collect()
}
