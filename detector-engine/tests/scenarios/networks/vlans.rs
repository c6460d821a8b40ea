//! VLANs of bridges, with and without filtering.

use super::*;

#[test]
fn access_ports_of_different_vlans_are_separate() {
    let mut node = Node::new();
    node.link(filtering_bridge(9));
    for (port, pvid) in [(1, 10), (2, 20)] {
        node.port(port, 9);
        node.pvid(port, pvid);
        node.address(port, "10.0.0.1");
        node.frame(port, "10.0.0.1");
    }
    assert!(node.conflict_events().is_empty());
    node.pvid(2, 10);
    node.expect(["raised 10.0.0.1@10 duplicate certain: veth1 veth2"]);
    assert_eq!(node.conflict_networks(), ["bridge:br9 vlan 10"]);
}

#[test]
fn tag_of_a_trunk_and_pvid_of_an_access_port_are_one_vlan() {
    let mut node = Node::new();
    node.link(filtering_bridge(9));
    for (port, pvid) in [(1, 10), (2, 1)] {
        node.port(port, 9);
        node.pvid(port, pvid);
    }
    node.frame(1, "10.0.0.1");
    node.frame_in_vlan(2, "10.0.0.1", 20);
    assert!(node.conflict_events().is_empty());
    node.frame_in_vlan(2, "10.0.0.1", 10);
    assert_eq!(node.conflict_networks(), ["bridge:br9 vlan 10"]);
}

#[test]
fn frame_tagged_with_the_ports_pvid_does_not_escape() {
    let mut node = Node::new();
    node.link(filtering_bridge(9));
    node.route_bridge(9);
    for port in [1, 2, 9] {
        if port != 9 {
            node.port(port, 9);
        }
        node.pvid(port, 1);
    }
    node.address(1, "10.0.0.1");
    node.frame_in_vlan(2, "10.0.0.1", 1);
    assert_eq!(node.conflict_networks(), ["node"]);
}

#[test]
fn vlan_without_an_interface_of_the_node_is_isolated() {
    let mut node = Node::with_pods(1);
    node.link(filtering_bridge(9));
    node.route_bridge(9);
    node.pvid(9, 1);
    node.port(2, 9);
    node.pvid(2, 10);
    node.addresses([1, 2], "10.0.0.1");
    assert!(node.conflict_events().is_empty());
    node.link(vlan_interface(6, 9, 10));
    assert!(node.conflict_events().is_empty());
    node.host(6, "192.0.2.6");
    assert_eq!(node.conflict_networks(), ["node"]);
    node.remove_link(6);
    assert!(node.conflict_networks().is_empty());
}

#[test]
fn vlan_interface_on_a_bridge_without_filtering_routes_its_tag() {
    let mut node = Node::with_pods(1);
    isolated_bridge(&mut node, 9);
    node.port(2, 9);
    node.link(vlan_interface(6, 9, 10));
    node.host(6, "192.0.2.6");
    node.addresses([1, 2], "10.0.0.1");
    assert!(node.conflict_events().is_empty(), "untagged is isolated");
    node.frame_in_vlan(2, "10.0.0.1", 10);
    assert_eq!(node.conflict_networks(), ["node"]);
}

#[test]
fn filtering_that_is_switched_on_has_the_pvids_read() {
    let mut node = Node::new();
    isolated_bridge(&mut node, 9);
    node.device_effects();
    node.link(filtering_bridge(9));
    assert_eq!(node.device_effects(), ["read the node: VlanFiltering"]);
    let mut dump = snapshot(&[(1, &["10.0.0.1"]), (2, &["10.0.0.1"])]);
    for (link, pvid) in dump.links.iter_mut().zip([10, 20]) {
        link.master = Some(9);
        let pvid = Some(pvid);
        let ifindex = link.ifindex;
        dump.port_vlans.push(PortVlan { ifindex, pvid });
    }
    dump.links.push(filtering_bridge(9));
    node.resync(dump);
    assert!(node.conflict_events().is_empty());
}

#[test]
fn pvid_that_is_reported_before_its_link_is_known_counts() {
    let mut node = Node::new();
    let token = node.begin_snapshot();
    let mut dump = snapshot(&[(1, &["10.0.0.1"]), (2, &["10.0.0.1"])]);
    for link in &mut dump.links {
        link.master = Some(9);
    }
    dump.links.push(filtering_bridge(9));
    // Changed after the dump.
    node.pvid(1, 10);
    node.finish_node_snapshot(token, dump);
    assert!(node.conflict_networks().is_empty());
}

/// A link may have an interface of either protocol with the same id.
#[test]
fn service_vlan_interface_does_not_replace_the_customers() {
    let mut node = Node::new();
    node.link(bridge(9));
    node.link(vlan_interface(6, 9, 10));
    node.host(6, "10.0.0.254");
    for ifindex in [1, 2] {
        node.link(enslaved(pod(ifindex), 9));
    }
    let service = Link {
        name: "service10".to_owned(),
        kind: LinkKind::Vlan {
            parent: 9,
            id: 10,
            protocol: VlanProtocol::Dot1Ad,
        },
        ..uplink(7)
    };
    node.link(service);
    for ifindex in [1, 2] {
        node.frame_in_vlan(ifindex, "10.0.0.1", 10);
    }
    assert_eq!(node.conflict_networks(), ["node"]);
    node.remove_link(7);
    assert_eq!(node.conflict_networks(), ["node"]);
}
