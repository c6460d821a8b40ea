//! Networks: isolated and routed L2 domains, VLANs, VRFs, and link-local addresses that the node
//! routes (`docs/detection-rules.md`, section 2).

use super::*;

fn isolated_bridge(node: &mut Node, ifindex: IfIndex) {
    node.link(bridge(ifindex));
}

fn vrf(ifindex: IfIndex, table: u32) -> Link {
    Link {
        name: format!("vrf{ifindex}"),
        kind: LinkKind::Vrf { table },
        ..uplink(ifindex)
    }
}

fn vlan_interface(ifindex: IfIndex, parent: IfIndex, id: u16) -> Link {
    Link {
        name: format!("vlan{id}"),
        kind: LinkKind::Vlan { parent, id },
        ..uplink(ifindex)
    }
}

fn filtering_bridge(ifindex: IfIndex) -> Link {
    let default_pvid = Some(1);
    Link {
        vlan_filtering: Some(VlanFiltering { default_pvid }),
        ..bridge(ifindex)
    }
}

fn enslaved(link: Link, master: IfIndex) -> Link {
    Link {
        master: Some(master),
        ..link
    }
}

impl Node {
    fn pvid(&mut self, ifindex: IfIndex, pvid: u16) {
        let pvid = Some(pvid);
        self.observe(Observation::PortVlan(PortVlan { ifindex, pvid }));
    }

    fn frame_in_vlan(&mut self, ifindex: IfIndex, address: &str, id: u16) {
        self.observe(Observation::Frame(FrameClaim {
            vlan: Vlan {
                outer: Some(id),
                inner: None,
            },
            ..frame(ifindex, address)
        }));
    }

    /// The networks and VLANs of the open conflicts.
    fn conflict_networks(&self) -> Vec<String> {
        let conflicts = self.engine.conflicts(self.now);
        let name = |c: &Conflict| match c.vlan.outer {
            Some(vlan) => format!("{} vlan {vlan}", c.network),
            None => c.network.to_string(),
        };
        conflicts.iter().map(name).collect()
    }
}

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
    assert_eq!(
        node.conflict_events(),
        ["raised 10.0.0.1 duplicate certain: veth2 veth3"]
    );
    assert_eq!(node.conflict_networks(), ["bridge:br9"]);
}

#[test]
fn bridges_that_get_addresses_join_the_nodes_network() {
    let mut node = two_isolated_bridges();
    node.host(8, "192.0.2.8");
    assert!(node.conflict_events().is_empty());
    node.host(9, "192.0.2.9");
    assert_eq!(
        node.conflict_events(),
        ["raised 10.0.0.1 duplicate certain: veth1 veth2"]
    );
    assert_eq!(node.conflict_networks(), ["node"]);
    node.host_gone(8, "192.0.2.8");
    assert_eq!(
        node.conflict_events(),
        ["resolved 10.0.0.1 duplicate certain: veth2 left veth1(address_removed)"]
    );
}

