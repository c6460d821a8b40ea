//! One pod with several interfaces is not in conflict with itself.

use super::*;

/// A device whose other end is another interface of pod 1.
fn second(ifindex: IfIndex) -> Link {
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
    node.link(second(2));
    node.pod(3);
    node
}

#[test]
fn what_is_heard_on_another_interface_of_the_owner_is_no_claim() {
    let mut node = two_interfaces();
    node.address(1, "10.0.0.1");
    node.frame(2, "10.0.0.1");
    node.neighbour(2, "10.0.0.1", mac(2), NudState::Reachable);
    assert!(node.said().is_empty());
    node.address(3, "10.0.0.1");
    assert_eq!(
        node.said(),
        ["raised 10.0.0.1 duplicate certain: veth1 veth3"]
    );
}

#[test]
fn the_interface_that_has_the_address_is_the_claimant_whichever_came_first() {
    let mut node = two_interfaces();
    node.frame(1, "10.0.0.1");
    node.tell(Observation::PodAddress(second_peer(), assigned("10.0.0.1")));
    assert!(node.said().is_empty());
    node.frame(3, "10.0.0.1");
    assert_eq!(
        node.said(),
        ["raised 10.0.0.1 duplicate observed: veth2 veth3"]
    );
}

#[test]
fn what_is_heard_on_two_interfaces_of_a_pod_that_has_it_on_neither_is_one_claim() {
    let mut node = two_interfaces();
    node.frame(2, "10.0.0.1");
    node.frame(1, "10.0.0.1");
    assert!(node.said().is_empty());
    node.frame(3, "10.0.0.1");
    assert_eq!(
        node.said(),
        ["raised 10.0.0.1 duplicate observed: veth1 veth3"]
    );
}

#[test]
fn an_address_assigned_on_two_interfaces_of_one_pod_is_a_duplicate() {
    let mut node = two_interfaces();
    node.address(1, "10.0.0.1");
    node.tell(Observation::PodAddress(second_peer(), assigned("10.0.0.1")));
    assert_eq!(
        node.said(),
        ["raised 10.0.0.1 duplicate certain: veth1 veth2"]
    );
}

#[test]
fn another_pods_frame_is_no_spill_over() {
    let mut node = two_interfaces();
    node.address(1, "10.0.0.1");
    node.frame(3, "10.0.0.1");
    assert_eq!(
        node.said(),
        ["raised 10.0.0.1 duplicate observed: veth1 veth3"]
    );
}

#[test]
fn devices_without_a_known_namespace_are_not_one_pod() {
    let mut node = Node::new();
    for ifindex in 1..=2 {
        node.link(Link {
            peer: None,
            ..pod(ifindex)
        });
        node.frame(ifindex, "10.0.0.1");
    }
    assert_eq!(
        node.said(),
        ["raised 10.0.0.1 duplicate observed: veth1 veth2"]
    );
}
