//! Snapshots of the kernel state, and live updates in between.

use super::*;

#[test]
fn first_snapshot_alone_finds_conflicts() {
    let mut node = Node::new();
    let mut dump = snapshot(&[(1, &["10.0.0.1"]), (2, &["10.0.0.1"])]);
    dump.links.push(bridge(9));
    dump.links.push(uplink(8));
    dump.links.push(bridge_port(3, 9));
    dump.routes = vec![route("10.0.0.1", 2), route("10.0.0.2", 9)];
    dump.neighbours = vec![
        neighbour(9, "10.0.0.2", mac(3), NudState::Stale),
        neighbour(1, "10.0.0.2", mac(1), NudState::Permanent),
    ];
    dump.fdb = vec![fdb(9, 3, mac(3))];
    dump.host = vec![(8, assigned("10.0.0.3"))];
    dump.pods.push(PodAddresses {
        addresses: Some(vec![assigned("10.0.0.3"), assigned("10.0.0.2")]),
        ..pod_addresses(3, &[])
    });
    node.resync(dump.clone());
    node.expect([
        "raised 10.0.0.1 duplicate certain: veth1 veth2 -> veth2",
        "raised 10.0.0.2 duplicate certain: veth1 veth3 -> veth3",
        "raised 10.0.0.3 host certain: node/eth8 veth3 -> eth8",
    ]);
    node.resync(dump);
    assert!(
        node.conflict_events().is_empty(),
        "an equal snapshot changes nothing"
    );
    node.resync(Snapshot::default());
    assert_eq!(node.conflict_events().len(), 3);
    assert!(node.engine.view().addresses().is_empty());
}

#[test]
fn snapshot_removes_what_is_gone() {
    let mut node = Node::with_pods(2);
    for ifindex in 1..=2 {
        node.address(ifindex, "10.0.0.1");
        node.neighbour(ifindex, "10.0.0.2", mac(1), NudState::Permanent);
        node.host(ifindex, "10.0.0.3");
        node.frame(ifindex, "10.0.0.4");
    }
    node.frame(1, "10.0.0.3");
    node.conflict_events();
    node.resync(snapshot(&[(1, &[]), (2, &["10.0.0.1"])]));
    assert_eq!(
        node.conflict_events(),
        [
            "resolved 10.0.0.1 duplicate certain: veth2 left veth1(address_removed)",
            "resolved 10.0.0.2 duplicate certain: left veth1(expired) left veth2(expired)",
            "resolved 10.0.0.3 host observed: veth1 left node/veth1(address_removed)",
        ],
        "frame evidence is not kernel state and stays"
    );
    node.expect_open(["10.0.0.4 duplicate observed: veth1 veth2"]);
}

#[test]
fn decisions_wait_until_the_snapshot_is_merged() {
    let mut node = Node::with_pods(2);
    node.address(2, "10.0.0.1");
    node.route("10.0.0.1", 2);
    // Address and route moved to another device without a live update.
    let mut dump = snapshot(&[(1, &["10.0.0.1"]), (2, &[])]);
    dump.routes = vec![route("10.0.0.1", 1)];
    node.resync(dump);
    assert!(node.conflict_events().is_empty());
}

