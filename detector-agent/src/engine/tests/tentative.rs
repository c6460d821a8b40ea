//! Rule 5: who asks whether an address is free claims it only against another's claim.

use super::*;

#[test]
fn a_probe_alone_is_no_claim() {
    let mut node = Node::with_pods(2);
    node.probe(1, "10.0.0.1");
    node.address(2, "10.0.0.1");
    assert!(node.said().is_empty());
}

#[test]
fn two_probes_are_no_conflict() {
    let mut node = Node::with_pods(2);
    node.probe(1, "10.0.0.1");
    node.probe(2, "10.0.0.1");
    node.probe(1, "10.0.0.1");
    assert!(node.said().is_empty());
}

#[test]
fn a_probe_for_anothers_address_is_a_conflict() {
    for address in ["10.0.0.1", "2001:db8::1"] {
        let mut node = Node::with_pods(2);
        node.address(2, address);
        node.probe(1, address);
        let raised = node.conflicts_said();
        assert_eq!(
            show(&raised[0]),
            format!("{address} duplicate observed: veth2 veth1")
        );
        let heard = if ip(address).is_ipv4() { "arp" } else { "ndp" };
        assert_eq!(
            evidence(&raised[0].claimants[1]),
            [format!("{heard} probe")]
        );
    }
}

#[test]
fn a_pod_probing_for_its_own_address_is_no_conflict() {
    let mut node = Node::with_pods(1);
    node.address(1, "10.0.0.1");
    node.probe(1, "10.0.0.1");
    assert!(node.said().is_empty());
}

#[test]
fn a_probe_in_another_vlan_or_domain_is_no_conflict() {
    let mut node = Node::with_pods(2);
    node.address(2, "10.0.0.1");
    node.tell(Observation::Frame(FrameClaim {
        tentative: true,
        vlan: Vlan {
            outer: Some(5),
            inner: None,
        },
        ..frame(1, "10.0.0.1")
    }));
    node.address(2, "fe80::1");
    node.probe(1, "fe80::1");
    assert!(node.said().is_empty());
}

#[test]
fn a_probe_counts_only_as_long_as_it_is_contested() {
    let mut node = Node::with_pods(3);
    node.address(2, "10.0.0.1");
    node.probe(1, "10.0.0.1");
    node.said();
    node.gone(2);
    assert_eq!(
        node.said(),
        ["resolved 10.0.0.1 duplicate observed: left veth2(device_removed) left veth1(expired)"]
    );
    // Claimed by a third within the time a probe counts: then it is contested again.
    node.address(3, "10.0.0.1");
    assert_eq!(
        node.said(),
        ["raised 10.0.0.1 duplicate observed: veth1 veth3"]
    );
}

#[test]
fn a_probe_that_nothing_follows_lapses_after_a_minute() {
    let mut node = Node::with_pods(2);
    node.address(2, "10.0.0.1");
    node.probe(1, "10.0.0.1");
    node.wait_secs(30);
    node.probe(1, "10.0.0.1");
    node.said();
    node.wait_secs(59);
    assert!(node.said().is_empty());
    node.wait_secs(1);
    assert_eq!(
        node.said(),
        ["resolved 10.0.0.1 duplicate observed: veth2 left veth1(expired)"]
    );
}

#[test]
fn a_claim_after_the_probe_is_a_claim() {
    let mut node = Node::with_pods(3);
    node.address(2, "10.0.0.1");
    node.probe(1, "10.0.0.1");
    node.frame(1, "10.0.0.1");
    node.probe(1, "10.0.0.1");
    node.gone(2);
    node.said();
    node.frame(3, "10.0.0.1");
    assert_eq!(
        node.said(),
        ["raised 10.0.0.1 duplicate observed: veth1 veth3"]
    );
    node.wait_secs(61);
    assert!(node.said().is_empty());
}

#[test]
fn probes_are_upheld_neither_by_each_other_nor_by_a_claim_in_another_vlan() {
    let mut node = Node::with_pods(4);
    node.address(3, "10.0.0.1");
    node.probe(1, "10.0.0.1");
    node.probe(2, "10.0.0.1");
    node.tell(Observation::Frame(FrameClaim {
        vlan: Vlan {
            outer: Some(5),
            inner: None,
        },
        ..frame(4, "10.0.0.1")
    }));
    node.said();
    node.gone(3);
    assert_eq!(
        node.said(),
        [
            "resolved 10.0.0.1 duplicate observed: left veth3(device_removed) left veth1(expired) left veth2(expired)"
        ]
    );
}

#[test]
fn a_probe_for_an_address_set_by_hand_behind_a_bridge_is_a_conflict() {
    let mut node = Node::new();
    node.bridge(9);
    node.port(1, 9);
    node.neighbour(9, "10.0.0.1", mac(7), NudState::Permanent);
    node.probe(1, "10.0.0.1");
    assert_eq!(
        node.said(),
        ["raised 10.0.0.1 duplicate observed: br9/02:00:00:00:00:07 veth1"]
    );
}

#[test]
fn the_probe_of_who_has_the_address_is_evidence_for_a_minute() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    node.address(2, "10.0.0.1");
    node.probe(1, "10.0.0.1");
    let shown = |node: &Node| evidence(&node.engine.conflicts(node.now)[0].claimants[0]);
    assert_eq!(shown(&node), ["address", "arp probe"]);
    node.wait_secs(61);
    assert_eq!(shown(&node), ["address"]);
}

#[test]
fn a_pods_probe_for_what_it_has_itself_is_no_evidence() {
    let mut node = Node::with_pods(1);
    node.address(1, "10.0.0.1");
    node.probe(1, "10.0.0.1");
    let claims = node.engine.claims_of(ip("10.0.0.1"), node.now);
    assert_eq!(evidence(&claims[0].claimant), ["address"]);
}

#[test]
fn a_probe_makes_no_claim_live_again_that_is_over() {
    let mut node = Node::with_pods(2);
    node.address(2, "10.0.0.1");
    node.frame(1, "10.0.0.1");
    node.now = node.now + Duration::from_secs(601);
    node.probe(1, "10.0.0.1");
    let open = node.engine.conflicts(node.now);
    assert_eq!(evidence(&open[0].claimants[1]), ["arp probe"]);
    node.said();
    node.wait_secs(60);
    assert_eq!(
        node.said(),
        ["resolved 10.0.0.1 duplicate observed: veth2 left veth1(expired)"]
    );
}

#[test]
fn a_probe_that_becomes_a_claim_contests_another_probe_at_once() {
    let mut node = Node::with_pods(3);
    node.address(3, "10.0.0.1");
    node.probe(1, "10.0.0.1");
    node.probe(2, "10.0.0.1");
    node.gone(3);
    node.said();
    node.frame(1, "10.0.0.1");
    assert_eq!(
        node.said(),
        ["raised 10.0.0.1 duplicate observed: veth1 veth2"]
    );
}
