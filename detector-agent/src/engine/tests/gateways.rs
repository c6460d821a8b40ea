//! Pods whose requests get no answer: which address counts as a gateway, and how the anomaly ends.

use super::{
    anomalies::{node, question},
    *,
};

/// A link-local address, which is always a gateway's.
const GATEWAY: &str = "169.254.1.1";

const RAISED: &str = "raised gateway_unresolved 169.254.1.1";

fn tagged(ifindex: IfIndex, target: &str) -> Observation {
    let Observation::UnansweredProbe(question) = question(ifindex, target) else {
        panic!("a question");
    };
    Observation::UnansweredProbe(UnansweredProbe {
        vlan: Vlan {
            outer: Some(5),
            inner: None,
        },
        ..question
    })
}

/// The pod has this address, with this prefix length.
fn on_subnet(node: &mut Node, ifindex: IfIndex, address: &str, prefix_len: u8) {
    let info = AssignedAddress {
        prefix_len,
        ..assigned(address)
    };
    node.tell(Observation::PodAddress(peer(ifindex), info));
}

/// The pod requests the address again and again.
fn asks(node: &mut Node, ifindex: IfIndex, target: &str) -> Vec<String> {
    node.tell(question(ifindex, target));
    node.told_of_anomalies()
}

/// A node whose pod 1 gets no answer from its gateway.
fn unanswered() -> Node {
    let mut node = node();
    assert_eq!(asks(&mut node, 1, GATEWAY), [RAISED]);
    node
}

#[test]
fn a_question_from_before_its_device_is_counted_and_says_nothing() {
    let mut node = node();
    node.pod(3);
    let since = node.now;
    node.now.0 += MS;
    node.tell_at(Timestamp(since.0 - 1), question(3, GATEWAY));
    node.tell(question(99, GATEWAY));
    assert!(node.told_of_anomalies().is_empty());
    assert_eq!(node.engine.drop_counters().unknown_device, 2);
    node.tell_at(since, question(3, GATEWAY));
    assert_eq!(node.told_of_anomalies(), [RAISED]);
    assert_eq!(node.engine.drop_counters().unknown_device, 2);
}

#[test]
fn before_everything_was_read_a_question_says_nothing() {
    let mut node = Node::with_pods(1);
    node.tell(question(1, GATEWAY));
    node.tell(tagged(1, GATEWAY));
    assert!(node.told_of_anomalies().is_empty());
}

#[test]
fn a_question_for_what_nobody_can_have_says_nothing() {
    let mut node = node();
    for target in ["0.0.0.0", "224.0.0.1"] {
        node.tell(question(1, target));
    }
    assert!(node.told_of_anomalies().is_empty());
}

#[test]
fn an_open_anomaly_is_not_raised_again() {
    let mut node = node();
    node.tell(question(1, GATEWAY));
    node.tell(question(1, GATEWAY));
    assert_eq!(node.told_of_anomalies(), [RAISED]);
    node.tell(question(1, GATEWAY));
    assert!(node.told_of_anomalies().is_empty());
}

#[test]
fn an_address_that_becomes_a_gateway_counts_from_the_next_request() {
    let mut node = node();
    on_subnet(&mut node, 1, "10.0.1.2", 24);
    assert!(asks(&mut node, 1, "10.0.1.77").is_empty());
    node.link(uplink(9));
    node.host(9, "10.0.1.77");
    node.wait_secs(30);
    assert!(node.told_of_anomalies().is_empty());
    assert_eq!(
        asks(&mut node, 1, "10.0.1.77"),
        ["raised gateway_unresolved 10.0.1.77"]
    );
}

#[test]
fn a_tagged_question_is_judged_as_an_untagged_one() {
    let mut node = node();
    node.tell(tagged(1, GATEWAY));
    assert_eq!(node.told_of_anomalies(), [RAISED]);
    node.wait_secs(59);
    assert!(node.told_of_anomalies().is_empty());
}

#[test]
fn the_nodes_own_address_is_a_gateway_also_on_the_pods_subnet() {
    let mut node = node();
    node.link(uplink(9));
    node.host(9, "10.0.1.1");
    on_subnet(&mut node, 1, "10.0.1.2", 24);
    on_subnet(&mut node, 2, "10.0.1.3", 24);
    assert_eq!(
        asks(&mut node, 1, "10.0.1.1"),
        ["raised gateway_unresolved 10.0.1.1"]
    );
    assert!(asks(&mut node, 1, "10.0.1.3").is_empty(), "another pod's");
}

