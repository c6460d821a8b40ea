//! A conflict across nodes as the engine's own types, so that events, the API and the sinks treat it like any other.

use std::hash::{Hash as _, Hasher as _};

use detector_engine::{
    Anomaly, AnomalyCause, AnomalyId, AnomalyKind, Beginning, Claimant, ClaimantId, Conflict,
    ConflictScope, Evidence, EvidenceDetail, RangeOverlap, RegisteredClaimant, ResolveReason, Seen,
    Timestamp, UnknownBeginning, Vlan,
};
use detector_event::Moment;
use detector_fleet::{
    Report,
    objects::{ConflictClaimant, Party},
};
use fnv::FnvHasher;
use ipnet::IpNet;

/// The most claimants that are listed.
const CLAIMANTS: usize = 64;

/// The conflict about `address` as it is at `moment`. `node` is this node's name.
pub(crate) fn conflict(
    report: &Report,
    address: std::net::IpAddr,
    node: &str,
    moment: &Moment,
) -> Conflict {
    let spec = &report.conflict;
    let now = moment.monotonic();
    let claimants = spec.claimants.iter().take(CLAIMANTS);
    let present = spec.claimants.iter().filter(|c| c.left.is_none()).count();
    Conflict {
        id: spec.conflict_id,
        address,
        network: spec.network.clone(),
        vlan: Vlan::default(),
        kind: spec.kind,
        scope: ConflictScope::Fleet,
        confidence: spec.confidence,
        raised_at: raised_at(report, moment),
        updated_at: now,
        resolved_at: report.is_resolved.then_some(now),
        decided_at: decided_at(report, now),
        traffic_goes_to: None,
        claimants: claimants.map(|c| claimant(c, report, node, now)).collect(),
        claimants_omitted: present.saturating_sub(CLAIMANTS),
        repeats: 0,
        quiet_since: None,
        sweep: None,
        reported: None,
    }
}

/// The overlap of `range` as it is at `moment`.
pub(crate) fn overlap(report: &Report, range: IpNet, moment: &Moment) -> Anomaly {
    let spec = &report.conflict;
    let now = moment.monotonic();
    let present = spec.claimants.iter().filter(|c| c.left.is_none());
    let present: Vec<&Party> = present.map(|c| &c.party).take(CLAIMANTS).collect();
    // Of a resolved one, those that had the range.
    let all = || spec.claimants.iter().map(|c| &c.party).take(CLAIMANTS);
    let nodes: Vec<String> = match report.is_resolved {
        false => present.iter().map(|party| party.node.clone()).collect(),
        true => all().map(|party| party.node.clone()).collect(),
    };
    let source = all().map(|party| &*party.source).find(|s| !s.is_empty());
    Anomaly {
        id: AnomalyId(spec.conflict_id.0),
        kind: AnomalyKind::PodCidrOverlap,
        cause: AnomalyCause::SeveralNodes,
        address: range.network(),
        vlan: Vlan::default(),
        holder: None,
        also_on: Vec::new(),
        source: None,
        owner: None,
        detail: format!(
            "the range {range} ({}) is assigned to several nodes: {}",
            source.unwrap_or("podCIDR"),
            nodes.join(", ")
        ),
        contested: None,
        overlap: Some(RangeOverlap { range, nodes }),
        raised_at: raised_at(report, moment),
        decided_at: decided_at(report, now),
        reported_latency_us: None,
        reported_diagnosis: 0,
        resolved_at: report.is_resolved.then_some(now),
        resolve_reason: report.is_resolved.then_some(ResolveReason::RangeUnique),
    }
}

/// The beginning of this node's claim decided that it was raised; a later change is decided now.
fn decided_at(report: &Report, now: Timestamp) -> Timestamp {
    let is_raised = !report.is_update && !report.is_resolved && report.began != Timestamp(0);
    if is_raised { report.began } else { now }
}

/// When it was raised, as the reporter's agent has written it; never later than now.
fn raised_at(report: &Report, moment: &Moment) -> Timestamp {
    let now = moment.monotonic();
    match report.conflict.raised_at {
        Some(raised_at) => {
            let ago = moment.wall().since(raised_at);
            Timestamp(
                now.0
                    .saturating_sub(u64::try_from(ago.as_nanos()).unwrap_or(now.0)),
            )
        }
        None => now,
    }
}

