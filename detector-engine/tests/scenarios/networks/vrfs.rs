//! VRFs.

use super::*;

#[test]
fn vrfs_are_networks_of_their_own() {
    let mut node = Node::with_pods(1);
    for (device, master) in [(2, 8), (3, 9), (4, 9)] {
        node.link(vrf(master, 1_000 + master));
        node.link(enslaved(pod(device), master));
    }
    node.addresses(1..=3, "10.0.0.1");
    assert!(node.conflict_events().is_empty());
    node.address(4, "10.0.0.1");
    assert_eq!(node.conflict_networks(), ["vrf:vrf9"]);
    node.link(enslaved(pod(4), 8));
    assert_eq!(node.conflict_networks(), ["vrf:vrf8"]);
}

#[test]
fn vrf_that_is_reported_after_its_devices_separates_them() {
    let mut node = Node::new();
    for device in 1..=2 {
        node.link(enslaved(pod(device), 7 + device));
        node.address(device, "10.0.0.1");
    }
    assert_eq!(
        node.conflict_networks(),
        ["node"],
        "no such master is known"
    );
    node.link(vrf(8, 1_008));
    assert!(node.conflict_networks().is_empty());
}

#[test]
fn routed_bridge_inside_a_vrf_is_part_of_the_vrf() {
    let mut node = Node::with_pods(1);
    node.link(vrf(8, 1_008));
    node.link(enslaved(bridge(9), 8));
    node.port(2, 9);
    node.link(enslaved(pod(3), 8));
    node.addresses(1..=3, "10.0.0.1");
    assert!(node.conflict_events().is_empty());
    node.host(9, "192.0.2.9");
    node.expect(["raised 10.0.0.1 duplicate certain: veth2 veth3"]);
    assert_eq!(node.conflict_networks(), ["vrf:vrf8"]);
    node.link(bridge(9));
    assert_eq!(
        node.conflict_events().len(),
        2,
        "the bridge is in the main routing domain now"
    );
    assert_eq!(node.conflict_networks(), ["node"]);
}

#[test]
fn traffic_follows_the_table_of_the_vrf() {
    let mut node = Node::new();
    node.link(vrf(8, 1_008));
    for device in 1..=2 {
        node.link(enslaved(pod(device), 8));
    }
    node.observe(Observation::Route(route("10.0.0.1", 1)));
    node.observe(Observation::Route(Route {
        table: 1_008,
        ..route("10.0.0.1", 2)
    }));
    node.addresses(1..=2, "10.0.0.1");
    node.expect(["raised 10.0.0.1 duplicate certain: veth1 veth2 -> veth2"]);
    let query = RouteQuery {
        address: ip("10.0.0.1"),
        vrf: Some(8),
    };
    assert_eq!(node.engine.take_route_lookups(9), [query]);
}

#[test]
fn node_address_in_a_vrf_conflicts_within_the_vrf_only() {
    let mut node = Node::with_pods(1);
    node.link(vrf(8, 1_008));
    node.link(enslaved(uplink(7), 8));
    node.host(7, "10.0.0.1");
    node.address(1, "10.0.0.1");
    assert!(node.conflict_events().is_empty());
    node.link(enslaved(pod(2), 8));
    node.address(2, "10.0.0.1");
    assert_eq!(node.conflict_networks(), ["vrf:vrf8"]);
}
