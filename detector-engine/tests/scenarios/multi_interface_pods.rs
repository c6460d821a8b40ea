//! A pod with several interfaces is not in conflict with itself (`docs/detection-rules.md`, 10).

use super::*;

/// A device whose peer is another interface of pod 1.
fn second_interface(ifindex: IfIndex) -> Link {
    Link {
        peer: Some(second_peer()),
        ..pod(ifindex)
    }
}

fn second_peer() -> Peer {
    Peer {
        ifindex: 3,
        ..peer(1)
    }
}

fn two_interfaces() -> Node {
    let mut node = Node::with_pods(1);
    node.link(second_interface(2));
    node.pod(3);
    node
}

#[test]
fn evidence_on_the_owners_other_interface_is_not_a_claim() {
    let mut node = two_interfaces();
    node.address(1, "10.0.0.1");
    node.frame(2, "10.0.0.1");
    node.neighbour(2, "10.0.0.1", mac(2), NudState::Reachable);
    assert!(node.conflict_events().is_empty());
    node.address(3, "10.0.0.1");
    node.expect(["raised 10.0.0.1 duplicate certain: veth1 veth3"]);
}

#[test]
fn interface_with_the_address_is_the_claimant() {
    let mut node = two_interfaces();
    node.frame(1, "10.0.0.1");
    node.observe(Observation::PodAddress(second_peer(), assigned("10.0.0.1")));
    assert!(node.conflict_events().is_empty());
    node.frame(3, "10.0.0.1");
    node.expect(["raised 10.0.0.1 duplicate observed: veth2 veth3"]);
}

#[test]
fn frames_on_two_interfaces_without_address_are_one_claim() {
    let mut node = two_interfaces();
    node.frames([2, 1], "10.0.0.1");
    assert!(node.conflict_events().is_empty());
    node.frame(3, "10.0.0.1");
    node.expect(["raised 10.0.0.1 duplicate observed: veth1 veth3"]);
}

/// Pod 1 has 10.0.0.1 on both of its interfaces.
fn address_on_both_interfaces() -> Node {
    let mut node = two_interfaces();
    node.address(1, "10.0.0.1");
    node.observe(Observation::PodAddress(second_peer(), assigned("10.0.0.1")));
    node
}

#[test]
fn address_on_two_interfaces_of_one_pod_raises_nothing() {
    let mut node = address_on_both_interfaces();
    assert!(node.conflict_events().is_empty());
    assert_eq!(
        node.engine.view().claims_of(ip("10.0.0.1"), node.now).len(),
        2
    );
    node.address(3, "10.0.0.1");
    node.expect(["raised 10.0.0.1 duplicate certain: veth1 veth2 veth3"]);
    node.address_gone(3, "10.0.0.1");
    node.expect(["resolved 10.0.0.1 duplicate certain: veth1 left veth3(address_removed)"]);
}

#[test]
fn certain_evidence_of_one_pod_alone_is_an_observed_conflict() {
    let mut node = address_on_both_interfaces();
    node.frame(3, "10.0.0.1");
    node.expect(["raised 10.0.0.1 duplicate observed: veth1 veth2 veth3"]);
    node.address(3, "10.0.0.1");
    node.expect(["updated 10.0.0.1 duplicate certain: veth1 veth2 veth3"]);
}

#[test]
fn node_address_on_two_interfaces_of_one_pod_is_a_host_conflict() {
    let mut node = address_on_both_interfaces();
    node.link(uplink(9));
    node.host(9, "10.0.0.1");
    node.expect(["raised 10.0.0.1 host certain: veth1 veth2 node/eth9 -> eth9"]);
    node.host_gone(9, "10.0.0.1");
    node.expect(["resolved 10.0.0.1 host certain: veth1 left node/eth9(address_removed)"]);
}

#[test]
fn probe_on_another_interface_of_the_holder_is_not_contested() {
    let mut node = two_interfaces();
    node.address(1, "10.0.0.1");
    node.probe(2, "10.0.0.1");
    let has_claim = |node: &Node, ifindex| {
        let device = node.engine.view().device(ifindex).unwrap();
        let mut claimed = node
            .engine
            .view()
            .addresses_on((ifindex, device.generation));
        claimed.next().is_some()
    };
    assert!(!has_claim(&node, 2));
    node.probe(3, "10.0.0.1");
    assert!(!has_claim(&node, 2) && has_claim(&node, 3));
    node.expect(["raised 10.0.0.1 duplicate observed: veth1 veth3"]);
}

