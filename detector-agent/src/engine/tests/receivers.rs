//! Which claimant receives the traffic.

use super::*;

fn conflict() -> Node {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    node.address(2, "10.0.0.1");
    node
}

#[test]
fn the_routes_device_receives() {
    let mut node = Node::with_pods(2);
    node.route("10.0.0.1", 2);
    node.address(1, "10.0.0.1");
    node.address(2, "10.0.0.1");
    assert_eq!(
        node.said(),
        ["raised 10.0.0.1 duplicate certain: veth1 veth2 -> veth2"]
    );
}

#[test]
fn a_route_is_no_claim() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    node.route("10.0.0.1", 2);
    assert!(node.said().is_empty());
}

#[test]
fn a_moved_route_is_told() {
    let mut node = conflict();
    node.said();
    node.route("10.0.0.1", 1);
    node.route("10.0.0.2", 2);
    node.route("10.0.0.1", 1);
    node.route("10.0.0.1", 2);
    node.route_gone("10.0.0.1", 1);
    node.route_gone("10.0.0.1", 2);
    assert_eq!(
        node.said(),
        [
            "updated 10.0.0.1 duplicate certain: veth1 veth2 -> veth1",
            "updated 10.0.0.1 duplicate certain: veth1 veth2 -> veth2",
            "updated 10.0.0.1 duplicate certain: veth1 veth2",
        ]
    );
}

#[test]
fn the_routes_of_a_link_that_goes_down_end_without_a_word() {
    let mut node = conflict();
    node.route("10.0.0.1", 2);
    node.said();
    node.link(Link {
        up: false,
        ..pod(2)
    });
    assert_eq!(
        node.said(),
        ["updated 10.0.0.1 duplicate certain: veth1 veth2"]
    );
    node.pod(2);
    assert!(node.said().is_empty(), "up again, the routes are not back");
}

#[test]
fn a_route_that_leads_to_no_claimant_gives_no_receiver() {
    let mut node = conflict();
    node.said();
    node.pod(3);
    node.route("10.0.0.1", 3);
    assert!(node.said().is_empty());
}

#[test]
fn behind_a_bridge_the_entrys_port_receives() {
    let mut node = Node::new();
    node.bridge(9);
    for port in 1..=2u8 {
        node.port(port.into(), 9);
        node.fdb(9, port.into(), mac(port));
        node.address(port.into(), "10.0.0.1");
    }
    node.tell(Observation::Route(Route {
        prefix_len: 24,
        ..route("10.0.0.0", 9)
    }));
    node.said();
    node.neighbour(9, "10.0.0.1", mac(2), NudState::Reachable);
    node.neighbour(9, "10.0.0.1", mac(1), NudState::Reachable);
    node.fdb(9, 2, mac(1));
    assert_eq!(
        node.said(),
        [
            "updated 10.0.0.1 duplicate certain: veth1 veth2 -> veth2",
            "updated 10.0.0.1 duplicate certain: veth1 veth2 -> veth1",
            "updated 10.0.0.1 duplicate certain: veth1 veth2 -> veth2",
        ]
    );
}

#[test]
fn the_nodes_routes_say_nothing_of_tagged_claims() {
    let mut node = Node::with_pods(2);
    node.route("10.0.0.1", 1);
    for ifindex in 1..=2 {
        node.tell(Observation::Frame(FrameClaim {
            vlan: Vlan {
                outer: Some(5),
                inner: None,
            },
            ..frame(ifindex, "10.0.0.1")
        }));
    }
    assert_eq!(
        node.said(),
        ["raised 10.0.0.1@5 duplicate observed: veth1 veth2"]
    );
}

