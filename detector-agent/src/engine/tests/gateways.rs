//! Pods that ask in vain: what is taken for a gateway, when a pod is looked into, and how it ends.

use super::{
    anomalies::{answer, node, question},
    *,
};

/// A link-local address, which is always a gateway's.
const GATEWAY: &str = "169.254.1.1";

const RAISED: &str = "raised gateway_unresolved 169.254.1.1";
const LOOKED: &str = "look for 169.254.1.1";

fn tagged(ifindex: IfIndex, target: &str) -> Observation {
    let Observation::Question(question) = question(ifindex, target) else {
        panic!("a question");
    };
    Observation::Question(Question {
        vlan: Vlan {
            outer: Some(5),
            inner: None,
        },
        ..question
    })
}

fn inside(resolved: Option<bool>, is_gateway: bool) -> Option<Inside> {
    Some(Inside {
        resolved,
        is_gateway,
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

/// The pod asks, and its tables cannot be read.
fn asks(node: &mut Node, ifindex: IfIndex, target: &str) -> Vec<String> {
    node.tell(question(ifindex, target));
    answer(node, None);
    node.told_of_anomalies()
}

/// A node whose pod 1 was told to ask for its gateway in vain.
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
    assert_eq!(node.told_of_anomalies(), [LOOKED]);
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
fn a_pod_is_looked_into_once_at_a_time_and_not_again_while_it_is_open() {
    let mut node = node();
    node.tell(question(1, GATEWAY));
    node.tell(question(1, GATEWAY));
    assert_eq!(node.told_of_anomalies(), [LOOKED]);
    let mut node = unanswered();
    node.tell(question(1, GATEWAY));
    assert!(node.told_of_anomalies().is_empty());
}

#[test]
fn one_that_was_no_gateway_is_looked_into_with_the_next_question_and_not_before() {
    let mut node = node();
    on_subnet(&mut node, 1, "10.0.1.2", 24);
    assert!(asks(&mut node, 1, "10.0.1.77").is_empty());
    node.wait_secs(30);
    assert!(node.told_of_anomalies().is_empty());
    node.tell(question(1, "10.0.1.77"));
    assert_eq!(node.told_of_anomalies(), ["look for 10.0.1.77"]);
}

#[test]
fn a_tagged_question_is_judged_without_a_look() {
    let mut node = node();
    node.tell(tagged(1, GATEWAY));
    assert_eq!(node.told_of_anomalies(), [RAISED]);
    node.wait_secs(59);
    assert!(node.told_of_anomalies().is_empty(), "nor looked into later");
}

#[test]
fn what_a_route_of_the_pod_leads_by_is_a_gateway_also_on_its_subnet() {
    for (is_gateway, raised) in [(true, 1), (false, 0)] {
        let mut node = node();
        on_subnet(&mut node, 1, "10.0.1.2", 24);
        node.tell(question(1, "10.0.1.77"));
        answer(&mut node, inside(None, is_gateway));
        assert_eq!(node.told_of_anomalies().len(), raised);
    }
}

#[test]
fn the_report_says_so_where_the_pod_itself_knows_no_answer() {
    for (resolved, confirmed) in [(Some(false), true), (None, false)] {
        let mut node = node();
        node.tell(question(1, GATEWAY));
        answer(&mut node, inside(resolved, true));
        let open = node.engine.anomalies();
        assert_eq!(
            open[0].detail.contains("has no neighbour entry"),
            confirmed,
            "{}",
            open[0].detail
        );
    }
    let mut node = node();
    assert_eq!(asks(&mut node, 1, GATEWAY).len(), 1);
    assert!(!node.engine.anomalies()[0].detail.contains("no neighbour"));
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
    assert_eq!(node.told_of_anomalies(), [LOOKED]);
    node.wait(Duration::from_millis(1));
    assert_eq!(
        node.told_of_anomalies(),
        ["resolved gateway_unresolved 169.254.1.1 quiet"]
    );
    assert!(node.engine.next_expiry().is_none());
    node.tell(question(1, GATEWAY));
    assert_eq!(node.told_of_anomalies(), [LOOKED], "it starts anew");
}

#[test]
fn while_a_pod_asks_on_it_is_not_looked_into() {
    let mut node = unanswered();
    for _ in 0..3 {
        node.wait_secs(6);
        node.tell(question(1, GATEWAY));
    }
    assert!(node.told_of_anomalies().is_empty());
}

#[test]
fn a_silent_pod_is_looked_into_every_ten_seconds_as_long_as_it_knows_no_answer() {
    let mut node = unanswered();
    for _ in 0..3 {
        node.wait_secs(10);
        let looks = node.effects.len();
        answer(&mut node, inside(Some(false), true));
        assert_eq!(looks, 1);
        assert!(node.told_of_anomalies().is_empty());
    }
    node.wait_secs(10);
    answer(&mut node, inside(Some(true), true));
    assert_eq!(
        node.told_of_anomalies(),
        ["resolved gateway_unresolved 169.254.1.1 answered"]
    );
    node.wait_secs(10);
    assert!(
        node.engine.next_expiry().is_none(),
        "it is followed no more"
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
    node.wait_secs(10);
    assert!(
        node.engine.next_expiry().is_none(),
        "it is followed no more"
    );
}

#[test]
fn who_asked_last_and_how_often_is_told() {
    let mut node = node();
    node.tell(question(1, GATEWAY));
    node.tell(Observation::Question(Question {
        ifindex: 1,
        target: ip(GATEWAY),
        asker: ip("10.0.0.77"),
        vlan: Vlan::default(),
        times: 9,
    }));
    answer(&mut node, None);
    let detail = &node.engine.anomalies()[0].detail;
    assert!(detail.contains("9 times"), "{detail}");
    assert!(detail.contains("as 10.0.0.77"), "{detail}");
}

#[test]
fn no_more_than_4096_are_followed_and_those_that_are_go_on() {
    let mut node = node();
    let nth = |n: u16| {
        let [high, low] = n.to_be_bytes();
        IpAddr::from([10, 9, high, low]).to_string()
    };
    for n in 0..4095 {
        asks(&mut node, 1, &nth(n));
    }
    for (n, looks) in [(4095, 1), (4096, 0), (0, 1)] {
        node.tell(question(1, &nth(n)));
        assert_eq!(node.told_of_anomalies().len(), looks, "{n}");
    }
}

#[test]
fn each_pod_is_looked_into_for_what_it_asks_itself() {
    let mut node = unanswered();
    node.tell_at(node.now, question(2, "169.254.1.2"));
    answer(&mut node, None);
    node.effects.clear();
    node.wait_secs(11);
    assert_eq!(node.told_of_anomalies(), [LOOKED, "look for 169.254.1.2"]);
}