#[test]
fn live_update_during_the_snapshot_takes_precedence() {
    let mut node = Node::with_pods(4);
    node.bridge(9);
    node.address(1, "10.0.0.1");
    node.host(1, "10.0.0.2");
    node.neighbour(3, "10.0.0.3", mac(3), NudState::Permanent);
    node.route("10.0.0.7", 1);
    node.fdb(9, 3, mac(8));
    let mut before = snapshot(&[(1, &["10.0.0.1"]), (2, &[]), (3, &[]), (4, &[])]);
    before.links.push(bridge(9));
    before.host = vec![(1, assigned("10.0.0.2"))];
    before.neighbours = vec![neighbour(3, "10.0.0.3", mac(3), NudState::Permanent)];
    before.routes = vec![route("10.0.0.7", 1)];
    before.fdb = vec![fdb(9, 3, mac(8))];
    let token = node.begin_snapshot();
    node.address_gone(1, "10.0.0.1");
    node.host_gone(1, "10.0.0.2");
    node.neighbour_gone(3, "10.0.0.3");
    node.route_gone("10.0.0.7", 1);
    node.fdb_gone(9, 3, mac(8));
    node.address(2, "10.0.0.1");
    node.address(2, "10.0.0.2");
    node.neighbour(4, "10.0.0.3", mac(4), NudState::Permanent);
    node.route("10.0.0.7", 2);
    node.fdb(9, 4, mac(8));
    node.link(pod(5));
    node.address(5, "10.0.0.5");
    node.remove_link(3);
    node.finish_node_snapshot(token, before);
    assert!(node.conflict_events().is_empty());
    assert_eq!(node.engine.view().devices().len(), 4);
    assert_eq!(node.engine.view().device(3), None);
    assert_eq!(
        node.engine.view().claims_of(ip("10.0.0.5"), node.now).len(),
        1,
        "devices that appear during the snapshot stay"
    );
    for (address, ifindex) in [("10.0.0.1", 2), ("10.0.0.2", 2), ("10.0.0.3", 4)] {
        let claims = node.engine.view().claims_of(ip(address), node.now);
        assert_eq!(claims.len(), 1, "{address}");
        assert_eq!(claims[0].claimant.ifindex, ifindex, "{address}");
    }
    node.addresses([1, 2], "10.0.0.7");
    node.expect(["raised 10.0.0.7 duplicate certain: veth1 veth2 -> veth2"]);
}

#[test]
fn route_replaced_during_the_snapshot_stays_replaced() {
    let mut node = Node::with_pods(2);
    let mut old = snapshot(&[(1, &["10.0.0.1"]), (2, &["10.0.0.1"])]);
    old.routes = vec![route("10.0.0.1", 1)];
    node.resync(old.clone());
    let token = node.begin_snapshot();
    node.route("10.0.0.1", 2);
    node.conflict_events();
    node.finish_node_snapshot(token, old);
    node.expect_open(["10.0.0.1 duplicate certain: veth1 veth2 -> veth2"]);
}

#[test]
fn live_update_before_the_snapshot_does_not() {
    let mut node = Node::with_pods(2);
    let token = node.begin_snapshot();
    node.address(1, "10.0.0.1");
    let later = node.begin_snapshot();
    node.finish_node_snapshot(later, snapshot(&[(1, &[]), (2, &["10.0.0.1"])]));
    assert!(node.conflict_events().is_empty());
    node.finish_node_snapshot(token, snapshot(&[]));
    assert_eq!(
        node.engine.view().devices().len(),
        2,
        "a snapshot older than a merged one is discarded"
    );
    assert!(node.device_effects().is_empty());
}

#[test]
fn device_snapshot_older_than_a_node_snapshot_is_ignored() {
    let mut node = Node::with_pods(2);
    node.address(2, "10.0.0.1");
    let device_token = node.begin_snapshot();
    node.resync(snapshot(&[(1, &[]), (2, &["10.0.0.1"])]));
    let old = snapshot(&[(1, &["10.0.0.1"])]);
    node.finish_device_snapshot(device_token, 1, old);
    assert!(node.conflict_events().is_empty());
}

