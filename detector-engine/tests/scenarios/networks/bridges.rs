//! Isolated and routed bridges, and link-local addresses.

use super::*;

/// Bridges 8 and 9 with a pod each that has 10.0.0.1.
fn two_isolated_bridges() -> Node {
    let mut node = Node::new();
    for (port, bridge) in [(1, 8), (2, 9)] {
        isolated_bridge(&mut node, bridge);
        node.port(port, bridge);
        node.address(port, "10.0.0.1");
        node.frame(port, "10.0.0.1");
    }
    node
}

#[test]
fn one_address_on_two_isolated_bridges_is_no_conflict() {
    let mut node = two_isolated_bridges();
    node.pod(3);
    node.address(3, "10.0.0.1");
    assert!(node.conflict_events().is_empty());
}

#[test]
fn one_address_twice_on_an_isolated_bridge_is_a_conflict() {
    let mut node = two_isolated_bridges();
    node.port(3, 9);
    node.address(3, "10.0.0.1");
    node.expect(["raised 10.0.0.1 duplicate certain: veth2 veth3"]);
    assert_eq!(node.conflict_networks(), ["bridge:br9"]);
}

#[test]
fn bridges_that_get_addresses_join_the_nodes_network() {
    let mut node = two_isolated_bridges();
    node.host(8, "192.0.2.8");
    assert!(node.conflict_events().is_empty());
    node.host(9, "192.0.2.9");
    node.expect(["raised 10.0.0.1 duplicate certain: veth1 veth2"]);
    assert_eq!(node.conflict_networks(), ["node"]);
    node.host_gone(8, "192.0.2.8");
    node.expect(["resolved 10.0.0.1 duplicate certain: veth2 left veth1(address_removed)"]);
}

#[test]
fn route_over_a_bridge_makes_it_part_of_the_nodes_network() {
    let mut node = two_isolated_bridges();
    for bridge in [8, 9] {
        let route = Route {
            prefix_len: 24,
            ..route("10.0.0.0", bridge)
        };
        node.observe(Observation::RouteInserted(route, RoutePlace::Last));
    }
    assert_eq!(node.conflict_events().len(), 1);
    node.link(link_down(bridge(8)));
    assert_eq!(node.conflict_events().len(), 1, "its routes are gone");
    assert!(node.open_conflicts().is_empty());
}

#[test]
fn link_local_addresses_and_other_families_do_not_make_a_bridge_routed() {
    let mut node = two_isolated_bridges();
    for bridge in [8, 9] {
        for address in ["fe80::1", "169.254.0.1", "2001:db8::1"] {
            node.host(bridge, address);
        }
    }
    assert!(node.conflict_events().is_empty());
}

#[test]
fn conflict_on_an_isolated_bridge_moves_with_it_to_the_nodes_network() {
    let mut node = Node::new();
    isolated_bridge(&mut node, 9);
    for port in 1..=2 {
        node.port(port, 9);
        node.address(port, "10.0.0.1");
    }
    assert_eq!(node.conflict_networks(), ["bridge:br9"]);
    node.conflict_events();
    node.host(9, "192.0.2.9");
    assert_eq!(node.conflict_events().len(), 2, "resolved and raised");
    assert_eq!(node.conflict_networks(), ["node"]);
}

#[test]
fn address_of_the_node_does_not_conflict_with_an_isolated_bridge() {
    let mut node = Node::new();
    node.link(uplink(7));
    node.host(7, "10.0.0.1");
    isolated_bridge(&mut node, 9);
    node.port(1, 9);
    node.address(1, "10.0.0.1");
    assert!(node.conflict_events().is_empty());
    node.host(9, "192.0.2.9");
    assert_eq!(node.conflict_events().len(), 1);
}

#[test]
fn pods_with_interfaces_in_two_networks_conflict_in_none() {
    let mut node = Node::with_pods(2);
    isolated_bridge(&mut node, 9);
    let second = |pod| Peer {
        ifindex: 3,
        ..peer(pod)
    };
    for pod in 1..=2 {
        node.link(enslaved(pod_with_peer(pod + 2, second(pod)), 9));
        node.address(pod, &format!("10.0.0.{pod}"));
    }
    // The second interface of the first pod has the address of the second pod's first one.
    let address = assigned("10.0.0.2");
    node.observe(Observation::PodAddress(second(1), address));
    assert!(node.conflict_events().is_empty());
    node.observe(Observation::PodAddress(second(2), address));
    assert_eq!(node.conflict_networks(), ["bridge:br9"]);
}

#[test]
fn link_local_address_that_is_routed_to_a_pod_is_unique_on_the_node() {
    let mut node = Node::with_pods(3);
    for device in 1..=3 {
        node.address(device, "169.254.172.5");
        node.address(device, "169.254.1.1");
    }
    assert!(node.conflict_events().is_empty());
    node.route("169.254.172.5", 2);
    node.expect(["raised 169.254.172.5 duplicate certain: veth1 veth2 veth3 -> veth2"]);
    assert_eq!(node.conflict_networks(), ["node"]);
    node.route_gone("169.254.172.5", 2);
    assert!(node.conflict_networks().is_empty());
}

#[test]
fn link_local_conflict_names_its_link() {
    let mut node = Node::with_pods(1);
    node.bridge(9);
    for port in 2..=3 {
        node.port(port, 9);
        node.address(port, "fe80::1");
    }
    assert_eq!(node.conflict_networks(), ["bridge:br9"]);
    node.host(1, "fe80::2");
    node.address(1, "fe80::2");
    assert_eq!(node.conflict_networks(), ["bridge:br9", "link:veth1"]);
}

#[test]
fn conflict_on_an_isolated_bridge_continues_after_a_restart() {
    let mut node = Node::new();
    isolated_bridge(&mut node, 9);
    for port in 1..=2 {
        node.port(port, 9);
        node.address(port, "10.0.0.1");
    }
    let id = node.engine.view().conflicts(node.now)[0].id;
    let mut next = Node::new();
    next.engine
        .restore(node.engine.view().open_records(node.now), Vec::new());
    let mut dump = snapshot(&[(1, &["10.0.0.1"]), (2, &["10.0.0.1"])]);
    for link in &mut dump.links {
        link.master = Some(9);
    }
    dump.links.push(bridge(9));
    next.resync(dump);
    assert!(next.conflict_events().is_empty());
    assert_eq!(next.engine.view().conflicts(next.now)[0].id, id);
    assert_eq!(next.conflict_networks(), ["bridge:br9"]);
}
