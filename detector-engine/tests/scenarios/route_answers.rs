//! The kernel's answers about the routes of addresses in conflict (`docs/detection-rules.md`, 11).

use super::*;

impl Node {
    /// The addresses to look up, which are from then on in flight.
    fn lookups(&mut self) -> Vec<String> {
        let addresses = self.engine.take_route_lookups(10);
        let addresses = addresses.iter().map(|query| query.address.to_string());
        addresses.collect()
    }

    fn answer(&mut self, address: &str, target: RouteTarget) {
        self.observe(Observation::RoutesLookedUp(RouteAnswers {
            found: vec![(query(address), target)],
            failed: Vec::new(),
        }));
    }

    /// Takes the lookup of 10.0.0.1 and answers it.
    fn look_up(&mut self, target: RouteTarget) {
        assert_eq!(self.lookups(), ["10.0.0.1"]);
        self.answer("10.0.0.1", target);
    }
}

fn query(address: &str) -> RouteQuery {
    RouteQuery {
        address: ip(address),
        vrf: None,
    }
}

fn behind(bridge: IfIndex, n: u8, port: BridgePort) -> RouteTarget {
    RouteTarget::Bridge(BridgePath {
        interface: bridge,
        bridge,
        next_hop: ip("10.0.0.1"),
        mac: Some(mac(n)),
        port,
    })
}

#[test]
fn answer_corrects_what_the_routes_say() {
    let mut node = Node::with_pods(2);
    node.route("10.0.0.1", 2);
    node.address(1, "10.0.0.1");
    assert!(node.lookups().is_empty(), "no conflict yet");
    node.address(2, "10.0.0.1");
    assert_eq!(
        node.conflict_events(),
        ["raised 10.0.0.1 duplicate certain: veth1 veth2 -> veth2"],
        "at once"
    );
    node.look_up(RouteTarget::Device(1));
    node.expect(["updated 10.0.0.1 duplicate certain: veth1 veth2 -> veth1"]);
    // The answer holds until the next one, whatever the stored routes say.
    node.route("10.0.0.1", 1);
    node.route("10.0.0.1", 2);
    assert!(node.conflict_events().is_empty());
    node.look_up(RouteTarget::Device(1));
    assert!(node.conflict_events().is_empty());
    node.route_gone("10.0.0.1", 2);
    node.look_up(RouteTarget::Nowhere);
    node.expect(["updated 10.0.0.1 duplicate certain: veth1 veth2"]);
}

#[test]
fn only_a_claimant_receives() {
    for (case, target) in [
        ("another device", RouteTarget::Device(3)),
        ("a `local` route", RouteTarget::Host),
        ("no route", RouteTarget::Nowhere),
    ] {
        let mut node = Node::with_pods(3);
        node.route("10.0.0.1", 2);
        node.addresses([1, 2], "10.0.0.1");
        node.conflict_events();
        node.look_up(target);
        assert_eq!(
            node.conflict_events(),
            ["updated 10.0.0.1 duplicate certain: veth1 veth2"],
            "{case}"
        );
    }
}

#[test]
fn rule_before_the_local_table_wins_over_the_node() {
    let mut node = Node::with_pods(1);
    node.link(uplink(7));
    node.host(7, "10.0.0.1");
    node.address(1, "10.0.0.1");
    node.expect(["raised 10.0.0.1 host certain: node/eth7 veth1 -> eth7"]);
    node.look_up(RouteTarget::Device(1));
    node.expect(["updated 10.0.0.1 host certain: node/eth7 veth1 -> veth1"]);
    node.host(7, "10.0.0.1");
    node.look_up(RouteTarget::Host);
    node.expect(["updated 10.0.0.1 host certain: node/eth7 veth1 -> eth7"]);
}

#[test]
fn path_behind_a_bridge_names_the_port() {
    // Port 2 is learned; port 1 is where the hardware address of its pod was last seen.
    let cases = [
        (behind(9, 2, BridgePort::Forwarding(2)), " -> veth2"),
        (behind(9, 2, BridgePort::Blocked(2)), ""),
        (behind(9, 1, BridgePort::Unknown), " -> veth1"),
        (behind(9, 7, BridgePort::Unknown), " -> br9"),
        (behind(9, 6, BridgePort::Unknown), ""),
    ];
    for (target, receiver) in cases {
        let mut node = Node::with_bridge(2);
        node.frames([1, 2], "10.0.0.1");
        node.neighbour(9, "10.0.0.1", mac(7), NudState::Permanent);
        node.conflict_events();
        node.look_up(target);
        let events: &[_] = &match receiver {
            "" => vec![],
            _ => vec![format!(
                "updated 10.0.0.1 duplicate observed: veth1 veth2 br9/02:00:00:00:00:07{receiver}"
            )],
        };
        assert_eq!(node.conflict_events(), events, "{target:?}");
    }
}

