//! An agent that goes on where an earlier one ended.

use super::*;

/// Another agent on the same node, some time later, with what this one kept.
fn restarted(node: &Node) -> Node {
    let kept = node.engine.open_records(node.now);
    let mut next = Node::with(Settings {
        allow: vec!["10.9.0.0/16".parse().unwrap()],
        id_seed: 77,
        ..Settings::default()
    });
    next.now = node.now + Duration::from_secs(5);
    next.engine.restore(kept);
    next
}

#[test]
fn what_is_as_it_was_goes_on_without_a_word() {
    let mut node = Node::with_pods(2);
    node.route("10.0.0.1", 2);
    node.address(1, "10.0.0.1");
    node.address(2, "10.0.0.1");
    let raised = node.conflicts_said().remove(0);
    let mut node = restarted(&node);
    assert!(node.engine.is_restoring());
    let mut seen = snapshot(&[(2, &["10.0.0.1"]), (7, &[]), (1, &["10.0.0.1"])]);
    seen.routes = vec![route("10.0.0.1", 2)];
    node.read_node(seen);
    assert!(node.said().is_empty());
    assert!(!node.engine.is_restoring());
    let open = node.engine.conflicts(node.now);
    assert_eq!(open[0].id, raised.id);
    assert_eq!(open[0].raised_at, raised.raised_at);
    node.gone(1);
    let resolved = node.conflicts_said().remove(0);
    assert_eq!(resolved.id, raised.id);
    assert_eq!(
        show(&resolved),
        "10.0.0.1 duplicate certain: veth2 left veth1(device_removed) -> veth2"
    );
}

#[test]
fn what_went_away_meanwhile_is_resolved_with_its_reasons() {
    let mut node = Node::with_pods(3);
    node.link(uplink(9));
    for address in ["10.0.0.1", "10.0.0.2", "10.0.0.3"] {
        node.address(1, address);
    }
    node.address(2, "10.0.0.1");
    node.address(2, "10.0.0.2");
    node.host(9, "10.0.0.3");
    let ids: Vec<_> = node.conflicts_said().iter().map(|c| c.id).collect();
    let mut node = restarted(&node);
    let mut seen = snapshot(&[(1, &["10.0.0.1", "10.0.0.3"]), (3, &[])]);
    seen.links.push(uplink(9));
    node.read_node(seen);
    let said = node.conflicts_said();
    assert_eq!(
        said.iter().map(show).collect::<Vec<_>>(),
        [
            "10.0.0.1 duplicate certain: veth1 left veth2(device_removed)",
            "10.0.0.2 duplicate certain: left veth1(address_removed) left veth2(device_removed)",
            "10.0.0.3 host certain: veth1 left node/eth9(address_removed)",
        ]
    );
    assert!(said.iter().all(|c| c.resolved_at.is_some()));
    assert_eq!(said.iter().map(|c| c.id).collect::<Vec<_>>(), ids);
}

#[test]
fn what_changed_meanwhile_is_told_as_an_update() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    node.address(2, "10.0.0.1");
    let id = node.conflicts_said()[0].id;
    let mut node = restarted(&node);
    node.read_node(snapshot(&[
        (1, &["10.0.0.1"]),
        (2, &["10.0.0.1"]),
        (3, &["10.0.0.1"]),
    ]));
    let said = node.conflicts_said();
    assert_eq!(said.len(), 1);
    assert_eq!(said[0].id, id);
    assert_eq!(
        show(&said[0]),
        "10.0.0.1 duplicate certain: veth1 veth2 veth3"
    );
}

#[test]
fn no_live_word_raises_anew_what_is_open() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    node.address(2, "10.0.0.1");
    let id = node.conflicts_said()[0].id;
    let mut node = restarted(&node);
    let token = node.begin();
    for ifindex in 1..=2 {
        node.pod(ifindex);
        node.address(ifindex, "10.0.0.1");
        node.frame(ifindex, "10.0.0.2");
    }
    let said = node.conflicts_said();
    assert_eq!(said.len(), 1, "others are raised at once");
    assert_eq!(said[0].address, ip("10.0.0.2"));
    // A reading that cannot be used changes nothing.
    node.finish_node(SnapshotToken(99), Snapshot::default());
    assert!(node.said().is_empty());
    assert_eq!(node.engine.open_records(node.now).len(), 2);
    node.finish_node(token, snapshot(&[(1, &["10.0.0.1"]), (2, &["10.0.0.1"])]));
    assert!(node.said().is_empty());
    assert_eq!(node.engine.conflicts(node.now)[0].id, id);
}

#[test]
fn a_conflict_that_was_only_heard_goes_on_and_lapses_in_its_time() {
    let mut node = Node::with_pods(2);
    node.frame(1, "10.0.0.1");
    node.wait_secs(100);
    node.frame(2, "10.0.0.1");
    let id = node.conflicts_said()[0].id;
    node.wait_secs(400);
    let mut node = restarted(&node);
    node.read_node(snapshot(&[(1, &[]), (2, &[])]));
    assert!(node.said().is_empty());
    assert_eq!(node.engine.conflicts(node.now)[0].id, id);
    node.wait_secs(90);
    assert!(node.said().is_empty());
    node.wait_secs(10);
    assert_eq!(
        node.said(),
        ["resolved 10.0.0.1 duplicate observed: veth2 left veth1(expired)"]
    );
}

