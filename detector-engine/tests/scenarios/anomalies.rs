//! Anomalies of every kind: raised, resolved, and restored from an earlier agent.

use super::*;
use crate::anomaly_fixtures::*;

#[test]
fn deleted_allocations_raise_drift_at_once() {
    let mut node = synced_node();
    node.address(1, "10.0.0.2");
    node.tick();
    node.read_pool(&["10.0.0.2"], Completeness::Complete);
    assert!(node.anomaly_events().is_empty());
    node.tick();
    node.read_pool(&[], Completeness::Deleted);
    node.expect_anomalies(["raised ipam_drift 10.0.0.2"]);
    node.read_pool(&["10.0.0.2"], Completeness::Complete);
    node.expect_anomalies(["resolved ipam_drift 10.0.0.2 allocated"]);
}

#[test]
fn pool_older_than_the_address_is_read_again_first() {
    let mut node = synced_node();
    node.read_pool(&[], Completeness::Deleted);
    node.address(1, "10.0.0.2");
    node.expect_anomalies(["read pool"]);
    node.tick();
    node.read_pool(&["10.0.0.2"], Completeness::Complete);
    assert!(node.anomaly_events().is_empty());
}

#[test]
fn address_released_shortly_before_its_device_is_not_drift() {
    let mut node = synced_node();
    node.address(1, "10.0.0.2");
    node.tick();
    node.read_pool(&["10.0.0.2"], Completeness::Complete);
    node.read_pool(&[], Completeness::Complete);
    node.wait(Duration::from_millis(1500));
    node.remove_link(1);
    node.wait_secs(60);
    assert!(node.anomaly_events().is_empty());
}

#[test]
fn unallocated_address_is_drift_after_two_seconds() {
    let mut node = synced_node();
    node.address(1, "10.0.0.2");
    node.tick();
    node.read_pool(&[], Completeness::Complete);
    node.wait(Duration::from_millis(2500));
    node.expect_anomalies(["read pool"]);
    node.read_pool(&[], Completeness::Complete);
    node.expect_anomalies(["raised ipam_drift 10.0.0.2"]);
    node.address_gone(1, "10.0.0.2");
    node.expect_anomalies(["resolved ipam_drift 10.0.0.2 address_gone"]);
}

#[test]
fn pool_of_unknown_completeness_raises_nothing() {
    let mut node = synced_node();
    node.address(1, "10.0.0.2");
    node.tick();
    node.read_pool(&[], Completeness::Unknown);
    node.wait_secs(3600);
    assert!(node.anomaly_events().is_empty());
}

#[test]
fn unused_allocation_is_a_leak_after_ten_minutes() {
    let mut node = synced_node();
    node.read_pool(&["10.0.0.9"], Completeness::Complete);
    node.wait_secs(599);
    assert!(node.anomaly_events().is_empty());
    node.wait_secs(2);
    node.expect_anomalies(["raised ipam_leak 10.0.0.9"]);
    node.address(2, "10.0.0.9");
    node.expect_anomalies(["resolved ipam_leak 10.0.0.9 in_use"]);
}

#[test]
fn restored_anomaly_continues_silently_or_resolves() {
    let mut before = synced_node();
    before.address(1, "10.0.0.2");
    before.address(2, "10.0.0.3");
    before.tick();
    before.read_pool(&[], Completeness::Deleted);
    let open = before.engine.view().anomalies();
    assert_eq!(open.len(), 2);
    let mut node = Node::new();
    node.engine.restore(Vec::new(), open.clone());
    node.pods(2);
    node.take_first_snapshot();
    node.address(1, "10.0.0.2");
    node.tick();
    node.read_pool(&[], Completeness::Deleted);
    assert!(node.anomaly_events().is_empty());
    assert!(
        node.engine
            .view()
            .anomalies()
            .iter()
            .any(|a| a.id == open[0].id)
    );
    node.wait_secs(30);
    node.expect_anomalies(["resolved ipam_drift 10.0.0.3 not_seen"]);
}

#[test]
fn gateway_unresolved_ends_when_device_is_gone_or_quiet() {
    let mut node = synced_node();
    node.observe(unanswered_probe(1, "169.254.1.1"));
    node.expect_anomalies(["raised gateway_unresolved 169.254.1.1"]);
    node.wait_secs(61);
    node.expect_anomalies(["resolved gateway_unresolved 169.254.1.1 quiet"]);
    node.observe(unanswered_probe(1, "169.254.1.1"));
    node.remove_link(1);
    let events = node.anomaly_events();
    assert_eq!(
        events[1],
        "resolved gateway_unresolved 169.254.1.1 device_gone"
    );
}

#[test]
fn peer_on_the_pods_subnet_is_not_a_gateway() {
    let mut node = synced_node();
    node.address(1, "10.0.0.2");
    node.observe(Observation::PodAddress(
        peer(2),
        AssignedAddress {
            prefix_len: 24,
            ..assigned("10.0.1.2")
        },
    ));
    node.observe(unanswered_probe(2, "10.0.1.77"));
    assert!(node.anomaly_events().is_empty());
    // A pod with a host prefix has no subnet.
    node.observe(unanswered_probe(1, "10.9.9.9"));
    node.expect_anomalies(["raised gateway_unresolved 10.9.9.9"]);
}

#[test]
fn route_astray_is_raised_after_the_grace_period() {
    let mut node = synced_node();
    node.address(1, "10.0.0.2");
    node.route("10.0.0.2", 1);
    node.route_gone("10.0.0.2", 1);
    node.route("10.0.0.2", 2);
    node.wait_secs(4);
    assert!(node.anomaly_events().is_empty());
    node.wait_secs(2);
    node.expect_anomalies(["raised route_astray 10.0.0.2"]);
    node.route_gone("10.0.0.2", 2);
    node.route("10.0.0.2", 1);
    node.expect_anomalies(["resolved route_astray 10.0.0.2 route_right"]);
    // Without an earlier host route, a wider route proves nothing.
    node.address(2, "10.0.0.3");
    node.wait_secs(60);
    assert!(node.anomaly_events().is_empty());
}