#[test]
fn quiet_pod_behind_a_port_that_went_down_does_not_receive() {
    let mut node = Node::with_bridge(2);
    node.addresses(1..=2, "10.0.0.1");
    node.neighbour(9, "10.0.0.1", mac(1), NudState::Reachable);
    node.fdb_gone(9, 1, mac(1));
    node.look_up(behind(9, 1, BridgePort::Unknown));
    node.conflict_events();
    node.link(Link {
        running: false,
        ..bridge_port(1, 9)
    });
    node.expect(["updated 10.0.0.1 duplicate certain: veth1 veth2"]);
    node.port(1, 9);
    node.expect(["updated 10.0.0.1 duplicate certain: veth1 veth2 -> veth1"]);
}

#[test]
fn changes_that_may_outdate_an_answer_are_looked_up() {
    let wide = Route {
        prefix_len: 24,
        ..route("10.0.0.0", 5)
    };
    let destination = |address: &str, length| {
        Observation::RoutingChanged(RoutingChange::Destination(ip(address), length))
    };
    let cases = [
        (true, Observation::RoutingChanged(RoutingChange::Policy)),
        (true, destination("10.0.0.0", 8)),
        (true, destination("0.0.0.0", 0)),
        (false, destination("::", 0)),
        (false, destination("10.0.0.2", 32)),
        (true, Observation::Route(wide)),
        (true, Observation::RouteInserted(wide, RoutePlace::Last)),
        (true, Observation::RouteGone(wide)),
        (false, Observation::Route(route("10.0.0.2", 5))),
        (true, Observation::Link(bridge(9))),
        (true, Observation::Link(bridge_port(2, 9))),
        (true, Observation::RoutingChanged(RoutingChange::Port(2))),
        (false, Observation::RoutingChanged(RoutingChange::Port(1))),
        (false, Observation::Link(bridge_port(1, 9))),
        (true, Observation::Link(link_down(uplink(7)))),
        (true, Observation::LinkGone(7)),
        (
            true,
            Observation::Neighbour(neighbour(9, "10.0.0.1", mac(1), NudState::Stale)),
        ),
        (true, Observation::NeighbourGone(9, ip("10.0.0.1"))),
        (
            false,
            Observation::Neighbour(neighbour(9, "10.0.0.2", mac(2), NudState::Stale)),
        ),
        (true, Observation::Fdb(fdb(9, 1, mac(2)))),
        (true, Observation::FdbGone(fdb(9, 2, mac(2)))),
        (false, Observation::Fdb(fdb(9, 1, mac(1)))),
        (true, Observation::HostAddress(7, assigned("10.0.0.1"))),
        (false, Observation::HostAddress(7, assigned("10.0.0.2"))),
        (false, Observation::Frame(frame(1, "10.0.0.1"))),
    ];
    for (is_affected, change) in cases {
        let mut node = Node::with_bridge(2);
        node.link(uplink(7));
        node.addresses(1..=2, "10.0.0.1");
        node.look_up(behind(9, 2, BridgePort::Forwarding(2)));
        node.observe(change.clone());
        let expected: &[&str] = if is_affected { &["10.0.0.1"] } else { &[] };
        assert_eq!(node.lookups(), expected, "{change:?}");
        if is_affected {
            // While it is in flight, another change is not lost.
            node.observe(change.clone());
            node.answer("10.0.0.1", behind(9, 2, BridgePort::Forwarding(2)));
            // A link that is down already does not go down.
            let is_repeated = change != Observation::Link(link_down(uplink(7)));
            assert_eq!(node.lookups() == expected, is_repeated, "{change:?}");
        }
    }
}

