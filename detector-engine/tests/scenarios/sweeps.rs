//! Devices that contest many addresses of others (`docs/detection-rules.md`, section 14.5).

use super::*;
use crate::rightful::known;

/// How long after its raise a sweep is updated first, and after that at most once in which time; and for how long its device has
/// contested few addresses when it ends (`docs/detection-rules.md`, section 14.5).
const FIRST_UPDATE: Duration = Duration::from_secs(1);
const UPDATE_EVERY: Duration = Duration::from_secs(10);
const FEW_FOR: Duration = Duration::from_secs(60);

/// The address of a pod.
fn own(ifindex: IfIndex) -> String {
    format!("10.7.0.{ifindex}")
}

/// Pods `1..=count`, each with an address, after the first snapshot.
fn pods(count: IfIndex, settings: Settings) -> Node {
    let mut node = Node::with_settings(settings);
    node.resync(pods_snapshot(count));
    node.effects.clear();
    node
}

fn pods_snapshot(count: IfIndex) -> Snapshot {
    Snapshot {
        links: (1..=count).map(pod).collect(),
        pods: (1..=count).map(|n| pod_addresses(n, &[&own(n)])).collect(),
        ..Snapshot::default()
    }
}

/// The pod of the last device claims the addresses of these in ARP frames.
fn sweep(node: &mut Node, sweeper: IfIndex, victims: impl IntoIterator<Item = IfIndex>) {
    for victim in victims {
        node.frame(sweeper, &own(victim));
    }
}

/// Nine pods; the last claims the addresses of the first `contested`.
fn swept(contested: IfIndex) -> Node {
    let mut node = pods(9, Settings::default());
    sweep(&mut node, 9, 1..=contested);
    node
}

/// The events about conflicts and anomalies since effects were last taken: `raised 10.7.0.1`, followed by `*` for a
/// conflict that is part of a sweep, and `raised veth9 contests 4`.
fn events(node: &mut Node) -> Vec<String> {
    let conflict = |change, c: &Conflict| {
        let mark = if c.sweep.is_some() { "*" } else { "" };
        format!("{change} {}{mark}", c.address)
    };
    let anomaly = |change, a: &Anomaly| {
        let device = &a.holder.as_ref().unwrap().device;
        let count = a.contested.as_ref().unwrap().count;
        let reason = a.resolve_reason.map(ResolveReason::name);
        let text = format!("{change} {device} contests {count}");
        reason.map_or_else(|| text.clone(), |reason| format!("{text}: {reason}"))
    };
    let effects = std::mem::take(&mut node.effects);
    let text = |effect: &Effect| match effect {
        Effect::Raised(c) => Some(conflict("raised", c)),
        Effect::Updated(c) => Some(conflict("updated", c)),
        Effect::Resolved(c) => Some(conflict("resolved", c)),
        Effect::Anomaly(AnomalyEffect::Raised(a)) => Some(anomaly("raised", a)),
        Effect::Anomaly(AnomalyEffect::Updated(a)) => Some(anomaly("updated", a)),
        Effect::Anomaly(AnomalyEffect::Resolved(a)) => Some(anomaly("resolved", a)),
        _ => None,
    };
    effects.iter().filter_map(text).collect()
}

fn open_sweep(node: &Node) -> Anomaly {
    let mut anomalies = node.engine.view().anomalies();
    let sweep = anomalies.pop().expect("a sweep is open");
    assert_eq!(sweep.kind, AnomalyKind::AddressSweep);
    assert!(anomalies.is_empty(), "one offender, one finding");
    sweep
}

