//! Kind `host`: pods that claim an address of the node.

use super::*;

#[test]
fn pod_claiming_a_host_address_is_a_host_conflict() {
    let mut node = Node::with_pods(1);
    node.link(uplink(9));
    node.host(9, "192.0.2.1");
    node.frame(1, "192.0.2.1");
    node.expect(["raised 192.0.2.1 host observed: node/eth9 veth1 -> eth9"]);
}

#[test]
fn host_address_added_after_the_pods_is_a_conflict() {
    let mut node = Node::with_pods(1);
    node.address(1, "10.244.0.0");
    node.link(uplink(9));
    assert!(node.conflict_events().is_empty());
    node.host(9, "10.244.0.0");
    node.expect(["raised 10.244.0.0 host certain: veth1 node/eth9 -> eth9"]);
    node.host_gone(9, "10.244.0.0");
    node.expect(["resolved 10.244.0.0 host certain: veth1 left node/eth9(address_removed)"]);
}

#[test]
fn host_address_counts_once_its_link_is_known() {
    let mut node = Node::with_pods(1);
    node.address(1, "10.244.0.0");
    node.host(9, "10.244.0.0");
    assert!(node.conflict_events().is_empty());
    node.link(uplink(9));
    node.expect(["raised 10.244.0.0 host certain: veth1 node/eth9 -> eth9"]);
}

#[test]
fn gateway_address_on_every_veth_is_one_claimant() {
    let mut node = Node::with_pods(3);
    for ifindex in 1..=3 {
        node.host(ifindex, "10.244.0.1");
    }
    assert!(node.conflict_events().is_empty());
    node.frame(2, "10.244.0.1");
    let raised = node.reported_conflicts();
    assert_eq!(
        conflict_text(&raised[0]),
        "10.244.0.1 host observed: node/veth1 veth2 -> veth1"
    );
    assert_eq!(raised[0].claimants[0].peer, None, "the node has no peer");
    node.remove_link(3);
    assert!(node.conflict_events().is_empty());
}

#[test]
fn host_claimant_is_named_by_an_uplink_if_it_has_one() {
    let mut node = Node::with_pods(2);
    node.link(uplink(9));
    for ifindex in [1, 9] {
        node.host(ifindex, "10.244.0.1");
    }
    node.frame(2, "10.244.0.1");
    node.expect(["raised 10.244.0.1 host observed: node/eth9 veth2 -> eth9"]);
}

#[test]
fn bridge_address_claimed_by_a_port_is_a_host_conflict() {
    let mut node = Node::new();
    node.bridge(9);
    node.port(1, 9);
    node.host(9, "10.244.0.1");
    node.address(1, "10.244.0.1");
    node.expect(["raised 10.244.0.1 host certain: node/br9 veth1 -> br9"]);
}

#[test]
fn kind_changes_to_host_and_back_under_one_id() {
    let mut node = Node::with_pods(2);
    node.link(uplink(9));
    node.addresses([1, 2], "10.0.0.1");
    node.host(9, "10.0.0.1");
    node.host_gone(9, "10.0.0.1");
    let conflicts = node.reported_conflicts();
    assert_eq!(
        conflicts.iter().map(conflict_text).collect::<Vec<_>>(),
        [
            "10.0.0.1 duplicate certain: veth1 veth2",
            "10.0.0.1 host certain: veth1 veth2 node/eth9 -> eth9",
            "10.0.0.1 duplicate certain: veth1 veth2 left node/eth9(address_removed)",
        ]
    );
    assert!(conflicts.iter().all(|c| c.id == conflicts[0].id));
}

#[test]
fn removed_link_withdraws_its_host_addresses() {
    let mut node = Node::with_pods(1);
    node.link(uplink(9));
    node.host(9, "10.0.0.1");
    node.address(1, "10.0.0.1");
    node.conflict_events();
    node.remove_link(9);
    node.expect(["resolved 10.0.0.1 host certain: veth1 left node/eth9(device_removed)"]);
}

#[test]
fn removal_of_an_unknown_link_drops_its_addresses() {
    let mut node = Node::new();
    node.host(1, "10.0.0.1");
    node.remove_link(1);
    node.pod(1);
    node.address(1, "10.0.0.1");
    assert!(node.conflict_events().is_empty());
}

#[test]
fn probe_for_a_host_address_is_a_host_conflict() {
    let mut node = Node::with_pods(1);
    node.link(uplink(9));
    node.host(9, "10.0.0.1");
    node.probe(1, "10.0.0.1");
    node.expect(["raised 10.0.0.1 host observed: node/eth9 veth1 -> eth9"]);
}
