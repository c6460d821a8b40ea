//! Events for the tests of this folder.

use super::{AnomalyData, AnomalyEvent, ClaimantData, ConflictData, Event, EvidenceData};
use crate::pods::{Pod, Via};

const TIME: &str = "2026-11-21T01:02:03.123456Z";

fn claimant(name: &str) -> ClaimantData {
    ClaimantData {
        device: format!("veth-{name}"),
        ifindex: 12,
        mac: Some("02:00:00:00:00:01".to_owned()),
        master: None,
        since: TIME.to_owned(),
        pod: Some(Pod::named("default", name, Via::Cri)),
        pod_unknown_because: None,
        evidence: vec![EvidenceData {
            kind: "address".to_owned(),
            first_seen: TIME.to_owned(),
            last_seen: TIME.to_owned(),
            mac: None,
            detail: None,
        }],
        left: None,
    }
}

/// An event about the conflict `conflict`; `change` is the last word of its type.
pub(crate) fn event(id: &str, change: &str, conflict: &str, address: &str) -> Event {
    let over = change == "resolved";
    Event {
        specversion: "1.0".to_owned(),
        id: id.to_owned(),
        source: "ip-conflict-detector/node-1".to_owned(),
        event_type: format!("io.ipconflict.conflict.{change}"),
        subject: address.to_owned(),
        time: TIME.to_owned(),
        datacontenttype: "application/json".to_owned(),
        data: ConflictData {
            conflict_id: conflict.to_owned(),
            node: "node-1".to_owned(),
            address: address.to_owned(),
            vlan: None,
            inner_vlan: None,
            kind: "duplicate".to_owned(),
            confidence: "certain".to_owned(),
            state: if over { "resolved" } else { "active" }.to_owned(),
            raised_at: TIME.to_owned(),
            updated_at: TIME.to_owned(),
            resolved_at: over.then(|| TIME.to_owned()),
            latency_us: 40,
            traffic_goes_to: Some("veth-a".to_owned()),
            claimants: vec![claimant("a"), claimant("b")],
            claimants_omitted: 0,
        },
    }
}

/// Raised for an address; the conflict is named after it.
pub(crate) fn raised(address: &str) -> Event {
    event("1", "raised", address, address)
}

/// Resolved for an address.
pub(crate) fn resolved(address: &str) -> Event {
    event("2", "resolved", address, address)
}

/// A live address that IPAM counts as free.
pub(crate) fn drift(address: &str) -> AnomalyEvent {
    AnomalyEvent {
        specversion: "1.0".to_owned(),
        id: "3".to_owned(),
        source: "ip-conflict-detector/node-1".to_owned(),
        event_type: "io.ipconflict.anomaly.raised".to_owned(),
        subject: address.to_owned(),
        time: TIME.to_owned(),
        datacontenttype: "application/json".to_owned(),
        data: AnomalyData {
            anomaly_id: format!("drift-{address}"),
            node: "node-1".to_owned(),
            kind: "ipam_drift".to_owned(),
            cause: "unreserved".to_owned(),
            state: "active".to_owned(),
            address: address.to_owned(),
            vlan: None,
            device: Some("veth-a".to_owned()),
            ifindex: Some(12),
            pod: Some(Pod::named("default", "a", Via::Cri)),
            pod_unknown_because: None,
            also_on: Vec::new(),
            ipam: Some("host-local".to_owned()),
            network: Some("cbr0".to_owned()),
            source: Some("/var/lib/cni/networks/cbr0".to_owned()),
            owner: None,
            detail: "nothing reserves it, and the next pod may get it".to_owned(),
            raised_at: TIME.to_owned(),
            resolved_at: None,
            resolved_because: None,
            latency_us: 40,
        },
    }
}