#[test]
fn the_fourth_contested_address_starts_a_sweep() {
    let mut node = swept(3);
    let raised = ["raised 10.7.0.1", "raised 10.7.0.2", "raised 10.7.0.3"];
    assert_eq!(events(&mut node), raised);
    sweep(&mut node, 9, [4]);
    let expected = [
        "raised veth9 contests 4",
        "raised 10.7.0.4*",
        "updated 10.7.0.1*",
        "updated 10.7.0.2*",
        "updated 10.7.0.3*",
    ];
    assert_eq!(events(&mut node), expected);
    sweep(&mut node, 9, [5]);
    assert_eq!(events(&mut node), ["raised 10.7.0.5*"]);
    let conflicts = node.engine.view().conflicts(node.now);
    assert_eq!(conflicts.len(), 5, "the victims stay visible");
    let sweep = open_sweep(&node);
    assert!(conflicts.iter().all(|c| c.sweep == Some(sweep.id)));
    assert_eq!(sweep.contested.unwrap().count, 5);
    assert_eq!(
        sweep.detail,
        "the pod on veth9 claims 5 addresses of others: 10.7.0.1, 10.7.0.2, 10.7.0.3, 10.7.0.4 and 1 more"
    );
}

#[test]
fn an_owner_with_two_interfaces_contests_nothing() {
    let mut node = pods(9, Settings::default());
    let second = Peer {
        ifindex: 3,
        ..peer(1)
    };
    node.link(pod_with_peer(10, second));
    for n in 1..=4 {
        let address = format!("10.7.1.{n}");
        node.address(1, &address);
        node.observe(Observation::PodAddress(second, assigned(&address)));
        node.frame(9, &address);
    }
    let expected = [
        "raised 10.7.1.1",
        "raised 10.7.1.2",
        "raised 10.7.1.3",
        "raised veth9 contests 4",
        "raised 10.7.1.4*",
        "updated 10.7.1.1*",
        "updated 10.7.1.2*",
        "updated 10.7.1.3*",
    ];
    assert_eq!(events(&mut node), expected);
}

#[test]
fn a_growing_sweep_is_updated_after_a_second_then_in_ten() {
    let mut node = pods(61, Settings::default());
    sweep(&mut node, 61, 1..=40);
    let sweeps = |node: &mut Node| {
        let mut events = events(node);
        events.retain(|event| event.contains("contests"));
        events
    };
    assert_eq!(sweeps(&mut node), ["raised veth61 contests 4"]);
    node.wait(FIRST_UPDATE);
    assert_eq!(sweeps(&mut node), ["updated veth61 contests 40"]);
    sweep(&mut node, 61, 41..=60);
    node.wait(UPDATE_EVERY - FIRST_UPDATE);
    assert_eq!(sweeps(&mut node), [""; 0]);
    node.wait(FIRST_UPDATE);
    assert_eq!(sweeps(&mut node), ["updated veth61 contests 60"]);
    let contested = open_sweep(&node).contested.unwrap();
    assert_eq!((contested.count, contested.first.len()), (60, 16));
    node.wait_secs(300);
    assert_eq!(sweeps(&mut node), [""; 0]);
}

#[test]
fn a_sweep_ends_with_its_device() {
    let mut node = swept(5);
    node.effects.clear();
    node.remove_link(9);
    let mut resolved: Vec<_> = (1..=5).map(|n| format!("resolved {}*", own(n))).collect();
    resolved.push("resolved veth9 contests 5: device_gone".to_owned());
    assert_eq!(events(&mut node), resolved);
    assert!(node.engine.view().anomalies().is_empty());
}

#[test]
fn a_sweep_that_contests_nothing_any_more_ends_with_its_device() {
    let mut node = swept(4);
    for victim in 1..=4 {
        node.remove_link(victim);
    }
    node.effects.clear();
    node.remove_link(9);
    let expected = ["resolved veth9 contests 4: device_gone"];
    assert_eq!(events(&mut node), expected);
}

