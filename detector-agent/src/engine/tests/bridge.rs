//! Rule 3: pods behind a bridge.

use super::*;

/// A bridge (9) with ports 1 and 2, their pods' hardware addresses learned.
fn bridged() -> Node {
    let mut node = Node::new();
    node.bridge(9);
    for port in 1..=2u8 {
        node.port(port.into(), 9);
        node.fdb(9, port.into(), mac(port));
    }
    node
}

#[test]
fn an_entry_on_the_bridge_is_the_ports_claim() {
    let mut node = bridged();
    node.neighbour(9, "10.0.0.1", mac(1), NudState::Reachable);
    node.frame(2, "10.0.0.1");
    let raised = node.conflicts_said();
    assert_eq!(show(&raised[0]), "10.0.0.1 duplicate observed: veth1 veth2");
    assert!(
        raised[0]
            .claimants
            .iter()
            .all(|c| c.master.as_deref() == Some("br9"))
    );
}

#[test]
fn a_forwarding_entry_learned_after_the_neighbour_makes_the_claim() {
    let mut node = bridged();
    node.frame(2, "10.0.0.1");
    node.neighbour(9, "10.0.0.1", mac(7), NudState::Reachable);
    assert!(node.said().is_empty(), "nobody is known to stand behind it");
    node.fdb(9, 1, mac(7));
    assert_eq!(
        node.said(),
        ["raised 10.0.0.1 duplicate observed: veth2 veth1"]
    );
}

#[test]
fn a_permanent_entry_that_no_port_is_known_for_claims_by_its_hardware_address() {
    let mut node = bridged();
    node.frame(1, "10.0.0.1");
    node.neighbour(9, "10.0.0.1", mac(7), NudState::Permanent);
    assert_eq!(
        node.said(),
        ["raised 10.0.0.1 duplicate observed: veth1 br9/02:00:00:00:00:07"]
    );
    node.fdb(9, 2, mac(7));
    assert_eq!(
        node.said(),
        ["updated 10.0.0.1 duplicate observed: veth1 veth2 left br9/02:00:00:00:00:07(expired)"]
    );
}

#[test]
fn an_unresolved_hardware_address_that_a_claimant_gives_is_that_claimant() {
    let mut node = Node::new();
    node.bridge(9);
    node.port(1, 9);
    node.frame(1, "10.0.0.1");
    node.neighbour(9, "10.0.0.1", mac(1), NudState::Permanent);
    assert!(node.said().is_empty());
    // From now on it gives another.
    node.tell(Observation::Frame(FrameClaim {
        mac: mac(3),
        ..frame(1, "10.0.0.1")
    }));
    assert_eq!(
        node.said(),
        ["raised 10.0.0.1 duplicate observed: veth1 br9/02:00:00:00:00:01"]
    );
}

#[test]
fn a_hardware_address_behind_an_uplink_is_no_pods_claim() {
    let mut node = bridged();
    node.link(Link {
        master: Some(9),
        ..uplink(3)
    });
    node.fdb(9, 3, mac(7));
    node.neighbour(9, "10.0.0.1", mac(7), NudState::Permanent);
    node.frame(1, "10.0.0.1");
    assert!(node.said().is_empty());
}

#[test]
fn a_quiet_pods_aged_entry_keeps_its_port() {
    let mut node = bridged();
    node.neighbour(9, "10.0.0.1", mac(1), NudState::Reachable);
    node.fdb_gone(9, 1, mac(1));
    node.frame(2, "10.0.0.1");
    assert_eq!(
        node.said(),
        ["raised 10.0.0.1 duplicate observed: veth1 veth2"]
    );
    node.gone(1);
    assert_eq!(
        node.said(),
        ["resolved 10.0.0.1 duplicate observed: veth2 left veth1(device_removed)"]
    );
}

#[test]
fn an_aged_entry_is_remembered_only_while_a_neighbour_leads_to_it() {
    let mut node = bridged();
    node.neighbour(9, "10.0.0.1", mac(1), NudState::Reachable);
    node.fdb_gone(9, 1, mac(1));
    node.neighbour_gone(9, "10.0.0.1");
    node.neighbour(9, "10.0.0.1", mac(1), NudState::Stale);
    node.fdb_gone(9, 2, mac(2));
    node.neighbour(9, "10.0.0.2", mac(2), NudState::Stale);
    node.frame(2, "10.0.0.1");
    node.frame(1, "10.0.0.2");
    assert!(node.said().is_empty());
}

