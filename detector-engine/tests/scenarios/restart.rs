//! An agent that continues where an earlier one stopped (`docs/detection-rules.md`, 13).

use super::*;

/// The next agent on the same node, five seconds later, with this one's records.
pub(super) fn restart(node: &Node) -> Node {
    let records = node.engine.view().open_records(node.now);
    let mut next = Node::with_settings(Settings {
        allow: vip_range(),
        id_seed: 77,
        ..Settings::default()
    });
    next.now = node.now + Duration::from_secs(5);
    next.engine.restore(records, Vec::new());
    next
}

#[test]
fn unchanged_conflict_continues_silently() {
    let mut node = Node::with_pods(2);
    node.route("10.0.0.1", 2);
    node.addresses([1, 2], "10.0.0.1");
    let raised = node.reported_conflicts().remove(0);
    let mut node = restart(&node);
    assert!(node.engine.view().is_restoring());
    let mut dump = snapshot(&[(2, &["10.0.0.1"]), (7, &[]), (1, &["10.0.0.1"])]);
    dump.routes = vec![route("10.0.0.1", 2)];
    node.resync(dump);
    assert!(node.conflict_events().is_empty());
    assert!(!node.engine.view().is_restoring());
    let open = node.engine.view().conflicts(node.now);
    assert_eq!(open[0].id, raised.id);
    assert_eq!(open[0].raised_at, raised.raised_at);
    node.remove_link(1);
    let resolved = node.reported_conflicts().remove(0);
    assert_eq!(resolved.id, raised.id);
    assert_eq!(
        conflict_text(&resolved),
        "10.0.0.1 duplicate certain: veth2 left veth1(device_removed) -> veth2"
    );
}

#[test]
fn conflict_that_ended_meanwhile_resolves_with_reasons() {
    let mut node = Node::with_pods(3);
    node.link(uplink(9));
    for address in ["10.0.0.1", "10.0.0.2", "10.0.0.3"] {
        node.address(1, address);
    }
    node.address(2, "10.0.0.1");
    node.address(2, "10.0.0.2");
    node.host(9, "10.0.0.3");
    let ids: Vec<_> = node.reported_conflicts().iter().map(|c| c.id).collect();
    let mut node = restart(&node);
    let mut dump = snapshot(&[(1, &["10.0.0.1", "10.0.0.3"]), (3, &[])]);
    dump.links.push(uplink(9));
    node.resync(dump);
    let conflicts = node.reported_conflicts();
    assert_eq!(
        conflicts.iter().map(conflict_text).collect::<Vec<_>>(),
        [
            "10.0.0.1 duplicate certain: veth1 left veth2(device_removed)",
            "10.0.0.2 duplicate certain: left veth1(address_removed) left veth2(device_removed)",
            "10.0.0.3 host certain: veth1 left node/eth9(address_removed)",
        ]
    );
    assert!(conflicts.iter().all(|c| c.resolved_at.is_some()));
    assert_eq!(conflicts.iter().map(|c| c.id).collect::<Vec<_>>(), ids);
}

#[test]
fn conflict_that_changed_meanwhile_is_updated() {
    let mut node = Node::with_duplicate();
    let id = node.reported_conflicts()[0].id;
    let mut node = restart(&node);
    node.resync(snapshot(&[
        (1, &["10.0.0.1"]),
        (2, &["10.0.0.1"]),
        (3, &["10.0.0.1"]),
    ]));
    let conflicts = node.reported_conflicts();
    assert_eq!(conflicts.len(), 1);
    assert_eq!(conflicts[0].id, id);
    assert_eq!(
        conflict_text(&conflicts[0]),
        "10.0.0.1 duplicate certain: veth1 veth2 veth3"
    );
}

