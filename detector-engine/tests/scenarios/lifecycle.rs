//! The lifecycle of a conflict: its times, its identity, and who is listed as having left.

use std::collections::HashSet;

use super::*;

#[test]
fn conflict_ids_are_unique_in_both_halves() {
    let mut halves = HashSet::new();
    for id_seed in 1..=4 {
        let mut node = Node::with_settings(Settings {
            id_seed,
            ..Settings::default()
        });
        for ifindex in 1..=2 {
            node.pod(ifindex);
            for last in 1..=4 {
                node.address(ifindex, &format!("10.0.0.{last}"));
            }
        }
        let raised = node.reported_conflicts();
        assert_eq!(raised.len(), 4, "seed {id_seed}");
        for ConflictId(id) in raised.iter().map(|conflict| conflict.id) {
            let unique = halves.insert(id >> 64) && halves.insert(id & u128::from(u64::MAX));
            assert!(unique, "seed {id_seed}: {id:032x}");
        }
    }
}

#[test]
fn only_reported_updates_change_the_times() {
    let mut node = Node::with_pods(3);
    node.addresses([1, 2], "10.0.0.1");
    let raised = node.reported_conflicts().remove(0);
    node.wait_secs(5);
    let sent_at = node.now;
    node.tick();
    node.observe_at(sent_at, Observation::Frame(frame(3, "10.0.0.1")));
    let updated = node.reported_conflicts().remove(0);
    assert_eq!(updated.raised_at, raised.raised_at);
    assert_eq!(
        (updated.updated_at, updated.decided_at),
        (node.now, sent_at)
    );
    node.wait_secs(5);
    node.neighbour(3, "10.0.0.1", mac(3), NudState::Reachable);
    assert!(node.conflict_events().is_empty());
    let open = node.engine.view().conflicts(node.now).remove(0);
    assert_eq!(open.updated_at, updated.updated_at);
    assert_eq!(open.decided_at, updated.decided_at);
}

#[test]
fn resolution_carries_the_time_of_its_cause() {
    let mut node = Node::with_duplicate();
    node.conflict_events();
    node.wait_secs(5);
    let gone = node.now;
    node.tick();
    node.observe_at(gone, Observation::LinkGone(2));
    let resolved = node.reported_conflicts().remove(0);
    assert_eq!(resolved.decided_at, gone);
    assert_eq!(resolved.updated_at, node.now);
    assert_eq!(resolved.resolved_at, Some(node.now));
}

#[test]
fn leave_reason_is_not_overwritten_by_later_changes() {
    let mut node = Node::with_pods(4);
    node.addresses(1..=4, "10.0.0.1");
    node.address_gone(1, "10.0.0.1");
    node.remove_link(1);
    node.conflict_events();
    node.remove_link(2);
    node.expect(["updated 10.0.0.1 duplicate certain: veth3 veth4 left veth1(address_removed) left veth2(device_removed)"]);
}

#[test]
fn newest_departed_claimants_are_listed() {
    let mut node = Node::with_bounds(Bounds {
        claimants_per_conflict: 2,
        ..Bounds::default()
    });
    for ifindex in 1..=5 {
        node.pod(ifindex);
        node.address(ifindex, "10.0.0.1");
    }
    for ifindex in 1..=3 {
        node.remove_link(ifindex);
    }
    assert_eq!(
        node.conflict_events().last().map(String::as_str),
        Some(
            "updated 10.0.0.1 duplicate certain: veth4 veth5 left veth2(device_removed) left veth3(device_removed)"
        )
    );
}

#[test]
fn conflicts_are_listed_by_age_and_addresses_once() {
    let mut node = Node::with_pods(2);
    for address in ["10.0.0.7", "10.0.0.3", "10.0.0.5"] {
        node.frames([1, 2], address);
    }
    node.observe(tagged(1, "10.0.0.3"));
    node.observe(tagged(2, "10.0.0.3"));
    node.expect_open([
        "10.0.0.7 duplicate observed: veth1 veth2",
        "10.0.0.3 duplicate observed: veth1 veth2",
        "10.0.0.5 duplicate observed: veth1 veth2",
        "10.0.0.3@5 duplicate observed: veth1 veth2",
    ]);
    assert_eq!(
        node.engine.view().conflict_addresses(),
        ["10.0.0.7", "10.0.0.3", "10.0.0.5"].map(ip)
    );
    assert_eq!(node.engine.view().addresses().len(), 3);
}

#[test]
fn claimant_behind_a_removed_bridge_left_as_device_removed() {
    let mut node = Node::new();
    node.bridge(9);
    node.port(1, 9);
    node.frame(1, "10.0.0.1");
    node.neighbour(9, "10.0.0.1", mac(7), NudState::Permanent);
    node.conflict_events();
    node.remove_link(9);
    node.expect([
        "resolved 10.0.0.1 duplicate observed: veth1 left br9/02:00:00:00:00:07(device_removed)",
    ]);
}