#[test]
fn a_link_local_addresss_receiver_is_the_bridges_entry_whatever_the_routes_say() {
    let mut node = Node::new();
    node.bridge(9);
    node.pod(3);
    node.tell(Observation::Route(Route {
        prefix_len: 64,
        ..route("fe80::", 3)
    }));
    for port in 1..=2u8 {
        node.port(port.into(), 9);
        node.fdb(9, port.into(), mac(port));
        node.address(port.into(), "fe80::1");
    }
    node.neighbour(9, "fe80::1", mac(2), NudState::Stale);
    assert_eq!(
        node.said(),
        [
            "raised fe80::1 duplicate certain: veth1 veth2",
            "updated fe80::1 duplicate certain: veth1 veth2 -> veth2",
        ]
    );
}

#[test]
fn each_bridge_delivers_by_its_own_entry() {
    let mut node = Node::new();
    for (bridge, port) in [(8, 1u8), (9, 2)] {
        node.bridge(bridge);
        node.port(port.into(), bridge);
        node.fdb(bridge, port.into(), mac(port));
        node.address(port.into(), "10.0.0.1");
        node.neighbour(bridge, "10.0.0.1", mac(port), NudState::Reachable);
    }
    node.said();
    for (bridge, receiver) in [(9, "veth2"), (8, "veth1")] {
        node.route("10.0.0.1", bridge);
        assert_eq!(
            node.said(),
            [format!(
                "updated 10.0.0.1 duplicate certain: veth1 veth2 -> {receiver}"
            )]
        );
    }
}

#[test]
fn a_hardware_address_behind_a_bridge_that_no_port_is_known_for_can_receive() {
    let mut node = Node::new();
    node.bridge(9);
    node.port(1, 9);
    node.frame(1, "10.0.0.1");
    node.neighbour(9, "10.0.0.1", mac(7), NudState::Permanent);
    node.said();
    node.route("10.0.0.1", 9);
    assert_eq!(
        node.said(),
        ["updated 10.0.0.1 duplicate observed: veth1 br9/02:00:00:00:00:07 -> br9"]
    );
}

#[test]
fn a_wider_route_that_comes_goes_or_loses_its_link_is_told() {
    let wide = Route {
        prefix_len: 24,
        ..route("10.0.0.0", 9)
    };
    let down = Link {
        up: false,
        ..bridge(9)
    };
    let ends = [
        Observation::RouteGone(wide),
        Observation::Link(down),
        Observation::LinkGone(9),
    ];
    for end in ends {
        let mut node = Node::new();
        node.bridge(9);
        node.port(1, 9);
        node.pod(2);
        node.frame(1, "10.0.0.1");
        node.frame(2, "10.0.0.1");
        node.said();
        node.tell(Observation::Route(Route {
            prefix_len: 16,
            ..route("10.0.0.0", 2)
        }));
        assert_eq!(
            node.said(),
            ["updated 10.0.0.1 duplicate observed: veth1 veth2 -> veth2"]
        );
        node.tell(Observation::Route(wide));
        assert_eq!(
            node.said(),
            ["updated 10.0.0.1 duplicate observed: veth1 veth2"],
            "the bridge has no entry for it"
        );
        node.tell(end);
        assert_eq!(
            node.said(),
            ["updated 10.0.0.1 duplicate observed: veth1 veth2 -> veth2"]
        );
    }
}

#[test]
fn a_link_that_goes_leaves_its_packets_to_a_wider_route() {
    let mut node = Node::with_pods(2);
    node.link(uplink(9));
    for (prefix_len, ifindex) in [(24, 9), (16, 1)] {
        let destination = if prefix_len == 24 {
            "10.1.1.0"
        } else {
            "10.1.0.0"
        };
        node.tell(Observation::Route(Route {
            prefix_len,
            ..route(destination, ifindex)
        }));
    }
    node.address(1, "10.1.1.7");
    node.address(2, "10.1.1.7");
    assert_eq!(
        node.said(),
        ["raised 10.1.1.7 duplicate certain: veth1 veth2"]
    );
    node.gone(9);
    assert_eq!(
        node.said(),
        ["updated 10.1.1.7 duplicate certain: veth1 veth2 -> veth1"]
    );
}