#[test]
fn live_updates_do_not_raise_a_restored_conflict_again() {
    let mut node = Node::with_duplicate();
    let id = node.reported_conflicts()[0].id;
    let mut node = restart(&node);
    let token = node.begin_snapshot();
    for ifindex in 1..=2 {
        node.pod(ifindex);
        node.address(ifindex, "10.0.0.1");
        node.frame(ifindex, "10.0.0.2");
    }
    let conflicts = node.reported_conflicts();
    assert_eq!(conflicts.len(), 1, "other conflicts are raised at once");
    assert_eq!(conflicts[0].address, ip("10.0.0.2"));
    // An unknown snapshot changes nothing.
    node.finish_node_snapshot(SnapshotToken(99), Snapshot::default());
    assert!(node.conflict_events().is_empty());
    assert_eq!(node.engine.view().open_records(node.now).len(), 2);
    node.finish_node_snapshot(token, snapshot(&[(1, &["10.0.0.1"]), (2, &["10.0.0.1"])]));
    assert!(node.conflict_events().is_empty());
    assert_eq!(node.engine.view().conflicts(node.now)[0].id, id);
}

#[test]
fn frame_only_conflict_continues_and_expires_on_time() {
    let mut node = Node::with_pods(2);
    node.frame(1, "10.0.0.1");
    node.wait_secs(100);
    node.frame(2, "10.0.0.1");
    let id = node.reported_conflicts()[0].id;
    node.wait_secs(400);
    let mut node = restart(&node);
    node.resync(snapshot(&[(1, &["10.7.0.1"]), (2, &["10.7.0.2"])]));
    assert!(node.conflict_events().is_empty());
    assert_eq!(node.engine.view().conflicts(node.now)[0].id, id);
    node.wait_secs(90);
    assert!(node.conflict_events().is_empty());
    node.wait_secs(10);
    node.expect(["resolved 10.0.0.1 duplicate observed: veth2 left veth1(expired)"]);
}

#[test]
fn claims_of_programs_do_not_expire_during_downtime() {
    let node = Node::with_observed_duplicate();
    let mut node = restart(&node);
    node.now = node.now + Duration::from_secs(700);
    node.resync(snapshot(&[(1, &[]), (2, &[])]));
    assert!(node.conflict_events().is_empty());
    node.expect_open(["10.0.0.1 duplicate observed: veth1 veth2"]);
}

#[test]
fn claims_expired_during_downtime_resolve() {
    let node = Node::with_observed_duplicate();
    let mut node = restart(&node);
    node.now = node.now + Duration::from_secs(600);
    node.resync(snapshot(&[(1, &["10.7.0.1"]), (2, &["10.7.0.2"])]));
    node.expect(["resolved 10.0.0.1 duplicate observed: left veth1(expired) left veth2(expired)"]);
    assert!(
        node.engine
            .view()
            .claims_of(ip("10.0.0.1"), node.now)
            .is_empty()
    );
}

#[test]
fn frames_of_a_replaced_device_are_discarded() {
    let other_name = |link: &mut Link| link.name = "veth9".to_owned();
    let other_peer = |link: &mut Link| link.peer = Some(peer(9));
    let changes: [fn(&mut Link); 2] = [other_name, other_peer];
    for (case, change) in ["other name", "other peer"].into_iter().zip(changes) {
        let mut node = Node::with_pods(2);
        node.frames([1, 2], "10.0.0.1");
        let mut node = restart(&node);
        let mut dump = snapshot(&[(1, &[]), (2, &[])]);
        change(&mut dump.links[1]);
        node.resync(dump);
        assert_eq!(
            node.conflict_events(),
            ["resolved 10.0.0.1 duplicate observed: veth1 left veth2(device_removed)"],
            "{case}"
        );
    }
}

#[test]
fn address_removed_before_its_device_is_known_stays_gone() {
    let mut node = Node::with_pods(2);
    for ifindex in 1..=2 {
        node.address(ifindex, "10.0.0.1");
        node.frame(ifindex, "10.0.0.1");
    }
    let mut node = restart(&node);
    let token = node.begin_snapshot();
    node.address_gone(1, "10.0.0.1");
    node.finish_node_snapshot(token, snapshot(&[(1, &["10.0.0.1"]), (2, &["10.0.0.1"])]));
    node.expect(["resolved 10.0.0.1 duplicate certain: veth2 left veth1(address_removed)"]);
}

