//! Peers of pod devices: which device has them, and how long what was read there counts.

use super::*;

/// A link with the same peer as pod 1 that is not a pod device.
fn non_pod_link(ifindex: IfIndex) -> Link {
    Link {
        kind: LinkKind::Other,
        peer: Some(peer(1)),
        ..pod(ifindex)
    }
}

fn with_alias(link: Link) -> Link {
    Link {
        alias: Some("a".to_owned()),
        ..link
    }
}

/// A snapshot finds no peer of device 1.
fn peer_lost(node: &mut Node) {
    node.resync(Snapshot {
        links: vec![pod_without_peer(1), pod(3)],
        pods: vec![pod_addresses(3, &["10.0.0.1"])],
        neighbours: vec![neighbour(1, "10.0.0.1", mac(1), NudState::Stale)],
        ..Snapshot::default()
    });
}

/// A newer device has the peer of device 1.
fn peer_displaced(node: &mut Node) {
    node.link(pod_with_peer(4, peer(1)));
}

#[test]
fn address_on_a_peer_without_device_is_ignored() {
    let causes: [NodeCase; 4] = [
        ("no peer in a snapshot", peer_lost),
        ("no pod device any more", |node| {
            node.link(non_pod_link(1));
        }),
        ("replaced by an uplink", |node| {
            node.remove_link(1);
            node.link(uplink(1));
        }),
        ("another peer", |node| node.link(pod_with_peer(1, peer(9)))),
    ];
    for (case, cause) in causes {
        let mut node = Node::with_pods(1);
        cause(&mut node);
        node.address(1, "10.0.0.2");
        let addresses = node.engine.view().addresses();
        assert!(!addresses.contains(&ip("10.0.0.2")), "{case}");
    }
}

#[test]
fn non_pod_link_with_the_same_peer_withdraws_nothing() {
    let causes: [NodeCase; 3] = [
        ("removed", |node| node.remove_link(3)),
        ("alias set", |node| {
            node.link(with_alias(non_pod_link(3)));
        }),
        ("another peer", |node| {
            node.link(Link {
                peer: Some(peer(9)),
                ..non_pod_link(3)
            });
        }),
    ];
    for (case, cause) in causes {
        let mut node = Node::new();
        node.link(non_pod_link(3));
        node.pod(1);
        node.address(1, "10.0.0.1");
        cause(&mut node);
        assert_eq!(node.engine.view().addresses(), [ip("10.0.0.1")], "{case}");
        node.address(1, "10.0.0.2");
        let known = node.engine.view().addresses().len();
        assert_eq!(known, 2, "{case}: peer still known");
    }
}

#[test]
fn namespace_refutes_entries_until_its_peer_is_lost() {
    let mut node = Node::with_pods(3);
    node.read_pod_addresses(1, &[]);
    node.neighbour(1, "10.0.0.1", mac(1), NudState::Stale);
    node.address(3, "10.0.0.1");
    node.link(with_alias(pod(1)));
    assert!(node.conflict_events().is_empty());
    peer_lost(&mut node);
    node.expect(["raised 10.0.0.1 duplicate observed: veth1 veth3"]);
}

#[test]
fn pod_mac_is_shown_until_the_peer_changes() {
    let shown = |node: &Node, address| {
        let claims = node.engine.view().claims_of(ip(address), node.now);
        claims[0].claimant.evidence[0].mac
    };
    let causes: [NodeCase; 2] = [("lost", peer_lost), ("displaced", peer_displaced)];
    for (case, cause) in causes {
        let mut node = Node::with_pods(1);
        node.read_pod_addresses(1, &["10.0.0.2"]);
        node.link(with_alias(pod(1)));
        assert_eq!(shown(&node, "10.0.0.2"), Some(mac(1)), "{case}");
        cause(&mut node);
        node.link(Link {
            peer: Some(peer(9)),
            ..with_alias(pod(1))
        });
        node.address(9, "10.0.0.2");
        assert_eq!(shown(&node, "10.0.0.2"), None, "{case}");
    }
}

#[test]
fn device_reclassified_as_other_is_detached() {
    let mut node = Node::with_pods(1);
    node.device_effects();
    node.link(non_pod_link(1));
    assert_eq!(node.device_effects(), ["detach veth1#1"]);
}

#[test]
fn link_turned_bridge_with_neighbours_has_the_node_read() {
    let mut node = Node::new();
    node.neighbour(9, "10.0.0.1", mac(1), NudState::Reachable);
    node.link(uplink(9));
    assert!(node.device_effects().is_empty());
    node.bridge(9);
    assert_eq!(node.device_effects(), ["read the node: LateBridge"]);
}

#[test]
fn frame_after_the_peer_was_lost_counts_at_once() {
    let causes: [NodeCase; 2] = [
        ("displaced", peer_displaced),
        ("lost", |node| {
            node.resync(Snapshot {
                links: vec![pod_without_peer(1), pod(3)],
                pods: vec![pod_addresses(3, &["10.0.0.1"])],
                ..Snapshot::default()
            });
        }),
    ];
    for (case, cause) in causes {
        let mut node = Node::new();
        for ifindex in [3, 1] {
            node.pod(ifindex);
            node.address(ifindex, "10.0.0.1");
        }
        node.frame(1, "10.0.0.1");
        node.wait_secs(601);
        node.conflict_events();
        cause(&mut node);
        assert_eq!(
            node.conflict_events(),
            ["resolved 10.0.0.1 duplicate certain: veth3 left veth1(address_removed)"],
            "{case}"
        );
        node.frame(1, "10.0.0.1");
        assert_eq!(
            node.conflict_events(),
            ["raised 10.0.0.1 duplicate observed: veth3 veth1"],
            "{case}"
        );
    }
}
