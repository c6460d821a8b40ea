//! Two live claims to one address, by every kind of evidence (`docs/detection-rules.md`, 1 and 7).

use super::*;

#[test]
fn second_assigned_address_raises_at_once() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    assert!(node.conflict_events().is_empty());
    node.address(2, "10.0.0.1");
    node.expect(["raised 10.0.0.1 duplicate certain: veth1 veth2"]);
}

#[test]
fn two_frame_claims_raise() {
    let mut node = Node::with_observed_duplicate();
    node.expect(["raised 10.0.0.1 duplicate observed: veth1 veth2"]);
}

#[test]
fn two_neighbour_entries_raise() {
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
            node.conflict_events(),
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
    node.expect(["raised 10.0.0.1 duplicate certain: veth1 veth2"]);
}

#[test]
fn conflict_is_certain_only_with_two_certain_claimants() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    node.frame(2, "10.0.0.1");
    node.expect(["raised 10.0.0.1 duplicate observed: veth1 veth2"]);
    node.address(2, "10.0.0.1");
    node.expect(["updated 10.0.0.1 duplicate certain: veth1 veth2"]);
}

#[test]
fn distinct_addresses_of_many_pods_raise_nothing() {
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
        node.remove_link(ifindex);
    }
    assert!(node.conflict_events().is_empty());
    assert!(node.engine.view().addresses().is_empty());
}

#[test]
fn further_evidence_is_listed_without_an_event() {
    let mut node = Node::with_observed_duplicate();
    node.conflict_events();
    node.neighbour(2, "10.0.0.1", mac(2), NudState::Reachable);
    node.frame(2, "10.0.0.1");
    assert!(node.conflict_events().is_empty());
    let open = node.engine.view().conflicts(node.now);
    assert_eq!(
        evidence_text(&open[0].claimants[1]),
        ["arp", "neighbour REACHABLE"]
    );
    assert_eq!(open[0].claimants[1].evidence[0].seen.last, node.now);
}

#[test]
fn claimants_join_and_leave_under_one_id() {
    let mut node = Node::with_pods(3);
    node.addresses(1..=3, "10.0.0.1");
    node.remove_link(1);
    node.address_gone(2, "10.0.0.1");
    let conflicts = node.reported_conflicts();
    assert_eq!(
        conflicts.iter().map(conflict_text).collect::<Vec<_>>(),
        [
            "10.0.0.1 duplicate certain: veth1 veth2",
            "10.0.0.1 duplicate certain: veth1 veth2 veth3",
            "10.0.0.1 duplicate certain: veth2 veth3 left veth1(device_removed)",
            "10.0.0.1 duplicate certain: veth3 left veth1(device_removed) left veth2(address_removed)",
        ]
    );
    assert!(conflicts.iter().all(|c| c.id == conflicts[0].id));
    assert!(
        conflicts
            .iter()
            .all(|c| c.raised_at == conflicts[0].raised_at)
    );
    assert!(conflicts[..3].iter().all(|c| c.resolved_at.is_none()));
    assert_eq!(conflicts[3].resolved_at, Some(node.now));
    assert!(node.open_conflicts().is_empty());
}

#[test]
fn returning_claimant_is_no_longer_listed_as_left() {
    let mut node = Node::with_pods(3);
    node.addresses(1..=3, "10.0.0.1");
    node.address_gone(3, "10.0.0.1");
    node.conflict_events();
    node.address(3, "10.0.0.1");
    node.expect(["updated 10.0.0.1 duplicate certain: veth1 veth2 veth3"]);
}

#[test]
fn conflicts_in_both_families_are_separate() {
    let mut node = Node::with_pods(2);
    for ifindex in 1..=2 {
        node.address(ifindex, "10.0.0.1");
        node.address(ifindex, "2001:db8::1");
    }
    node.expect([
        "raised 10.0.0.1 duplicate certain: veth1 veth2",
        "raised 2001:db8::1 duplicate certain: veth1 veth2",
    ]);
}

#[test]
fn unownable_addresses_are_never_claims() {
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
    assert!(node.conflict_events().is_empty());
    assert!(node.engine.view().addresses().is_empty());
}

#[test]
fn event_carries_the_time_of_the_deciding_observation() {
    let mut node = Node::with_pods(2);
    node.frame(1, "10.0.0.1");
    node.now.0 += 10 * MS;
    let sent_at = Timestamp(node.now.0 - 37_000);
    node.observe_at(sent_at, Observation::Frame(frame(2, "10.0.0.1")));
    let raised = &node.reported_conflicts()[0];
    assert_eq!(raised.decided_at, sent_at);
    assert_eq!(raised.raised_at, node.now);
    assert_eq!(
        raised.raised_at.since(raised.decided_at),
        Duration::from_micros(37)
    );
}

#[test]
fn evidence_carries_macs_and_times() {
    let mut node = Node::with_pods(2);
    node.read_pod_addresses(1, &["10.0.0.1"]);
    let first = node.now;
    node.observe(Observation::Frame(FrameClaim {
        mac: mac(9),
        ..frame(2, "10.0.0.1")
    }));
    let raised = node.reported_conflicts().remove(0);
    assert_eq!(raised.claimants[0].since, first);
    assert_eq!(raised.claimants[0].mac, Some(mac(1)));
    assert_eq!(raised.claimants[1].mac, Some(mac(9)));
    assert_eq!(
        evidence_text(&raised.claimants[1]),
        ["arp sent by 02:00:00:00:00:02"]
    );
}

#[test]
fn claims_listing_omits_the_hosts_own_claim() {
    let mut node = Node::with_pods(1);
    node.link(uplink(9));
    node.host(9, "10.0.0.1");
    node.address(1, "10.0.0.1");
    assert_eq!(node.engine.view().addresses(), [ip("10.0.0.1")]);
    let claims = node.engine.view().claims_of(ip("10.0.0.1"), node.now);
    assert_eq!(claims.len(), 1);
    assert_eq!(claims[0].claimant.device, "veth1");
    assert_eq!(node.engine.view().open_conflicts(ConflictKind::Host), 1);
    assert_eq!(
        node.engine.view().open_conflicts(ConflictKind::Duplicate),
        0
    );
}
