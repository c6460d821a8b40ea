//! When a neighbour entry on a pod device is a claim, and when the pod's namespace refutes it.

use super::*;

/// Pod 1 has an entry in `state` for 10.0.0.1 and a readable namespace without it; pod 2 has the
/// address.
fn disputed(state: NudState) -> Vec<String> {
    let mut node = Node::with_pods(2);
    node.read_pod_addresses(1, &["10.0.0.7"]);
    node.neighbour(1, "10.0.0.1", mac(1), state);
    node.address(2, "10.0.0.1");
    node.conflict_events()
}

#[test]
fn unconfirmed_entry_is_refuted_by_a_readable_namespace() {
    for state in [NudState::Stale, NudState::Delay, NudState::Probe] {
        assert!(disputed(state).is_empty(), "{state:?}");
    }
}

#[test]
fn confirmed_or_permanent_entry_is_not_refuted() {
    for (state, confidence) in [
        (NudState::Reachable, "observed"),
        (NudState::Permanent, "certain"),
    ] {
        assert_eq!(
            disputed(state),
            [format!(
                "raised 10.0.0.1 duplicate {confidence}: veth1 veth2"
            )]
        );
    }
}

#[test]
fn kernel_generated_entries_are_not_claims() {
    let mut node = Node::with_pods(2);
    node.neighbour(1, "10.0.0.255", mac(1), NudState::NoArp);
    node.neighbour(2, "10.0.0.255", Mac([0xff; 6]), NudState::Permanent);
    node.address(1, "10.0.0.255");
    node.address(2, "10.0.0.254");
    assert!(node.conflict_events().is_empty());
    node.neighbour(2, "10.0.0.255", mac(1), NudState::NoArp);
    assert!(node.conflict_events().is_empty());
}

#[test]
fn learned_entry_is_a_claim_whatever_its_hardware_address() {
    for learned in [Mac::default(), Mac([3, 0, 0, 0, 0, 1]), Mac([0xff; 6])] {
        let mut node = Node::with_pods(2);
        node.address(1, "10.0.0.1");
        node.neighbour(2, "10.0.0.1", learned, NudState::Reachable);
        node.expect(["raised 10.0.0.1 duplicate observed: veth1 veth2"]);
    }
}

#[test]
fn unreadable_namespace_refutes_nothing() {
    let mut node = Node::with_pods(2);
    node.read_pod_addresses(1, &[]);
    node.neighbour(1, "10.0.0.1", mac(1), NudState::Stale);
    node.address(2, "10.0.0.1");
    assert!(node.conflict_events().is_empty());
    let token = node.begin_snapshot();
    let snapshot = Snapshot {
        pods: vec![PodAddresses {
            addresses: None,
            ..pod_addresses(1, &[])
        }],
        neighbours: vec![neighbour(1, "10.0.0.1", mac(1), NudState::Stale)],
        ..Snapshot::default()
    };
    node.finish_device_snapshot(token, 1, snapshot);
    node.expect(["raised 10.0.0.1 duplicate observed: veth1 veth2"]);
}

#[test]
fn address_removed_before_the_first_read_refutes_its_entry() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    node.neighbour(1, "10.0.0.1", mac(1), NudState::Stale);
    node.address_gone(1, "10.0.0.1");
    node.address(2, "10.0.0.1");
    assert!(node.conflict_events().is_empty());
}

#[test]
fn snapshot_that_refutes_an_entry_resolves() {
    let mut node = Node::with_pods(2);
    node.neighbour(1, "10.0.0.1", mac(1), NudState::Stale);
    node.address(2, "10.0.0.1");
    node.conflict_events();
    let token = node.begin_snapshot();
    let snapshot = Snapshot {
        pods: vec![pod_addresses(1, &[])],
        neighbours: vec![neighbour(1, "10.0.0.1", mac(1), NudState::Stale)],
        ..Snapshot::default()
    };
    node.finish_device_snapshot(token, 1, snapshot);
    node.expect(["resolved 10.0.0.1 duplicate observed: veth2 left veth1(expired)"]);
}

#[test]
fn entry_turned_stale_without_the_address_is_withdrawn() {
    let mut node = Node::with_pods(2);
    node.read_pod_addresses(1, &["10.0.0.7"]);
    node.neighbour(1, "10.0.0.1", mac(1), NudState::Reachable);
    node.address(2, "10.0.0.1");
    node.conflict_events();
    node.neighbour(1, "10.0.0.1", mac(1), NudState::Stale);
    node.expect(["resolved 10.0.0.1 duplicate observed: veth2 left veth1(expired)"]);
}

#[test]
fn stale_entry_of_a_pod_with_the_address_is_evidence() {
    let mut node = Node::with_pods(1);
    node.read_pod_addresses(1, &["10.0.0.1"]);
    node.neighbour(1, "10.0.0.1", mac(1), NudState::Stale);
    let claims = node.engine.view().claims_of(ip("10.0.0.1"), node.now);
    assert_eq!(
        evidence_text(&claims[0].claimant),
        ["address", "neighbour STALE"]
    );
}