#[test]
fn snapshot_is_ignored_for_a_device_recreated_meanwhile() {
    let mut node = Node::with_pods(2);
    node.bridge(9);
    node.address(2, "10.0.0.1");
    let mut old = snapshot(&[(1, &["10.0.0.1"]), (2, &["10.0.0.1"])]);
    old.links.push(bridge(9));
    old.neighbours = vec![
        neighbour(1, "10.0.0.1", mac(1), NudState::Permanent),
        neighbour(9, "10.0.0.1", mac(7), NudState::Reachable),
    ];
    old.host = bridge_addresses(9);
    old.host.push((1, assigned("10.0.0.1")));
    old.fdb = vec![fdb(9, 1, mac(7))];
    old.routes = vec![route("10.0.0.1", 1)];
    let node_token = node.begin_snapshot();
    let device_token = node.begin_snapshot();
    node.remove_link(1);
    // The ifindex and the nsid are reused.
    node.port(1, 9);
    node.finish_device_snapshot(device_token, 1, old.clone());
    node.finish_node_snapshot(node_token, old);
    assert!(node.conflict_events().is_empty());
    node.address(1, "10.0.0.1");
    assert_eq!(
        node.conflict_events(),
        ["raised 10.0.0.1 duplicate certain: veth2 veth1"],
        "the dumped route is ignored too"
    );
}

#[test]
fn nsid_reused_during_the_snapshot_brings_no_addresses() {
    let mut node = Node::with_pods(2);
    node.address(2, "10.0.0.1");
    let old = snapshot(&[(1, &["10.0.0.1"]), (2, &["10.0.0.1"])]);
    // As at startup, when the removed device was never known.
    let token = node.begin_snapshot();
    node.remove_link(1);
    node.link(pod_with_peer(3, peer(1)));
    node.finish_node_snapshot(token, old);
    assert!(node.conflict_events().is_empty());
    assert_eq!(node.engine.view().devices().len(), 2);
}

#[test]
fn dying_device_in_a_snapshot_does_not_reclaim_its_nsid() {
    let mut node = Node::with_pods(2);
    node.remove_link(1);
    node.address(2, "10.0.0.1");
    let token = node.begin_snapshot();
    node.link(pod_with_peer(3, peer(1)));
    node.address(1, "10.0.0.1");
    node.expect(["raised 10.0.0.1 duplicate certain: veth2 veth3"]);
    node.finish_node_snapshot(token, snapshot(&[(1, &[]), (2, &["10.0.0.1"])]));
    assert!(node.conflict_events().is_empty());
}

#[test]
fn link_first_seen_during_the_snapshot_is_merged_fully() {
    let mut node = Node::new();
    let mut dump = snapshot(&[(1, &["10.0.0.1"])]);
    dump.links = vec![bridge(9), pod(1)];
    dump.links[1].master = Some(9);
    dump.host = vec![(9, assigned("10.0.0.1"))];
    dump.neighbours = vec![neighbour(9, "10.0.0.2", mac(1), NudState::Permanent)];
    dump.fdb = vec![fdb(9, 1, mac(1))];
    dump.routes = vec![route("10.0.0.1", 9)];
    let token = node.begin_snapshot();
    node.bridge(9);
    node.port(1, 9);
    node.finish_node_snapshot(token, dump);
    node.expect(["raised 10.0.0.1 host certain: node/br9 veth1 -> br9"]);
    let claims = node.engine.view().claims_of(ip("10.0.0.2"), node.now);
    assert_eq!(claims[0].claimant.device, "veth1");
}

#[test]
fn snapshot_does_not_restore_routes_of_a_downed_link() {
    let mut node = Node::with_pods(2);
    let mut old = snapshot(&[(1, &["10.0.0.1"]), (2, &["10.0.0.1"])]);
    old.routes = vec![route("10.0.0.1", 1)];
    node.resync(old.clone());
    let token = node.begin_snapshot();
    node.link(link_down(pod(1)));
    node.conflict_events();
    node.finish_node_snapshot(token, old);
    node.expect_open(["10.0.0.1 duplicate certain: veth1 veth2"]);
    assert!(node.conflict_events().is_empty());
}

