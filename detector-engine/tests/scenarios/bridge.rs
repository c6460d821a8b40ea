//! Pods behind a bridge (`docs/detection-rules.md`, 3).

use super::*;

#[test]
fn bridge_neighbour_entry_is_a_claim_of_the_port() {
    let mut node = Node::with_bridge(2);
    node.neighbour(9, "10.0.0.1", mac(1), NudState::Reachable);
    node.address(2, "10.0.0.1");
    node.frame(1, "10.0.0.1");
    let reported = node.reported_conflicts();
    let texts: Vec<_> = reported.iter().map(conflict_text).collect();
    assert_eq!(
        texts,
        [
            "10.0.0.1 duplicate observed: br9/02:00:00:00:00:01 veth2",
            "10.0.0.1 duplicate observed: veth1 veth2 left br9/02:00:00:00:00:01(expired)",
        ],
        "of the port once that claims the address itself"
    );
    assert!(
        reported[1]
            .claimants
            .iter()
            .all(|c| c.master.as_deref() == Some("br9"))
    );
}

#[test]
fn fdb_entry_learned_after_the_neighbour_creates_the_claim() {
    let mut node = Node::with_bridge(2);
    node.address(2, "10.0.0.1");
    node.neighbour(9, "10.0.0.1", mac(7), NudState::Reachable);
    assert!(
        node.conflict_events().is_empty(),
        "no port is known for the MAC"
    );
    node.fdb(9, 1, mac(7));
    node.expect(["raised 10.0.0.1 duplicate observed: veth2 br9/02:00:00:00:00:07"]);
}

#[test]
fn permanent_entry_without_port_claims_by_bridge_and_mac() {
    let mut node = Node::with_bridge(2);
    node.frame(1, "10.0.0.1");
    node.neighbour(9, "10.0.0.1", mac(7), NudState::Permanent);
    node.expect(["raised 10.0.0.1 duplicate observed: veth1 br9/02:00:00:00:00:07"]);
    node.fdb(9, 2, mac(7));
    node.expect([
        "updated 10.0.0.1 duplicate observed: veth1 veth2 left br9/02:00:00:00:00:07(expired)",
    ]);
}

#[test]
fn unresolved_mac_of_a_known_claimant_is_not_a_second_one() {
    let mut node = Node::new();
    node.bridge(9);
    node.port(1, 9);
    node.frame(1, "10.0.0.1");
    node.neighbour(9, "10.0.0.1", mac(1), NudState::Permanent);
    assert!(node.conflict_events().is_empty());
    // From now on the pod uses another MAC.
    node.observe(Observation::Frame(FrameClaim {
        mac: mac(3),
        ..frame(1, "10.0.0.1")
    }));
    node.expect(["raised 10.0.0.1 duplicate observed: veth1 br9/02:00:00:00:00:01"]);
}

#[test]
fn mac_behind_an_uplink_is_not_a_pod_claim() {
    let mut node = Node::with_bridge(2);
    node.link(Link {
        master: Some(9),
        ..uplink(3)
    });
    node.fdb(9, 3, mac(7));
    node.neighbour(9, "10.0.0.1", mac(7), NudState::Reachable);
    node.frame(1, "10.0.0.1");
    assert!(node.conflict_events().is_empty());
    // The node's administrator states that the address is there.
    node.neighbour(9, "10.0.0.1", mac(7), NudState::Permanent);
    node.expect(["raised 10.0.0.1 duplicate observed: br9/02:00:00:00:00:07 veth1"]);
}

#[test]
fn aged_fdb_entry_still_resolves_the_port() {
    let mut node = Node::with_bridge(2);
    node.neighbour(9, "10.0.0.1", mac(1), NudState::Reachable);
    node.fdb_gone(9, 1, mac(1));
    node.address(2, "10.0.0.1");
    node.expect(["raised 10.0.0.1 duplicate observed: br9/02:00:00:00:00:01 veth2"]);
    node.remove_link(1);
    node.expect([
        "resolved 10.0.0.1 duplicate observed: veth2 left br9/02:00:00:00:00:01(expired)",
    ]);
}

#[test]
fn aged_fdb_entry_is_kept_only_while_referenced() {
    let mut node = Node::with_bridge(2);
    node.neighbour(9, "10.0.0.1", mac(1), NudState::Reachable);
    node.fdb_gone(9, 1, mac(1));
    node.neighbour_gone(9, "10.0.0.1");
    node.neighbour(9, "10.0.0.1", mac(1), NudState::Stale);
    node.fdb_gone(9, 2, mac(2));
    node.neighbour(9, "10.0.0.2", mac(2), NudState::Stale);
    node.frame(2, "10.0.0.1");
    node.frame(1, "10.0.0.2");
    assert!(node.conflict_events().is_empty());
}

