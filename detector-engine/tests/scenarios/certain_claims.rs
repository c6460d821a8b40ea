//! The certain claims, and which addresses they may have changed of.

use super::*;

impl Node {
    /// The certain claims of an address: the devices, `*` if it is on the pod's end, `!` for the receiver of the traffic.
    fn certain(&self, address: &str) -> Vec<String> {
        let claims = self.engine.view().certain_claims(ip(address), self.now);
        let text = |claim: &CertainClaim| {
            let on_device = if claim.is_on_device { "*" } else { "" };
            let receives = if claim.receives_traffic { "!" } else { "" };
            format!("{}{on_device}{receives}", claim.claimant.device)
        };
        claims.iter().map(text).collect()
    }

    fn changed_claims(&mut self) -> Vec<String> {
        let changed = self.engine.take_changed_claims();
        changed.iter().map(ToString::to_string).collect()
    }
}

#[test]
fn assigned_address_and_permanent_entry_are_certain() {
    let mut node = Node::with_pods(3);
    node.address(1, "10.0.0.1");
    node.neighbour(2, "10.0.0.1", mac(2), NudState::Permanent);
    node.neighbour(3, "10.0.0.1", mac(3), NudState::Reachable);
    node.frame(3, "10.0.0.1");
    assert_eq!(node.certain("10.0.0.1"), ["veth1*", "veth2"]);
    node.route("10.0.0.1", 2);
    assert_eq!(node.certain("10.0.0.1"), ["veth1*", "veth2!"]);
    node.remove_link(1);
    // The third still claims it in frames.
    assert_eq!(node.certain("10.0.0.1"), ["veth2!"]);
}

#[test]
fn claim_elsewhere_than_in_the_nodes_network_is_not_listed() {
    let mut node = Node::with_pods(1);
    node.link(bridge(8));
    node.port(2, 8);
    node.address(2, "10.0.0.2");
    assert_eq!(node.certain("10.0.0.2"), [""; 0], "an isolated bridge");
    node.route_bridge(8);
    assert_eq!(node.certain("10.0.0.2"), ["veth2*"]);
    node.address(1, "169.254.0.1");
    node.address(1, "fe80::1");
    node.frame(1, "10.0.0.3");
    node.host(1, "10.0.0.4");
    for address in ["169.254.0.1", "fe80::1", "10.0.0.3", "10.0.0.4"] {
        assert_eq!(node.certain(address), [""; 0], "{address}");
    }
}

#[test]
fn address_on_an_internal_interface_is_not_on_the_device() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    let token = node.begin_snapshot();
    let snapshot = Snapshot {
        pods: vec![PodAddresses {
            internal: vec![internal_address(&ip("10.0.0.1"), "lo")],
            ..pod_addresses(2, &["10.0.0.2"])
        }],
        ..Snapshot::default()
    };
    node.finish_device_snapshot(token, 2, snapshot);
    assert_eq!(node.certain("10.0.0.1"), ["veth1*", "veth2"]);
}

/// Pods of a node whose claims are followed.
fn followed(pods: IfIndex) -> Node {
    let mut node = Node::with_settings(Settings {
        follow_claims: true,
        ..Settings::default()
    });
    node.pods(pods);
    node
}

#[test]
fn changed_addresses_are_noted_once_if_they_are_followed() {
    let mut other = Node::with_pods(1);
    other.address(1, "10.0.0.1");
    assert!(!other.engine.view().has_changed_claims(), "not followed");
    let mut node = followed(2);
    node.address(1, "10.0.0.1");
    assert_eq!(node.changed_claims(), ["10.0.0.1"]);
    node.address(1, "10.0.0.2");
    node.address_gone(1, "10.0.0.2");
    node.address(1, "10.0.0.2");
    node.frame(2, "10.0.0.3");
    assert_eq!(node.changed_claims(), ["10.0.0.2", "10.0.0.3"]);
    assert!(!node.engine.view().has_changed_claims());
    node.remove_link(1);
    assert_eq!(node.changed_claims(), ["10.0.0.1", "10.0.0.2"]);
}

#[test]
fn addresses_on_a_device_are_those_that_facts_name_it_for() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    node.neighbour(1, "10.0.0.2", mac(1), NudState::Permanent);
    node.address(2, "10.0.0.3");
    let on = |node: &Node, device| {
        let mut addresses: Vec<_> = node.engine.view().addresses_on(device).collect();
        addresses.sort_unstable();
        addresses
    };
    let generation = node.engine.view().device(1).unwrap().generation;
    assert!(on(&node, (1, generation + 1)).is_empty(), "another device");
    assert_eq!(on(&node, (1, generation)), [ip("10.0.0.1"), ip("10.0.0.2")]);
}
