//! Host routes that lead past the pod that has the address.

use super::*;
use crate::anomaly_fixtures::*;

/// Pod 1 has 10.0.0.2, and its host route leads there.
fn routed() -> Node {
    let mut node = synced_node();
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
fn removed_host_route_is_raised_after_the_grace_period() {
    let mut node = routed();
    node.route_gone("10.0.0.2", 1);
    node.wait(Duration::from_millis(4_999));
    assert!(node.anomaly_events().is_empty());
    node.wait(Duration::from_millis(1));
    node.expect_anomalies(["raised route_astray 10.0.0.2"]);
    assert!(node.engine.view().anomalies()[0].detail.contains("is gone"));
}

/// The kernel reports nothing of the route to the pod, which no longer exists.
#[test]
fn host_route_replaced_by_a_discarding_one_is_raised() {
    let mut node = routed();
    node.observe(Observation::Route(wide(1)));
    node.route("10.0.0.2", Route::NOWHERE);
    node.wait_secs(6);
    node.expect_anomalies(["raised route_astray 10.0.0.2"]);
    let detail = &node.engine.view().anomalies()[0].detail;
    assert!(detail.contains("discards or rejects"), "{detail}");
    node.route("10.0.0.2", 1);
    node.expect_anomalies(["resolved route_astray 10.0.0.2 route_right"]);
}

/// One of them may lead to the pod.
#[test]
fn host_route_replaced_by_several_next_hops_raises_nothing() {
    let mut node = routed();
    let place = route("10.0.0.2", 1).key();
    let replaced = RoutingChange::Replaced(place);
    node.observe(Observation::RoutingChanged(replaced));
    node.wait_secs(60);
    assert!(node.anomaly_events().is_empty());
}

#[test]
fn anomaly_resolves_when_the_address_is_removed() {
    let mut node = routed();
    node.route("10.0.0.2", 2);
    node.wait_secs(6);
    node.expect_anomalies(["raised route_astray 10.0.0.2"]);
    let detail = &node.engine.view().anomalies()[0].detail;
    assert!(detail.contains("leads to veth2"), "{detail}");
    node.address_gone(1, "10.0.0.2");
    node.expect_anomalies(["resolved route_astray 10.0.0.2 address_gone"]);
    // Assigned again, it is evaluated afresh.
    node.route_gone("10.0.0.2", 2);
    node.address(1, "10.0.0.2");
    node.wait_secs(60);
    assert!(node.anomaly_events().is_empty());
}

#[test]
fn host_route_to_an_uplink_is_astray() {
    let mut node = routed();
    node.link(uplink(9));
    node.route("10.0.0.2", 9);
    node.wait_secs(6);
    node.expect_anomalies(["raised route_astray 10.0.0.2"]);
}

#[test]
fn route_to_a_bridge_or_unreadable_pod_raises_nothing() {
    let mut node = routed();
    node.bridge(9);
    node.pod(3);
    for out in [9, 3] {
        node.route("10.0.0.2", out);
        node.wait_secs(60);
        assert!(node.anomaly_events().is_empty(), "{out}");
    }
}

#[test]
fn route_is_judged_as_soon_as_the_addresses_of_the_pod_it_leads_to_are_known() {
    let mut node = routed();
    node.pod(3);
    node.route("10.0.0.2", 3);
    node.wait_secs(60);
    assert!(node.anomaly_events().is_empty());
    node.read_pod_addresses(3, &["10.0.0.3"]);
    node.wait_secs(6);
    node.expect_anomalies(["raised route_astray 10.0.0.2"]);
}

#[test]
fn removal_of_a_never_correct_host_route_raises_nothing() {
    let mut node = synced_node();
    node.pod(3);
    node.address(1, "10.0.0.2");
    node.route("10.0.0.2", 3);
    node.route_gone("10.0.0.2", 3);
    node.wait_secs(60);
    assert!(node.anomaly_events().is_empty());
}

#[test]
fn removal_of_a_wider_route_raises_nothing() {
    let mut node = synced_node();
    node.observe(Observation::Route(wide(1)));
    node.address(1, "10.0.0.2");
    node.observe(Observation::RouteGone(wide(1)));
    node.wait_secs(60);
    assert!(node.anomaly_events().is_empty());
}

#[test]
fn allowed_address_is_never_route_astray() {
    let mut node = Node::with_settings(Settings {
        allow: vec!["10.0.0.0/24".parse().unwrap()],
        ..Settings::default()
    });
    node.pods(2);
    node.take_first_snapshot();
    node.address(1, "10.0.0.2");
    node.route("10.0.0.2", 2);
    node.wait_secs(60);
    assert!(node.anomaly_events().is_empty());
}

#[test]
fn grace_period_restarts_after_an_interruption() {
    let interruptions: [NodeCase; 2] = [
        ("route correct", |node| {
            node.route_gone("10.0.0.2", 2);
            node.route("10.0.0.2", 1);
            node.route_gone("10.0.0.2", 1);
            node.route("10.0.0.2", 2);
        }),
        ("address removed", |node| {
            node.address_gone(1, "10.0.0.2");
            node.address(1, "10.0.0.2");
        }),
    ];
    for (case, interrupt) in interruptions {
        let mut node = routed();
        node.route_gone("10.0.0.2", 1);
        node.route("10.0.0.2", 2);
        node.wait_secs(3);
        interrupt(&mut node);
        node.wait_secs(3);
        assert!(node.anomaly_events().is_empty(), "{case}");
        node.wait_secs(3);
        assert_eq!(
            node.anomaly_events(),
            ["raised route_astray 10.0.0.2"],
            "{case}"
        );
    }
}

#[test]
fn wrong_route_is_raised_while_it_exists() {
    for stays in [true, false] {
        let mut node = synced_node();
        node.address(1, "10.0.0.2");
        node.route("10.0.0.2", 2);
        node.wait_secs(3);
        if !stays {
            node.route_gone("10.0.0.2", 2);
        }
        node.wait_secs(10);
        assert_eq!(
            node.anomaly_events().len(),
            usize::from(stays),
            "stays: {stays}"
        );
    }
}

#[test]
fn route_lost_with_its_downed_link_is_raised() {
    let mut node = routed();
    node.link(link_down(pod(1)));
    node.wait_secs(6);
    node.expect_anomalies(["raised route_astray 10.0.0.2"]);
}

#[test]
fn tracked_route_addresses_are_bounded() {
    let mut node = Node::with_bounds(Bounds {
        kernel_entries: 2,
        ..Bounds::default()
    });
    node.pod(1);
    node.take_first_snapshot();
    for address in ["10.0.0.2", "10.0.0.3", "10.0.0.4"] {
        node.address(1, address);
    }
    node.route("10.0.0.2", 1);
    node.route("10.0.0.3", 1);
    node.route_gone("10.0.0.3", 1);
    node.route("10.0.0.4", 1);
    node.route_gone("10.0.0.4", 1);
    node.wait_secs(6);
    node.expect_anomalies(["raised route_astray 10.0.0.3"]);
}

#[test]
fn removed_wrong_route_falls_back_to_the_correct_one() {
    let removals: [NodeCase; 2] = [
        ("removed", |node| node.remove_link(9)),
        ("down", |node| node.link(link_down(uplink(9)))),
    ];
    for (case, remove) in removals {
        let mut node = synced_node();
        node.link(uplink(9));
        node.address(1, "10.0.0.2");
        node.route("10.0.0.2", 9);
        node.observe(Observation::Route(Route {
            metric: 100,
            ..route("10.0.0.2", 1)
        }));
        node.wait_secs(6);
        assert_eq!(
            node.anomaly_events(),
            ["raised route_astray 10.0.0.2"],
            "{case}"
        );
        remove(&mut node);
        assert_eq!(
            node.anomaly_events(),
            ["resolved route_astray 10.0.0.2 route_right"],
            "{case}"
        );
    }
}

#[test]
fn host_routes_of_both_families_are_checked() {
    for address in ["10.0.0.2", "2001:db8::2"] {
        let mut node = synced_node();
        node.address(1, address);
        node.route(address, 1);
        node.route_gone(address, 1);
        node.wait_secs(6);
        assert_eq!(
            node.anomaly_events(),
            [format!("raised route_astray {address}")]
        );
    }
}
