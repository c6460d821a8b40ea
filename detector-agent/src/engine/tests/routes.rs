//! Host routes that lead past whoever has the address.

use super::{anomalies::node, *};
use crate::engine::routes::{AddOutcome, Routes};

/// Pod 1 has the address, and the host's own route for it leads there.
fn routed() -> Node {
    let mut node = node();
    node.address(1, "10.0.0.2");
    node.route("10.0.0.2", 1);
    node
}

fn wide(ifindex: IfIndex) -> Route {
    Route {
        prefix_len: 24,
        ..route("10.0.0.0", ifindex)
    }
}

#[test]
fn a_host_route_that_is_gone_is_told_after_a_while() {
    let mut node = routed();
    node.route_gone("10.0.0.2", 1);
    node.wait(Duration::from_millis(4_999));
    assert!(node.told_of_anomalies().is_empty());
    node.wait(Duration::from_millis(1));
    assert_eq!(node.told_of_anomalies(), ["raised route_astray 10.0.0.2"]);
    assert!(node.engine.anomalies()[0].detail.contains("is gone"));
}

#[test]
fn it_is_over_when_nobody_has_the_address_any_more() {
    let mut node = routed();
    node.route("10.0.0.2", 2);
    node.wait_secs(6);
    assert_eq!(node.told_of_anomalies(), ["raised route_astray 10.0.0.2"]);
    let detail = &node.engine.anomalies()[0].detail;
    assert!(detail.contains("leads to veth2"), "{detail}");
    node.address_gone(1, "10.0.0.2");
    assert_eq!(
        node.told_of_anomalies(),
        ["resolved route_astray 10.0.0.2 address_gone"]
    );
    // Given anew, it is a matter of its own.
    node.route_gone("10.0.0.2", 2);
    node.address(1, "10.0.0.2");
    node.wait_secs(60);
    assert!(node.told_of_anomalies().is_empty());
}

#[test]
fn a_host_route_to_a_link_of_the_node_leads_astray() {
    let mut node = routed();
    node.link(uplink(9));
    node.route("10.0.0.2", 9);
    node.wait_secs(6);
    assert_eq!(node.told_of_anomalies(), ["raised route_astray 10.0.0.2"]);
}

#[test]
fn where_it_leads_to_a_bridge_or_a_pod_that_cannot_be_read_nothing_is_concluded() {
    let mut node = routed();
    node.bridge(9);
    node.pod(3);
    for out in [9, 3] {
        node.route("10.0.0.2", out);
        node.wait_secs(60);
        assert!(node.told_of_anomalies().is_empty(), "{out}");
    }
}

#[test]
fn the_end_of_a_host_route_that_was_never_right_says_nothing() {
    let mut node = node();
    node.pod(3);
    node.address(1, "10.0.0.2");
    node.route("10.0.0.2", 3);
    node.route_gone("10.0.0.2", 3);
    node.wait_secs(60);
    assert!(node.told_of_anomalies().is_empty());
}

#[test]
fn the_end_of_a_wider_route_says_nothing() {
    let mut node = node();
    node.tell(Observation::Route(wide(1)));
    node.address(1, "10.0.0.2");
    node.tell(Observation::RouteGone(wide(1)));
    node.wait_secs(60);
    assert!(node.told_of_anomalies().is_empty());
}

#[test]
fn shared_addresses_have_no_route_of_their_own_that_could_be_wrong() {
    let mut node = Node::with(Settings {
        allow: vec!["10.0.0.0/24".parse().unwrap()],
        ..Settings::default()
    });
    for ifindex in 1..=2 {
        node.pod(ifindex);
    }
    node.was_read();
    node.address(1, "10.0.0.2");
    node.route("10.0.0.2", 2);
    node.wait_secs(60);
    assert!(node.told_of_anomalies().is_empty());
}

#[test]
fn routes_of_the_other_family_lead_alike_and_say_nothing_of_this_one() {
    let of = |destination: &str, prefix_len, ifindex| Route {
        prefix_len,
        ..route(destination, ifindex)
    };
    let mut routes = Routes::default();
    for route in [
        of("0.0.0.0", 0, 1),
        of("2001:db8::", 64, 2),
        of("2001:db8::7", 128, 3),
    ] {
        assert_eq!(routes.add(route, 10), AddOutcome::New);
    }
    assert_eq!(routes.lookup(ip("2001:db8::7")), Some(3));
    assert_eq!(routes.lookup(ip("2001:db8::8")), Some(2));
    assert_eq!(routes.lookup(ip("2001:db8:1::8")), None);
    assert_eq!(routes.host_route(ip("2001:db8::7")), Some(3));
    assert_eq!(routes.host_route(ip("2001:db8::8")), None);
    assert!(!Routes::covers(&of("0.0.0.0", 0, 1), ip("2001:db8::7")));
    assert!(!Routes::covers(&of("::", 0, 1), ip("10.0.0.1")));
    assert!(Routes::covers(&of("::", 0, 1), ip("2001:db8::7")));
}