#[test]
fn route_over_a_bridge_makes_it_part_of_the_nodes_network() {
    let mut node = two_isolated_bridges();
    for bridge in [8, 9] {
        let route = Route {
            prefix_len: 24,
            ..route("10.0.0.0", bridge)
        };
        node.observe(Observation::RouteBeside(route, RoutePlace::Last));
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
    assert_eq!(
        node.conflict_events(),
        ["raised 10.0.0.1@10 duplicate certain: veth1 veth2"]
    );
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
    node.address(1, "10.0.0.1");
    node.address(2, "10.0.0.1");
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
    node.address(1, "10.0.0.1");
    node.address(2, "10.0.0.1");
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

#[test]
fn vrfs_are_networks_of_their_own() {
    let mut node = Node::with_pods(1);
    for (device, master) in [(2, 8), (3, 9), (4, 9)] {
        node.link(vrf(master, 1_000 + master));
        node.link(enslaved(pod(device), master));
    }
    for device in 1..=3 {
        node.address(device, "10.0.0.1");
    }
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
    for device in 1..=3 {
        node.address(device, "10.0.0.1");
    }
    assert!(node.conflict_events().is_empty());
    node.host(9, "192.0.2.9");
    assert_eq!(
        node.conflict_events(),
        ["raised 10.0.0.1 duplicate certain: veth2 veth3"]
    );
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
    for device in 1..=2 {
        node.address(device, "10.0.0.1");
    }
    assert_eq!(
        node.conflict_events(),
        ["raised 10.0.0.1 duplicate certain: veth1 veth2 -> veth2"]
    );
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

#[test]
fn ports_of_another_switch_share_a_network() {
    let mut node = Node::with_pods(1);
    node.link(Link {
        name: "ovs-system".to_owned(),
        kind: LinkKind::Switch,
        ..uplink(9)
    });
    for device in 2..=3 {
        node.link(enslaved(pod(device), 9));
    }
    node.address(1, "10.0.0.1");
    node.address(2, "10.0.0.1");
    assert!(node.conflict_events().is_empty());
    node.address(3, "10.0.0.1");
    assert_eq!(node.conflict_networks(), ["bridge:ovs-system"]);
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
    assert_eq!(
        node.conflict_events(),
        ["raised 169.254.172.5 duplicate certain: veth1 veth2 veth3 -> veth2"]
    );
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
    let id = node.engine.conflicts(node.now)[0].id;
    let mut next = Node::new();
    next.engine.restore(node.engine.open_records(node.now));
    let mut dump = snapshot(&[(1, &["10.0.0.1"]), (2, &["10.0.0.1"])]);
    for link in &mut dump.links {
        link.master = Some(9);
    }
    dump.links.push(bridge(9));
    next.resync(dump);
    assert!(next.conflict_events().is_empty());
    assert_eq!(next.engine.conflicts(next.now)[0].id, id);
    assert_eq!(next.conflict_networks(), ["bridge:br9"]);
}

const WAIT: Duration = Duration::from_secs(2);

/// Three ports of Open vSwitch with one address, which wait for the names of their networks.
fn ports_that_wait() -> Node {
    let mut node = Node::with_settings(Settings {
        cni_network_wait: WAIT,
        ..Settings::default()
    });
    node.link(Link {
        name: "ovs-system".to_owned(),
        kind: LinkKind::Switch,
        ..uplink(9)
    });
    for device in 1..=3 {
        node.link(enslaved(pod(device), 9));
        node.address(device, "10.0.0.1");
    }
    node
}

impl Node {
    fn name_network(&mut self, ifindex: IfIndex, name: &str) {
        let generation = self.engine.device(ifindex).unwrap().generation;
        let named = [(ifindex, generation, name.into())];
        let mut effects = Vec::new();
        self.engine.networks_known(self.now, &named, &mut effects);
        self.effects.extend(effects);
    }
}

#[test]
fn ports_of_a_switch_wait_for_the_names_of_their_networks() {
    let mut node = ports_that_wait();
    node.name_network(1, "red");
    node.name_network(2, "blue");
    assert!(node.conflict_events().is_empty());
    node.name_network(3, "blue");
    assert_eq!(
        node.conflict_events(),
        ["raised 10.0.0.1 duplicate certain: veth2 veth3"]
    );
    assert_eq!(node.conflict_networks(), ["cni:blue"]);
}

#[test]
fn ports_without_a_name_in_time_are_in_the_network_of_their_switch() {
    let mut node = ports_that_wait();
    node.name_network(1, "red");
    node.wait_secs(3);
    assert_eq!(node.conflict_networks(), ["bridge:ovs-system"]);
    node.conflict_events();
    node.name_network(2, "red");
    assert_eq!(
        node.conflict_events(),
        [
            "resolved 10.0.0.1 duplicate certain: veth3 left veth2(address_removed)",
            "raised 10.0.0.1 duplicate certain: veth1 veth2",
        ]
    );
}

#[test]
fn conflict_in_a_cni_network_continues_after_a_restart() {
    let mut node = ports_that_wait();
    for port in 1..=2 {
        node.name_network(port, "red");
    }
    let id = node.engine.conflicts(node.now)[0].id;
    let mut next = Node::with_settings(Settings {
        cni_network_wait: WAIT,
        ..Settings::default()
    });
    next.engine.restore(node.engine.open_records(node.now));
    let mut dump = snapshot(&[(1, &["10.0.0.1"]), (2, &["10.0.0.1"])]);
    for link in &mut dump.links {
        link.master = Some(9);
    }
    dump.links.push(Link {
        name: "ovs-system".to_owned(),
        kind: LinkKind::Switch,
        ..uplink(9)
    });
    next.resync(dump);
    assert!(next.conflict_events().is_empty());
    assert_eq!(next.engine.conflicts(next.now)[0].id, id);
}