#[test]
fn a_hardware_address_that_moves_takes_the_claim_along() {
    let mut node = bridged();
    node.neighbour(9, "10.0.0.1", mac(1), NudState::Reachable);
    node.frame(2, "10.0.0.1");
    node.said();
    node.fdb(9, 2, mac(1));
    assert_eq!(
        node.said(),
        ["resolved 10.0.0.1 duplicate observed: veth2 left veth1(expired)"]
    );
    let claims = node.engine.claims_of(ip("10.0.0.1"), node.now);
    assert_eq!(
        evidence(&claims[0].claimant),
        ["arp", "neighbour REACHABLE"]
    );
}

#[test]
fn an_entry_that_ends_at_another_port_than_known_stood_there() {
    let mut node = bridged();
    node.neighbour(9, "10.0.0.1", mac(1), NudState::Reachable);
    node.frame(2, "10.0.0.1");
    node.said();
    // The kernel tells a move by the new entry alone: that one was missed.
    node.fdb_gone(9, 2, mac(1));
    assert_eq!(
        node.said(),
        ["resolved 10.0.0.1 duplicate observed: veth2 left veth1(expired)"]
    );
}

#[test]
fn a_hardware_address_in_several_vlans_stands_where_the_lowest_one_says() {
    let mut node = bridged();
    let entry = |vlan, port| FdbEntry {
        vlan: Some(vlan),
        ..fdb(9, port, mac(7))
    };
    node.tell(Observation::Fdb(entry(1, 1)));
    node.tell(Observation::Fdb(entry(20, 2)));
    node.neighbour(9, "10.0.0.1", mac(7), NudState::Reachable);
    node.frame(2, "10.0.0.1");
    assert_eq!(
        node.said(),
        ["raised 10.0.0.1 duplicate observed: veth1 veth2"]
    );
    node.tell(Observation::FdbGone(entry(1, 1)));
    assert_eq!(
        node.said(),
        ["resolved 10.0.0.1 duplicate observed: veth2 left veth1(expired)"],
        "what is known now goes before what was"
    );
}

#[test]
fn an_entry_that_goes_back_and_forth_shows_both_ports() {
    let mut node = bridged();
    for port in [1, 2, 1] {
        node.neighbour(9, "10.0.0.1", mac(port), NudState::Reachable);
    }
    let raised = node.conflicts_said();
    assert_eq!(show(&raised[0]), "10.0.0.1 duplicate observed: veth2 veth1");
    assert_eq!(evidence(&raised[0].claimants[0]), ["neighbour FLAPPING"]);
    assert_eq!(raised.len(), 1);
    for port in [2, 1, 2, 1] {
        node.neighbour(9, "10.0.0.1", mac(port), NudState::Reachable);
    }
    assert!(node.said().is_empty());
    node.wait_secs(179);
    assert!(node.said().is_empty());
    node.wait_secs(2);
    assert_eq!(
        node.said(),
        ["resolved 10.0.0.1 duplicate observed: veth1 left veth2(expired)"]
    );
}

#[test]
fn an_entry_that_changed_once_is_a_move_and_no_conflict() {
    let mut node = bridged();
    node.neighbour(9, "10.0.0.1", mac(1), NudState::Reachable);
    node.neighbour(9, "10.0.0.1", mac(2), NudState::Reachable);
    node.neighbour(9, "10.0.0.1", mac(2), NudState::Stale);
    assert!(node.said().is_empty());
}

#[test]
fn an_entry_that_comes_back_after_the_window_does_not_flap() {
    let mut node = bridged();
    for port in [1, 2, 1] {
        node.neighbour(9, "10.0.0.1", mac(port), NudState::Reachable);
        node.wait_secs(181);
    }
    assert!(node.said().is_empty());
}