#[test]
fn claim_follows_a_mac_that_moves_to_another_port() {
    let mut node = Node::with_bridge(2);
    node.neighbour(9, "10.0.0.1", mac(1), NudState::Reachable);
    node.address(2, "10.0.0.1");
    node.conflict_events();
    node.fdb(9, 2, mac(1));
    node.expect([
        "resolved 10.0.0.1 duplicate observed: veth2 left br9/02:00:00:00:00:01(expired)",
    ]);
    let claims = node.engine.view().claims_of(ip("10.0.0.1"), node.now);
    assert_eq!(
        evidence_text(&claims[0].claimant),
        ["address", "neighbour REACHABLE"]
    );
}

#[test]
fn fdb_removal_at_another_port_implies_a_missed_move() {
    let mut node = Node::with_bridge(2);
    node.neighbour(9, "10.0.0.1", mac(1), NudState::Reachable);
    node.address(2, "10.0.0.1");
    node.conflict_events();
    // The kernel reports a move only by the new entry: that one was missed.
    node.fdb_gone(9, 2, mac(1));
    node.expect([
        "resolved 10.0.0.1 duplicate observed: veth2 left br9/02:00:00:00:00:01(expired)",
    ]);
}

#[test]
fn mac_in_several_vlans_resolves_by_the_lowest_vlan() {
    let mut node = Node::with_bridge(2);
    let entry = |vlan, port| FdbEntry {
        vlan: Some(vlan),
        ..fdb(9, port, mac(7))
    };
    node.observe(Observation::Fdb(entry(1, 1)));
    node.observe(Observation::Fdb(entry(20, 2)));
    node.neighbour(9, "10.0.0.1", mac(7), NudState::Reachable);
    node.address(2, "10.0.0.1");
    node.expect(["raised 10.0.0.1 duplicate observed: br9/02:00:00:00:00:07 veth2"]);
    node.observe(Observation::FdbGone(entry(1, 1)));
    assert_eq!(
        node.conflict_events(),
        ["resolved 10.0.0.1 duplicate observed: veth2 left br9/02:00:00:00:00:07(expired)"],
        "live entries take precedence over aged ones"
    );
}

#[test]
fn flapping_entry_shows_both_hardware_addresses() {
    let mut node = Node::with_bridge(2);
    for port in [1, 2, 1] {
        node.neighbour(9, "10.0.0.1", mac(port), NudState::Reachable);
    }
    let raised = node.reported_conflicts();
    assert_eq!(
        conflict_text(&raised[0]),
        "10.0.0.1 duplicate observed: br9/02:00:00:00:00:02 br9/02:00:00:00:00:01"
    );
    assert_eq!(
        evidence_text(&raised[0].claimants[0]),
        ["neighbour FLAPPING"]
    );
    assert_eq!(raised.len(), 1);
    for port in [2, 1, 2, 1] {
        node.neighbour(9, "10.0.0.1", mac(port), NudState::Reachable);
    }
    assert!(node.conflict_events().is_empty());
    node.wait_secs(179);
    assert!(node.conflict_events().is_empty());
    node.wait_secs(2);
    node.expect(["resolved 10.0.0.1 duplicate observed: br9/02:00:00:00:00:01 left br9/02:00:00:00:00:02(expired)"]);
}

/// As keepalived moves an address to and fro: the entry returns, but only one pod has the address.
#[test]
fn handover_behind_a_bridge_is_not_flapping() {
    let mut node = Node::with_bridge(2);
    node.address(1, "10.0.0.1");
    node.neighbour(9, "10.0.0.1", mac(1), NudState::Reachable);
    for (from, to) in [(1_u8, 2), (2, 1), (1, 2)] {
        node.address_gone(from.into(), "10.0.0.1");
        node.address(to.into(), "10.0.0.1");
        node.neighbour(9, "10.0.0.1", mac(to), NudState::Stale);
    }
    assert!(node.conflict_events().is_empty());
    // With an overlap, both have it until one gives it up.
    node.address(1, "10.0.0.1");
    node.neighbour(9, "10.0.0.1", mac(1), NudState::Stale);
    node.address_gone(2, "10.0.0.1");
    node.expect([
        "raised 10.0.0.1 duplicate certain: veth2 veth1",
        "resolved 10.0.0.1 duplicate certain: veth1 left veth2(address_removed)",
    ]);
}

#[test]
fn single_entry_change_is_a_move_not_a_conflict() {
    let mut node = Node::with_bridge(2);
    node.neighbour(9, "10.0.0.1", mac(1), NudState::Reachable);
    node.neighbour(9, "10.0.0.1", mac(2), NudState::Reachable);
    node.neighbour(9, "10.0.0.1", mac(2), NudState::Stale);
    assert!(node.conflict_events().is_empty());
}

