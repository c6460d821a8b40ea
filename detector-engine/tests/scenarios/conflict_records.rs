//! What is recorded of a conflict for the next agent, and which parts of it that agent accepts.

use super::*;

/// The next agent on the same node, with these bounds.
fn next_within(bounds: Bounds, records: Vec<OpenConflict>, now: Timestamp) -> Node {
    let mut next = Node::with_settings(Settings {
        allow: vip_range(),
        bounds,
        ..Settings::default()
    });
    next.now = now + Duration::from_secs(5);
    next.engine.restore(records, Vec::new());
    next
}

fn next(node: &Node) -> Node {
    let records = node.engine.view().open_records(node.now);
    next_within(Bounds::default(), records, node.now)
}

/// How many entries a field of each record has, as it is stored.
fn recorded(node: &Node, field: &str) -> Vec<usize> {
    let records = node.engine.view().open_records(node.now).into_iter();
    let count = |record| {
        let stored = serde_json::to_value(record).unwrap();
        stored[field].as_array().unwrap().len()
    };
    records.map(count).collect()
}

#[test]
fn record_holds_only_frames_of_the_conflict() {
    let mut node = Node::with_pods(2);
    // A second interface of the first pod: a frame there is not a claim of its own.
    node.link(Link {
        peer: Some(Peer {
            ifindex: 3,
            ..peer(1)
        }),
        ..pod(3)
    });
    node.addresses([1, 2], "10.0.0.1");
    node.frame(3, "10.0.0.1");
    node.observe(tagged(1, "10.0.0.1"));
    assert_eq!(recorded(&node, "frames"), [0]);
    node.frame(2, "10.0.0.1");
    assert_eq!(recorded(&node, "frames"), [1]);
}

#[test]
fn record_holds_only_flapping_former_lladdrs() {
    let mut node = Node::with_bridge(3);
    for port in [3, 1, 2, 1] {
        node.neighbour(9, "10.0.0.1", mac(port), NudState::Reachable);
    }
    node.observe(tagged(1, "10.0.0.1"));
    node.observe(tagged(2, "10.0.0.1"));
    let records = node.engine.view().open_records(node.now).into_iter();
    let vlans: Vec<_> = records.map(|record| record.conflict.vlan.outer).collect();
    assert_eq!(vlans, [None, Some(5)]);
    assert_eq!(recorded(&node, "former"), [1, 0]);
}

#[test]
fn former_lladdrs_of_another_bridge_are_discarded() {
    let node = with_flapping_bridge_entry();
    let mut node = next(&node);
    let mut dump = snapshot(&[(1, &[]), (2, &[])]);
    for link in &mut dump.links {
        link.master = Some(9);
    }
    dump.links.push(renamed(bridge(9), "br0"));
    dump.host = bridge_addresses(9);
    dump.fdb = vec![fdb(9, 1, mac(1)), fdb(9, 2, mac(2))];
    dump.neighbours = vec![neighbour(9, "10.0.0.1", mac(1), NudState::Reachable)];
    node.resync(dump);
    node.expect(["resolved 10.0.0.1 duplicate observed: br0/02:00:00:00:00:01 left br9/02:00:00:00:00:02(device_removed) left br9/02:00:00:00:00:01(device_removed)"]);
}

#[test]
fn restored_flapping_ignores_the_order_of_devices() {
    let mut node = next_within(Bounds::default(), Vec::new(), Timestamp(0));
    node.pod(1);
    node.pod(2);
    for turn in 0..6 {
        node.frame(1 + turn % 2, "10.9.0.1");
    }
    let mut node = next(&node);
    node.resync(snapshot(&[(3, &[]), (2, &[]), (1, &[])]));
    assert!(node.conflict_events().is_empty());
    node.expect_open(["10.9.0.1 flapping observed: veth1 veth2"]);
}