#[test]
fn device_snapshot_touches_only_that_device() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    node.neighbour(2, "10.0.0.1", mac(2), NudState::Reachable);
    node.conflict_events();
    let token = node.begin_snapshot();
    let stray = Snapshot {
        pods: vec![pod_addresses(1, &["10.0.0.1"])],
        neighbours: vec![neighbour(2, "10.0.0.9", mac(2), NudState::Reachable)],
        ..Snapshot::default()
    };
    node.finish_device_snapshot(token, 1, stray);
    assert!(node.conflict_events().is_empty());
    assert_eq!(node.open_conflicts().len(), 1);
    assert_eq!(node.engine.view().addresses(), [ip("10.0.0.1")]);
}

#[test]
fn device_snapshot_of_a_removed_device_is_ignored() {
    let mut node = Node::with_pods(2);
    let token = node.begin_snapshot();
    node.remove_link(1);
    node.finish_device_snapshot(token, 1, snapshot(&[(1, &["10.0.0.1"])]));
    assert!(node.engine.view().addresses().is_empty());
    assert!(node.conflict_events().is_empty());
}

#[test]
fn unreadable_namespace_keeps_known_addresses() {
    let mut node = Node::with_duplicate();
    node.conflict_events();
    let mut dump = snapshot(&[(1, &["10.0.0.1"]), (2, &[])]);
    dump.pods[1].addresses = None;
    node.resync(dump);
    assert!(node.conflict_events().is_empty());
}

#[test]
fn peer_missing_from_the_snapshot_is_gone() {
    let mut node = Node::with_duplicate();
    let mut dump = snapshot(&[(1, &["10.0.0.1"]), (2, &[])]);
    dump.links[1].peer = None;
    dump.pods.pop();
    node.conflict_events();
    node.resync(dump);
    node.expect(["resolved 10.0.0.1 duplicate certain: veth1 left veth2(address_removed)"]);
    assert_eq!(node.engine.view().device(2).unwrap().peer, None);
}

#[test]
fn failed_snapshot_changes_nothing() {
    let mut node = Node::with_pods(1);
    node.address(1, "10.0.0.1");
    let token = node.begin_snapshot();
    node.observe(Observation::SnapshotFailed(token));
    assert!(node.device_effects().contains(&"attach veth1#1".to_owned()));
    assert_eq!(node.engine.view().addresses().len(), 1);
    node.finish_node_snapshot(token, Snapshot::default());
    assert_eq!(node.device_effects(), ["resync"]);
    assert_eq!(node.engine.view().addresses().len(), 1);
}

#[test]
fn snapshot_during_an_update_storm_is_repeated() {
    let mut node = Node::with_pods(1);
    node.device_effects();
    let first = node.begin_snapshot();
    let second = node.begin_snapshot();
    for n in 0..300_000u32 {
        let address: IpAddr = std::net::Ipv4Addr::from(0x0a00_0000 + n).into();
        node.observe(Observation::RouteGone(Route {
            destination: address,
            ..route("10.0.0.0", 1)
        }));
    }
    let third = node.begin_snapshot();
    node.finish_node_snapshot(first, snapshot(&[]));
    assert_eq!(node.device_effects(), ["resync"]);
    node.finish_node_snapshot(second, snapshot(&[]));
    assert_eq!(node.device_effects(), ["resync"]);
    assert_eq!(node.engine.view().devices().len(), 1);
    node.finish_node_snapshot(third, snapshot(&[]));
    assert_eq!(node.device_effects(), ["detach veth1#1"]);
}

#[test]
fn update_before_a_later_snapshot_does_not_outrank_it() {
    let mut node = Node::with_duplicate();
    let earlier = node.begin_snapshot();
    node.address_gone(1, "10.0.0.1");
    node.conflict_events();
    let later = node.begin_snapshot();
    node.observe(Observation::SnapshotFailed(earlier));
    node.finish_node_snapshot(later, snapshot(&[(1, &["10.0.0.1"]), (2, &["10.0.0.1"])]));
    node.expect(["raised 10.0.0.1 duplicate certain: veth2 veth1"]);
}
