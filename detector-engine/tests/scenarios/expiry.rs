//! How claims without a removal event expire (`docs/detection-rules.md`, 6).

use super::*;
use crate::anomaly_fixtures::*;

#[test]
fn frame_only_claim_expires() {
    let mut node = Node::with_pods(2);
    node.frame(1, "10.0.0.1");
    node.wait_secs(300);
    node.frame(2, "10.0.0.1");
    node.conflict_events();
    node.wait_secs(299);
    assert!(node.conflict_events().is_empty());
    node.wait_secs(2);
    node.expect(["resolved 10.0.0.1 duplicate observed: veth2 left veth1(expired)"]);
    node.wait_secs(300);
    assert!(node.engine.view().addresses().is_empty());
    assert!(node.engine.next_deadline().is_none());
}

#[test]
fn repeated_frame_keeps_the_claim_alive() {
    let mut node = Node::with_pods(2);
    for _ in 0..5 {
        node.frames([1, 2], "10.0.0.1");
        node.wait_secs(590);
    }
    assert_eq!(node.conflict_events().len(), 1);
}

#[test]
fn claim_ttl_setting_is_applied() {
    let mut node = Node::with_settings(Settings {
        claim_ttl: Duration::from_secs(5),
        ..Settings::default()
    });
    node.pod(1);
    node.frame(1, "10.0.0.1");
    node.wait_secs(4);
    assert_eq!(node.engine.view().addresses().len(), 1);
    node.wait_secs(1);
    assert!(node.engine.view().addresses().is_empty());
}

#[test]
fn assigned_address_keeps_frame_evidence_until_removed() {
    let mut node = Node::with_pods(2);
    for ifindex in 1..=2 {
        node.address(ifindex, "10.0.0.1");
        node.frame(ifindex, "10.0.0.1");
    }
    node.conflict_events();
    node.wait_secs(5000);
    assert!(node.conflict_events().is_empty());
    let open = node.engine.view().conflicts(node.now);
    assert_eq!(evidence_text(&open[0].claimants[0]), ["address", "arp"]);
    node.address_gone(1, "10.0.0.1");
    node.expect(["resolved 10.0.0.1 duplicate certain: veth2 left veth1(address_removed)"]);
}

#[test]
fn neighbour_entry_outlives_frame_evidence() {
    let mut node = Node::with_pods(2);
    node.address(2, "10.0.0.1");
    node.frame(1, "10.0.0.1");
    node.neighbour(1, "10.0.0.1", mac(1), NudState::Reachable);
    node.conflict_events();
    node.wait_secs(700);
    assert!(node.conflict_events().is_empty());
    node.neighbour_gone(1, "10.0.0.1");
    node.expect(["resolved 10.0.0.1 duplicate observed: veth2 left veth1(expired)"]);
}

#[test]
fn removed_device_leaves_no_scheduled_expiry() {
    let mut node = Node::with_pods(1);
    for n in 0..100 {
        node.frame(1, &format!("10.0.1.{n}"));
    }
    assert!(node.engine.next_deadline().is_some());
    node.remove_link(1);
    assert!(node.engine.next_deadline().is_none());
}

#[test]
fn early_expiry_changes_nothing() {
    let mut node = Node::with_observed_duplicate();
    node.conflict_events();
    for _ in 0..10 {
        node.tick();
        node.engine.step(
            node.now,
            TimedObservation::new(node.now, Observation::DeadlineReached),
            &mut node.effects,
        );
    }
    assert!(node.conflict_events().is_empty());
    node.wait_secs(600);
    assert_eq!(node.conflict_events().len(), 1);
}

#[test]
fn expired_claim_does_not_count_before_expire_runs() {
    let mut node = Node::with_pods(2);
    node.frame(1, "10.0.0.1");
    node.now = node.now + Duration::from_secs(601);
    node.frame(2, "10.0.0.1");
    assert!(node.conflict_events().is_empty());
}

#[test]
fn next_expiry_is_the_earliest_of_claims_and_anomalies() {
    let mut node = synced_node();
    node.frame(1, "10.0.0.1");
    let lapses = node.now + Duration::from_secs(600);
    node.observe(unanswered_probe(1, "169.254.1.1"));
    let looked_at = node.now + Duration::from_secs(60);
    assert_eq!(node.engine.next_deadline(), Some(looked_at));
    node.wait_secs(595);
    node.observe(unanswered_probe(1, "169.254.1.1"));
    assert_eq!(node.engine.next_deadline(), Some(lapses));
}