#[test]
fn removed_address_refutes_its_entry_until_reconfirmed() {
    let mut node = Node::with_pods(2);
    node.read_pod_addresses(1, &["10.0.0.1"]);
    node.neighbour(1, "10.0.0.1", mac(1), NudState::Reachable);
    node.address_gone(1, "10.0.0.1");
    node.address(2, "10.0.0.1");
    assert!(node.conflict_events().is_empty());
    // An entry in a snapshot is not a fresh confirmation.
    let token = node.begin_snapshot();
    let snapshot = Snapshot {
        neighbours: vec![neighbour(1, "10.0.0.1", mac(1), NudState::Reachable)],
        ..Snapshot::default()
    };
    node.finish_device_snapshot(token, 1, snapshot);
    assert!(node.conflict_events().is_empty());
    node.neighbour(1, "10.0.0.1", mac(1), NudState::Reachable);
    node.expect(["raised 10.0.0.1 duplicate observed: veth1 veth2"]);
}

/// The removal was lost, so it was before everything that was reported since: also before the pod answered.
#[test]
fn entry_confirmed_since_a_snapshot_started_is_not_refuted_by_its_missing_address() {
    for (state, is_claim) in [(NudState::Reachable, true), (NudState::Stale, false)] {
        for confirmed_before in [true, false] {
            let mut node = Node::with_pods(2);
            node.address(1, "10.0.0.1");
            if confirmed_before {
                node.neighbour(1, "10.0.0.1", mac(1), NudState::Reachable);
            }
            let token = node.begin_snapshot();
            node.neighbour(1, "10.0.0.1", mac(1), state);
            node.finish_node_snapshot(token, snapshot(&[(1, &[]), (2, &["10.0.0.1"])]));
            let open = node.open_conflicts();
            let context = format!("{state:?}, {confirmed_before}: {open:?}");
            assert_eq!(open.len(), usize::from(is_claim), "{context}");
        }
    }
}

#[test]
fn entry_that_appeared_since_a_snapshot_started_is_not_refuted_by_its_missing_address() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    let token = node.begin_snapshot();
    node.neighbour(1, "10.0.0.1", mac(1), NudState::Stale);
    let missing = snapshot(&[(1, &[]), (2, &["10.0.0.1"])]);
    node.finish_node_snapshot(token, missing.clone());
    assert!(node.conflict_events().is_empty());
    // A state in a snapshot counts only for an entry that was not refuted.
    node.resync(Snapshot {
        neighbours: vec![neighbour(1, "10.0.0.1", mac(1), NudState::Reachable)],
        ..missing
    });
    node.expect(["raised 10.0.0.1 duplicate observed: veth1 veth2"]);
}

#[test]
fn reassigned_address_makes_its_entry_evidence_again() {
    let mut node = Node::with_pods(1);
    node.read_pod_addresses(1, &["10.0.0.1"]);
    node.neighbour(1, "10.0.0.1", mac(1), NudState::Reachable);
    node.address_gone(1, "10.0.0.1");
    node.address(1, "10.0.0.1");
    let claims = node.engine.view().claims_of(ip("10.0.0.1"), node.now);
    assert_eq!(
        evidence_text(&claims[0].claimant),
        ["address", "neighbour REACHABLE"]
    );
}

#[test]
fn withdrawn_or_failed_entry_ends_the_claim() {
    for failed in [false, true] {
        let mut node = Node::with_pods(2);
        node.neighbour(1, "10.0.0.1", mac(1), NudState::Reachable);
        node.neighbour(2, "10.0.0.1", mac(2), NudState::Reachable);
        node.conflict_events();
        if failed {
            node.neighbour(1, "10.0.0.1", mac(1), NudState::Invalid);
        } else {
            node.neighbour_gone(1, "10.0.0.1");
        }
        assert_eq!(
            node.conflict_events(),
            ["resolved 10.0.0.1 duplicate observed: veth2 left veth1(expired)"],
            "failed: {failed}"
        );
    }
}

#[test]
fn withdrawn_entry_leaves_other_evidence() {
    let mut node = Node::with_pods(2);
    node.neighbour(1, "10.0.0.1", mac(1), NudState::Reachable);
    node.frame(1, "10.0.0.1");
    node.address(2, "10.0.0.1");
    node.conflict_events();
    node.neighbour_gone(1, "10.0.0.1");
    assert!(node.conflict_events().is_empty());
    assert_eq!(node.open_conflicts().len(), 1);
}

#[test]
fn entries_on_uplinks_are_not_claims() {
    let mut node = Node::with_pods(1);
    node.link(uplink(9));
    node.address(1, "10.0.0.1");
    node.neighbour(9, "10.0.0.1", mac(9), NudState::Permanent);
    assert!(node.conflict_events().is_empty());
}

/// Two CPUs may publish the states of one entry in another order than they read them.
#[test]
fn older_state_of_an_entry_does_not_count() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    let valid = |mac| Observation::Neighbour(neighbour(2, "10.0.0.1", mac, NudState::Permanent));
    let read_at = node.now;
    node.tick();
    // It was withdrawn after that, and its end is published first.
    node.neighbour_gone(2, "10.0.0.1");
    node.observe_at(read_at, valid(mac(2)));
    assert!(node.conflict_events().is_empty());
    // An entry of a later time counts, and neither its former state nor its former end.
    node.observe(valid(mac(2)));
    let raised = ["raised 10.0.0.1 duplicate certain: veth1 veth2"];
    assert_eq!(node.conflict_events(), raised);
    node.observe_at(read_at, Observation::NeighbourGone(2, ip("10.0.0.1")));
    node.observe_at(read_at, valid(mac(3)));
    assert!(node.conflict_events().is_empty());
    node.neighbour_gone(2, "10.0.0.1");
    assert_eq!(node.conflict_events().len(), 1);
}