#[test]
fn a_sweep_with_few_addresses_for_a_minute_ends() {
    let mut node = swept(5);
    node.effects.clear();
    for victim in [1, 2] {
        node.remove_link(victim);
    }
    assert_eq!(
        events(&mut node),
        ["resolved 10.7.0.1*", "resolved 10.7.0.2*"]
    );
    node.wait(FEW_FOR - Duration::from_secs(1));
    sweep(&mut node, 9, [6]);
    let seen = events(&mut node);
    assert!(seen.contains(&"raised 10.7.0.6*".to_owned()), "{seen:?}");
    node.remove_link(6);
    node.effects.clear();
    node.wait(FEW_FOR - Duration::from_secs(1));
    let ended = |events: &[String]| events.iter().any(|e| e.starts_with("resolved veth9"));
    assert!(!ended(&events(&mut node)), "it had enough in between");
    node.wait_secs(1);
    let expected = [
        "resolved veth9 contests 5: contests_few",
        "updated 10.7.0.3",
        "updated 10.7.0.4",
        "updated 10.7.0.5",
    ];
    assert_eq!(events(&mut node), expected, "what outlasts it is reported");
}

#[test]
fn expired_claims_end_a_sweep() {
    let mut node = swept(6);
    node.effects.clear();
    node.wait(Settings::default().claim_ttl + FEW_FOR);
    let events = events(&mut node);
    assert_eq!(
        events.last().map(String::as_str),
        Some("resolved veth9 contests 6: contests_few")
    );
    let resolved = events.iter().filter(|e| e.starts_with("resolved 10.7"));
    assert_eq!(resolved.count(), 6);
    assert!(!events.iter().any(|e| e.starts_with("updated 10.7")));
}

#[test]
fn a_conflict_that_becomes_certain_leaves_the_sweep() {
    let mut node = swept(5);
    node.effects.clear();
    node.address(9, &own(2));
    assert_eq!(events(&mut node), ["updated 10.7.0.2"]);
    assert_eq!(open_sweep(&node).contested.unwrap().count, 4);
}

#[test]
fn another_claimant_is_not_hidden_by_a_sweep() {
    let mut node = swept(5);
    node.effects.clear();
    node.frame(8, &own(1));
    assert_eq!(events(&mut node), ["updated 10.7.0.1"]);
    let mut node = pods(9, Settings::default());
    node.frame(8, &own(1));
    sweep(&mut node, 9, 1..=5);
    let conflicts = node.engine.view().conflicts(node.now);
    let parts = conflicts.iter().filter(|c| c.sweep.is_some());
    assert_eq!((conflicts.len(), parts.count()), (5, 4));
}

#[test]
fn two_sweeps_of_the_same_addresses_hide_them() {
    let mut node = swept(5);
    sweep(&mut node, 8, 1..=5);
    let conflicts = node.engine.view().conflicts(node.now);
    assert!(conflicts.iter().all(|c| c.sweep.is_some()));
    let sweepers = node.engine.view().anomalies();
    assert_eq!(sweepers.len(), 2);
}

#[test]
fn owners_are_not_sweepers() {
    // Their claims are frames too: virtual machines.
    let mut node = Node::new();
    let taps = (1..=2).map(tap).chain([pod(9)]);
    node.resync(Snapshot {
        links: taps.collect(),
        pods: vec![pod_addresses(9, &[&own(9)])],
        ..Snapshot::default()
    });
    let claimed = ["10.7.1.1", "10.7.1.2", "10.7.1.3", "10.7.1.4", "10.7.1.5"];
    for (index, address) in claimed.into_iter().enumerate() {
        node.frame(if index == 0 { 1 } else { 2 }, address);
    }
    for address in claimed {
        node.frame(9, address);
    }
    assert_eq!(open_sweep(&node).holder.unwrap().device, "veth9");
}

#[test]
fn allowed_and_assigned_addresses_are_no_sweep() {
    let allowed = Settings {
        allow: vec!["10.7.0.0/16".parse().unwrap()],
        ..Settings::default()
    };
    let mut node = pods(9, allowed);
    sweep(&mut node, 9, 1..=8);
    assert!(node.engine.view().anomalies().is_empty());

    let mut node = pods(9, Settings::default());
    for victim in 1..=8 {
        node.address(9, &own(victim));
    }
    let conflicts = node.engine.view().conflicts(node.now);
    assert!(conflicts.len() == 8 && conflicts.iter().all(|c| c.sweep.is_none()));
    assert!(node.engine.view().anomalies().is_empty());
}