/// Permanent neighbour entries of both devices outlive the pod's addresses.
#[test]
fn pod_whose_devices_lose_their_peers_is_still_one_pod() {
    let causes: [NodeCase; 5] = [
        ("namespace deleted", |node| {
            node.observe(Observation::NamespaceIdFreed(1));
        }),
        ("one interface moves", |node| {
            node.observe(Observation::PeerMoved(second_peer()));
        }),
        ("both interfaces move", |node| {
            node.observe(Observation::PeerMoved(peer(1)));
            node.observe(Observation::PeerMoved(second_peer()));
        }),
        ("another device has the peer", |node| {
            node.link(pod_with_peer(4, peer(1)));
        }),
        ("a snapshot without peers", |node| {
            node.resync(Snapshot {
                links: vec![pod_without_peer(1), pod_without_peer(2), pod(3)],
                neighbours: [1, 2]
                    .map(|i| neighbour(i, "10.0.0.1", mac(1), NudState::Permanent))
                    .to_vec(),
                ..Snapshot::default()
            });
        }),
    ];
    for (case, cause) in causes {
        let mut node = address_on_both_interfaces();
        for ifindex in [1, 2] {
            node.neighbour(ifindex, "10.0.0.1", mac(1), NudState::Permanent);
        }
        cause(&mut node);
        node.remove_link(1);
        node.remove_link(2);
        assert!(node.conflict_events().is_empty(), "{case}");
    }
}

#[test]
fn next_pod_with_the_namespace_id_is_another_pod() {
    let mut node = two_interfaces();
    node.neighbour(2, "10.0.0.1", mac(2), NudState::Permanent);
    node.observe(Observation::PeerMoved(second_peer()));
    node.observe(Observation::NamespaceIdFreed(1));
    node.link(pod_with_peer(4, peer(1)));
    node.address(1, "10.0.0.1");
    node.expect(["raised 10.0.0.1 duplicate certain: veth2 veth4"]);
}

#[test]
fn claims_on_two_interfaces_of_one_pod_are_no_moves() {
    let mut node = Node::with_settings(Settings {
        allow: vip_range(),
        ..Settings::default()
    });
    node.pod(1);
    node.link(second_interface(2));
    node.pod(3);
    for _ in 0..10 {
        for other in [peer(1), second_peer()] {
            let info = assigned("10.9.0.1");
            node.observe(Observation::PodAddress(other, info));
            node.observe(Observation::PodAddressGone(other, info.id()));
        }
    }
    assert!(node.conflict_events().is_empty());
    for _ in 0..5 {
        for ifindex in [1, 3] {
            node.address(ifindex, "10.9.0.1");
            node.address_gone(ifindex, "10.9.0.1");
        }
    }
    assert!(!node.conflict_events().is_empty());
}

/// An earlier version reported it.
#[test]
fn restored_conflict_of_one_pod_with_itself_is_resolved() {
    let mut before = Node::with_duplicate();
    let mut records = before.engine.view().open_records(before.now);
    before.effects.clear();
    records[0].conflict.claimants[1].peer = Some(second_peer());
    let mut node = Node::new();
    node.engine.restore(records, Vec::new());
    node.resync(Snapshot {
        links: vec![pod(1), second_interface(2)],
        pods: vec![
            pod_addresses(1, &["10.0.0.1"]),
            PodAddresses {
                peer: second_peer(),
                ..pod_addresses(2, &["10.0.0.1"])
            },
        ],
        ..Snapshot::default()
    });
    node.expect(["resolved 10.0.0.1 duplicate certain: veth1"]);
}

#[test]
fn frame_of_another_pod_is_a_claim() {
    let mut node = two_interfaces();
    node.address(1, "10.0.0.1");
    node.frame(3, "10.0.0.1");
    node.expect(["raised 10.0.0.1 duplicate observed: veth1 veth3"]);
}

#[test]
fn devices_without_a_known_namespace_are_separate_pods() {
    let mut node = Node::new();
    for ifindex in 1..=2 {
        node.link(pod_without_peer(ifindex));
        node.frame(ifindex, "10.0.0.1");
    }
    node.expect(["raised 10.0.0.1 duplicate observed: veth1 veth2"]);
}