#[test]
fn restored_probe_stays_tentative() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    node.probe(2, "10.0.0.1");
    let mut node = restart(&node);
    node.resync(snapshot(&[(1, &["10.0.0.1"]), (2, &[])]));
    assert!(node.conflict_events().is_empty());
    node.wait_secs(60);
    node.expect(["resolved 10.0.0.1 duplicate observed: veth1 left veth2(expired)"]);
}

#[test]
fn departed_claimant_stays_listed() {
    let mut node = Node::with_pods(3);
    node.addresses(1..=3, "10.0.0.1");
    node.remove_link(1);
    let mut node = restart(&node);
    // The ifindex and generation of the departed device belong to another one now.
    let mut dump = snapshot(&[(1, &[]), (2, &["10.0.0.1"]), (3, &["10.0.0.1"])]);
    dump.links[0].name = "veth9".to_owned();
    node.resync(dump);
    node.remove_link(3);
    node.expect(["resolved 10.0.0.1 duplicate certain: veth2 left veth1(device_removed) left veth3(device_removed)"]);
}

#[test]
fn link_local_conflicts_continue_in_their_domain() {
    let mut node = Node::new();
    node.bridge(9);
    node.bridge(8);
    for (port, bridge) in [(1, 9), (2, 9), (3, 8), (4, 8)] {
        node.port(port, bridge);
        node.address(port, "fe80::1");
    }
    let ids: Vec<_> = node.reported_conflicts().iter().map(|c| c.id).collect();
    assert_eq!(ids.len(), 2);
    let mut node = restart(&node);
    let addresses: &[&str] = &["fe80::1"];
    let mut dump = snapshot(&[
        (1, addresses),
        (2, addresses),
        (3, addresses),
        (4, addresses),
    ]);
    for (link, master) in dump.links.iter_mut().zip([9, 9, 8, 8]) {
        link.master = Some(master);
    }
    dump.links.push(bridge(9));
    // The other bridge was replaced.
    dump.links.push(renamed(bridge(8), "br0"));
    node.resync(dump);
    node.expect(["resolved fe80::1 duplicate certain: left veth3(address_removed) left veth4(address_removed)", "raised fe80::1 duplicate certain: veth3 veth4"]);
    let open = node.engine.view().conflicts(node.now);
    assert_eq!(open[0].id, ids[0]);
    assert_eq!(
        conflict_text(&open[0]),
        "fe80::1 duplicate certain: veth1 veth2"
    );
}

#[test]
fn flapping_entry_continues() {
    let node = with_flapping_bridge_entry();
    let mut dump = snapshot(&[(1, &[]), (2, &[])]);
    for link in &mut dump.links {
        link.master = Some(9);
    }
    dump.links.push(bridge(9));
    dump.host = bridge_addresses(9);
    dump.fdb = vec![fdb(9, 1, mac(1)), fdb(9, 2, mac(2))];
    for current in [1, 2] {
        let mut node = restart(&node);
        // The entry may have changed once more meanwhile.
        let entry = neighbour(9, "10.0.0.1", mac(current), NudState::Reachable);
        dump.neighbours = vec![entry];
        node.resync(dump.clone());
        assert!(
            node.conflict_events().is_empty() || current == 2,
            "port {current}"
        );
        if current == 1 {
            node.expect_open([
                "10.0.0.1 duplicate observed: br9/02:00:00:00:00:02 br9/02:00:00:00:00:01",
            ]);
            node.wait_secs(181);
            node.expect(["resolved 10.0.0.1 duplicate observed: br9/02:00:00:00:00:01 left br9/02:00:00:00:00:02(expired)"]);
        }
    }
}