#[test]
fn addresses_that_nobody_else_has_are_no_sweep() {
    let mut node = pods(2, Settings::default());
    for n in 1..=100 {
        node.frame(2, &format!("10.8.0.{n}"));
    }
    assert_eq!(events(&mut node), [""; 0]);
}

#[test]
fn addresses_of_the_node_are_addresses_of_others() {
    let mut node = pods(2, Settings::default());
    node.link(uplink(50));
    for n in 1..=4 {
        node.host(50, &format!("192.0.2.{n}"));
        node.frame(2, &format!("192.0.2.{n}"));
    }
    assert_eq!(open_sweep(&node).holder.unwrap().device, "veth2");
}

#[test]
fn a_sweep_is_found_by_the_first_snapshot_at_the_earliest() {
    let mut node = Node::with_pods(9);
    for n in 1..=9 {
        node.read_pod_addresses(n, &[&own(n)]);
    }
    sweep(&mut node, 9, 1..=5);
    assert!(node.engine.view().anomalies().is_empty());
    node.resync(pods_snapshot(9));
    assert_eq!(open_sweep(&node).contested.unwrap().count, 5);
}

#[test]
fn a_renamed_device_and_a_newly_known_pod_are_updates() {
    let mut node = swept(4);
    node.effects.clear();
    node.link(renamed(pod(9), "cali9"));
    let mut events_of_sweep = events(&mut node);
    events_of_sweep.retain(|event| event.contains("contests"));
    assert_eq!(events_of_sweep, [""; 0], "not at once");
    node.wait(UPDATE_EVERY);
    assert_eq!(events(&mut node), ["updated cali9 contests 4"]);
    let generation = node.engine.view().device(9).unwrap().generation;
    let (now, effects) = (node.now, &mut node.effects);
    let known = PodsKnown {
        devices: vec![(9, generation)],
        ..PodsKnown::default()
    };
    let observation = TimedObservation::new(now, Observation::PodsKnown(known));
    node.engine.step(now, observation, effects);
    node.effects.clear();
    node.wait(UPDATE_EVERY);
    assert_eq!(events(&mut node), ["updated cali9 contests 4"]);
}

/// The agent is restarted; `links` is what its first snapshot shows.
fn restarted(node: &Node, snapshot: Snapshot) -> Node {
    let mut next = Node::with_settings(Settings {
        id_seed: 1,
        ..Settings::default()
    });
    next.now = node.now;
    next.engine
        .restore(node.engine.view().open_records(node.now), Vec::new());
    next.engine
        .restore(Vec::new(), node.engine.view().anomalies());
    next.resync(snapshot);
    next
}

#[test]
fn a_sweep_continues_after_a_restart() {
    for victims_that_stay in [9, 3] {
        let mut node = swept(5);
        node.wait(UPDATE_EVERY);
        let mut snapshot = pods_snapshot(9);
        snapshot
            .links
            .retain(|link| link.ifindex <= victims_that_stay || link.ifindex == 9);
        let mut next = restarted(&node, snapshot);
        let seen = events(&mut next);
        assert!(
            seen.iter().all(|e| e.starts_with("resolved 10.7")),
            "{seen:?}"
        );
        assert_eq!(open_sweep(&next).id, open_sweep(&node).id);
        next.remove_link(9);
        let last = events(&mut next).pop();
        assert_eq!(
            last.as_deref(),
            Some("resolved veth9 contests 5: device_gone")
        );
    }
}

#[test]
fn a_sweep_of_a_device_that_left_meanwhile_is_resolved() {
    let node = swept(5);
    let mut next = restarted(&node, pods_snapshot(8));
    next.wait_secs(60);
    let seen = events(&mut next);
    assert_eq!(
        seen.last().map(String::as_str),
        Some("resolved veth9 contests 5: not_seen"),
    );
    let resolved = seen.iter().filter(|e| e.starts_with("resolved 10.7"));
    assert_eq!((seen.len(), resolved.count()), (6, 5));
}

