//! When a neighbour entry on a pod's device is a claim, and when the pod's namespace speaks against it.

use super::*;

/// One pod with an entry of `state` for 10.0.0.1 and a readable namespace without it; the other has the address.
fn disputed(state: NudState) -> Vec<String> {
    let mut node = Node::with_pods(2);
    node.read_pod(1, &[]);
    node.neighbour(1, "10.0.0.1", mac(1), state);
    node.address(2, "10.0.0.1");
    node.said()
}

#[test]
fn an_unconfirmed_entry_is_refuted_by_a_readable_namespace() {
    for state in [NudState::Stale, NudState::Delay, NudState::Probe] {
        assert!(disputed(state).is_empty(), "{state:?}");
    }
}

#[test]
fn a_confirmed_or_permanent_entry_is_not_refuted() {
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
fn entries_the_kernel_makes_by_itself_are_no_claims() {
    let mut node = Node::with_pods(2);
    node.neighbour(1, "10.0.0.255", mac(1), NudState::NoArp);
    node.neighbour(2, "10.0.0.255", Mac([0xff; 6]), NudState::Permanent);
    node.address(1, "10.0.0.255");
    node.address(2, "10.0.0.254");
    assert!(node.said().is_empty());
    node.neighbour(2, "10.0.0.255", mac(1), NudState::NoArp);
    node.neighbour(2, "10.0.0.254", Mac::default(), NudState::Reachable);
    assert!(node.said().is_empty());
}

#[test]
fn an_unreadable_namespace_speaks_against_nothing() {
    let mut node = Node::with_pods(2);
    node.read_pod(1, &[]);
    node.neighbour(1, "10.0.0.1", mac(1), NudState::Stale);
    node.address(2, "10.0.0.1");
    assert!(node.said().is_empty());
    let token = node.begin();
    let snapshot = Snapshot {
        pods: vec![PodAddresses {
            addresses: None,
            ..holds(1, &[])
        }],
        neighbours: vec![neighbour(1, "10.0.0.1", mac(1), NudState::Stale)],
        ..Snapshot::default()
    };
    node.finish_device(token, 1, snapshot);
    assert_eq!(
        node.said(),
        ["raised 10.0.0.1 duplicate observed: veth1 veth2"]
    );
}

#[test]
fn an_address_removed_before_the_namespace_is_read_refutes_its_entry() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    node.neighbour(1, "10.0.0.1", mac(1), NudState::Stale);
    node.address_gone(1, "10.0.0.1");
    node.address(2, "10.0.0.1");
    assert!(node.said().is_empty());
}

#[test]
fn a_reading_that_refutes_an_entry_resolves() {
    let mut node = Node::with_pods(2);
    node.neighbour(1, "10.0.0.1", mac(1), NudState::Stale);
    node.address(2, "10.0.0.1");
    node.said();
    let token = node.begin();
    let snapshot = Snapshot {
        pods: vec![holds(1, &[])],
        neighbours: vec![neighbour(1, "10.0.0.1", mac(1), NudState::Stale)],
        ..Snapshot::default()
    };
    node.finish_device(token, 1, snapshot);
    assert_eq!(
        node.said(),
        ["resolved 10.0.0.1 duplicate observed: veth2 left veth1(expired)"]
    );
}

#[test]
fn an_entry_turned_stale_without_the_address_is_no_claim_any_more() {
    let mut node = Node::with_pods(2);
    node.read_pod(1, &[]);
    node.neighbour(1, "10.0.0.1", mac(1), NudState::Reachable);
    node.address(2, "10.0.0.1");
    node.said();
    node.neighbour(1, "10.0.0.1", mac(1), NudState::Stale);
    assert_eq!(
        node.said(),
        ["resolved 10.0.0.1 duplicate observed: veth2 left veth1(expired)"]
    );
}

#[test]
fn a_stale_entry_of_a_pod_that_has_the_address_is_evidence() {
    let mut node = Node::with_pods(1);
    node.read_pod(1, &["10.0.0.1"]);
    node.neighbour(1, "10.0.0.1", mac(1), NudState::Stale);
    let claims = node.engine.claims_of(ip("10.0.0.1"), node.now);
    assert_eq!(
        evidence(&claims[0].claimant),
        ["address", "neighbour STALE"]
    );
}

#[test]
fn an_address_removed_in_the_pod_refutes_its_entry_until_it_is_confirmed_again() {
    let mut node = Node::with_pods(2);
    node.read_pod(1, &["10.0.0.1"]);
    node.neighbour(1, "10.0.0.1", mac(1), NudState::Reachable);
    node.address_gone(1, "10.0.0.1");
    node.address(2, "10.0.0.1");
    assert!(node.said().is_empty());
    // What a reading finds is no fresh confirmation.
    let token = node.begin();
    let snapshot = Snapshot {
        neighbours: vec![neighbour(1, "10.0.0.1", mac(1), NudState::Reachable)],
        ..Snapshot::default()
    };
    node.finish_device(token, 1, snapshot);
    assert!(node.said().is_empty());
    node.neighbour(1, "10.0.0.1", mac(1), NudState::Reachable);
    assert_eq!(
        node.said(),
        ["raised 10.0.0.1 duplicate observed: veth1 veth2"]
    );
}

#[test]
fn an_address_assigned_again_makes_its_entry_evidence_again() {
    let mut node = Node::with_pods(1);
    node.read_pod(1, &["10.0.0.1"]);
    node.neighbour(1, "10.0.0.1", mac(1), NudState::Reachable);
    node.address_gone(1, "10.0.0.1");
    node.address(1, "10.0.0.1");
    let claims = node.engine.claims_of(ip("10.0.0.1"), node.now);
    assert_eq!(
        evidence(&claims[0].claimant),
        ["address", "neighbour REACHABLE"]
    );
}

#[test]
fn an_entry_withdrawn_or_failed_ends_the_claim() {
    for failed in [false, true] {
        let mut node = Node::with_pods(2);
        node.neighbour(1, "10.0.0.1", mac(1), NudState::Reachable);
        node.neighbour(2, "10.0.0.1", mac(2), NudState::Reachable);
        node.said();
        if failed {
            node.neighbour(1, "10.0.0.1", mac(1), NudState::Invalid);
        } else {
            node.neighbour_gone(1, "10.0.0.1");
        }
        assert_eq!(
            node.said(),
            ["resolved 10.0.0.1 duplicate observed: veth2 left veth1(expired)"]
        );
    }
}

#[test]
fn an_entry_withdrawn_leaves_other_evidence_standing() {
    let mut node = Node::with_pods(2);
    node.neighbour(1, "10.0.0.1", mac(1), NudState::Reachable);
    node.frame(1, "10.0.0.1");
    node.address(2, "10.0.0.1");
    node.said();
    node.neighbour_gone(1, "10.0.0.1");
    assert!(node.said().is_empty());
    assert_eq!(node.open().len(), 1);
}

#[test]
fn entries_on_the_nodes_own_links_are_no_claims() {
    let mut node = Node::with_pods(1);
    node.link(uplink(9));
    node.address(1, "10.0.0.1");
    node.neighbour(9, "10.0.0.1", mac(9), NudState::Permanent);
    assert!(node.said().is_empty());
}
