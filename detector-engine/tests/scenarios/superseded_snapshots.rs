//! Snapshots superseded by live updates, and snapshots of one device.

use super::*;

/// A snapshot of two pods that both have 10.0.0.1, and a bridge.
fn two_pod_snapshot() -> Snapshot {
    Snapshot {
        links: vec![pod(1), pod(2), bridge(9)],
        pods: vec![
            pod_addresses(1, &["10.0.0.1"]),
            pod_addresses(2, &["10.0.0.1"]),
        ],
        ..Snapshot::default()
    }
}

#[test]
fn snapshot_is_ignored_for_a_silently_replaced_device() {
    let mut node = Node::with_pods(2);
    node.bridge(9);
    node.address(2, "10.0.0.1");
    let old = Snapshot {
        neighbours: vec![
            neighbour(1, "10.0.0.1", mac(1), NudState::Permanent),
            neighbour(9, "10.0.0.1", mac(7), NudState::Reachable),
        ],
        host: [bridge_addresses(9), vec![(1, assigned("10.0.0.1"))]].concat(),
        fdb: vec![fdb(9, 1, mac(7))],
        routes: vec![route("10.0.0.1", 1)],
        ..two_pod_snapshot()
    };
    let node_token = node.begin_snapshot();
    let device_token = node.begin_snapshot();
    node.link(Link {
        name: "veth7".to_owned(),
        master: Some(9),
        ..pod_with_peer(1, peer(7))
    });
    node.finish_device_snapshot(device_token, 1, old.clone());
    node.finish_node_snapshot(node_token, old);
    assert!(node.conflict_events().is_empty());
    node.address(7, "10.0.0.1");
    assert_eq!(
        node.conflict_events(),
        ["raised 10.0.0.1 duplicate certain: veth2 veth7"],
        "the dumped route is ignored too"
    );
}

#[test]
fn fdb_entry_removed_during_the_snapshot_stays_removed() {
    let mut node = Node::with_pods(2);
    node.bridge(9);
    node.port(1, 9);
    let mut old = two_pod_snapshot();
    old.links[0].master = Some(9);
    old.fdb = vec![fdb(9, 1, mac(7))];
    node.resync(old.clone());
    let token = node.begin_snapshot();
    node.fdb_gone(9, 1, mac(7));
    node.conflict_events();
    node.finish_node_snapshot(token, old);
    node.neighbour(9, "10.0.0.2", mac(7), NudState::Reachable);
    assert!(
        node.engine
            .view()
            .claims_of(ip("10.0.0.2"), node.now)
            .is_empty()
    );
}

#[test]
fn device_snapshot_replaces_the_devices_neighbours() {
    let mut node = Node::with_pods(1);
    node.neighbour(1, "10.0.0.1", mac(1), NudState::Permanent);
    let token = node.begin_snapshot();
    let dump = Snapshot {
        neighbours: vec![neighbour(1, "10.0.0.2", mac(1), NudState::Permanent)],
        ..Snapshot::default()
    };
    node.finish_device_snapshot(token, 1, dump);
    assert_eq!(node.engine.view().addresses(), [ip("10.0.0.2")]);
}

#[test]
fn route_before_its_link_ends_if_the_link_is_down() {
    for (up, receiver) in [(true, " -> veth1"), (false, "")] {
        let mut node = Node::new();
        let token = node.begin_snapshot();
        node.route("10.0.0.1", 1);
        let link = Link { up, ..pod(1) };
        node.link(link.clone());
        let mut dump = two_pod_snapshot();
        dump.links[0] = link;
        node.finish_node_snapshot(token, dump);
        assert_eq!(
            node.conflict_events(),
            [format!(
                "raised 10.0.0.1 duplicate certain: veth1 veth2{receiver}"
            )]
        );
    }
}

#[test]
fn route_dumped_before_its_link_went_down_is_ignored() {
    let mut node = Node::new();
    let token = node.begin_snapshot();
    node.link(link_down(pod(1)));
    let mut old = two_pod_snapshot();
    old.routes = vec![route("10.0.0.1", 1)];
    node.finish_node_snapshot(token, old);
    node.expect(["raised 10.0.0.1 duplicate certain: veth1 veth2"]);
}
