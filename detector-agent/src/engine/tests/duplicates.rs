//! Rules 1 and 7: two live claims of one address, by every kind of evidence.

use super::*;

#[test]
fn second_assigned_address_raises_at_once() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    assert!(node.said().is_empty());
    node.address(2, "10.0.0.1");
    assert_eq!(
        node.said(),
        ["raised 10.0.0.1 duplicate certain: veth1 veth2"]
    );
}

#[test]
fn two_frames_alone_raise() {
    let mut node = Node::with_pods(2);
    node.frame(1, "10.0.0.1");
    node.frame(2, "10.0.0.1");
    assert_eq!(
        node.said(),
        ["raised 10.0.0.1 duplicate observed: veth1 veth2"]
    );
}

#[test]
fn two_neighbour_entries_alone_raise() {
    for state in [
        NudState::Reachable,
        NudState::Stale,
        NudState::Delay,
        NudState::Probe,
    ] {
        let mut node = Node::with_pods(2);
        node.neighbour(1, "10.0.0.1", mac(1), state);
        node.neighbour(2, "10.0.0.1", mac(2), state);
        assert_eq!(
            node.said(),
            ["raised 10.0.0.1 duplicate observed: veth1 veth2"],
            "{state:?}"
        );
    }
}

#[test]
fn permanent_neighbours_are_certain() {
    let mut node = Node::with_pods(2);
    node.neighbour(1, "10.0.0.1", mac(1), NudState::Permanent);
    node.neighbour(2, "10.0.0.1", mac(2), NudState::Permanent);
    assert_eq!(
        node.said(),
        ["raised 10.0.0.1 duplicate certain: veth1 veth2"]
    );
}

#[test]
fn one_certain_claimant_is_not_enough_to_be_certain_and_the_second_is_told() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    node.frame(2, "10.0.0.1");
    assert_eq!(
        node.said(),
        ["raised 10.0.0.1 duplicate observed: veth1 veth2"]
    );
    node.address(2, "10.0.0.1");
    assert_eq!(
        node.said(),
        ["updated 10.0.0.1 duplicate certain: veth1 veth2"]
    );
}

#[test]
fn different_addresses_of_many_pods_raise_nothing() {
    let mut node = Node::new();
    for ifindex in 1..=200 {
        node.pod(ifindex);
        let address = format!("10.0.0.{ifindex}");
        node.address(ifindex, &address);
        node.frame(ifindex, &address);
        node.neighbour(ifindex, &address, mac(7), NudState::Reachable);
        node.route(&address, ifindex);
    }
    for ifindex in 1..=200 {
        node.gone(ifindex);
    }
    assert!(node.said().is_empty());
    assert!(node.engine.addresses().is_empty());
}

#[test]
fn more_evidence_for_a_known_claimant_says_nothing_but_is_shown() {
    let mut node = Node::with_pods(2);
    node.frame(1, "10.0.0.1");
    node.frame(2, "10.0.0.1");
    node.said();
    node.neighbour(2, "10.0.0.1", mac(2), NudState::Reachable);
    node.frame(2, "10.0.0.1");
    assert!(node.said().is_empty());
    let open = node.engine.conflicts(node.now);
    assert_eq!(
        evidence(&open[0].claimants[1]),
        ["arp", "neighbour REACHABLE"]
    );
    assert_eq!(open[0].claimants[1].evidence[0].last_seen, node.now);
}

#[test]
fn claimants_join_and_leave_under_one_id() {
    let mut node = Node::with_pods(3);
    for ifindex in 1..=3 {
        node.address(ifindex, "10.0.0.1");
    }
    node.gone(1);
    node.address_gone(2, "10.0.0.1");
    let said = node.conflicts_said();
    assert_eq!(
        said.iter().map(show).collect::<Vec<_>>(),
        [
            "10.0.0.1 duplicate certain: veth1 veth2",
            "10.0.0.1 duplicate certain: veth1 veth2 veth3",
            "10.0.0.1 duplicate certain: veth2 veth3 left veth1(device_removed)",
            "10.0.0.1 duplicate certain: veth3 left veth1(device_removed) left veth2(address_removed)",
        ]
    );
    assert!(said.iter().all(|c| c.id == said[0].id));
    assert!(said.iter().all(|c| c.raised_at == said[0].raised_at));
    assert!(said[..3].iter().all(|c| c.resolved_at.is_none()));
    assert_eq!(said[3].resolved_at, Some(node.now));
    assert!(node.open().is_empty());
}

