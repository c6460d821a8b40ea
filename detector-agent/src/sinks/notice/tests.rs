#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use detector_engine::{
    Confidence, ConflictKind, EvidenceKind, LeaveReason, ResolveReason, diagnosis::Cause,
};
use detector_event::{ConflictData, EventType, NewestBy, ResolvedBecause, SubjectState, samples};

use super::*;

fn headline(notice: &Notice) -> String {
    format!("{}: {}", notice.heading(), notice.finding)
}

fn lines(message: &Message) -> [String; 3] {
    let notice = Notice::new(message);
    [headline(&notice), notice.effect, notice.next_step]
}

fn window(change: Change, events: Vec<AnyEvent>) -> Message {
    Message::of_window(change, samples::subject_id("first"), events).unwrap()
}

fn group(change: Change, conflicts: &[ConflictData]) -> Message {
    let events = conflicts.iter().map(|data| {
        let mut event = samples::raised("10.0.0.1");
        event.data = data.clone();
        if change == Change::Resolved {
            event.data.state = SubjectState::Resolved;
            event.data.resolved_at = Some(data.raised_at.after(Duration::from_secs(200)));
        }
        event.into()
    });
    window(change, events.collect())
}

fn shared(count: usize) -> Vec<ConflictData> {
    (1..=count)
        .map(|n| samples::raised(&format!("10.0.0.{n}")).data)
        .collect()
}

#[test]
fn finding_traffic_and_next_step_of_one_address() {
    assert_eq!(
        lines(&group(Change::Raised, &shared(1))),
        [
            "IP conflict detected: 10.0.0.1 is claimed by default/a (veth-a) and default/b (veth-b) on node-1",
            "Traffic for it goes to default/a (veth-a); none of it goes to default/b (veth-b).",
            "Delete the pod that came last: the runbook shows how to find out which one that is.",
        ]
    );
    let mut conflicts = shared(1);
    conflicts[0].claimants[1].newest = true;
    conflicts[0].claimants[1].newest_by = Some(NewestBy::FirstSight);
    let [.., step] = lines(&group(Change::Raised, &conflicts));
    let mut unknown = conflicts.clone();
    unknown[0].claimants[1].pod = None;
    let [.., of_unknown] = lines(&group(Change::Raised, &unknown));
    assert!(
        of_unknown.starts_with("Delete the pod of veth-b, "),
        "{of_unknown}"
    );
    assert_eq!(
        step,
        "Delete default/b (veth-b), the newest claimant (its claim began last); the controller of the pod creates it again with another address."
    );
}

#[test]
fn many_addresses_of_the_same_pods_are_counted() {
    let mut conflicts = shared(200);
    let message = group(Change::Raised, &conflicts);
    let [finding, effect, _] = lines(&message);
    assert_eq!(
        finding,
        "IP conflicts detected: 200 addresses are claimed by default/a (veth-a) and default/b (veth-b) on node-1"
    );
    assert!(
        effect.starts_with("Traffic for them goes to default/a"),
        "{effect}"
    );
    let list = Notice::new(&message).list;
    assert_eq!(list.len(), 1);
    assert!(list[0].starts_with("10.0.0.1, 10.0.0.2, "), "{list:?}");
    assert!(list[0].ends_with(" and 190 more"), "{list:?}");
    for conflict in &mut conflicts[..50] {
        conflict.traffic_goes_to = Some("veth-b".to_owned());
    }
    conflicts[199].traffic_goes_to = None;
    let [_, effect, _] = lines(&group(Change::Updated, &conflicts));
    assert_eq!(
        effect,
        "Traffic goes for 149 of the addresses to default/a (veth-a), for 50 of the addresses to default/b (veth-b) and for 1 of them to no claimant."
    );
}

#[test]
fn next_step_depends_on_kind_and_confidence() {
    let mut conflict = shared(1).remove(0);
    conflict.confidence = Confidence::Observed;
    conflict.claimants[1].evidence[0].kind = EvidenceKind::Arp;
    let step = |conflict: &ConflictData| {
        let message = group(Change::Raised, std::slice::from_ref(conflict));
        Notice::new(&message).next_step
    };
    let text = step(&conflict);
    assert!(
        text.starts_with(
            "Only ARP, NDP or the neighbour table shows the claim of default/b (veth-b):"
        ),
        "{text}"
    );
    conflict.kind = ConflictKind::Host;
    conflict.claimants[0].pod = None;
    let text = step(&conflict);
    assert!(text.ends_with("claim it: default/b (veth-b)."), "{text}");
    conflict.kind = ConflictKind::Flapping;
    let text = step(&conflict);
    assert!(text.contains("election"), "{text}");
}

#[test]
fn a_resolved_group_names_its_pods_and_asks_for_nothing() {
    let mut conflicts = shared(3);
    for claimant in &mut conflicts[0].claimants {
        claimant.left = Some(LeaveReason::DeviceRemoved);
    }
    assert_eq!(
        lines(&group(Change::Resolved, &conflicts)),
        [
            "IP conflicts resolved: 3 addresses are no longer in conflict on node-1; default/a (veth-a) and default/b (veth-b) claimed them for up to 3m 20s",
            "",
            "",
        ]
    );
}

