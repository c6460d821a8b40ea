//! Allowed addresses may move, but not five times in 180 s (`docs/detection-rules.md`, 8).

use super::*;

fn with_allowed_range() -> Node {
    let mut node = Node::with_settings(Settings {
        allow: vip_range(),
        ..Settings::default()
    });
    node.pods(3);
    node
}

const VIP: &str = "10.9.0.1";

#[test]
fn allowed_address_on_two_pods_is_not_a_conflict() {
    let mut node = with_allowed_range();
    node.addresses([1, 2], VIP);
    node.link(uplink(9));
    node.host(9, VIP);
    assert!(node.conflict_events().is_empty());
    node.addresses([1, 2], "10.8.0.1");
    assert_eq!(node.conflict_events().len(), 1, "others are not allowed");
}

#[test]
fn fifth_move_raises_and_a_quiet_window_resolves() {
    let mut node = with_allowed_range();
    for holder in [1, 2, 1, 2, 1] {
        node.address(holder, VIP);
        node.address_gone(holder, VIP);
        node.wait_secs(10);
    }
    assert!(node.conflict_events().is_empty(), "four moves are normal");
    node.address(2, VIP);
    node.expect(["raised 10.9.0.1 flapping certain: veth1 veth2"]);
    node.wait_secs(139);
    assert!(node.conflict_events().is_empty());
    node.wait_secs(2);
    let events = node.conflict_events();
    assert_eq!(events.len(), 1);
    assert!(
        events[0].starts_with("resolved 10.9.0.1 flapping"),
        "{events:?}"
    );
    assert!(node.engine.next_deadline().is_some(), "four moves are left");
    node.wait_secs(181);
    assert!(node.engine.next_deadline().is_none());
}

#[test]
fn moves_spread_beyond_the_window_are_normal() {
    let mut node = with_allowed_range();
    for turn in 0..20 {
        let holder = 1 + turn % 2;
        node.address(holder, VIP);
        node.address_gone(holder, VIP);
        node.wait_secs(46);
    }
    assert!(node.conflict_events().is_empty());
}

#[test]
fn move_count_and_window_settings_are_applied() {
    let mut node = Node::with_settings(Settings {
        allow: vip_range(),
        flap_moves: 2,
        flap_window: Duration::from_secs(10),
        ..Settings::default()
    });
    node.pods(2);
    node.frames([1, 2, 1], VIP);
    assert_eq!(node.conflict_events().len(), 1);
    node.wait_secs(11);
    assert_eq!(node.conflict_events().len(), 1);
}

#[test]
fn alternating_frame_claims_flap() {
    let mut node = with_allowed_range();
    for _ in 0..3 {
        node.frame(1, VIP);
        node.wait_secs(15);
        node.frame(2, VIP);
        node.wait_secs(15);
    }
    node.expect(["raised 10.9.0.1 flapping observed: veth1 veth2"]);
}

#[test]
fn repeated_claims_of_one_device_never_flap() {
    let mut node = with_allowed_range();
    node.address(1, VIP);
    for _ in 0..20 {
        node.frame(2, VIP);
        node.wait_secs(5);
    }
    assert!(node.conflict_events().is_empty());
}

#[test]
fn confirmed_neighbour_entries_count_as_moves() {
    let mut node = with_allowed_range();
    for turn in 0..6 {
        let holder = 1 + turn % 2;
        node.neighbour(holder, VIP, mac(1), NudState::Stale);
        node.neighbour(holder, VIP, mac(1), NudState::Reachable);
    }
    node.expect(["raised 10.9.0.1 flapping observed: veth1 veth2"]);
}

#[test]
fn flapping_resolves_with_the_last_but_one_participant() {
    let mut node = with_allowed_range();
    for turn in 0..6 {
        let holder = 1 + turn % 3;
        node.address(holder, VIP);
        node.address_gone(holder, VIP);
    }
    node.conflict_events();
    node.remove_link(1);
    node.expect(["updated 10.9.0.1 flapping certain: veth2 veth3 left veth1(device_removed)"]);
    // The last holder keeps the address.
    node.address(2, VIP);
    assert!(node.conflict_events().is_empty());
    node.remove_link(3);
    node.expect(["resolved 10.9.0.1 flapping certain: veth2 left veth1(device_removed) left veth3(device_removed)"]);
    node.wait_secs(181);
    assert!(node.conflict_events().is_empty());
    assert!(node.engine.next_deadline().is_none());
}

#[test]
fn moves_of_removed_participants_still_count() {
    let mut node = with_allowed_range();
    for turn in 0..6 {
        node.frame(1 + turn % 2, VIP);
    }
    node.remove_link(1);
    node.expect([
        "raised 10.9.0.1 flapping observed: veth1 veth2",
        "resolved 10.9.0.1 flapping observed: veth2 left veth1(device_removed)",
    ]);
    // The sixth move within the window.
    node.frame(3, VIP);
    node.expect(["raised 10.9.0.1 flapping observed: veth2 veth3"]);
}

#[test]
fn device_that_replaces_itself_does_not_flap() {
    let mut node = with_allowed_range();
    for ifindex in 11..20 {
        node.pod(ifindex);
        node.address(ifindex, VIP);
        node.remove_link(ifindex);
    }
    assert!(node.conflict_events().is_empty());
}

