//! Changes of a pod's addresses beyond the budget of its device (`docs/detection-rules.md`, 9).

use detector_common::Budget;

use super::*;

const BURST: u8 = 4;

/// Pods 1 and 2 with a budget of four changes at once; pod 2 has 10.0.0.200.
fn node() -> Node {
    let mut node = Node::with_bounds(Bounds {
        address_changes: Budget::new(BURST.into(), 1),
        contested_address_changes: Budget::new(2, 1),
        ..Bounds::default()
    });
    node.pod(1);
    node.pod(2);
    node.address(2, "10.0.0.200");
    node.device_effects();
    node
}

/// Pod 1 adds `count` addresses.
fn flood(node: &mut Node, count: u8) {
    for n in 0..count {
        node.address(1, &format!("10.0.0.{n}"));
    }
}

#[test]
fn changes_beyond_the_budget_are_counted_and_read_later() {
    let mut node = node();
    flood(&mut node, BURST + 3);
    assert_eq!(node.engine.view().drop_counters().address_changes, 3);
    assert_eq!(
        node.device_effects(),
        ["bound of veth1: changes of the addresses of a pod device in a second"]
    );
    node.wait_secs(1);
    assert_eq!(node.device_effects(), ["read veth1#1"]);
    node.read_pod_addresses(1, &["10.0.0.6"]);
    assert_eq!(node.engine.view().addresses().len(), 2);
    node.wait_secs(100);
    assert!(node.device_effects().is_empty());
}

#[test]
fn device_that_always_exceeds_its_budget_is_read_every_eight_seconds() {
    let mut node = node();
    let mut reads = 0;
    for _ in 0..64 {
        flood(&mut node, 2 * BURST);
        node.wait_secs(1);
        let effects = node.device_effects();
        if effects.iter().any(|e| e == "read veth1#1") {
            reads += 1;
            node.read_pod_addresses(1, &[]);
        }
    }
    // Each of the first eight, and then each 8 seconds.
    assert!((14..=16).contains(&reads), "{reads}");
}

#[test]
fn contested_address_inside_a_flood_conflicts_at_once() {
    let mut node = node();
    flood(&mut node, 100);
    node.address(1, "10.0.0.200");
    node.expect(["raised 10.0.0.200 duplicate certain: veth2 veth1"]);
    node.address_gone(1, "10.0.0.200");
    node.expect(["resolved 10.0.0.200 duplicate certain: veth2 left veth1(address_removed)"]);
    // Nor are these without limit.
    node.address(1, "10.0.0.200");
    assert!(node.conflict_events().is_empty());
    node.wait_secs(1);
    node.read_pod_addresses(1, &["10.0.0.200"]);
    node.expect(["raised 10.0.0.200 duplicate certain: veth2 veth1"]);
}

#[test]
fn flood_of_one_pod_leaves_the_others_their_budget() {
    let mut node = node();
    flood(&mut node, 100);
    node.address(2, "10.0.0.0");
    node.expect(["raised 10.0.0.0 duplicate certain: veth1 veth2"]);
}

#[test]
fn conflicts_that_a_change_has_decided_again_count_as_changes() {
    let mut node = node();
    for n in 1..BURST {
        node.frames(1..=2, &format!("10.0.0.{n}"));
    }
    node.wait_secs(60);
    node.effects.clear();
    // The first address of its namespace.
    node.address(1, "10.0.0.201");
    node.address_gone(1, "10.0.0.201");
    assert_eq!(node.engine.view().drop_counters().address_changes, 1);
    node.wait_secs(1);
    assert_eq!(
        node.device_effects().last().map(String::as_str),
        Some("read veth1#1")
    );
}
