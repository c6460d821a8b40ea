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
    assert_eq!(
        node.conflict_events(),
        ["raised 10.0.0.1 duplicate certain: veth1 veth3"]
    );
}

#[test]
fn interface_with_the_address_is_the_claimant() {
    let mut node = two_interfaces();
    node.frame(1, "10.0.0.1");
    node.observe(Observation::PodAddress(second_peer(), assigned("10.0.0.1")));
    assert!(node.conflict_events().is_empty());
    node.frame(3, "10.0.0.1");
    assert_eq!(
        node.conflict_events(),
        ["raised 10.0.0.1 duplicate observed: veth2 veth3"]
    );
}

#[test]
fn frames_on_two_interfaces_without_address_are_one_claim() {
    let mut node = two_interfaces();
    node.frame(2, "10.0.0.1");
    node.frame(1, "10.0.0.1");
    assert!(node.conflict_events().is_empty());
    node.frame(3, "10.0.0.1");
    assert_eq!(
        node.conflict_events(),
        ["raised 10.0.0.1 duplicate observed: veth1 veth3"]
    );
}

#[test]
fn address_on_two_interfaces_of_one_pod_is_a_duplicate() {
    let mut node = two_interfaces();
    node.address(1, "10.0.0.1");
    node.observe(Observation::PodAddress(second_peer(), assigned("10.0.0.1")));
    assert_eq!(
        node.conflict_events(),
        ["raised 10.0.0.1 duplicate certain: veth1 veth2"]
    );
}

#[test]
fn frame_of_another_pod_is_a_claim() {
    let mut node = two_interfaces();
    node.address(1, "10.0.0.1");
    node.frame(3, "10.0.0.1");
    assert_eq!(
        node.conflict_events(),
        ["raised 10.0.0.1 duplicate observed: veth1 veth3"]
    );
}

#[test]
fn devices_without_a_known_namespace_are_separate_pods() {
    let mut node = Node::new();
    for ifindex in 1..=2 {
        node.link(pod_without_peer(ifindex));
        node.frame(ifindex, "10.0.0.1");
    }
    assert_eq!(
        node.conflict_events(),
        ["raised 10.0.0.1 duplicate observed: veth1 veth2"]
    );
}