#[test]
fn last_holder_remains_when_the_window_ends() {
    let mut node = with_allowed_range();
    node.route("10.9.0.1", 2);
    node.address(3, VIP);
    for turn in 0..6 {
        node.address(1 + turn % 2, VIP);
        node.address_gone(1 + turn % 2, VIP);
    }
    node.expect(["raised 10.9.0.1 flapping certain: veth3 veth2 veth1 -> veth2"]);
    node.address(2, VIP);
    // The third device has the address all the time, and takes no part any more.
    node.wait_secs(60);
    for _ in 0..8 {
        node.address(1, VIP);
        node.address_gone(1, VIP);
        node.address_gone(2, VIP);
        node.address(2, VIP);
        node.wait_secs(20);
    }
    node.expect(["updated 10.9.0.1 flapping certain: veth1 veth2 left veth3(expired) -> veth2"]);
    node.wait_secs(181);
    node.expect(["resolved 10.9.0.1 flapping certain: veth2 left veth3(expired) left veth1(address_removed) -> veth2"]);
}

#[test]
fn participant_leaves_when_its_part_leaves_the_window() {
    let mut node = with_allowed_range();
    node.frames([1, 2], VIP);
    node.wait_secs(60);
    node.frame(3, VIP);
    node.wait_secs(30);
    for turn in 0..6 {
        node.frame(1 + turn % 2, VIP);
    }
    node.conflict_events();
    node.wait_secs(149);
    assert!(node.conflict_events().is_empty());
    node.wait_secs(2);
    node.expect(["updated 10.9.0.1 flapping observed: veth1 veth2 left veth3(expired)"]);
}

#[test]
fn moves_are_counted_per_vlan() {
    let mut node = with_allowed_range();
    for turn in 0..8 {
        let mut claim = frame(1 + turn % 2, VIP);
        claim.vlan.outer = (turn % 4 < 2).then_some(7);
        node.observe(Observation::Frame(claim));
    }
    assert!(node.conflict_events().is_empty());
}

#[test]
fn overlapping_handover_counts_as_a_move() {
    let mut node = with_allowed_range();
    node.address(1, VIP);
    for turn in 0..5 {
        let (last, next) = (1 + turn % 2, 2 - turn % 2);
        node.address(next, VIP);
        node.address_gone(last, VIP);
    }
    node.expect(["raised 10.9.0.1 flapping certain: veth1 veth2"]);
}

#[test]
fn repeated_address_update_is_not_a_move() {
    let mut node = with_allowed_range();
    for turn in 0..10 {
        node.address(1 + turn % 2, VIP);
    }
    assert!(node.conflict_events().is_empty());
}

#[test]
fn alternating_bridge_entries_count_as_moves() {
    let mut node = with_allowed_range();
    node.bridge_with_ports(2);
    node.addresses(1..=2, VIP);
    for turn in 0..5 {
        node.neighbour(9, VIP, mac(1 + turn % 2), NudState::Reachable);
    }
    node.expect(["raised 10.9.0.1 flapping certain: veth1 veth2"]);
}

#[test]
fn unconfirmed_entries_and_probes_are_not_moves() {
    let mut node = with_allowed_range();
    for turn in 0..10 {
        let state = [NudState::Stale, NudState::Delay, NudState::Probe][turn % 3];
        let holder = if turn % 2 == 0 { 1 } else { 2 };
        node.neighbour(holder, VIP, mac(1), state);
    }
    let mut probed = with_allowed_range();
    probed.address(1, VIP);
    for _ in 0..10 {
        probed.probe(2, VIP);
        probed.frame(1, VIP);
    }
    assert!(node.conflict_events().is_empty() && probed.conflict_events().is_empty());
}

#[test]
fn holder_from_before_the_window_makes_no_move() {
    let mut node = Node::with_settings(Settings {
        allow: vip_range(),
        flap_moves: 1,
        ..Settings::default()
    });
    node.pod(1);
    node.pod(2);
    node.address(1, VIP);
    node.address_gone(1, VIP);
    node.wait_secs(200);
    node.address(2, VIP);
    assert!(node.conflict_events().is_empty());
}

#[test]
fn participants_show_their_current_evidence() {
    let mut node = with_allowed_range();
    for turn in 0..6 {
        node.frame(1 + turn % 2, VIP);
    }
    node.conflict_events();
    for holder in 1..=2 {
        node.neighbour(holder.into(), VIP, mac(holder), NudState::Permanent);
    }
    node.expect(["updated 10.9.0.1 flapping certain: veth1 veth2"]);
}

#[test]
fn replaced_participant_is_listed_as_left() {
    let renamed = renamed(pod(1), "vethX");
    let other = Link {
        kind: LinkKind::Other,
        ..pod(1)
    };
    for (case, link) in [("other name", renamed), ("other kind", other)] {
        let mut node = with_allowed_range();
        for turn in 0..6 {
            let holder = 1 + turn % 2;
            node.address(holder, VIP);
            node.address_gone(holder, VIP);
        }
        node.conflict_events();
        node.observe(Observation::NotificationsLost);
        node.link(link);
        assert_eq!(
            node.conflict_events(),
            [
                "resolved 10.9.0.1 flapping certain: left veth1(device_removed) left veth2(address_removed)"
            ],
            "{case}"
        );
    }
}
