//! Merging a snapshot: what it adds, what it removes, and what it leaves alone.

use super::*;

fn snapshot_of_links(links: Vec<Link>) -> Snapshot {
    Snapshot {
        links,
        ..Snapshot::default()
    }
}

#[test]
fn device_snapshot_applies_only_to_that_known_device() {
    let mut node = Node::with_pods(2);
    node.device_effects();
    let token = node.begin_snapshot();
    let mut dump = snapshot_of_links(vec![pod(3), pod(1)]);
    dump.pods = vec![
        pod_addresses(2, &["10.0.0.1"]),
        pod_addresses(1, &["10.0.0.2"]),
    ];
    node.finish_device_snapshot(token, 1, dump);
    assert!(node.device_effects().is_empty());
    assert_eq!(node.engine.view().addresses(), [ip("10.0.0.2")]);
    let token = node.begin_snapshot();
    node.finish_device_snapshot(token, 3, snapshot_of_links(vec![pod(3)]));
    assert_eq!(node.engine.view().devices().len(), 2);
}

#[test]
fn peer_missing_from_snapshot_is_dropped_unless_updated() {
    let alone = pod_without_peer(1);
    let mut node = Node::with_pods(1);
    let token = node.begin_snapshot();
    node.finish_device_snapshot(token, 1, snapshot_of_links(vec![alone.clone()]));
    assert_eq!(node.engine.view().device(1).unwrap().peer, None);
    let token = node.begin_snapshot();
    node.pod(1);
    node.finish_device_snapshot(token, 1, snapshot_of_links(vec![alone]));
    assert_eq!(node.engine.view().device(1).unwrap().peer, Some(peer(1)));
}

#[test]
fn peer_moves_to_the_device_the_snapshot_names() {
    let mut node = Node::with_pods(1);
    node.link(pod_without_peer(2));
    let mut dump = snapshot_of_links(vec![pod_with_peer(2, peer(1)), pod_without_peer(1)]);
    dump.pods = vec![pod_addresses(1, &["10.0.0.1"])];
    node.resync(dump);
    let claims = node.engine.view().claims_of(ip("10.0.0.1"), node.now);
    assert_eq!(claims[0].claimant.device, "veth2");
}

#[test]
fn confirmed_claims_keep_their_age_and_mac() {
    let mut node = Node::with_pods(1);
    node.link(uplink(9));
    let mut dump = snapshot_of_links(vec![pod(1), uplink(9)]);
    dump.pods = vec![pod_addresses(1, &["10.0.0.1"])];
    dump.host = vec![(9, assigned("10.0.0.1"))];
    node.resync(dump.clone());
    let before = node.engine.view().conflicts(node.now);
    node.wait_secs(5);
    dump.pods[0].mac = None;
    node.resync(dump);
    let after = node.engine.view().conflicts(node.now);
    for n in 0..2 {
        assert_eq!(
            before[0].claimants[n].since, after[0].claimants[n].since,
            "claimant {n}"
        );
        assert_eq!(
            before[0].claimants[n].mac, after[0].claimants[n].mac,
            "claimant {n}"
        );
    }
}

#[test]
fn route_missing_from_snapshot_is_dropped_unless_updated() {
    let mut node = Node::with_duplicate();
    let has: &[&str] = &["10.0.0.1"];
    let mut dump = snapshot_of_links(vec![pod(1), pod(2)]);
    dump.pods = vec![pod_addresses(1, has), pod_addresses(2, has)];
    let token = node.begin_snapshot();
    node.route("10.0.0.1", 2);
    node.conflict_events();
    node.finish_node_snapshot(token, dump.clone());
    assert!(node.conflict_events().is_empty());
    node.resync(dump);
    node.expect(["updated 10.0.0.1 duplicate certain: veth1 veth2"]);
}