#[test]
fn return_after_the_window_is_not_flapping() {
    let mut node = Node::with_bridge(2);
    for port in [1, 2, 1] {
        node.neighbour(9, "10.0.0.1", mac(port), NudState::Reachable);
        node.wait_secs(181);
    }
    assert!(node.conflict_events().is_empty());
}

#[test]
fn holder_before_the_flapping_does_not_participate() {
    let mut node = Node::with_bridge(2);
    node.port(3, 9);
    node.fdb(9, 3, mac(3));
    for port in [3, 1, 2, 1] {
        node.neighbour(9, "10.0.0.1", mac(port), NudState::Reachable);
    }
    node.expect([
        "raised 10.0.0.1 duplicate observed: br9/02:00:00:00:00:02 br9/02:00:00:00:00:01",
    ]);
}

#[test]
fn flapping_ports_stay_when_a_third_takes_over() {
    let mut node = Node::with_bridge(2);
    node.port(3, 9);
    node.fdb(9, 3, mac(3));
    for port in [1, 2, 1] {
        node.neighbour(9, "10.0.0.1", mac(port), NudState::Reachable);
    }
    node.conflict_events();
    node.neighbour(9, "10.0.0.1", mac(3), NudState::Reachable);
    node.expect(["updated 10.0.0.1 duplicate observed: br9/02:00:00:00:00:02 br9/02:00:00:00:00:01 br9/02:00:00:00:00:03"]);
}

#[test]
fn removed_pod_address_refutes_the_bridge_entry() {
    let mut node = Node::with_bridge(2);
    node.read_pod_addresses(1, &["10.0.0.1"]);
    node.neighbour(9, "10.0.0.1", mac(1), NudState::Reachable);
    node.address_gone(1, "10.0.0.1");
    node.address(2, "10.0.0.1");
    assert!(node.conflict_events().is_empty());
}

#[test]
fn removed_pod_address_ends_participation_in_flapping() {
    let mut node = Node::with_bridge(2);
    for port in [1, 2, 1] {
        node.neighbour(9, "10.0.0.1", mac(port), NudState::Reachable);
    }
    node.conflict_events();
    node.address_gone(2, "10.0.0.1");
    node.expect(["resolved 10.0.0.1 duplicate observed: br9/02:00:00:00:00:01 left br9/02:00:00:00:00:02(expired)"]);
}

#[test]
fn stale_entry_is_refuted_by_the_ports_namespace() {
    let mut node = Node::with_bridge(2);
    node.neighbour(9, "10.0.0.1", mac(1), NudState::Stale);
    node.address(2, "10.0.0.1");
    node.expect(["raised 10.0.0.1 duplicate observed: br9/02:00:00:00:00:01 veth2"]);
    node.read_pod_addresses(1, &[]);
    node.expect([
        "resolved 10.0.0.1 duplicate observed: veth2 left br9/02:00:00:00:00:01(expired)",
    ]);
}

#[test]
fn port_leaving_the_bridge_withdraws_its_claims() {
    let mut node = Node::with_bridge(2);
    node.neighbour(9, "10.0.0.1", mac(1), NudState::Reachable);
    node.address(2, "10.0.0.1");
    node.conflict_events();
    node.pod(1);
    node.expect([
        "resolved 10.0.0.1 duplicate observed: veth2 left br9/02:00:00:00:00:01(expired)",
    ]);
    // Its FDB entries are removed, and not kept as those of a quiet pod.
    node.fdb_gone(9, 1, mac(1));
    assert!(node.conflict_events().is_empty());
}

#[test]
fn removed_bridge_withdraws_its_claims() {
    let mut node = Node::with_bridge(2);
    node.neighbour(9, "10.0.0.1", mac(1), NudState::Reachable);
    node.address(2, "10.0.0.1");
    node.conflict_events();
    node.remove_link(9);
    node.expect([
        "resolved 10.0.0.1 duplicate observed: veth2 left br9/02:00:00:00:00:01(device_removed)",
    ]);
}

#[test]
fn flapping_ports_stay_when_an_unknown_mac_takes_over() {
    let mut node = Node::with_bridge(2);
    for port in [1, 2, 1, 7] {
        node.neighbour(9, "10.0.0.1", mac(port), NudState::Reachable);
    }
    node.expect_open(["10.0.0.1 duplicate observed: br9/02:00:00:00:00:02 br9/02:00:00:00:00:01"]);
}

#[test]
fn bridge_index_reused_by_an_uplink_withdraws_claims() {
    let mut node = Node::with_bridge(2);
    node.neighbour(9, "10.0.0.1", mac(1), NudState::Reachable);
    node.address(2, "10.0.0.1");
    node.conflict_events();
    // The removal of the bridge was missed, and its index now belongs to an uplink.
    node.link(uplink(9));
    node.expect([
        "resolved 10.0.0.1 duplicate observed: veth2 left br9/02:00:00:00:00:01(device_removed)",
    ]);
}
