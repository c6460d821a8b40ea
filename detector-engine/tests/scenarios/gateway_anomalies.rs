//! Unanswered probes: which address counts as a gateway, and how the anomaly ends.

use super::*;
use crate::anomaly_fixtures::*;

/// A link-local address, which always counts as a gateway.
const GATEWAY: &str = "169.254.1.1";

const RAISED: &str = "raised gateway_unresolved 169.254.1.1";

fn tagged_probe(ifindex: IfIndex, target: &str) -> Observation {
    let Observation::UnansweredProbe(probe) = unanswered_probe(ifindex, target) else {
        panic!("an unanswered probe");
    };
    Observation::UnansweredProbe(UnansweredProbe {
        vlan: Vlan {
            outer: Some(5),
            inner: None,
        },
        ..probe
    })
}

/// Assigns the address to the pod with this prefix length.
fn on_subnet(node: &mut Node, ifindex: IfIndex, address: &str, prefix_len: u8) {
    let info = assigned_with_prefix(address, prefix_len);
    node.observe(Observation::PodAddress(peer(ifindex), info));
}

/// The anomaly events after an unanswered probe.
fn probe_gateway(node: &mut Node, ifindex: IfIndex, target: &str) -> Vec<String> {
    node.observe(unanswered_probe(ifindex, target));
    node.anomaly_events()
}

/// A node whose pod 1 gets no answer from its gateway; the event is consumed.
fn gateway_unresolved() -> Node {
    let mut node = synced_node();
    assert_eq!(probe_gateway(&mut node, 1, GATEWAY), [RAISED]);
    node
}

#[test]
fn probe_older_than_its_device_is_only_counted() {
    let mut node = synced_node();
    node.pod(3);
    let since = node.now;
    node.tick();
    node.observe_at(Timestamp(since.0 - 1), unanswered_probe(3, GATEWAY));
    node.observe(unanswered_probe(99, GATEWAY));
    assert!(node.anomaly_events().is_empty());
    assert_eq!(node.engine.view().drop_counters().unknown_device, 2);
    node.observe_at(since, unanswered_probe(3, GATEWAY));
    assert_eq!(node.anomaly_events(), [RAISED]);
    assert_eq!(node.engine.view().drop_counters().unknown_device, 2);
}

#[test]
fn probe_before_the_first_snapshot_raises_nothing() {
    let mut node = Node::with_pods(1);
    node.observe(unanswered_probe(1, GATEWAY));
    node.observe(tagged_probe(1, GATEWAY));
    assert!(node.anomaly_events().is_empty());
}

#[test]
fn probe_for_an_unownable_address_raises_nothing() {
    let mut node = synced_node();
    for target in ["0.0.0.0", "224.0.0.1"] {
        node.observe(unanswered_probe(1, target));
    }
    assert!(node.anomaly_events().is_empty());
}

#[test]
fn open_anomaly_is_not_raised_again() {
    let mut node = synced_node();
    node.observe(unanswered_probe(1, GATEWAY));
    node.observe(unanswered_probe(1, GATEWAY));
    assert_eq!(node.anomaly_events(), [RAISED]);
    node.observe(unanswered_probe(1, GATEWAY));
    assert!(node.anomaly_events().is_empty());
}

#[test]
fn new_gateway_address_counts_from_the_next_probe() {
    let mut node = synced_node();
    on_subnet(&mut node, 1, "10.0.1.2", 24);
    assert!(probe_gateway(&mut node, 1, "10.0.1.77").is_empty());
    node.link(uplink(9));
    node.host(9, "10.0.1.77");
    node.wait_secs(30);
    assert!(node.anomaly_events().is_empty());
    assert_eq!(
        probe_gateway(&mut node, 1, "10.0.1.77"),
        ["raised gateway_unresolved 10.0.1.77"]
    );
}

#[test]
fn tagged_probe_is_judged_as_an_untagged_one() {
    let mut node = synced_node();
    node.observe(tagged_probe(1, GATEWAY));
    assert_eq!(node.anomaly_events(), [RAISED]);
    node.wait_secs(59);
    assert!(node.anomaly_events().is_empty());
}

#[test]
fn host_address_on_the_pods_subnet_is_a_gateway() {
    let mut node = synced_node();
    node.link(uplink(9));
    node.host(9, "10.0.1.1");
    on_subnet(&mut node, 1, "10.0.1.2", 24);
    on_subnet(&mut node, 2, "10.0.1.3", 24);
    assert_eq!(
        probe_gateway(&mut node, 1, "10.0.1.1"),
        ["raised gateway_unresolved 10.0.1.1"]
    );
    assert!(
        probe_gateway(&mut node, 1, "10.0.1.3").is_empty(),
        "address of another pod"
    );
}

#[test]
fn pod_without_known_addresses_has_only_link_local_gateways() {
    let mut node = synced_node();
    node.address_gone(1, "10.7.0.1");
    assert!(probe_gateway(&mut node, 1, "10.9.9.9").is_empty());
    // Addresses of the other family prove nothing either.
    on_subnet(&mut node, 1, "2001:db8::1", 64);
    assert!(probe_gateway(&mut node, 1, "10.9.9.9").is_empty());
    // Nothing is known about a pod without a visible peer.
    node.link(pod_without_peer(3));
    node.observe(unanswered_probe(3, "10.9.9.9"));
    assert!(node.anomaly_events().is_empty());
    node.observe(unanswered_probe(3, GATEWAY));
    assert_eq!(node.anomaly_events(), [RAISED]);
}