#[test]
fn what_lapsed_while_the_agent_was_down_is_resolved() {
    let mut node = Node::with_pods(2);
    node.frame(1, "10.0.0.1");
    node.frame(2, "10.0.0.1");
    let mut node = restarted(&node);
    node.now = node.now + Duration::from_secs(600);
    node.read_node(snapshot(&[(1, &[]), (2, &[])]));
    assert_eq!(
        node.said(),
        ["resolved 10.0.0.1 duplicate observed: left veth1(expired) left veth2(expired)"]
    );
    assert!(node.engine.addresses().is_empty());
}

#[test]
fn what_was_heard_of_another_device_is_not_believed() {
    let other_name = |link: &mut Link| link.name = "veth9".to_owned();
    let other_peer = |link: &mut Link| link.peer = Some(peer(9));
    let changes: [fn(&mut Link); 2] = [other_name, other_peer];
    for change in changes {
        let mut node = Node::with_pods(2);
        node.frame(1, "10.0.0.1");
        node.frame(2, "10.0.0.1");
        let mut node = restarted(&node);
        let mut seen = snapshot(&[(1, &[]), (2, &[])]);
        change(&mut seen.links[1]);
        node.read_node(seen);
        assert_eq!(
            node.said(),
            ["resolved 10.0.0.1 duplicate observed: veth1 left veth2(device_removed)"]
        );
    }
}

#[test]
fn an_address_removed_before_its_device_is_known_is_not_believed() {
    let mut node = Node::with_pods(2);
    for ifindex in 1..=2 {
        node.address(ifindex, "10.0.0.1");
        node.frame(ifindex, "10.0.0.1");
    }
    let mut node = restarted(&node);
    let token = node.begin();
    node.address_gone(1, "10.0.0.1");
    node.finish_node(token, snapshot(&[(1, &["10.0.0.1"]), (2, &["10.0.0.1"])]));
    assert_eq!(
        node.said(),
        ["resolved 10.0.0.1 duplicate certain: veth2 left veth1(address_removed)"]
    );
}

#[test]
fn a_probe_goes_on_as_a_probe() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    node.probe(2, "10.0.0.1");
    let mut node = restarted(&node);
    node.read_node(snapshot(&[(1, &["10.0.0.1"]), (2, &[])]));
    assert!(node.said().is_empty());
    node.wait_secs(60);
    assert_eq!(
        node.said(),
        ["resolved 10.0.0.1 duplicate observed: veth1 left veth2(expired)"]
    );
}

#[test]
fn who_left_before_stays_listed() {
    let mut node = Node::with_pods(3);
    for ifindex in 1..=3 {
        node.address(ifindex, "10.0.0.1");
    }
    node.gone(1);
    let mut node = restarted(&node);
    // The index and the generation of the one that left are another's now.
    let mut seen = snapshot(&[(1, &[]), (2, &["10.0.0.1"]), (3, &["10.0.0.1"])]);
    seen.links[0].name = "veth9".to_owned();
    node.read_node(seen);
    node.gone(3);
    assert_eq!(
        node.said(),
        [
            "resolved 10.0.0.1 duplicate certain: veth2 left veth1(device_removed) left veth3(device_removed)"
        ]
    );
}

#[test]
fn link_local_conflicts_go_on_in_their_domain() {
    let mut node = Node::new();
    node.bridge(9);
    node.bridge(8);
    for (port, bridge) in [(1, 9), (2, 9), (3, 8), (4, 8)] {
        node.port(port, bridge);
        node.address(port, "fe80::1");
    }
    let ids: Vec<_> = node.conflicts_said().iter().map(|c| c.id).collect();
    assert_eq!(ids.len(), 2);
    let mut node = restarted(&node);
    let addresses: &[&str] = &["fe80::1"];
    let mut seen = snapshot(&[
        (1, addresses),
        (2, addresses),
        (3, addresses),
        (4, addresses),
    ]);
    for (link, master) in seen.links.iter_mut().zip([9, 9, 8, 8]) {
        link.master = Some(master);
    }
    seen.links.push(bridge(9));
    // The other bridge is another one.
    seen.links.push(Link {
        name: "br0".to_owned(),
        ..bridge(8)
    });
    node.read_node(seen);
    assert_eq!(
        node.said(),
        [
            "resolved fe80::1 duplicate certain: left veth3(address_removed) left veth4(address_removed)",
            "raised fe80::1 duplicate certain: veth3 veth4",
        ]
    );
    let open = node.engine.conflicts(node.now);
    assert_eq!(open[0].id, ids[0]);
    assert_eq!(show(&open[0]), "fe80::1 duplicate certain: veth1 veth2");
}