#[test]
fn fdb_entry_missing_from_snapshot_yields_unless_updated() {
    let entry = |vlan, port| FdbEntry {
        vlan: Some(vlan),
        ..fdb(9, port, mac(7))
    };
    let mut dump = snapshot_of_links(vec![bridge(9)]);
    dump.links.extend([1, 2].map(|port| bridge_port(port, 9)));
    dump.neighbours = vec![neighbour(9, "10.0.0.1", mac(7), NudState::Reachable)];
    dump.fdb = vec![entry(20, 2)];
    let mut node = Node::new();
    node.resync(dump.clone());
    node.address(2, "10.0.0.1");
    let token = node.begin_snapshot();
    node.observe(Observation::Fdb(entry(1, 1)));
    assert_eq!(node.conflict_events().len(), 1);
    node.finish_node_snapshot(token, dump.clone());
    assert!(node.conflict_events().is_empty());
    node.resync(dump);
    node.expect([
        "resolved 10.0.0.1 duplicate observed: veth2 left br9/02:00:00:00:00:07(expired)",
    ]);
}

#[test]
fn live_updates_take_precedence_over_the_snapshot() {
    let mut node = Node::with_pods(1);
    node.link(uplink(9));
    node.neighbour(1, "10.0.0.3", mac(1), NudState::Permanent);
    let token = node.begin_snapshot();
    node.host(9, "10.0.0.2");
    node.neighbour_gone(1, "10.0.0.3");
    let mut dump = snapshot_of_links(vec![pod(1), uplink(9)]);
    dump.neighbours = vec![neighbour(1, "10.0.0.3", mac(1), NudState::Permanent)];
    node.finish_node_snapshot(token, dump);
    assert_eq!(node.engine.view().addresses(), [ip("10.0.0.2")]);
}

#[test]
fn aged_port_is_kept_for_an_entry_the_snapshot_brings() {
    let mut node = Node::new();
    node.bridge(9);
    let mut dump = snapshot_of_links(vec![bridge(9)]);
    for port in 1..=2u8 {
        node.port(port.into(), 9);
        dump.links.push(bridge_port(port.into(), 9));
    }
    node.fdb(9, 1, mac(1));
    node.neighbour(9, "10.0.0.1", mac(1), NudState::Reachable);
    node.fdb_gone(9, 1, mac(1));
    dump.neighbours = vec![neighbour(9, "10.0.0.2", mac(1), NudState::Reachable)];
    node.resync(dump);
    node.address(2, "10.0.0.2");
    node.expect(["raised 10.0.0.2 duplicate observed: br9/02:00:00:00:00:01 veth2"]);
}

/// Device 1 is a port of the bridge, with 10.0.0.1 behind it.
fn snapshot_with_port() -> Snapshot {
    let mut dump = snapshot_of_links(vec![bridge(9), pod(2)]);
    dump.links.push(bridge_port(1, 9));
    dump.neighbours = vec![neighbour(9, "10.0.0.1", mac(1), NudState::Reachable)];
    dump.fdb = vec![fdb(9, 1, mac(1))];
    dump
}

/// The kernel removes the entries of a port that leaves; an older dump still contains them.
#[test]
fn snapshot_fdb_of_a_port_that_left_is_ignored() {
    for comes_back in [false, true] {
        let mut node = Node::new();
        node.bridge(9);
        node.port(1, 9);
        node.pod(2);
        node.frame(2, "10.0.0.1");
        let dump = snapshot_with_port();
        let token = node.begin_snapshot();
        node.link(pod(1));
        if comes_back {
            node.port(1, 9);
        }
        node.finish_node_snapshot(token, dump);
        assert!(
            node.conflict_events().is_empty(),
            "comes back: {comes_back}"
        );
    }
}

/// The same if the agent first sees the port after it has left.
#[test]
fn snapshot_fdb_of_a_port_first_seen_detached_is_ignored() {
    let mut node = Node::new();
    node.bridge(9);
    node.pod(2);
    node.frame(2, "10.0.0.1");
    let dump = snapshot_with_port();
    let token = node.begin_snapshot();
    node.link(pod(1));
    node.finish_node_snapshot(token, dump);
    assert!(node.conflict_events().is_empty());
}
