//! Rule 8: allow-listed addresses may move, but not five times in 180 s.

use super::*;

fn allowing() -> Node {
    let mut node = Node::with(Settings {
        allow: vec!["10.9.0.0/16".parse().unwrap()],
        ..Settings::default()
    });
    for ifindex in 1..=3 {
        node.pod(ifindex);
    }
    node
}

const VIP: &str = "10.9.0.1";

#[test]
fn an_allowed_address_held_by_two_is_no_conflict() {
    let mut node = allowing();
    node.address(1, VIP);
    node.address(2, VIP);
    node.link(uplink(9));
    node.host(9, VIP);
    assert!(node.said().is_empty());
    node.address(1, "10.8.0.1");
    node.address(2, "10.8.0.1");
    assert_eq!(node.said().len(), 1, "others are not allowed");
}

#[test]
fn the_fifth_move_within_the_window_raises_and_calm_resolves() {
    let mut node = allowing();
    for holder in [1, 2, 1, 2, 1] {
        node.address(holder, VIP);
        node.address_gone(holder, VIP);
        node.wait_secs(10);
    }
    assert!(node.said().is_empty(), "four moves are normal");
    node.address(2, VIP);
    assert_eq!(
        node.said(),
        ["raised 10.9.0.1 flapping certain: veth1 veth2"]
    );
    node.wait_secs(139);
    assert!(node.said().is_empty());
    node.wait_secs(2);
    let said = node.said();
    assert_eq!(said.len(), 1);
    assert!(
        said[0].starts_with("resolved 10.9.0.1 flapping"),
        "{said:?}"
    );
    assert!(node.engine.next_expiry().is_some(), "four moves are left");
    node.wait_secs(181);
    assert!(node.engine.next_expiry().is_none());
}

#[test]
fn moves_spread_over_more_than_the_window_are_normal() {
    let mut node = allowing();
    for turn in 0..20 {
        let holder = 1 + turn % 2;
        node.address(holder, VIP);
        node.address_gone(holder, VIP);
        node.wait_secs(46);
    }
    assert!(node.said().is_empty());
}

#[test]
fn numbers_are_the_operators() {
    let mut node = Node::with(Settings {
        allow: vec!["10.9.0.0/16".parse().unwrap()],
        flap_moves: 2,
        flap_window: Duration::from_secs(10),
        ..Settings::default()
    });
    for ifindex in 1..=2 {
        node.pod(ifindex);
    }
    for holder in [1, 2, 1] {
        node.frame(holder, VIP);
    }
    assert_eq!(node.said().len(), 1);
    node.wait_secs(11);
    assert_eq!(node.said().len(), 1);
}

#[test]
fn two_that_keep_claiming_in_turn_flap_as_evpn_counts() {
    let mut node = allowing();
    for _ in 0..3 {
        node.frame(1, VIP);
        node.wait_secs(15);
        node.frame(2, VIP);
        node.wait_secs(15);
    }
    assert_eq!(
        node.said(),
        ["raised 10.9.0.1 flapping observed: veth1 veth2"]
    );
}

#[test]
fn one_that_keeps_claiming_never_flaps() {
    let mut node = allowing();
    node.address(1, VIP);
    for _ in 0..20 {
        node.frame(2, VIP);
        node.wait_secs(5);
    }
    assert!(node.said().is_empty());
}

#[test]
fn confirmed_neighbour_entries_count_as_claims() {
    let mut node = allowing();
    for turn in 0..6 {
        let holder = 1 + turn % 2;
        node.neighbour(holder, VIP, mac(1), NudState::Stale);
        node.neighbour(holder, VIP, mac(1), NudState::Reachable);
    }
    assert_eq!(
        node.said(),
        ["raised 10.9.0.1 flapping observed: veth1 veth2"]
    );
}

#[test]
fn who_took_part_and_is_gone_has_left() {
    let mut node = allowing();
    for turn in 0..6 {
        let holder = 1 + turn % 2;
        node.address(holder, VIP);
        node.address_gone(holder, VIP);
    }
    node.said();
    node.gone(1);
    assert_eq!(
        node.said(),
        ["updated 10.9.0.1 flapping observed: veth2 left veth1(device_removed)"]
    );
    node.gone(2);
    assert_eq!(
        node.said(),
        [
            "updated 10.9.0.1 flapping observed: left veth1(device_removed) left veth2(device_removed)"
        ]
    );
    node.wait_secs(181);
    let said = node.said();
    assert!(
        said.last()
            .unwrap()
            .starts_with("resolved 10.9.0.1 flapping"),
        "{said:?}"
    );
}