/// A pod with a route to its link asks for these itself, in addition to its gateway.
#[test]
fn service_on_the_link_is_no_gateway() {
    let mut node = synced_node();
    on_subnet(&mut node, 1, "10.0.1.2", 32);
    on_subnet(&mut node, 1, "2001:db8::2", 128);
    // NodeLocal DNSCache has its address on a dummy of the node.
    node.link(uplink(9));
    node.host(9, "169.254.20.10");
    node.host(9, "169.254.169.254");
    for service in [
        "169.254.169.254",
        "169.254.169.253",
        "169.254.170.23",
        "169.254.20.10",
        "168.63.129.16",
        "100.100.100.200",
        "fe80::a9fe:a9fe",
        "fd00:ec2::254",
        "fd20:ce::254",
    ] {
        let events = probe_gateway(&mut node, 1, service);
        assert!(events.is_empty(), "{events:?}");
    }
    assert_eq!(probe_gateway(&mut node, 1, GATEWAY), [RAISED]);
    assert_eq!(
        probe_gateway(&mut node, 1, "fe80::1"),
        ["raised gateway_unresolved fe80::1"]
    );
}

#[test]
fn node_on_the_pods_link_local_subnet_is_a_gateway() {
    let mut node = synced_node();
    node.link(uplink(9));
    node.host(9, "169.254.172.1");
    on_subnet(&mut node, 1, "169.254.172.7", 22);
    assert_eq!(
        probe_gateway(&mut node, 1, "169.254.172.1"),
        ["raised gateway_unresolved 169.254.172.1"]
    );
    assert!(probe_gateway(&mut node, 1, "169.254.172.9").is_empty());
}

#[test]
fn subnet_is_per_pod_even_for_a_shared_address() {
    let mut node = synced_node();
    on_subnet(&mut node, 1, "10.0.1.2", 32);
    on_subnet(&mut node, 2, "10.0.1.2", 24);
    assert!(probe_gateway(&mut node, 2, "10.0.1.77").is_empty());
}

#[test]
fn anomaly_resolves_after_a_quiet_minute() {
    let mut node = gateway_unresolved();
    node.wait(Duration::from_millis(59_999));
    assert!(node.anomaly_events().is_empty());
    node.wait(Duration::from_millis(1));
    node.expect_anomalies(["resolved gateway_unresolved 169.254.1.1 quiet"]);
    assert!(node.engine.next_deadline().is_none());
    node.observe(unanswered_probe(1, GATEWAY));
    assert_eq!(node.anomaly_events(), [RAISED], "raised again");
}

#[test]
fn anomaly_stays_open_while_probes_continue() {
    let mut node = gateway_unresolved();
    for _ in 0..3 {
        node.wait_secs(59);
        node.observe(unanswered_probe(1, GATEWAY));
    }
    assert!(node.anomaly_events().is_empty());
    node.wait_secs(60);
    node.expect_anomalies(["resolved gateway_unresolved 169.254.1.1 quiet"]);
}

#[test]
fn replaced_device_resolves_the_anomaly() {
    let mut node = gateway_unresolved();
    node.observe(Observation::NotificationsLost);
    node.link(renamed(pod(1), "vethX"));
    node.expect_anomalies(["resolved gateway_unresolved 169.254.1.1 device_gone"]);
    node.wait_secs(60);
    assert!(node.engine.next_deadline().is_none(), "no longer tracked");
}

#[test]
fn detail_names_sender_and_probe_count() {
    let mut node = synced_node();
    node.observe(Observation::UnansweredProbe(UnansweredProbe {
        ifindex: 1,
        target: ip(GATEWAY),
        sender: ip("10.0.0.77"),
        vlan: Vlan::default(),
        count: 9,
    }));
    let detail = &node.engine.view().anomalies()[0].detail;
    assert!(detail.contains("9 times"), "{detail}");
    assert!(detail.contains("as 10.0.0.77"), "{detail}");
}

/// Frames show that the pod asks, never that nothing answered.
#[test]
fn finding_does_not_say_that_there_is_no_answer() {
    let node = gateway_unresolved();
    let anomalies = node.engine.view().anomalies();
    assert_eq!(anomalies[0].cause, AnomalyCause::RepeatedRequests);
    let detail = &anomalies[0].detail;
    assert!(detail.contains("again and again"), "{detail}");
    assert!(!detail.contains("answer"), "{detail}");
}

#[test]
fn at_most_64_gateways_of_one_device_are_tracked() {
    let mut node = synced_node();
    on_subnet(&mut node, 1, "10.0.1.2", 32);
    on_subnet(&mut node, 2, "10.0.1.3", 32);
    let nth = |n: u16| {
        let [high, low] = n.to_be_bytes();
        IpAddr::from([10, 9, high, low]).to_string()
    };
    for n in 0..64 {
        assert_eq!(probe_gateway(&mut node, 1, &nth(n)).len(), 1, "{n}");
    }
    assert!(probe_gateway(&mut node, 1, &nth(64)).is_empty());
    assert_eq!(probe_gateway(&mut node, 2, &nth(64)).len(), 1);
    // Those already tracked stay tracked.
    node.wait_secs(50);
    node.observe(unanswered_probe(1, &nth(0)));
    node.wait_secs(15);
    let events = node.anomaly_events();
    assert_eq!(events.len(), 64);
    assert!(!events.contains(&format!("resolved gateway_unresolved {} quiet", nth(0))));
}

#[test]
fn quiet_time_is_per_pod() {
    let mut node = gateway_unresolved();
    node.wait_secs(30);
    assert_eq!(probe_gateway(&mut node, 2, GATEWAY), [RAISED]);
    node.wait_secs(30);
    node.expect_anomalies(["resolved gateway_unresolved 169.254.1.1 quiet"]);
    assert_eq!(node.engine.view().anomalies().len(), 1);
    node.wait_secs(30);
    assert!(node.engine.view().anomalies().is_empty());
}
