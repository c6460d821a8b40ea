//! The life of a conflict: its times, its identity, who is listed as having left.

use std::{collections::HashSet, net::IpAddr};

use super::*;
use crate::engine::{
    lifecycle::{Decision, DecisionTime, Lifecycle, mix},
    scope::Scope,
};

const EVERYWHERE: Scope = Scope {
    vlan: Vlan {
        outer: None,
        inner: None,
    },
    domain: None,
};

/// Two pods that claim one address.
fn claimants() -> Vec<Claimant> {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    node.address(2, "10.0.0.1");
    node.conflicts_said().remove(0).claimants
}

/// Tells a life of its own what stands at `address`, and gives what it said.
fn settle(life: &mut Lifecycle, address: IpAddr, claimants: Vec<Claimant>) -> Vec<Effect> {
    let kind = (claimants.len() > 1).then_some(ConflictKind::Duplicate);
    let decision = Decision {
        kind,
        claimants,
        traffic_goes_to: None,
    };
    let at = DecisionTime {
        now: Timestamp(2),
        decided_at: Timestamp(1),
    };
    let mut effects = Vec::new();
    let bounds = Bounds::default();
    let leave_reason = |_: &Claimant| LeaveReason::Expired;
    let decisions = vec![(EVERYWHERE, decision)];
    let refused = life.apply(address, decisions, leave_reason, at, &bounds, &mut effects);
    assert_eq!(refused, 0);
    effects
}

#[test]
fn nothing_is_kept_of_an_address_at_peace() {
    let mut life = Lifecycle::new(0);
    let address = ip("10.0.0.1");
    let claimants = claimants();
    settle(&mut life, address, claimants.clone());
    assert!(life.has_open(address));
    settle(&mut life, address, claimants[..1].to_vec());
    assert!(!life.has_open(address));
}

#[test]
fn both_halves_of_an_id_differ_from_conflict_to_conflict_and_from_agent_to_agent() {
    let claimants = claimants();
    let mut halves = HashSet::new();
    for seed in 1..=4 {
        let mut life = Lifecycle::new(seed);
        for last in 1..=4 {
            let effects = settle(&mut life, [10, 0, 0, last].into(), claimants.clone());
            let [Effect::Raised(raised)] = effects.as_slice() else {
                panic!("{effects:?}");
            };
            let ConflictId(id) = raised.id;
            assert!(halves.insert(id >> 64) && halves.insert(id & u128::from(u64::MAX)));
        }
    }
}

/// The first numbers of SplitMix64 from seed 0, as its author's program gives them.
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
fn an_update_has_its_own_times_and_news_that_is_not_told_has_none() {
    let mut node = Node::with_pods(3);
    node.address(1, "10.0.0.1");
    node.address(2, "10.0.0.1");
    let raised = node.conflicts_said().remove(0);
    node.wait_secs(5);
    let heard = node.now;
    node.now.0 += MS;
    node.tell_at(heard, Observation::Frame(frame(3, "10.0.0.1")));
    let updated = node.conflicts_said().remove(0);
    assert_eq!(updated.raised_at, raised.raised_at);
    assert_eq!((updated.updated_at, updated.decided_at), (node.now, heard));
    node.wait_secs(5);
    node.neighbour(3, "10.0.0.1", mac(3), NudState::Reachable);
    assert!(node.said().is_empty());
    let open = node.engine.conflicts(node.now).remove(0);
    assert_eq!(open.updated_at, updated.updated_at);
    assert_eq!(open.decided_at, updated.decided_at);
}

#[test]
fn a_resolution_gives_the_time_of_what_decided_it() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    node.address(2, "10.0.0.1");
    node.said();
    node.wait_secs(5);
    let gone = node.now;
    node.now.0 += MS;
    node.tell_at(gone, Observation::LinkGone(2));
    let resolved = node.conflicts_said().remove(0);
    assert_eq!(resolved.decided_at, gone);
    assert_eq!(resolved.updated_at, node.now);
    assert_eq!(resolved.resolved_at, Some(node.now));
}

#[test]
fn why_somebody_left_stays_as_it_was_when_more_happens_to_its_device() {
    let mut node = Node::with_pods(4);
    for ifindex in 1..=4 {
        node.address(ifindex, "10.0.0.1");
    }
    node.address_gone(1, "10.0.0.1");
    node.gone(1);
    node.said();
    node.gone(2);
    assert_eq!(
        node.said(),
        [
            "updated 10.0.0.1 duplicate certain: veth3 veth4 left veth1(address_removed) left veth2(device_removed)"
        ]
    );
}

#[test]
fn of_those_that_left_the_newest_are_listed() {
    let mut node = Node::within(Bounds {
        claimants_per_conflict: 2,
        ..Bounds::default()
    });
    for ifindex in 1..=5 {
        node.pod(ifindex);
        node.address(ifindex, "10.0.0.1");
    }
    for ifindex in 1..=3 {
        node.gone(ifindex);
    }
    assert_eq!(
        node.said().last().map(String::as_str),
        Some(
            "updated 10.0.0.1 duplicate certain: veth4 veth5 left veth2(device_removed) left veth3(device_removed)"
        )
    );
}

#[test]
fn conflicts_are_listed_by_age_and_an_address_once() {
    let mut node = Node::with_pods(2);
    let tagged = |ifindex, address| FrameClaim {
        vlan: Vlan {
            outer: Some(5),
            inner: None,
        },
        ..frame(ifindex, address)
    };
    for address in ["10.0.0.7", "10.0.0.3", "10.0.0.5"] {
        node.frame(1, address);
        node.frame(2, address);
    }
    node.tell(Observation::Frame(tagged(1, "10.0.0.3")));
    node.tell(Observation::Frame(tagged(2, "10.0.0.3")));
    assert_eq!(
        node.open(),
        [
            "10.0.0.7 duplicate observed: veth1 veth2",
            "10.0.0.3 duplicate observed: veth1 veth2",
            "10.0.0.5 duplicate observed: veth1 veth2",
            "10.0.0.3@5 duplicate observed: veth1 veth2",
        ]
    );
    assert_eq!(
        node.engine.conflict_addresses(),
        ["10.0.0.7", "10.0.0.3", "10.0.0.5"].map(ip)
    );
    assert_eq!(node.engine.address_count(), 3);
}

#[test]
fn a_bridge_that_is_gone_is_why_what_stood_behind_it_left() {
    let mut node = Node::new();
    node.bridge(9);
    node.port(1, 9);
    node.frame(1, "10.0.0.1");
    node.neighbour(9, "10.0.0.1", mac(7), NudState::Permanent);
    node.said();
    node.gone(9);
    assert_eq!(
        node.said(),
        ["resolved 10.0.0.1 duplicate observed: veth1 left br9/02:00:00:00:00:07(device_removed)"]
    );
}
