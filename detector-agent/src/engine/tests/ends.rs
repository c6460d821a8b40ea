//! Pods' ends: which device they are of, and how long what was read of them counts.

use super::*;

fn endless(ifindex: IfIndex) -> Link {
    Link {
        peer: None,
        ..pod(ifindex)
    }
}

/// Its end in a pod has the number that pod 1's has, but it is no pod's device.
fn excluded(ifindex: IfIndex) -> Link {
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

/// A reading finds no other end of device 1.
fn lost(node: &mut Node) {
    node.read_node(Snapshot {
        links: vec![endless(1), pod(3)],
        pods: vec![holds(3, &["10.0.0.1"])],
        neighbours: vec![neighbour(1, "10.0.0.1", mac(1), NudState::Stale)],
        ..Snapshot::default()
    });
}

/// A newer device has the number of device 1's other end.
fn displaced(node: &mut Node) {
    node.link(Link {
        peer: Some(peer(1)),
        ..pod(4)
    });
}

#[test]
fn what_is_told_of_an_end_that_no_device_has_any_more_is_nobodys() {
    let ends: [fn(&mut Node); 4] = [
        lost,
        |node| node.link(excluded(1)),
        |node| {
            node.gone(1);
            node.link(uplink(1));
        },
        |node| {
            node.link(Link {
                peer: Some(peer(9)),
                ..pod(1)
            })
        },
    ];
    for end in ends {
        let mut node = Node::with_pods(1);
        end(&mut node);
        node.address(1, "10.0.0.2");
        assert!(!node.engine.addresses().contains(&ip("10.0.0.2")));
    }
}

#[test]
fn a_link_that_is_no_pods_takes_nothing_from_the_pod_that_has_its_number_by_now() {
    let ends: [fn(&mut Node); 3] = [
        |node| node.gone(3),
        |node| node.link(with_alias(excluded(3))),
        |node| {
            node.link(Link {
                peer: Some(peer(9)),
                ..excluded(3)
            })
        },
    ];
    for end in ends {
        let mut node = Node::new();
        node.link(excluded(3));
        node.pod(1);
        node.address(1, "10.0.0.1");
        end(&mut node);
        assert_eq!(node.engine.addresses(), [ip("10.0.0.1")]);
        node.address(1, "10.0.0.2");
        assert_eq!(node.engine.address_count(), 2, "and it is still found");
    }
}

#[test]
fn a_namespace_speaks_against_what_is_heard_until_its_end_is_lost() {
    let mut node = Node::with_pods(3);
    node.read_pod(1, &[]);
    node.neighbour(1, "10.0.0.1", mac(1), NudState::Stale);
    node.address(3, "10.0.0.1");
    node.link(with_alias(pod(1)));
    assert!(node.said().is_empty());
    lost(&mut node);
    assert_eq!(
        node.said(),
        ["raised 10.0.0.1 duplicate observed: veth1 veth3"]
    );
}

#[test]
fn a_pods_hardware_address_is_shown_until_its_device_has_another_end() {
    let shown = |node: &Node, address| {
        let claims = node.engine.claims_of(ip(address), node.now);
        claims[0].claimant.evidence[0].mac
    };
    for lose in [lost, displaced] {
        let mut node = Node::with_pods(1);
        node.read_pod(1, &["10.0.0.2"]);
        node.link(with_alias(pod(1)));
        assert_eq!(shown(&node, "10.0.0.2"), Some(mac(1)));
        lose(&mut node);
        node.link(Link {
            peer: Some(peer(9)),
            ..with_alias(pod(1))
        });
        node.address(9, "10.0.0.2");
        assert_eq!(shown(&node, "10.0.0.2"), None);
    }
}

#[test]
fn a_device_that_is_no_pods_any_more_is_detached_from() {
    let mut node = Node::with_pods(1);
    node.asked();
    node.link(excluded(1));
    assert_eq!(node.asked(), ["detach veth1#1"]);
}

#[test]
fn a_link_that_becomes_a_bridge_after_a_neighbour_was_told_on_it_asks_for_a_reading() {
    let mut node = Node::new();
    node.neighbour(9, "10.0.0.1", mac(1), NudState::Reachable);
    node.link(uplink(9));
    assert!(node.asked().is_empty());
    node.bridge(9);
    assert_eq!(node.asked(), ["read again"]);
}

#[test]
fn what_is_heard_again_after_its_end_was_lost_counts_at_once() {
    let ends: [fn(&mut Node); 2] = [displaced, |node| {
        node.read_node(Snapshot {
            links: vec![endless(1), pod(3)],
            pods: vec![holds(3, &["10.0.0.1"])],
            ..Snapshot::default()
        });
    }];
    for end in ends {
        let mut node = Node::new();
        for ifindex in [3, 1] {
            node.pod(ifindex);
            node.address(ifindex, "10.0.0.1");
        }
        node.frame(1, "10.0.0.1");
        node.wait_secs(601);
        node.said();
        end(&mut node);
        assert_eq!(
            node.said(),
            ["resolved 10.0.0.1 duplicate certain: veth3 left veth1(address_removed)"]
        );
        node.frame(1, "10.0.0.1");
        assert_eq!(
            node.said(),
            ["raised 10.0.0.1 duplicate observed: veth3 veth1"]
        );
    }
}
