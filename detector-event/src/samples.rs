//! Events for the unit tests of this crate.

use std::{net::IpAddr, sync::Arc, time::Duration};

use detector_engine::{
    AnomalyCause, AnomalyId, AnomalyKind, Confidence, Conflict, ConflictId, ConflictKind,
    ConflictScope, EvidenceKind, Ipam, Mac, Network, Timestamp, Vlan,
    diagnosis::{Cause, CauseConfidence},
};

use super::{
    Affected, AnomalyData, AnomalyEvent, Change, ClaimantData, ConflictData, DataContentType,
    DiagnosisData, Event, EventType, EvidenceData, Guidance, SpecVersion, SubjectId, SubjectState,
    guidance::Severity,
};
use crate::{Pod, Via, WallTime};

/// The time of every sample.
pub fn time() -> WallTime {
    parsed("2026-11-21T01:02:03.123456Z")
}

/// The id that stands for a name in tests: its last 16 bytes.
pub fn conflict_id(name: &str) -> ConflictId {
    let id = name
        .bytes()
        .fold(0, |id, byte| (id << 8) | u128::from(byte));
    ConflictId(id)
}

/// The same, as [`super::AnyEvent::subject_id`] gives it.
pub fn subject_id(name: &str) -> SubjectId {
    conflict_id(name).into()
}

#[allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]
fn parsed<T: std::str::FromStr<Err: std::fmt::Debug>>(text: &str) -> T {
    text.parse().unwrap()
}

/// The engine's conflict about an address, without claimants; its id is that of the address as a name.
pub fn conflict(address: &str) -> Conflict {
    Conflict {
        id: conflict_id(address),
        address: parsed(address),
        network: Network::Node,
        vlan: Vlan::default(),
        kind: ConflictKind::Duplicate,
        scope: ConflictScope::Node,
        confidence: Confidence::Certain,
        raised_at: Timestamp(1),
        updated_at: Timestamp(1),
        resolved_at: None,
        decided_at: Timestamp(1),
        traffic_goes_to: None,
        claimants: Vec::new(),
        claimants_omitted: 0,
        repeats: 0,
        quiet_since: None,
        sweep: None,
        reported: None,
    }
}

/// A claimant of an event, in a pod or not known to be in one.
pub fn claimant(device: &str, pod: Option<&str>) -> ClaimantData {
    ClaimantData {
        node: "n".into(),
        device: device.to_owned(),
        ifindex: 12,
        mac: Some(Mac([2, 0, 0, 0, 0, 1])),
        master: None,
        since: Some(time()),
        since_unknown_because: None,
        newest: false,
        newest_by: None,
        is_node: false,
        rightful: None,
        allocated: None,
        own_stack: false,
        pod: pod.map(|name| Arc::new(Pod::named("default", name, Via::Cri))),
        pod_unknown_because: None,
        evidence: vec![EvidenceData {
            kind: EvidenceKind::Address,
            first_seen: Some(time()),
            last_seen: time(),
            mac: None,
            detail: None,
        }],
        left: None,
    }
}

/// A proven diagnosis that affects this many addresses.
pub fn diagnosis(cause: Cause, addresses: usize) -> DiagnosisData {
    DiagnosisData {
        cause,
        confidence: CauseConfidence::Proven,
        since: Some(time()),
        summary: "The reservations were deleted.".to_owned(),
        evidence: Vec::new(),
        affected: Affected {
            addresses,
            pods: addresses,
        },
        repair: "Recreate the pods.".to_owned(),
        ruled_out: Vec::new(),
        not_checked: Vec::new(),
    }
}

