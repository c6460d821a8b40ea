//! Which claimant receives the traffic (`docs/detection-rules.md`, 11).

use super::*;

#[test]
fn device_of_the_route_receives() {
    let mut node = Node::with_pods(2);
    node.route("10.0.0.1", 2);
    node.addresses([1, 2], "10.0.0.1");
    node.expect(["raised 10.0.0.1 duplicate certain: veth1 veth2 -> veth2"]);
}

#[test]
fn route_is_not_a_claim() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    node.route("10.0.0.1", 2);
    assert!(node.conflict_events().is_empty());
}

#[test]
fn moved_route_updates_the_conflict() {
    let mut node = Node::with_duplicate();
    node.conflict_events();
    node.route("10.0.0.1", 1);
    node.route("10.0.0.2", 2);
    node.route("10.0.0.1", 1);
    node.route("10.0.0.1", 2);
    node.route_gone("10.0.0.1", 1);
    node.route_gone("10.0.0.1", 2);
    node.expect([
        "updated 10.0.0.1 duplicate certain: veth1 veth2 -> veth1",
        "updated 10.0.0.1 duplicate certain: veth1 veth2 -> veth2",
        "updated 10.0.0.1 duplicate certain: veth1 veth2",
    ]);
}

#[test]
fn routes_of_a_downed_link_end_without_a_notification() {
    let mut node = Node::with_duplicate();
    node.route("10.0.0.1", 2);
    node.conflict_events();
    node.link(link_down(pod(2)));
    node.expect(["updated 10.0.0.1 duplicate certain: veth1 veth2"]);
    node.pod(2);
    assert!(
        node.conflict_events().is_empty(),
        "the routes do not return with the link"
    );
}

#[test]
fn route_to_a_non_claimant_gives_no_receiver() {
    let mut node = Node::with_duplicate();
    node.conflict_events();
    node.pod(3);
    node.route("10.0.0.1", 3);
    assert!(node.conflict_events().is_empty());
}

#[test]
fn port_of_the_bridge_entry_receives() {
    let mut node = Node::new();
    node.bridge(9);
    for port in 1..=2u8 {
        node.port(port.into(), 9);
        node.fdb(9, port.into(), mac(port));
        node.address(port.into(), "10.0.0.1");
    }
    node.observe(Observation::Route(Route {
        prefix_len: 24,
        ..route("10.0.0.0", 9)
    }));
    node.conflict_events();
    node.neighbour(9, "10.0.0.1", mac(2), NudState::Reachable);
    node.neighbour(9, "10.0.0.1", mac(1), NudState::Reachable);
    node.fdb(9, 2, mac(1));
    node.expect([
        "updated 10.0.0.1 duplicate certain: veth1 veth2 -> veth2",
        "updated 10.0.0.1 duplicate certain: veth1 veth2 -> veth1",
        "updated 10.0.0.1 duplicate certain: veth1 veth2 -> veth2",
    ]);
}

#[test]
fn tagged_claims_have_no_receiver() {
    let mut node = Node::with_pods(2);
    node.route("10.0.0.1", 1);
    for ifindex in 1..=2 {
        node.observe(tagged(ifindex, "10.0.0.1"));
    }
    node.expect(["raised 10.0.0.1@5 duplicate observed: veth1 veth2"]);
}

#[test]
fn link_local_receiver_is_the_bridge_entry_not_the_route() {
    let mut node = Node::new();
    node.bridge(9);
    node.pod(3);
    node.observe(Observation::Route(Route {
        prefix_len: 64,
        ..route("fe80::", 3)
    }));
    for port in 1..=2u8 {
        node.port(port.into(), 9);
        node.fdb(9, port.into(), mac(port));
        node.address(port.into(), "fe80::1");
    }
    node.neighbour(9, "fe80::1", mac(2), NudState::Stale);
    node.expect([
        "raised fe80::1 duplicate certain: veth1 veth2",
        "updated fe80::1 duplicate certain: veth1 veth2 -> veth2",
    ]);
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
    node.conflict_events();
    for (bridge, receiver) in [(9, "veth2"), (8, "veth1")] {
        node.route("10.0.0.1", bridge);
        assert_eq!(
            node.conflict_events(),
            [format!(
                "updated 10.0.0.1 duplicate certain: veth1 veth2 -> {receiver}"
            )]
        );
    }
}

#[test]
fn claimant_without_a_known_port_can_receive() {
    let mut node = Node::new();
    node.bridge(9);
    node.port(1, 9);
    node.frame(1, "10.0.0.1");
    node.neighbour(9, "10.0.0.1", mac(7), NudState::Permanent);
    node.conflict_events();
    node.route("10.0.0.1", 9);
    node.expect(["updated 10.0.0.1 duplicate observed: veth1 br9/02:00:00:00:00:07 -> br9"]);
}

#[test]
fn change_of_a_wider_route_updates_the_conflict() {
    let wide = Route {
        prefix_len: 24,
        ..route("10.0.0.0", 9)
    };
    let down = link_down(bridge(9));
    let changes = [
        ("route removed", Observation::RouteGone(wide)),
        ("link down", Observation::Link(down)),
        ("link removed", Observation::LinkGone(9)),
    ];
    for (case, change) in changes {
        let mut node = Node::new();
        node.bridge(9);
        node.port(1, 9);
        node.pod(2);
        node.frames([1, 2], "10.0.0.1");
        node.conflict_events();
        node.observe(Observation::Route(Route {
            prefix_len: 16,
            ..route("10.0.0.0", 2)
        }));
        assert_eq!(
            node.conflict_events(),
            ["updated 10.0.0.1 duplicate observed: veth1 veth2 -> veth2"],
            "{case}"
        );
        node.observe(Observation::Route(wide));
        assert_eq!(
            node.conflict_events(),
            ["updated 10.0.0.1 duplicate observed: veth1 veth2"],
            "{case}: the bridge has no entry for the address"
        );
        node.observe(change);
        assert_eq!(
            node.conflict_events(),
            ["updated 10.0.0.1 duplicate observed: veth1 veth2 -> veth2"],
            "{case}"
        );
    }
}

#[test]
fn removed_link_leaves_traffic_to_a_wider_route() {
    let mut node = Node::with_pods(2);
    node.link(uplink(9));
    for (prefix_len, ifindex) in [(24, 9), (16, 1)] {
        let destination = if prefix_len == 24 {
            "10.1.1.0"
        } else {
            "10.1.0.0"
        };
        node.observe(Observation::Route(Route {
            prefix_len,
            ..route(destination, ifindex)
        }));
    }
    node.addresses([1, 2], "10.1.1.7");
    node.expect(["raised 10.1.1.7 duplicate certain: veth1 veth2"]);
    node.remove_link(9);
    node.expect(["updated 10.1.1.7 duplicate certain: veth1 veth2 -> veth1"]);
}
