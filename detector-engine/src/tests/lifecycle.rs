//! The lifecycle of a conflict: its times, its identity, and who is listed as having left.

use std::{collections::HashSet, net::IpAddr};

use super::*;
use crate::{
    model::{
        ids::mix,
        scope::{NODE_WIDE, Scope},
    },
    track::lifecycle::{Decision, DecisionTime, Lifecycle},
};

const UNTAGGED: Scope = NODE_WIDE;

/// The claimants of one address on two pods.
fn claimants() -> Vec<Claimant> {
    let mut node = Node::with_duplicate();
    node.reported_conflicts().remove(0).claimants
}

/// Applies the decision for these claimants of `address`, and returns the effects.
fn apply_decision(
    lifecycle: &mut Lifecycle,
    address: IpAddr,
    claimants: Vec<Claimant>,
) -> Vec<Effect> {
    let kind = (claimants.len() > 1).then_some(ConflictKind::Duplicate);
    let decision = Decision {
        network: Network::Node,
        kind,
        confidence: Confidence::Certain,
        claimants,
        is_one_pod: false,
        receiver: None,
    };
    let at = DecisionTime {
        now: Timestamp(2),
        decided_at: Timestamp(1),
    };
    let mut effects = Vec::new();
    let settings = Settings::default();
    let leave_reason = |_: &Claimant| LeaveReason::Expired;
    let decisions = vec![(UNTAGGED, decision)];
    let refused = lifecycle.apply(
        address,
        decisions,
        leave_reason,
        at,
        &settings,
        &mut effects,
    );
    assert_eq!(refused, 0);
    effects
}

#[test]
fn resolved_address_leaves_no_state() {
    let mut lifecycle = Lifecycle::new(0);
    let address = ip("10.0.0.1");
    let claimants = claimants();
    apply_decision(&mut lifecycle, address, claimants.clone());
    assert!(lifecycle.has_open(address));
    apply_decision(&mut lifecycle, address, claimants[..1].to_vec());
    assert!(!lifecycle.has_open(address));
}

#[test]
fn conflict_ids_are_unique_in_both_halves() {
    let claimants = claimants();
    let mut halves = HashSet::new();
    for seed in 1..=4 {
        let mut lifecycle = Lifecycle::new(seed);
        for last in 1..=4 {
            let effects =
                apply_decision(&mut lifecycle, [10, 0, 0, last].into(), claimants.clone());
            let [Effect::Raised(raised)] = effects.as_slice() else {
                panic!("seed {seed}: {effects:?}");
            };
            let ConflictId(id) = raised.id;
            let unique = halves.insert(id >> 64) && halves.insert(id & u128::from(u64::MAX));
            assert!(unique, "seed {seed}: {id:032x}");
        }
    }
}

/// The first outputs of SplitMix64 with seed 0, from the reference implementation.
#[test]
fn ids_are_spread_by_splitmix64() {
    let step = 0x9e37_79b9_7f4a_7c15_u64;
    let numbers: Vec<_> = (0..3).map(|n| mix(step.wrapping_mul(n))).collect();
    assert_eq!(
        numbers,
        [
            0xe220_a839_7b1d_cdaf,
            0x6e78_9e6a_a1b9_65f4,
            0x06c4_5d18_8009_454f
        ]
    );
}

#[test]
fn only_reported_updates_change_the_times() {
    let mut node = Node::with_pods(3);
    node.address(1, "10.0.0.1");
    node.address(2, "10.0.0.1");
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
    for ifindex in 1..=4 {
        node.address(ifindex, "10.0.0.1");
    }
    node.address_gone(1, "10.0.0.1");
    node.remove_link(1);
    node.conflict_events();
    node.remove_link(2);
    assert_eq!(
        node.conflict_events(),
        [
            "updated 10.0.0.1 duplicate certain: veth3 veth4 left veth1(address_removed) left veth2(device_removed)"
        ]
    );
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
        node.frame(1, address);
        node.frame(2, address);
    }
    node.observe(tagged(1, "10.0.0.3"));
    node.observe(tagged(2, "10.0.0.3"));
    assert_eq!(
        node.open_conflicts(),
        [
            "10.0.0.7 duplicate observed: veth1 veth2",
            "10.0.0.3 duplicate observed: veth1 veth2",
            "10.0.0.5 duplicate observed: veth1 veth2",
            "10.0.0.3@5 duplicate observed: veth1 veth2",
        ]
    );
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
    assert_eq!(
        node.conflict_events(),
        ["resolved 10.0.0.1 duplicate observed: veth1 left br9/02:00:00:00:00:07(device_removed)"]
    );
}
