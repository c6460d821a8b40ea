//! Router advertisements of pods: one finding for each device, and how it ends.

use super::*;
use crate::anomaly_fixtures::*;

fn advertisement(ifindex: IfIndex, source: &str) -> Observation {
    Observation::RouterAdvertisement(RouterAdvertisement {
        ifindex,
        source: ip(source),
        vlan: Vlan::default(),
    })
}

#[test]
fn advertisement_of_a_pod_is_one_finding_of_its_device() {
    let mut node = synced_node();
    for source in ["fe80::1", "fe80::2", "fe80::1"] {
        node.observe(advertisement(1, source));
    }
    node.expect_anomalies(["raised rogue_router fe80::1"]);
    let open = node.engine.view().anomalies();
    assert_eq!(open[0].holder.as_ref().unwrap().ifindex, 1);
    node.observe(advertisement(2, "fe80::1"));
    node.expect_anomalies(["raised rogue_router fe80::1"]);
}

/// Routers advertise themselves at least every half hour.
#[test]
fn router_that_is_silent_for_half_an_hour_is_over() {
    let mut node = synced_node();
    node.observe(advertisement(1, "fe80::1"));
    node.wait_secs(1700);
    node.observe(advertisement(1, "fe80::2"));
    node.anomaly_events();
    node.wait_secs(1799);
    assert!(node.anomaly_events().is_empty());
    node.wait_secs(1);
    node.expect_anomalies(["resolved rogue_router fe80::1 quiet"]);
    assert!(node.engine.next_deadline().is_none());
}

#[test]
fn removed_router_is_over() {
    let mut node = synced_node();
    node.observe(advertisement(1, "fe80::1"));
    node.anomaly_events();
    node.remove_link(1);
    node.expect_anomalies(["resolved rogue_router fe80::1 device_gone"]);
}

#[test]
fn advertisement_before_the_first_snapshot_or_the_device_raises_nothing() {
    let mut node = Node::with_pods(1);
    node.observe(advertisement(1, "fe80::1"));
    assert!(node.anomaly_events().is_empty());
    let mut node = synced_node();
    node.observe(advertisement(99, "fe80::1"));
    assert!(node.anomaly_events().is_empty());
    assert_eq!(node.engine.view().drop_counters().unknown_device, 1);
}

/// Its next advertisement may come minutes later.
#[test]
fn router_stays_open_over_a_restart_without_an_advertisement() {
    let mut before = synced_node();
    before.observe(advertisement(1, "fe80::1"));
    let mut node = Node::new();
    node.engine
        .restore(Vec::new(), before.engine.view().anomalies());
    node.pod(1);
    node.pod(2);
    node.take_first_snapshot();
    node.wait_secs(1700);
    node.observe(advertisement(1, "fe80::3"));
    assert!(node.anomaly_events().is_empty());
    assert_eq!(
        node.engine.view().anomalies()[0].id,
        before.engine.view().anomalies()[0].id
    );
    node.wait_secs(1800);
    node.expect_anomalies(["resolved rogue_router fe80::1 quiet"]);
}