/// An event about the conflict with the id [`conflict_id`]`(conflict)`.
pub fn event(id: &str, change: Change, conflict: &str, address: &str) -> Event {
    let is_resolved = change == Change::Resolved;
    let address: IpAddr = parsed(address);
    let mut event = Event {
        specversion: SpecVersion::V1,
        id: id.to_owned(),
        source: "ip-conflict-detector/node-1".into(),
        event_type: EventType::conflict(change),
        subject: address,
        time: time(),
        datacontenttype: DataContentType::Json,
        data: ConflictData {
            conflict_id: conflict_id(conflict),
            node: "node-1".into(),
            cluster: None,
            address,
            network: Network::Node,
            vlan: None,
            inner_vlan: None,
            kind: ConflictKind::Duplicate,
            severity: Severity::Critical,
            scope: ConflictScope::Node,
            confidence: Confidence::Certain,
            state: SubjectState::of(is_resolved),
            raised_at: time(),
            updated_at: time(),
            resolved_at: is_resolved.then(time),
            duration_seconds: is_resolved.then_some(Duration::ZERO),
            changed: Vec::new(),
            latency_us: 40,
            traffic_goes_to: Some("veth-a".to_owned()),
            claimants: vec![claimant("veth-a", Some("a")), claimant("veth-b", Some("b"))],
            claimants_omitted: 0,
            repeats: 0,
            quiet_since: None,
            sweep: None,
            diagnosis: None,
            timeline: Some(Arc::default()),
            guidance: None,
        },
    };
    event.data.guidance = Guidance::of_conflict(&event.data);
    event
}

/// Raised for an address, which also names the conflict.
pub fn raised(address: &str) -> Event {
    event("1", Change::Raised, address, address)
}

/// Resolved for an address.
pub fn resolved(address: &str) -> Event {
    event("2", Change::Resolved, address, address)
}

/// A live address that IPAM has recorded as free.
pub fn drift(address: &str) -> AnomalyEvent {
    let ip: IpAddr = parsed(address);
    let mut event = AnomalyEvent {
        specversion: SpecVersion::V1,
        id: "3".to_owned(),
        source: "ip-conflict-detector/node-1".into(),
        event_type: EventType::anomaly(Change::Raised),
        subject: ip,
        time: time(),
        datacontenttype: DataContentType::Json,
        data: AnomalyData {
            anomaly_id: AnomalyId(conflict_id(address).0),
            node: "node-1".into(),
            cluster: None,
            kind: AnomalyKind::IpamDrift,
            severity: Severity::Warning,
            cause: AnomalyCause::NotAllocated,
            state: SubjectState::Active,
            address: ip,
            vlan: None,
            device: Some("veth-a".to_owned()),
            ifindex: Some(12),
            pod: Some(Arc::new(Pod::named("default", "a", Via::Cri))),
            pod_unknown_because: None,
            also_on: Vec::new(),
            ipam: Some(Ipam::HostLocal),
            network: Some("cbr0".to_owned()),
            source: Some("/var/lib/cni/networks/cbr0".to_owned()),
            owner: None,
            contested: None,
            diverted: None,
            kept: None,
            addresses: Vec::new(),
            range: None,
            nodes: Vec::new(),
            detail: "it is not allocated, and the next pod may get it".to_owned(),
            raised_at: time(),
            resolved_at: None,
            duration_seconds: None,
            resolved_because: None,
            latency_us: 40,
            diagnosis: None,
            timeline: Some(Arc::default()),
            guidance: None,
        },
    };
    event.data.guidance = Guidance::of_anomaly(&event.data);
    event
}

/// A device that contests addresses; `address` is the first one.
pub fn sweep(address: &str) -> AnomalyEvent {
    let mut event = drift(address);
    event.data = AnomalyData {
        kind: AnomalyKind::AddressSweep,
        severity: Severity::Critical,
        cause: AnomalyCause::ContestsMany,
        ipam: None,
        network: None,
        source: None,
        contested: Some(4),
        diverted: Some(0),
        kept: Some(4),
        addresses: vec![event.subject],
        detail: "the pod on veth-a claims 4 addresses of others".to_owned(),
        ..event.data
    };
    event.data.guidance = Guidance::of_anomaly(&event.data);
    event
}