#[test]
fn an_entry_that_went_back_and_forth_goes_on() {
    let node = back_and_forth();
    let mut seen = snapshot(&[(1, &[]), (2, &[])]);
    for link in &mut seen.links {
        link.master = Some(9);
    }
    seen.links.push(bridge(9));
    seen.fdb = vec![fdb(9, 1, mac(1)), fdb(9, 2, mac(2))];
    for now in [1, 2] {
        let mut node = restarted(&node);
        // It may have turned once more meanwhile.
        let entry = neighbour(9, "10.0.0.1", mac(now), NudState::Reachable);
        seen.neighbours = vec![entry];
        node.read_node(seen.clone());
        assert!(node.said().is_empty() || now == 2);
        if now == 1 {
            assert_eq!(node.open(), ["10.0.0.1 duplicate observed: veth2 veth1"]);
            node.wait_secs(181);
            assert_eq!(
                node.said(),
                ["resolved 10.0.0.1 duplicate observed: veth1 left veth2(expired)"]
            );
        }
    }
}

#[test]
fn a_flapping_address_goes_on_and_calms_down() {
    let mut node = Node::with(Settings {
        allow: vec!["10.9.0.0/16".parse().unwrap()],
        ..Settings::default()
    });
    node.pod(1);
    node.pod(2);
    for turn in 0..6 {
        node.frame(1 + turn % 2, "10.9.0.1");
    }
    let id = node.conflicts_said()[0].id;
    let mut node = restarted(&node);
    node.read_node(snapshot(&[(1, &[]), (2, &[])]));
    assert!(node.said().is_empty());
    assert_eq!(node.engine.conflicts(node.now)[0].id, id);
    // The holder claims it again: no move.
    node.frame(2, "10.9.0.1");
    node.wait_secs(181);
    let said = node.conflicts_said();
    assert_eq!(said.len(), 1);
    assert_eq!(said[0].id, id);
    assert!(said[0].resolved_at.is_some());
}

#[test]
fn an_address_allowed_since_is_no_conflict_any_more() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.9.0.1");
    node.address(2, "10.9.0.1");
    let addresses: &[&str] = &["10.9.0.1"];
    let mut node = restarted(&node);
    node.read_node(snapshot(&[(1, addresses), (2, addresses)]));
    let said = node.conflicts_said();
    assert_eq!(said.len(), 1);
    assert!(said[0].resolved_at.is_some());
}

#[test]
fn what_is_kept_survives_being_written_down() {
    let mut node = Node::with_pods(2);
    node.link(uplink(9));
    node.frame(1, "2001:db8::1");
    node.frame(2, "2001:db8::1");
    node.host(9, "2001:db8::1");
    let kept = node.engine.open_records(node.now);
    let text = serde_json::to_string(&kept).unwrap();
    let back: Vec<OpenConflict> = serde_json::from_str(&text).unwrap();
    assert_eq!(back, kept);
    let id = kept[0].conflict.id;
    assert!(text.contains(&format!("\"{id}\"")), "{text}");
    assert_eq!(
        node.engine.open_record(&kept[0].conflict).as_ref(),
        Some(&kept[0])
    );
    node.gone(9);
    node.gone(1);
    assert_eq!(node.engine.open_record(&kept[0].conflict), None);
}

#[test]
fn another_device_of_the_same_index_is_not_who_took_part() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    node.address(2, "10.0.0.1");
    let mut node = restarted(&node);
    let addresses: &[&str] = &["10.0.0.1"];
    let mut seen = snapshot(&[(1, addresses), (2, addresses)]);
    seen.links[0].name = "veth7".to_owned();
    node.read_node(seen);
    assert_eq!(node.engine.drop_counters(), DropCounters::default());
    assert_eq!(
        node.said(),
        ["updated 10.0.0.1 duplicate certain: veth7 veth2 left veth1(device_removed)"]
    );
}

#[test]
fn of_two_records_of_one_conflict_the_first_goes_on() {
    let mut node = Node::with_pods(2);
    node.frame(1, "10.0.0.1");
    node.frame(2, "10.0.0.1");
    let mut kept = node.engine.open_records(node.now);
    kept.push(kept[0].clone());
    let id = kept[0].conflict.id;
    kept[1].conflict.id = ConflictId(id.0 + 1);
    // And one that is of another VLAN.
    kept.push(kept[1].clone());
    kept[2].conflict.vlan.outer = Some(5);
    let mut node = restarted(&node);
    node.engine.restore(kept);
    node.read_node(snapshot(&[(1, &[]), (2, &[])]));
    assert_eq!(node.engine.drop_counters(), DropCounters::default());
    let said = node.conflicts_said();
    assert_eq!(said.len(), 1);
    assert_eq!(
        (said[0].vlan.outer, said[0].resolved_at.is_some()),
        (Some(5), true)
    );
    let open = node.engine.conflicts(node.now);
    assert_eq!(open.len(), 1);
    assert_eq!(open[0].id, id);
}
