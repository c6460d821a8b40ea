//! Rule 6: how a claim ends that nobody says the end of.

use super::{
    anomalies::{node, question},
    *,
};

#[test]
fn a_claim_that_was_only_heard_lapses() {
    let mut node = Node::with_pods(2);
    node.frame(1, "10.0.0.1");
    node.wait_secs(300);
    node.frame(2, "10.0.0.1");
    node.said();
    node.wait_secs(299);
    assert!(node.said().is_empty());
    node.wait_secs(2);
    assert_eq!(
        node.said(),
        ["resolved 10.0.0.1 duplicate observed: veth2 left veth1(expired)"]
    );
    node.wait_secs(300);
    assert!(node.engine.addresses().is_empty());
    assert!(node.engine.next_expiry().is_none());
}

#[test]
fn a_claim_heard_again_lives_on() {
    let mut node = Node::with_pods(2);
    for _ in 0..5 {
        node.frame(1, "10.0.0.1");
        node.frame(2, "10.0.0.1");
        node.wait_secs(590);
    }
    assert_eq!(node.said().len(), 1);
}

#[test]
fn the_time_to_live_is_the_operators() {
    let mut node = Node::with(Settings {
        claim_ttl: Duration::from_secs(5),
        ..Settings::default()
    });
    node.pod(1);
    node.frame(1, "10.0.0.1");
    node.wait_secs(4);
    assert_eq!(node.engine.addresses().len(), 1);
    node.wait_secs(1);
    assert!(node.engine.addresses().is_empty());
}

#[test]
fn an_assigned_address_keeps_what_was_heard_alive_until_it_is_removed() {
    let mut node = Node::with_pods(2);
    for ifindex in 1..=2 {
        node.address(ifindex, "10.0.0.1");
        node.frame(ifindex, "10.0.0.1");
    }
    node.said();
    node.wait_secs(5000);
    assert!(node.said().is_empty());
    let open = node.engine.conflicts(node.now);
    assert_eq!(evidence(&open[0].claimants[0]), ["address", "arp"]);
    node.address_gone(1, "10.0.0.1");
    assert_eq!(
        node.said(),
        ["resolved 10.0.0.1 duplicate certain: veth2 left veth1(address_removed)"]
    );
}

#[test]
fn a_neighbour_entry_keeps_a_claim_that_was_heard() {
    let mut node = Node::with_pods(2);
    node.address(2, "10.0.0.1");
    node.frame(1, "10.0.0.1");
    node.neighbour(1, "10.0.0.1", mac(1), NudState::Reachable);
    node.said();
    node.wait_secs(700);
    assert!(node.said().is_empty());
    node.neighbour_gone(1, "10.0.0.1");
    assert_eq!(
        node.said(),
        ["resolved 10.0.0.1 duplicate observed: veth2 left veth1(expired)"]
    );
}

#[test]
fn nothing_is_planned_for_addresses_that_are_forgotten() {
    let mut node = Node::with_pods(1);
    for n in 0..100 {
        node.frame(1, &format!("10.0.1.{n}"));
    }
    assert!(node.engine.next_expiry().is_some());
    node.gone(1);
    assert!(node.engine.next_expiry().is_none());
}

#[test]
fn an_early_expiry_changes_nothing() {
    let mut node = Node::with_pods(2);
    node.frame(1, "10.0.0.1");
    node.frame(2, "10.0.0.1");
    node.said();
    for _ in 0..10 {
        node.now.0 += MS;
        node.engine.expire(node.now, &mut node.effects);
    }
    assert!(node.said().is_empty());
    node.wait_secs(600);
    assert_eq!(node.said().len(), 1);
}

#[test]
fn what_is_over_counts_no_more_before_it_is_looked_at() {
    let mut node = Node::with_pods(2);
    node.frame(1, "10.0.0.1");
    node.now = node.now + Duration::from_secs(601);
    node.frame(2, "10.0.0.1");
    assert!(node.said().is_empty());
}

#[test]
fn whichever_comes_first_is_the_next_to_look_at() {
    let mut node = node();
    node.frame(1, "10.0.0.1");
    let lapses = node.now + Duration::from_secs(600);
    node.tell(question(1, "169.254.1.1"));
    let looked_at = node.now + Duration::from_secs(60);
    assert_eq!(node.engine.next_expiry(), Some(looked_at));
    node.wait_secs(595);
    node.tell(question(1, "169.254.1.1"));
    assert_eq!(node.engine.next_expiry(), Some(lapses));
}
