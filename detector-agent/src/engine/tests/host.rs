//! Kind `host`: pods that claim an address of the node.

use super::*;

#[test]
fn a_pod_with_a_node_address_is_a_host_conflict() {
    let mut node = Node::with_pods(1);
    node.link(uplink(9));
    node.host(9, "192.0.2.1");
    node.frame(1, "192.0.2.1");
    assert_eq!(
        node.said(),
        ["raised 192.0.2.1 host observed: node/eth9 veth1 -> eth9"]
    );
}

#[test]
fn a_tunnel_address_set_after_the_pod_claimed_it_is_a_host_conflict() {
    let mut node = Node::with_pods(1);
    node.address(1, "10.244.0.0");
    node.link(uplink(9));
    assert!(node.said().is_empty());
    node.host(9, "10.244.0.0");
    assert_eq!(
        node.said(),
        ["raised 10.244.0.0 host certain: veth1 node/eth9 -> eth9"]
    );
    node.host_gone(9, "10.244.0.0");
    assert_eq!(
        node.said(),
        ["resolved 10.244.0.0 host certain: veth1 left node/eth9(address_removed)"]
    );
}

#[test]
fn an_address_told_before_its_link_counts_once_the_link_is_known() {
    let mut node = Node::with_pods(1);
    node.address(1, "10.244.0.0");
    node.host(9, "10.244.0.0");
    assert!(node.said().is_empty());
    node.link(uplink(9));
    assert_eq!(
        node.said(),
        ["raised 10.244.0.0 host certain: veth1 node/eth9 -> eth9"]
    );
}

#[test]
fn the_gateway_address_on_every_veth_is_one_claimant_and_no_conflict() {
    let mut node = Node::with_pods(3);
    for ifindex in 1..=3 {
        node.host(ifindex, "10.244.0.1");
    }
    assert!(node.said().is_empty());
    node.frame(2, "10.244.0.1");
    let raised = node.conflicts_said();
    assert_eq!(
        show(&raised[0]),
        "10.244.0.1 host observed: node/veth1 veth2 -> veth1"
    );
    assert_eq!(raised[0].claimants[0].peer, None, "the node is no pod");
    node.gone(3);
    assert!(node.said().is_empty());
}

#[test]
fn the_node_is_named_by_a_link_of_its_own_where_there_is_one() {
    let mut node = Node::with_pods(2);
    node.link(uplink(9));
    for ifindex in [1, 9] {
        node.host(ifindex, "10.244.0.1");
    }
    node.frame(2, "10.244.0.1");
    assert_eq!(
        node.said(),
        ["raised 10.244.0.1 host observed: node/eth9 veth2 -> eth9"]
    );
}

#[test]
fn a_bridges_gateway_address_claimed_behind_it_is_a_host_conflict() {
    let mut node = Node::new();
    node.bridge(9);
    node.port(1, 9);
    node.host(9, "10.244.0.1");
    node.address(1, "10.244.0.1");
    assert_eq!(
        node.said(),
        ["raised 10.244.0.1 host certain: node/br9 veth1 -> br9"]
    );
}

#[test]
fn a_duplicate_becomes_a_host_conflict_and_back_under_one_id() {
    let mut node = Node::with_pods(2);
    node.link(uplink(9));
    node.address(1, "10.0.0.1");
    node.address(2, "10.0.0.1");
    node.host(9, "10.0.0.1");
    node.host_gone(9, "10.0.0.1");
    let said = node.conflicts_said();
    assert_eq!(
        said.iter().map(show).collect::<Vec<_>>(),
        [
            "10.0.0.1 duplicate certain: veth1 veth2",
            "10.0.0.1 host certain: veth1 veth2 node/eth9 -> eth9",
            "10.0.0.1 duplicate certain: veth1 veth2 left node/eth9(address_removed)",
        ]
    );
    assert!(said.iter().all(|c| c.id == said[0].id));
}

#[test]
fn a_removed_link_takes_the_nodes_address_along() {
    let mut node = Node::with_pods(1);
    node.link(uplink(9));
    node.host(9, "10.0.0.1");
    node.address(1, "10.0.0.1");
    node.said();
    node.gone(9);
    assert_eq!(
        node.said(),
        ["resolved 10.0.0.1 host certain: veth1 left node/eth9(device_removed)"]
    );
}

#[test]
fn a_link_that_was_never_known_takes_its_addresses_along_too() {
    let mut node = Node::new();
    node.host(1, "10.0.0.1");
    node.gone(1);
    node.pod(1);
    node.address(1, "10.0.0.1");
    assert!(node.said().is_empty());
}

#[test]
fn a_pod_asking_whether_a_node_address_is_free_is_a_host_conflict() {
    let mut node = Node::with_pods(1);
    node.link(uplink(9));
    node.host(9, "10.0.0.1");
    node.probe(1, "10.0.0.1");
    assert_eq!(
        node.said(),
        ["raised 10.0.0.1 host observed: node/eth9 veth1 -> eth9"]
    );
}