#[test]
fn who_had_the_entry_before_it_flapped_takes_no_part() {
    let mut node = bridged();
    node.port(3, 9);
    node.fdb(9, 3, mac(3));
    for port in [3, 1, 2, 1] {
        node.neighbour(9, "10.0.0.1", mac(port), NudState::Reachable);
    }
    assert_eq!(
        node.said(),
        ["raised 10.0.0.1 duplicate observed: veth2 veth1"]
    );
}

#[test]
fn both_that_flapped_are_remembered_when_a_third_takes_over() {
    let mut node = bridged();
    node.port(3, 9);
    node.fdb(9, 3, mac(3));
    for port in [1, 2, 1] {
        node.neighbour(9, "10.0.0.1", mac(port), NudState::Reachable);
    }
    node.said();
    node.neighbour(9, "10.0.0.1", mac(3), NudState::Reachable);
    assert_eq!(
        node.said(),
        ["updated 10.0.0.1 duplicate observed: veth2 veth1 veth3"]
    );
}

#[test]
fn an_address_removed_behind_the_bridge_refutes_what_leads_there() {
    let mut node = bridged();
    node.read_pod(1, &["10.0.0.1"]);
    node.neighbour(9, "10.0.0.1", mac(1), NudState::Reachable);
    node.address_gone(1, "10.0.0.1");
    node.address(2, "10.0.0.1");
    assert!(node.said().is_empty());
}

#[test]
fn an_address_removed_behind_the_bridge_ends_its_part_in_flapping() {
    let mut node = bridged();
    for port in [1, 2, 1] {
        node.neighbour(9, "10.0.0.1", mac(port), NudState::Reachable);
    }
    node.said();
    node.address_gone(2, "10.0.0.1");
    assert_eq!(
        node.said(),
        ["resolved 10.0.0.1 duplicate observed: veth1 left veth2(expired)"]
    );
}

#[test]
fn a_stale_entry_is_refuted_by_the_namespace_behind_the_port() {
    let mut node = bridged();
    node.neighbour(9, "10.0.0.1", mac(1), NudState::Stale);
    node.address(2, "10.0.0.1");
    assert_eq!(
        node.said(),
        ["raised 10.0.0.1 duplicate observed: veth1 veth2"]
    );
    node.read_pod(1, &[]);
    assert_eq!(
        node.said(),
        ["resolved 10.0.0.1 duplicate observed: veth2 left veth1(expired)"]
    );
}

#[test]
fn a_port_that_leaves_the_bridge_takes_what_stood_behind_it_along() {
    let mut node = bridged();
    node.neighbour(9, "10.0.0.1", mac(1), NudState::Reachable);
    node.frame(2, "10.0.0.1");
    node.said();
    node.pod(1);
    assert_eq!(
        node.said(),
        ["resolved 10.0.0.1 duplicate observed: veth2 left veth1(expired)"]
    );
    // Its forwarding entries are told gone, and are not remembered as a quiet pod's.
    node.fdb_gone(9, 1, mac(1));
    assert!(node.said().is_empty());
}

#[test]
fn a_removed_bridge_takes_its_entries_along() {
    let mut node = bridged();
    node.neighbour(9, "10.0.0.1", mac(1), NudState::Reachable);
    node.frame(2, "10.0.0.1");
    node.said();
    node.gone(9);
    assert_eq!(
        node.said(),
        ["resolved 10.0.0.1 duplicate observed: veth2 left veth1(expired)"]
    );
}

#[test]
fn both_that_flapped_uphold_each_other_when_an_unknown_third_takes_over() {
    let mut node = bridged();
    for port in [1, 2, 1, 7] {
        node.neighbour(9, "10.0.0.1", mac(port), NudState::Reachable);
    }
    assert_eq!(node.open(), ["10.0.0.1 duplicate observed: veth2 veth1"]);
}

#[test]
fn entries_of_a_link_that_is_no_bridge_any_more_are_no_claims() {
    let mut node = bridged();
    node.neighbour(9, "10.0.0.1", mac(1), NudState::Reachable);
    node.frame(2, "10.0.0.1");
    node.said();
    // The bridge's end was missed, and its index is an uplink's now.
    node.link(uplink(9));
    assert_eq!(
        node.said(),
        ["resolved 10.0.0.1 duplicate observed: veth2 left veth1(expired)"]
    );
}