#[test]
fn of_a_pod_whose_addresses_are_not_known_only_a_link_local_target_is_a_gateway() {
    let mut node = node();
    assert!(asks(&mut node, 1, "10.9.9.9").is_empty());
    // Of its addresses of the other family nothing follows either.
    on_subnet(&mut node, 1, "2001:db8::1", 64);
    assert!(asks(&mut node, 1, "10.9.9.9").is_empty());
    // Nor is anything known of a pod without an end that the node sees.
    node.link(Link {
        peer: None,
        ..pod(3)
    });
    node.tell(question(3, "10.9.9.9"));
    assert!(node.told_of_anomalies().is_empty());
    node.tell(question(3, GATEWAY));
    assert_eq!(node.told_of_anomalies(), [RAISED]);
}

#[test]
fn a_pods_subnet_is_its_own_also_where_another_has_the_same_address() {
    let mut node = node();
    on_subnet(&mut node, 1, "10.0.1.2", 32);
    on_subnet(&mut node, 2, "10.0.1.2", 24);
    assert!(asks(&mut node, 2, "10.0.1.77").is_empty());
}

#[test]
fn a_pod_that_asks_no_more_for_a_minute_is_done() {
    let mut node = unanswered();
    node.wait(Duration::from_millis(59_999));
    assert!(node.told_of_anomalies().is_empty());
    node.wait(Duration::from_millis(1));
    assert_eq!(
        node.told_of_anomalies(),
        ["resolved gateway_unresolved 169.254.1.1 quiet"]
    );
    assert!(node.engine.next_expiry().is_none());
    node.tell(question(1, GATEWAY));
    assert_eq!(node.told_of_anomalies(), [RAISED], "it starts again");
}

#[test]
fn the_anomaly_stays_open_while_the_pod_keeps_requesting() {
    let mut node = unanswered();
    for _ in 0..3 {
        node.wait_secs(59);
        node.tell(question(1, GATEWAY));
    }
    assert!(node.told_of_anomalies().is_empty());
    node.wait_secs(60);
    assert_eq!(
        node.told_of_anomalies(),
        ["resolved gateway_unresolved 169.254.1.1 quiet"]
    );
}

#[test]
fn another_device_of_the_same_index_does_not_ask() {
    let mut node = unanswered();
    node.link(Link {
        name: "vethX".to_owned(),
        ..pod(1)
    });
    assert_eq!(
        node.told_of_anomalies(),
        ["resolved gateway_unresolved 169.254.1.1 device_gone"]
    );
    node.wait_secs(60);
    assert!(
        node.engine.next_expiry().is_none(),
        "it is followed no more"
    );
}

#[test]
fn the_report_names_the_asker_and_how_often_it_asked() {
    let mut node = node();
    node.tell(Observation::UnansweredProbe(UnansweredProbe {
        ifindex: 1,
        target: ip(GATEWAY),
        sender: ip("10.0.0.77"),
        vlan: Vlan::default(),
        count: 9,
    }));
    let detail = &node.engine.anomalies()[0].detail;
    assert!(detail.contains("9 times"), "{detail}");
    assert!(detail.contains("as 10.0.0.77"), "{detail}");
}

#[test]
fn no_more_than_4096_gateways_are_followed() {
    let mut node = node();
    on_subnet(&mut node, 1, "10.0.1.2", 32);
    let nth = |n: u16| {
        let [high, low] = n.to_be_bytes();
        IpAddr::from([10, 9, high, low]).to_string()
    };
    for n in 0..4096 {
        assert_eq!(asks(&mut node, 1, &nth(n)).len(), 1, "{n}");
    }
    assert!(asks(&mut node, 1, &nth(4096)).is_empty());
    // Those that are followed still are.
    node.wait_secs(50);
    node.tell(question(1, &nth(0)));
    node.wait_secs(15);
    let told = node.told_of_anomalies();
    assert_eq!(told.len(), 4095);
    assert!(!told.contains(&format!("resolved gateway_unresolved {} quiet", nth(0))));
}

#[test]
fn each_pod_is_quiet_by_its_own_requests() {
    let mut node = unanswered();
    node.wait_secs(30);
    assert_eq!(asks(&mut node, 2, GATEWAY), [RAISED]);
    node.wait_secs(30);
    assert_eq!(
        node.told_of_anomalies(),
        ["resolved gateway_unresolved 169.254.1.1 quiet"]
    );
    assert_eq!(node.engine.anomalies().len(), 1);
    node.wait_secs(30);
    assert!(node.engine.anomalies().is_empty());
}
