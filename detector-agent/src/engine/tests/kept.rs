//! What is kept of a conflict for the next agent, and what that one believes of it.

use super::*;

/// The next agent on the same node, within these bounds.
fn next_within(bounds: Bounds, kept: Vec<OpenConflict>, now: Timestamp) -> Node {
    let mut next = Node::with(Settings {
        allow: vec!["10.9.0.0/16".parse().unwrap()],
        bounds,
        ..Settings::default()
    });
    next.now = now + Duration::from_secs(5);
    next.engine.restore(kept);
    next
}

fn next(node: &Node) -> Node {
    let kept = node.engine.open_records(node.now);
    next_within(Bounds::default(), kept, node.now)
}

fn seen(pods: &[(IfIndex, &[&str])]) -> Snapshot {
    Snapshot {
        links: pods.iter().map(|(ifindex, _)| pod(*ifindex)).collect(),
        pods: pods.iter().map(|(i, has)| holds(*i, has)).collect(),
        ..Snapshot::default()
    }
}

#[test]
fn of_frames_only_those_are_kept_that_the_conflict_stands_on() {
    let mut node = Node::with_pods(2);
    // A second interface of the first pod: what is heard there is no claim of its own.
    node.link(Link {
        peer: Some(Peer {
            ifindex: 3,
            ..peer(1)
        }),
        ..pod(3)
    });
    node.address(1, "10.0.0.1");
    node.address(2, "10.0.0.1");
    node.frame(3, "10.0.0.1");
    node.tell(tagged(1, "10.0.0.1"));
    assert!(node.engine.open_records(node.now)[0].frames.is_empty());
    node.frame(2, "10.0.0.1");
    assert_eq!(node.engine.open_records(node.now)[0].frames.len(), 1);
}

#[test]
fn of_what_an_entry_held_before_only_those_are_kept_that_take_part() {
    let mut node = Node::new();
    node.bridge(9);
    for port in 1..=3u8 {
        node.port(port.into(), 9);
        node.fdb(9, port.into(), mac(port));
    }
    for port in [3, 1, 2, 1] {
        node.neighbour(9, "10.0.0.1", mac(port), NudState::Reachable);
    }
    node.tell(tagged(1, "10.0.0.1"));
    node.tell(tagged(2, "10.0.0.1"));
    let former: Vec<_> = node
        .engine
        .open_records(node.now)
        .iter()
        .map(|kept| (kept.conflict.vlan.outer, kept.former.len()))
        .collect();
    assert_eq!(former, [(None, 1), (Some(5), 0)]);
}

#[test]
fn what_another_bridges_entry_held_is_not_believed() {
    let node = back_and_forth();
    let mut node = next(&node);
    let mut now = seen(&[(1, &[]), (2, &[])]);
    for link in &mut now.links {
        link.master = Some(9);
    }
    now.links.push(Link {
        name: "br0".to_owned(),
        ..bridge(9)
    });
    now.fdb = vec![fdb(9, 1, mac(1)), fdb(9, 2, mac(2))];
    now.neighbours = vec![neighbour(9, "10.0.0.1", mac(1), NudState::Reachable)];
    node.read_node(now);
    assert_eq!(
        node.said(),
        ["resolved 10.0.0.1 duplicate observed: veth1 left veth2(expired)"]
    );
}

#[test]
fn those_that_flapped_are_the_same_whatever_order_their_devices_are_found_in() {
    let mut node = next_within(Bounds::default(), Vec::new(), Timestamp(0));
    node.pod(1);
    node.pod(2);
    for turn in 0..6 {
        node.frame(1 + turn % 2, "10.9.0.1");
    }
    let mut node = next(&node);
    node.read_node(seen(&[(3, &[]), (2, &[]), (1, &[])]));
    assert!(node.said().is_empty());
    assert_eq!(node.open(), ["10.9.0.1 flapping observed: veth1 veth2"]);
}

#[test]
fn one_that_a_damaged_file_names_twice_goes_on_once() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    node.address(2, "10.0.0.1");
    let mut kept = node.engine.open_records(node.now);
    kept.extend(kept.clone());
    let mut node = next_within(Bounds::default(), kept, node.now);
    node.read_node(seen(&[(1, &["10.0.0.1"]), (2, &["10.0.0.1"])]));
    assert_eq!(node.open().len(), 1);
}