#[test]
fn record_of_an_unownable_address_resolves() {
    let node = Node::with_observed_duplicate();
    let text = serde_json::to_string(&node.engine.view().open_records(node.now)).unwrap();
    let records = serde_json::from_str(&text.replace("10.0.0.1", "127.0.0.1")).unwrap();
    let mut node = next_within(Bounds::default(), records, node.now);
    node.resync(snapshot(&[(1, &[]), (2, &[])]));
    assert_eq!(node.conflict_events().len(), 1);
    assert!(node.open_conflicts().is_empty());
}

#[test]
fn restored_conflict_counts_once_against_the_bound() {
    let node = Node::with_duplicate();
    let bounds = Bounds {
        open_conflicts: 2,
        conflicts_per_device: 0,
        ..Bounds::default()
    };
    let records = node.engine.view().open_records(node.now);
    let mut node = next_within(bounds, records, node.now);
    node.resync(snapshot(&[(1, &["10.0.0.1"]), (2, &["10.0.0.1"])]));
    for address in ["10.0.0.2", "10.0.0.3"] {
        node.frames([1, 2], address);
    }
    assert_eq!(node.open_conflicts().len(), 2);
    assert_eq!(node.engine.view().drop_counters().conflicts, 1);
}

#[test]
fn restored_claims_over_the_bound_are_counted() {
    let mut node = Node::with_pods(2);
    for address in ["10.0.0.1", "10.0.0.2"] {
        node.frames([1, 2], address);
    }
    let bounds = Bounds {
        claims_per_device: 1,
        ..Bounds::default()
    };
    let records = node.engine.view().open_records(node.now);
    let mut node = next_within(bounds, records, node.now);
    node.resync(snapshot(&[(1, &[]), (2, &[])]));
    assert_eq!(node.engine.view().drop_counters().claims, 2);
    assert_eq!(node.open_conflicts().len(), 1);
}

#[test]
fn live_removal_spares_tagged_and_reconfirmed_claims() {
    let mut node = Node::with_pods(2);
    for ifindex in 1..=2 {
        node.observe(tagged(ifindex, "10.0.0.1"));
        node.frame(ifindex, "10.0.0.2");
    }
    let mut node = next(&node);
    let token = node.begin_snapshot();
    node.pod(1);
    node.address(1, "10.0.0.1");
    node.address_gone(1, "10.0.0.1");
    node.address(1, "10.0.0.2");
    node.finish_node_snapshot(token, snapshot(&[(1, &[]), (2, &[])]));
    assert!(node.conflict_events().is_empty());
    let open = node.engine.view().conflicts_of(ip("10.0.0.2"), node.now);
    assert_eq!(evidence_text(&open[0].claimants[0]), ["address", "arp"]);
    assert_eq!(node.open_conflicts().len(), 2);
}

#[test]
fn device_whose_peer_appears_late_is_the_same_device() {
    let mut node = Node::new();
    for ifindex in 1..=2 {
        node.link(pod_without_peer(ifindex));
        node.frame(ifindex, "10.0.0.1");
    }
    let mut node = next(&node);
    node.resync(snapshot(&[(1, &[]), (2, &[])]));
    assert!(node.conflict_events().is_empty());
    assert_eq!(node.open_conflicts().len(), 1);
}

#[test]
fn claimant_behind_a_renamed_bridge_has_left() {
    let mut node = Node::new();
    node.bridge(9);
    node.port(1, 9);
    node.frame(1, "10.0.0.1");
    node.neighbour(9, "10.0.0.1", mac(7), NudState::Permanent);
    let mut node = next(&node);
    let mut dump = snapshot(&[(1, &[])]);
    dump.links[0].master = Some(9);
    dump.links.push(renamed(bridge(9), "br0"));
    dump.host = bridge_addresses(9);
    dump.neighbours = vec![neighbour(9, "10.0.0.1", mac(7), NudState::Permanent)];
    node.resync(dump);
    node.expect(["updated 10.0.0.1 duplicate observed: veth1 br0/02:00:00:00:00:07 left br9/02:00:00:00:00:07(device_removed)"]);
}