#[test]
fn moves_in_another_vlan_are_counted_apart() {
    let mut node = allowing();
    for turn in 0..8 {
        let mut claim = frame(1 + turn % 2, VIP);
        claim.vlan.outer = (turn % 4 < 2).then_some(7);
        node.tell(Observation::Frame(claim));
    }
    assert!(node.said().is_empty());
}

#[test]
fn an_address_given_to_the_next_before_it_is_taken_from_the_last_moves() {
    let mut node = allowing();
    node.address(1, VIP);
    for turn in 0..5 {
        let (last, next) = (1 + turn % 2, 2 - turn % 2);
        node.address(next, VIP);
        node.address_gone(last, VIP);
    }
    assert_eq!(
        node.said(),
        ["raised 10.9.0.1 flapping certain: veth1 veth2"]
    );
}

#[test]
fn an_address_told_again_is_no_claim_anew() {
    let mut node = allowing();
    for turn in 0..10 {
        node.address(1 + turn % 2, VIP);
    }
    assert!(node.said().is_empty());
}

#[test]
fn entries_of_a_bridge_that_turn_count_as_claims() {
    let mut node = allowing();
    node.bridge(9);
    for port in 1..=2u8 {
        node.port(port.into(), 9);
        node.fdb(9, port.into(), mac(port));
    }
    for turn in 0..6 {
        node.neighbour(9, VIP, mac(1 + turn % 2), NudState::Reachable);
    }
    assert_eq!(
        node.said(),
        ["raised 10.9.0.1 flapping observed: veth1 veth2"]
    );
}

#[test]
fn unconfirmed_entries_and_probes_do_not_count_as_claims() {
    let mut node = allowing();
    for turn in 0..10 {
        let state = [NudState::Stale, NudState::Delay, NudState::Probe][turn % 3];
        let holder = if turn % 2 == 0 { 1 } else { 2 };
        node.neighbour(holder, VIP, mac(1), state);
    }
    let mut probed = allowing();
    probed.address(1, VIP);
    for _ in 0..10 {
        probed.probe(2, VIP);
        probed.frame(1, VIP);
    }
    assert!(node.said().is_empty() && probed.said().is_empty());
}

#[test]
fn who_held_it_before_the_window_has_no_part_in_a_move() {
    let mut node = Node::with(Settings {
        allow: vec!["10.9.0.0/16".parse().unwrap()],
        flap_moves: 1,
        ..Settings::default()
    });
    node.pod(1);
    node.pod(2);
    node.address(1, VIP);
    node.address_gone(1, VIP);
    node.wait_secs(200);
    node.address(2, VIP);
    assert!(node.said().is_empty());
}

#[test]
fn those_that_took_part_are_shown_as_they_claim_it_now() {
    let mut node = allowing();
    for turn in 0..6 {
        node.frame(1 + turn % 2, VIP);
    }
    node.said();
    for holder in 1..=2 {
        node.neighbour(holder.into(), VIP, mac(holder), NudState::Permanent);
    }
    assert_eq!(
        node.said(),
        ["updated 10.9.0.1 flapping certain: veth1 veth2"]
    );
}

#[test]
fn who_took_part_has_left_when_another_device_or_kind_of_link_has_its_index() {
    let renamed = Link {
        name: "vethX".to_owned(),
        ..pod(1)
    };
    let other = Link {
        kind: LinkKind::Other,
        ..pod(1)
    };
    for link in [renamed, other] {
        let mut node = allowing();
        for turn in 0..6 {
            let holder = 1 + turn % 2;
            node.address(holder, VIP);
            node.address_gone(holder, VIP);
        }
        node.said();
        node.link(link);
        assert_eq!(
            node.said(),
            ["updated 10.9.0.1 flapping observed: veth2 left veth1(device_removed)"]
        );
    }
}