#[test]
fn flapping_address_continues_and_resolves() {
    let mut node = Node::with_settings(Settings {
        allow: vip_range(),
        ..Settings::default()
    });
    node.pod(1);
    node.pod(2);
    for turn in 0..6 {
        node.frame(1 + turn % 2, "10.9.0.1");
    }
    let id = node.reported_conflicts()[0].id;
    let mut node = restart(&node);
    node.resync(snapshot(&[(1, &[]), (2, &[])]));
    assert!(node.conflict_events().is_empty());
    assert_eq!(node.engine.view().conflicts(node.now)[0].id, id);
    // The holder claims it again, which is not a move.
    node.frame(2, "10.9.0.1");
    node.wait_secs(181);
    let conflicts = node.reported_conflicts();
    assert_eq!(conflicts.len(), 1);
    assert_eq!(conflicts[0].id, id);
    assert!(conflicts[0].resolved_at.is_some());
}

#[test]
fn conflict_of_an_address_allowed_since_resolves() {
    let mut node = Node::with_pods(2);
    node.addresses([1, 2], "10.9.0.1");
    let addresses: &[&str] = &["10.9.0.1"];
    let mut node = restart(&node);
    node.resync(snapshot(&[(1, addresses), (2, addresses)]));
    let conflicts = node.reported_conflicts();
    assert_eq!(conflicts.len(), 1);
    assert!(conflicts[0].resolved_at.is_some());
}

#[test]
fn record_survives_serialization() {
    let mut node = Node::with_pods(2);
    node.link(uplink(9));
    node.frames([1, 2], "2001:db8::1");
    node.host(9, "2001:db8::1");
    let records = node.engine.view().open_records(node.now);
    let text = serde_json::to_string(&records).unwrap();
    let parsed: Vec<OpenConflict> = serde_json::from_str(&text).unwrap();
    assert_eq!(parsed, records);
    let id = records[0].conflict.id;
    assert!(text.contains(&format!("\"{id}\"")), "{text}");
    assert_eq!(
        node.engine
            .view()
            .open_record(&records[0].conflict)
            .as_ref(),
        Some(&records[0])
    );
    node.remove_link(9);
    node.remove_link(1);
    assert_eq!(node.engine.view().open_record(&records[0].conflict), None);
}

#[test]
fn device_replaced_meanwhile_is_another_claimant() {
    let node = Node::with_duplicate();
    let mut node = restart(&node);
    let addresses: &[&str] = &["10.0.0.1"];
    let mut dump = snapshot(&[(1, addresses), (2, addresses)]);
    dump.links[0].name = "veth7".to_owned();
    node.resync(dump);
    assert_eq!(node.engine.view().drop_counters(), DropCounters::default());
    node.expect(["updated 10.0.0.1 duplicate certain: veth2 veth7 left veth1(device_removed)"]);
}

#[test]
fn first_of_two_records_of_one_conflict_is_restored() {
    let node = Node::with_observed_duplicate();
    let mut records = node.engine.view().open_records(node.now);
    records.push(records[0].clone());
    let id = records[0].conflict.id;
    records[1].conflict.id = ConflictId(id.0 + 1);
    // And one in another VLAN.
    records.push(records[1].clone());
    records[2].conflict.vlan.outer = Some(5);
    let mut node = restart(&node);
    node.engine.restore(records, Vec::new());
    node.resync(snapshot(&[(1, &[]), (2, &[])]));
    assert_eq!(node.engine.view().drop_counters(), DropCounters::default());
    let conflicts = node.reported_conflicts();
    assert_eq!(conflicts.len(), 1);
    assert_eq!(
        (conflicts[0].vlan.outer, conflicts[0].resolved_at.is_some()),
        (Some(5), true)
    );
    let open = node.engine.view().conflicts(node.now);
    assert_eq!(open.len(), 1);
    assert_eq!(open[0].id, id);
}