#[test]
fn resolved_conflict_drops_its_answer() {
    let mut node = Node::with_duplicate();
    node.look_up(RouteTarget::Device(1));
    node.observe(Observation::RoutingChanged(RoutingChange::Policy));
    node.address_gone(2, "10.0.0.1");
    node.conflict_events();
    assert!(node.lookups().is_empty());
    node.address(2, "10.0.0.1");
    node.expect(["raised 10.0.0.1 duplicate certain: veth1 veth2"]);
    assert_eq!(node.lookups(), ["10.0.0.1"]);
}

#[test]
fn only_untagged_addresses_that_are_routed_are_looked_up() {
    let mut node = Node::with_bridge(2);
    for port in 1..=2 {
        node.address(port, "fe80::1");
        node.observe(tagged(port, "10.0.0.1"));
    }
    assert_eq!(node.conflict_events().len(), 2);
    assert!(node.lookups().is_empty());
}

#[test]
fn failed_lookup_is_repeated() {
    let mut node = Node::with_duplicate();
    assert_eq!(node.lookups(), ["10.0.0.1"]);
    node.observe(Observation::RoutesLookedUp(RouteAnswers {
        found: Vec::new(),
        failed: vec![query("10.0.0.1")],
    }));
    assert_eq!(node.lookups(), ["10.0.0.1"]);
}

#[test]
fn snapshot_of_the_node_makes_every_route_looked_up() {
    let mut node = Node::with_duplicate();
    node.look_up(RouteTarget::Device(1));
    node.resync(snapshot(&[(1, &["10.0.0.1"]), (2, &["10.0.0.1"])]));
    assert_eq!(node.lookups(), ["10.0.0.1"]);
}

#[test]
fn restored_conflict_is_looked_up() {
    let mut earlier = Node::with_duplicate();
    earlier.look_up(RouteTarget::Device(2));
    let records = earlier.engine.view().open_records(earlier.now);
    let mut node = Node::new();
    node.engine.restore(records, Vec::new());
    node.resync(snapshot(&[(1, &["10.0.0.1"]), (2, &["10.0.0.1"])]));
    node.conflict_events();
    assert_eq!(node.lookups(), ["10.0.0.1"]);
    node.answer("10.0.0.1", RouteTarget::Device(2));
    node.expect_open(["10.0.0.1 duplicate certain: veth1 veth2 -> veth2"]);
}

#[test]
fn answer_about_a_removed_link_is_not_about_its_successor() {
    let mut node = Node::with_duplicate();
    node.pod(3);
    node.address(3, "10.0.0.1");
    node.look_up(RouteTarget::Device(3));
    node.conflict_events();
    node.remove_link(3);
    node.pod(3);
    node.address(3, "10.0.0.1");
    node.expect([
        "updated 10.0.0.1 duplicate certain: veth1 veth2 left veth3(device_removed)",
        "updated 10.0.0.1 duplicate certain: veth1 veth2 veth3 left veth3(device_removed)",
    ]);
    node.look_up(RouteTarget::Device(3));
    let [event] = &node.conflict_events()[..] else {
        panic!("one update")
    };
    assert!(event.ends_with("-> veth3"), "{event}");
}

/// Without an answer, the first of equal routes counts, as in the kernel.
#[test]
fn first_of_equal_routes_receives() {
    let mut node = Node::with_duplicate();
    node.conflict_events();
    let inserted = |ifindex, place| Observation::RouteInserted(route("10.0.0.1", ifindex), place);
    node.observe(inserted(1, RoutePlace::First));
    node.observe(inserted(2, RoutePlace::Last));
    node.route_gone("10.0.0.1", 1);
    node.observe(inserted(1, RoutePlace::First));
    node.expect([
        "updated 10.0.0.1 duplicate certain: veth1 veth2 -> veth1",
        "updated 10.0.0.1 duplicate certain: veth1 veth2 -> veth2",
        "updated 10.0.0.1 duplicate certain: veth1 veth2 -> veth1",
    ]);
}

/// The bridge drops what it has for a port that is down.
#[test]
fn port_that_is_down_does_not_receive() {
    let mut node = Node::with_bridge(2);
    node.addresses(1..=2, "10.0.0.1");
    node.route("10.0.0.1", 9);
    node.neighbour(9, "10.0.0.1", mac(1), NudState::Reachable);
    node.conflict_events();
    node.link(Link {
        running: false,
        ..bridge_port(1, 9)
    });
    node.expect(["updated 10.0.0.1 duplicate certain: veth1 veth2"]);
}