#[test]
fn one_of_an_address_that_nobody_can_have_is_over() {
    let mut node = Node::with_pods(2);
    node.frame(1, "10.0.0.1");
    node.frame(2, "10.0.0.1");
    let text = serde_json::to_string(&node.engine.open_records(node.now)).unwrap();
    let kept = serde_json::from_str(&text.replace("10.0.0.1", "127.0.0.1")).unwrap();
    let mut node = next_within(Bounds::default(), kept, node.now);
    node.read_node(seen(&[(1, &[]), (2, &[])]));
    assert_eq!(node.said().len(), 1);
    assert!(node.open().is_empty());
}

#[test]
fn those_that_go_on_count_once_against_the_bound() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    node.address(2, "10.0.0.1");
    let bounds = Bounds {
        open_conflicts: 2,
        ..Bounds::default()
    };
    let kept = node.engine.open_records(node.now);
    let mut node = next_within(bounds, kept, node.now);
    node.read_node(seen(&[(1, &["10.0.0.1"]), (2, &["10.0.0.1"])]));
    for address in ["10.0.0.2", "10.0.0.3"] {
        node.frame(1, address);
        node.frame(2, address);
    }
    assert_eq!(node.open().len(), 2);
    assert_eq!(node.engine.drop_counters().conflicts, 1);
}

#[test]
fn what_the_bounds_leave_no_room_for_is_counted() {
    let mut node = Node::with_pods(2);
    for address in ["10.0.0.1", "10.0.0.2"] {
        node.frame(1, address);
        node.frame(2, address);
    }
    let bounds = Bounds {
        claims_per_device: 1,
        ..Bounds::default()
    };
    let kept = node.engine.open_records(node.now);
    let mut node = next_within(bounds, kept, node.now);
    node.read_node(seen(&[(1, &[]), (2, &[])]));
    assert_eq!(node.engine.drop_counters().claims, 2);
    assert_eq!(node.open().len(), 1);
}

#[test]
fn a_live_word_about_the_address_ends_no_tagged_claim_nor_one_that_it_confirms() {
    let mut node = Node::with_pods(2);
    for ifindex in 1..=2 {
        node.tell(tagged(ifindex, "10.0.0.1"));
        node.frame(ifindex, "10.0.0.2");
    }
    let mut node = next(&node);
    let token = node.begin();
    node.pod(1);
    node.address(1, "10.0.0.1");
    node.address_gone(1, "10.0.0.1");
    node.address(1, "10.0.0.2");
    node.finish_node(token, seen(&[(1, &[]), (2, &[])]));
    assert!(node.said().is_empty());
    let open = node.engine.conflicts_of(ip("10.0.0.2"), node.now);
    assert_eq!(evidence(&open[0].claimants[0]), ["address", "arp"]);
    assert_eq!(node.open().len(), 2);
}

#[test]
fn a_device_whose_peer_is_known_only_now_is_the_one_it_was() {
    let mut node = Node::new();
    for ifindex in 1..=2 {
        node.link(Link {
            peer: None,
            ..pod(ifindex)
        });
        node.frame(ifindex, "10.0.0.1");
    }
    let mut node = next(&node);
    node.read_node(seen(&[(1, &[]), (2, &[])]));
    assert!(node.said().is_empty());
    assert_eq!(node.open().len(), 1);
}

#[test]
fn what_stood_behind_another_bridge_has_left() {
    let mut node = Node::new();
    node.bridge(9);
    node.port(1, 9);
    node.frame(1, "10.0.0.1");
    node.neighbour(9, "10.0.0.1", mac(7), NudState::Permanent);
    let mut node = next(&node);
    let mut now = seen(&[(1, &[])]);
    now.links[0].master = Some(9);
    now.links.push(Link {
        name: "br0".to_owned(),
        ..bridge(9)
    });
    now.neighbours = vec![neighbour(9, "10.0.0.1", mac(7), NudState::Permanent)];
    node.read_node(now);
    assert_eq!(
        node.said(),
        [
            "updated 10.0.0.1 duplicate observed: veth1 br0/02:00:00:00:00:07 left br9/02:00:00:00:00:07(device_removed)"
        ]
    );
}