#[test]
fn conflicts_of_a_sweep_that_is_not_known_any_more_are_reported() {
    let mut node = swept(5);
    node.remove_link(1);
    node.remove_link(2);
    let mut next = Node::new();
    next.now = node.now;
    next.engine
        .restore(node.engine.view().open_records(node.now), Vec::new());
    next.resync(Snapshot {
        links: (3..=9).map(pod).collect(),
        pods: (3..=9).map(|n| pod_addresses(n, &[&own(n)])).collect(),
        ..Snapshot::default()
    });
    let expected = ["updated 10.7.0.3", "updated 10.7.0.4", "updated 10.7.0.5"];
    assert_eq!(events(&mut next), expected);
}

/// Pods 1 to 5: the namespaces of the first four show no address, the last has one of its own.
fn programs() -> Node {
    let mut node = Node::new();
    let programs: Vec<(IfIndex, &[&str])> = (1..=4).map(|n| (n, &[][..])).collect();
    node.resync(snapshot(&[&programs[..], &[(5, &["10.7.0.5"])]].concat()));
    node.effects.clear();
    node
}

#[test]
fn rightful_programs_contest_nothing() {
    let mut node = programs();
    for n in 1..=4 {
        node.know(n, known(&format!("program-{n}"), &[&own(n)]));
        node.frame(n, &own(n));
    }
    node.know(5, known("attacker", &["10.7.0.5"]));
    for n in 1..=4 {
        node.address(5, &own(n));
    }
    let sweep = open_sweep(&node);
    assert_eq!(sweep.holder.unwrap().device, "veth5");
    assert_eq!(sweep.contested.unwrap().count, 4);
}

#[test]
fn pod_with_a_namespace_contests_what_programs_claim() {
    let mut node = programs();
    for n in 1..=4 {
        node.frames([5, n], &own(n));
    }
    assert_eq!(open_sweep(&node).holder.unwrap().device, "veth5");
}

#[test]
fn program_contests_nothing_that_is_assigned_later() {
    let mut node = programs();
    for n in 11..=14 {
        node.frame(1, &own(n));
        node.address(5, &own(n));
    }
    assert_eq!(node.engine.view().conflicts(node.now).len(), 4);
    assert!(node.engine.view().anomalies().is_empty());
    // Addresses that it claims after another pod was seen to have them.
    for n in 21..=24 {
        node.address(5, &own(n));
        node.frame(1, &own(n));
    }
    assert_eq!(open_sweep(&node).holder.unwrap().device, "veth1");
}

#[test]
fn conflict_of_two_rightful_pods_is_part_of_no_sweep() {
    let mut node = programs();
    for n in 1..=4 {
        node.frame(1, &own(n));
        node.frames([2, 5], &own(n));
    }
    assert_eq!(node.engine.view().anomalies().len(), 2, "veth2 and veth5");
    let given: Vec<_> = (1..=4).map(own).collect();
    let given: Vec<_> = given.iter().map(String::as_str).collect();
    for n in 1..=2 {
        node.know(n, known(&format!("program-{n}"), &given));
    }
    let conflicts = node.engine.view().conflicts(node.now);
    assert!(
        conflicts.iter().all(|c| c.sweep.is_none()),
        "{conflicts:#?}"
    );
}

#[test]
fn sweeps_follow_whether_a_namespace_shows_addresses() {
    let mut node = programs();
    for n in 1..=4 {
        node.frames([5, n], &own(n));
    }
    let marks = |node: &Node| {
        let conflicts = node.engine.view().conflicts(node.now).into_iter();
        conflicts.map(|c| c.sweep.is_some()).collect::<Vec<_>>()
    };
    assert_eq!(marks(&node), [true; 4]);
    // The oldest claimant owns each address then.
    node.address_gone(5, "10.7.0.5");
    assert_eq!(marks(&node), [false; 4]);
    node.address(5, "10.7.0.5");
    assert_eq!(marks(&node), [true; 4]);
}