#[test]
fn of_host_routes_in_several_tables_the_main_ones_counts() {
    let mut routes = Routes::default();
    let other = Route {
        table: 100,
        ..route("10.0.0.2", 9)
    };
    let main = Route {
        metric: 50,
        ..route("10.0.0.2", 3)
    };
    routes.add(other, 10);
    routes.add(main, 10);
    assert_eq!(routes.host_route(ip("10.0.0.2")), Some(3));
}

#[test]
fn a_route_that_was_right_or_not_needed_in_between_is_astray_anew() {
    let between: [fn(&mut Node); 2] = [
        |node| {
            node.route_gone("10.0.0.2", 2);
            node.route("10.0.0.2", 1);
            node.route_gone("10.0.0.2", 1);
            node.route("10.0.0.2", 2);
        },
        |node| {
            node.address_gone(1, "10.0.0.2");
            node.address(1, "10.0.0.2");
        },
    ];
    for between in between {
        let mut node = routed();
        node.route_gone("10.0.0.2", 1);
        node.route("10.0.0.2", 2);
        node.wait_secs(3);
        between(&mut node);
        node.wait_secs(3);
        assert!(node.told_of_anomalies().is_empty());
        node.wait_secs(3);
        assert_eq!(node.told_of_anomalies(), ["raised route_astray 10.0.0.2"]);
    }
}

#[test]
fn a_route_that_never_was_right_is_told_while_it_is_there() {
    for stays in [true, false] {
        let mut node = node();
        node.address(1, "10.0.0.2");
        node.route("10.0.0.2", 2);
        node.wait_secs(3);
        if !stays {
            node.route_gone("10.0.0.2", 2);
        }
        node.wait_secs(10);
        assert_eq!(node.told_of_anomalies().len(), usize::from(stays));
    }
}

#[test]
fn a_route_that_ends_with_its_link_going_down_is_told_after_a_while() {
    let mut node = routed();
    node.link(Link {
        up: false,
        ..pod(1)
    });
    node.wait_secs(6);
    assert_eq!(node.told_of_anomalies(), ["raised route_astray 10.0.0.2"]);
}

#[test]
fn the_addresses_whose_routes_are_followed_are_bounded() {
    let mut node = Node::within(Bounds {
        kernel_entries: 2,
        ..Bounds::default()
    });
    node.pod(1);
    node.was_read();
    for address in ["10.0.0.2", "10.0.0.3", "10.0.0.4"] {
        node.address(1, address);
    }
    node.route("10.0.0.2", 1);
    node.route("10.0.0.3", 1);
    node.route_gone("10.0.0.3", 1);
    node.route("10.0.0.4", 1);
    node.route_gone("10.0.0.4", 1);
    node.wait_secs(6);
    assert_eq!(node.told_of_anomalies(), ["raised route_astray 10.0.0.3"]);
}

#[test]
fn a_default_route_leads_every_address_and_one_bit_more_only_half_of_them() {
    let mut routes = Routes::default();
    for (prefix_len, ifindex) in [(0, 1), (1, 2)] {
        let wide = Route {
            prefix_len,
            ..route("0.0.0.0", ifindex)
        };
        assert_eq!(routes.add(wide, 10), AddOutcome::New);
    }
    assert_eq!(routes.lookup(ip("255.255.255.255")), Some(1));
    assert_eq!(routes.lookup(ip("127.255.255.255")), Some(2));
}

#[test]
fn a_route_that_led_astray_and_ends_with_its_link_leaves_it_to_the_next_one() {
    let ends: [fn(&mut Node); 2] = [
        |node| node.gone(9),
        |node| {
            node.link(Link {
                up: false,
                ..uplink(9)
            })
        },
    ];
    for end in ends {
        let mut node = node();
        node.link(uplink(9));
        node.address(1, "10.0.0.2");
        node.route("10.0.0.2", 9);
        node.tell(Observation::Route(Route {
            metric: 100,
            ..route("10.0.0.2", 1)
        }));
        node.wait_secs(6);
        assert_eq!(node.told_of_anomalies(), ["raised route_astray 10.0.0.2"]);
        end(&mut node);
        assert_eq!(
            node.told_of_anomalies(),
            ["resolved route_astray 10.0.0.2 route_right"]
        );
    }
}

#[test]
fn host_routes_of_both_families_are_judged_when_they_are_told() {
    for address in ["10.0.0.2", "2001:db8::2"] {
        let mut node = node();
        node.address(1, address);
        node.route(address, 1);
        node.route_gone(address, 1);
        node.wait_secs(6);
        assert_eq!(
            node.told_of_anomalies(),
            [format!("raised route_astray {address}")]
        );
    }
}