fn claimant(claimant: &ConflictClaimant, report: &Report, node: &str, now: Timestamp) -> Claimant {
    let party = &claimant.party;
    let (since, beginning) = if party.node == node {
        (report.began, Beginning::seen())
    } else {
        (now, Beginning::unknown(UnknownBeginning::OnOtherNode))
    };
    let evidence = party.evidence.map(|kind| Evidence {
        kind,
        seen: Seen {
            first: since,
            beginning,
            last: now,
        },
        mac: party.mac,
        detail: claimant
            .unconfirmed_because
            .clone()
            .map(EvidenceDetail::Text),
    });
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let mut hasher = FnvHasher::default();
    (&party.node, &party.device).hash(&mut hasher);
    let id = ClaimantId::Registered(hasher.finish());
    Claimant {
        mac: party.mac,
        beginning,
        evidence: evidence.into_iter().collect(),
        left: claimant.left,
        rightful: claimant.rightful,
        registered: Some(
            RegisteredClaimant {
                node: party.node.clone(),
                namespace: party.namespace.clone(),
                pod: party.pod.clone(),
                pod_uid: text(&party.pod_uid),
                container_id: text(&party.container_id),
            }
            .into(),
        ),
        ..Claimant::new(id, party.device.clone(), party.ifindex, since)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

    use detector_event::{ConflictData, PodAnswer};
    use detector_fleet::{Subject, samples};

    use super::*;
    use crate::process::clock;

    #[test]
    fn each_claimant_has_its_node_and_pod() {
        let report = samples::report("10.0.0.1");
        let moment = clock::moment();
        let conflict = conflict(&report, "10.0.0.1".parse().unwrap(), "node-b", &moment);
        let data = ConflictData::new(&"node-b".into(), &moment, &conflict, |_| {
            PodAnswer::Unknown("not asked".into())
        });
        let nodes: Vec<_> = data.claimants.iter().map(|c| &*c.node).collect();
        assert_eq!(nodes, ["node-a", "node-b"]);
        assert_eq!(data.scope, ConflictScope::Fleet);
        let line = detector_event::summary::conflict_line(&data);
        let expected = "10.0.0.1 is claimed by veth-a on node-a and veth-b on node-b";
        assert_eq!(line, expected);
    }

    #[test]
    fn right_is_the_one_in_the_object() {
        let mut report = samples::report("10.0.0.1");
        let rights = [Some(true), Some(false)];
        for (claimant, rightful) in report.conflict.claimants.iter_mut().zip(rights) {
            claimant.rightful = rightful;
        }
        let moment = clock::moment();
        let conflict = conflict(&report, "10.0.0.1".parse().unwrap(), "node-b", &moment);
        let reported = conflict.claimants.iter().map(|c| c.rightful);
        assert_eq!(Vec::from_iter(reported), rights);
    }

    #[test]
    fn beginning_on_another_node_is_not_compared() {
        let report = samples::report("10.0.0.1");
        let moment = clock::moment();
        let conflict = conflict(&report, "10.0.0.1".parse().unwrap(), "node-b", &moment);
        let known = conflict.claimants.iter().map(|c| c.beginning.is_known());
        assert_eq!(Vec::from_iter(known), [false, true]);
    }

    #[test]
    fn time_of_raising_is_that_in_the_object_and_never_later_than_now() {
        let mut report = samples::report("10.0.0.1");
        let moment = clock::moment();
        for (raised_at, expected) in [
            ("2026-11-21T01:02:03.123456Z", true),
            ("2999-11-21T01:02:03.123456Z", false),
        ] {
            report.conflict.raised_at = raised_at.parse().ok();
            let raised_at = super::raised_at(&report, &moment);
            assert_eq!(raised_at < moment.monotonic(), expected);
        }
    }

    #[test]
    fn overlap_names_the_range_and_its_nodes() {
        let mut report = samples::report("10.244.1.0/24");
        let Subject::Range(range) = report.conflict.address else {
            unreachable!("a range");
        };
        let overlap_now = |report: &Report| overlap(report, range, &clock::moment());
        let raised = overlap_now(&report);
        assert_eq!(raised.overlap.unwrap().nodes, ["node-a", "node-b"]);
        assert!(raised.detail.contains("10.244.1.0/24"), "{}", raised.detail);
        report.is_resolved = true;
        report.conflict.claimants[0].left = Some(detector_engine::LeaveReason::Expired);
        // Of a resolved one, those that had it.
        assert_eq!(overlap_now(&report).overlap.unwrap().nodes.len(), 2);
    }
}