#[test]
fn a_later_conflict_of_the_same_address_has_another_id() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    for _ in 0..3 {
        node.address(2, "10.0.0.1");
        node.address_gone(2, "10.0.0.1");
    }
    let mut ids: Vec<_> = node.conflicts_said().iter().map(|c| c.id).collect();
    assert_eq!(ids.len(), 6);
    ids.dedup();
    assert_eq!(ids.len(), 3);
}

#[test]
fn a_claimant_that_comes_back_is_no_longer_listed_as_left() {
    let mut node = Node::with_pods(3);
    for ifindex in 1..=3 {
        node.address(ifindex, "10.0.0.1");
    }
    node.address_gone(3, "10.0.0.1");
    node.said();
    node.address(3, "10.0.0.1");
    assert_eq!(
        node.said(),
        ["updated 10.0.0.1 duplicate certain: veth1 veth2 veth3"]
    );
}

#[test]
fn conflicts_of_one_pair_in_both_families_are_two() {
    let mut node = Node::with_pods(2);
    for ifindex in 1..=2 {
        node.address(ifindex, "10.0.0.1");
        node.address(ifindex, "2001:db8::1");
    }
    assert_eq!(
        node.said(),
        [
            "raised 10.0.0.1 duplicate certain: veth1 veth2",
            "raised 2001:db8::1 duplicate certain: veth1 veth2"
        ]
    );
}

#[test]
fn addresses_nobody_can_own_are_never_claims() {
    let mut node = Node::with_pods(2);
    for address in [
        "0.0.0.0",
        "127.0.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "ff02::1",
    ] {
        for ifindex in 1..=2 {
            node.address(ifindex, address);
            node.frame(ifindex, address);
            node.neighbour(ifindex, address, mac(1), NudState::Permanent);
        }
        node.host(1, address);
    }
    assert!(node.said().is_empty());
    assert!(node.engine.addresses().is_empty());
}

#[test]
fn the_deciding_observation_gives_its_time() {
    let mut node = Node::with_pods(2);
    node.frame(1, "10.0.0.1");
    node.now.0 += 10 * MS;
    let heard = Timestamp(node.now.0 - 37_000);
    node.tell_at(heard, Observation::Frame(frame(2, "10.0.0.1")));
    let raised = &node.conflicts_said()[0];
    assert_eq!(raised.decided_at, heard);
    assert_eq!(raised.raised_at, node.now);
    assert_eq!(
        raised.raised_at.since(raised.decided_at),
        Duration::from_micros(37)
    );
}

#[test]
fn evidence_gives_its_hardware_addresses_and_times() {
    let mut node = Node::with_pods(2);
    node.read_pod(1, &["10.0.0.1"]);
    let first = node.now;
    node.tell(Observation::Frame(FrameClaim {
        mac: mac(9),
        ..frame(2, "10.0.0.1")
    }));
    let raised = node.conflicts_said().remove(0);
    assert_eq!(raised.claimants[0].since, first);
    assert_eq!(raised.claimants[0].mac, Some(mac(1)));
    assert_eq!(raised.claimants[1].mac, Some(mac(9)));
    assert_eq!(
        evidence(&raised.claimants[1]),
        ["arp sent by 02:00:00:00:00:02"]
    );
}

#[test]
fn claims_are_listed_per_address_without_the_nodes_own() {
    let mut node = Node::with_pods(1);
    node.link(uplink(9));
    node.host(9, "10.0.0.1");
    node.address(1, "10.0.0.1");
    assert_eq!(node.engine.addresses(), [ip("10.0.0.1")]);
    let claims = node.engine.claims_of(ip("10.0.0.1"), node.now);
    assert_eq!(claims.len(), 1);
    assert_eq!(claims[0].claimant.device, "veth1");
    assert_eq!(node.engine.open_conflicts(ConflictKind::Host), 1);
    assert_eq!(node.engine.open_conflicts(ConflictKind::Duplicate), 0);
}