#[test]
fn a_resolved_drift_reads_as_resolved() {
    let mut event = samples::drift("10.0.0.1");
    let [finding, effect, step] = lines(&Message::of_event(event.clone().into()));
    assert!(
        finding.starts_with("IPAM drift detected: 10.0.0.1 of default/a"),
        "{finding}"
    );
    assert!(effect.contains("not affected yet"), "{effect}");
    assert!(step.contains("kubectl cordon node-1"), "{step}");
    event.event_type.change = Change::Resolved;
    event.data.state = SubjectState::Resolved;
    event.data.resolved_because = Some(ResolvedBecause::Seen(ResolveReason::Allocated));
    assert_eq!(
        lines(&Message::of_event(event.into())),
        [
            "IPAM drift resolved: 10.0.0.1 of default/a (veth-a) on node-1: the address is allocated again",
            "",
            "",
        ]
    );
}

/// Conflicts of two pods each that have no other, the most severe one last.
fn unrelated(count: usize) -> Vec<ConflictData> {
    let mut conflicts = shared(count);
    for (n, conflict) in conflicts.iter_mut().enumerate() {
        for claimant in &mut conflict.claimants {
            claimant.device += &n.to_string();
        }
        if n + 1 < count {
            conflict.confidence = Confidence::Observed;
        }
    }
    conflicts
}

#[test]
fn unrelated_conflicts_have_a_line_each_and_the_rest_is_counted() {
    let conflicts = unrelated(200);
    let raised = Notice::new(&group(Change::Raised, &conflicts));
    assert_eq!(
        headline(&raised),
        "IP conflicts detected: 200 addresses are in conflict on node-1"
    );
    assert_eq!(raised.severity, Severity::Critical);
    let expected = [
        "10.0.0.200 is claimed by default/a",
        "10.0.0.1 is claimed by",
    ];
    for (line, begin) in raised.list.iter().zip(expected) {
        assert!(line.starts_with(begin), "{line}");
    }
    assert_eq!(raised.list.len(), 11);
    assert_eq!(raised.list[10], "and 190 more, see the node's status page");
    let step = raised.next_step;
    assert!(step.starts_with("Begin with the first one: "), "{step}");
    let mut of_one_cause = conflicts.clone();
    for conflict in &mut of_one_cause {
        conflict.diagnosis = Some(samples::diagnosis(Cause::IpamStateWiped, 200).into());
    }
    let raised = Notice::new(&group(Change::Raised, &of_one_cause));
    assert_eq!(raised.cause, "The reservations were deleted.");
    assert_eq!(
        raised.next_step,
        "Begin with the first one: Recreate the pods."
    );
    let resolved = Notice::new(&group(Change::Resolved, &conflicts));
    assert_eq!(
        headline(&resolved),
        "IP conflicts resolved: 200 addresses are no longer in conflict on node-1"
    );
    assert_eq!(resolved.next_step, "");
}

#[test]
fn conflicts_and_anomalies_of_a_window_are_one_message() {
    let events = vec![
        samples::drift("10.0.0.9").into(),
        samples::raised("10.0.0.1").into(),
        samples::raised("10.0.0.2").into(),
    ];
    let notice = Notice::new(&window(Change::Raised, events));
    assert_eq!(
        headline(&notice),
        "IP address findings detected: 3 findings on node-1"
    );
    let expected = ["2 addresses are claimed by", "10.0.0.9 of default/a"];
    assert_eq!(notice.list.len(), expected.len());
    for (line, begin) in notice.list.iter().zip(expected) {
        assert!(line.starts_with(begin), "{line}");
    }
}

#[test]
fn many_anomalies_of_a_kind_are_counted_and_listed() {
    let drifts: Vec<AnyEvent> = (1..=200)
        .map(|n| samples::drift(&format!("10.0.0.{n}")).into())
        .collect();
    let message = window(Change::Raised, drifts.clone());
    assert_eq!(
        lines(&message),
        [
            "IPAM drift detected: 200 addresses of pods on node-1 do not match the allocations of IPAM",
            "Traffic is not affected yet; the next pods may get the addresses.",
            "Keep new pods off the node (kubectl cordon node-1), then restore the allocations or recreate the pods.",
        ]
    );
    let list = Notice::new(&message).list;
    assert!(
        list[0].starts_with("10.0.0.1 of default/a (veth-a), "),
        "{list:?}"
    );
    assert!(list[0].ends_with(" and 190 more"), "{list:?}");
    let now = samples::time().after(Duration::from_secs(200));
    let ends = drifts
        .iter()
        .map(|drift| drift.resolved_unseen("end".to_owned(), now));
    let resolved = window(Change::Resolved, ends.collect());
    assert_eq!(
        lines(&resolved),
        [
            "IPAM drift resolved: 200 findings on node-1 are over after up to 3m 20s",
            "",
            "",
        ]
    );
}

#[test]
fn known_cause_is_part_of_a_message_until_the_end() {
    let explained = |cause| {
        let mut drift = samples::drift("10.0.0.1");
        drift.data.diagnosis = Some(samples::diagnosis(cause, 9).into());
        drift
    };
    let shown = |event: AnyEvent| {
        let notice = Notice::new(&Message::of_event(event));
        (notice.cause, notice.next_step)
    };
    let wiped = explained(Cause::IpamStateWiped);
    let expected = ("The reservations were deleted.", "Recreate the pods.");
    let (cause, next_step) = shown(wiped.clone().into());
    assert_eq!((cause.as_str(), next_step.as_str()), expected);
    let (cause, next_step) = shown(explained(Cause::Unknown).into());
    assert_eq!(cause, "");
    assert!(next_step.starts_with("Keep new pods off"), "{next_step}");
    let mut resolved = wiped;
    resolved.event_type = EventType::anomaly(Change::Resolved);
    assert_eq!(shown(resolved.into()), Default::default());
}
