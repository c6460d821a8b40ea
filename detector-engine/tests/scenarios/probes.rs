//! A probe for a free address is a claim only against another claim (`docs/detection-rules.md`, 5).

use super::*;

#[test]
fn probe_alone_is_not_a_claim() {
    let mut node = Node::with_pods(2);
    node.probe(1, "10.0.0.1");
    node.address(2, "10.0.0.1");
    assert!(node.conflict_events().is_empty());
}

#[test]
fn two_probes_are_not_a_conflict() {
    let mut node = Node::with_pods(2);
    node.probe(1, "10.0.0.1");
    node.probe(2, "10.0.0.1");
    node.probe(1, "10.0.0.1");
    assert!(node.conflict_events().is_empty());
}

#[test]
fn probe_for_a_claimed_address_is_a_conflict() {
    for address in ["10.0.0.1", "2001:db8::1"] {
        let mut node = Node::with_pods(2);
        node.address(2, address);
        node.probe(1, address);
        let raised = node.reported_conflicts();
        assert_eq!(
            conflict_text(&raised[0]),
            format!("{address} duplicate observed: veth2 veth1")
        );
        let protocol = if ip(address).is_ipv4() { "arp" } else { "ndp" };
        assert_eq!(
            evidence_text(&raised[0].claimants[1]),
            [format!("{protocol} probe")],
            "{address}"
        );
    }
}

#[test]
fn probe_for_the_pods_own_address_is_not_a_conflict() {
    let mut node = Node::with_pods(1);
    node.address(1, "10.0.0.1");
    node.probe(1, "10.0.0.1");
    assert!(node.conflict_events().is_empty());
}

#[test]
fn probe_in_another_vlan_or_domain_is_not_a_conflict() {
    let mut node = Node::with_pods(2);
    node.address(2, "10.0.0.1");
    node.observe(Observation::Frame(FrameClaim {
        tentative: true,
        vlan: Vlan {
            outer: Some(5),
            inner: None,
        },
        ..frame(1, "10.0.0.1")
    }));
    node.address(2, "fe80::1");
    node.probe(1, "fe80::1");
    assert!(node.conflict_events().is_empty());
}

#[test]
fn probe_counts_only_while_contested() {
    let mut node = Node::with_pods(3);
    node.address(2, "10.0.0.1");
    node.probe(1, "10.0.0.1");
    node.conflict_events();
    node.remove_link(2);
    node.expect([
        "resolved 10.0.0.1 duplicate observed: left veth2(device_removed) left veth1(expired)",
    ]);
    // A third claim within the lifetime of the probe contests it again.
    node.address(3, "10.0.0.1");
    node.expect(["raised 10.0.0.1 duplicate observed: veth1 veth3"]);
}

#[test]
fn probe_expires_after_a_minute() {
    let mut node = Node::with_pods(2);
    node.address(2, "10.0.0.1");
    node.probe(1, "10.0.0.1");
    node.wait_secs(30);
    node.probe(1, "10.0.0.1");
    node.conflict_events();
    node.wait_secs(59);
    assert!(node.conflict_events().is_empty());
    node.wait_secs(1);
    node.expect(["resolved 10.0.0.1 duplicate observed: veth2 left veth1(expired)"]);
}

#[test]
fn claim_after_the_probe_is_firm() {
    let mut node = Node::with_pods(3);
    node.address(2, "10.0.0.1");
    node.probe(1, "10.0.0.1");
    node.frame(1, "10.0.0.1");
    node.probe(1, "10.0.0.1");
    node.remove_link(2);
    node.conflict_events();
    node.frame(3, "10.0.0.1");
    node.expect(["raised 10.0.0.1 duplicate observed: veth1 veth3"]);
    node.wait_secs(61);
    assert!(node.conflict_events().is_empty());
}

#[test]
fn probes_do_not_support_each_other_or_across_vlans() {
    let mut node = Node::with_pods(4);
    node.address(3, "10.0.0.1");
    node.probe(1, "10.0.0.1");
    node.probe(2, "10.0.0.1");
    node.observe(Observation::Frame(FrameClaim {
        vlan: Vlan {
            outer: Some(5),
            inner: None,
        },
        ..frame(4, "10.0.0.1")
    }));
    node.conflict_events();
    node.remove_link(3);
    node.expect(["resolved 10.0.0.1 duplicate observed: left veth3(device_removed) left veth1(expired) left veth2(expired)"]);
}

#[test]
fn probe_for_a_permanent_bridge_entry_is_a_conflict() {
    let mut node = Node::new();
    node.bridge(9);
    node.port(1, 9);
    node.neighbour(9, "10.0.0.1", mac(7), NudState::Permanent);
    node.probe(1, "10.0.0.1");
    node.expect(["raised 10.0.0.1 duplicate observed: br9/02:00:00:00:00:07 veth1"]);
}

#[test]
fn probe_of_a_holder_is_evidence_for_a_minute() {
    let mut node = Node::with_duplicate();
    node.probe(1, "10.0.0.1");
    let shown =
        |node: &Node| evidence_text(&node.engine.view().conflicts(node.now)[0].claimants[0]);
    assert_eq!(shown(&node), ["address", "arp probe"]);
    node.wait_secs(61);
    assert_eq!(shown(&node), ["address"]);
}

#[test]
fn probe_for_the_pods_own_address_is_not_evidence() {
    let mut node = Node::with_pods(1);
    node.address(1, "10.0.0.1");
    node.probe(1, "10.0.0.1");
    let claims = node.engine.view().claims_of(ip("10.0.0.1"), node.now);
    assert_eq!(evidence_text(&claims[0].claimant), ["address"]);
}

#[test]
fn probe_does_not_revive_an_expired_claim() {
    let mut node = Node::with_pods(2);
    node.address(2, "10.0.0.1");
    node.frame(1, "10.0.0.1");
    node.now = node.now + Duration::from_secs(601);
    node.probe(1, "10.0.0.1");
    let open = node.engine.view().conflicts(node.now);
    assert_eq!(evidence_text(&open[0].claimants[1]), ["arp probe"]);
    node.conflict_events();
    node.wait_secs(60);
    node.expect(["resolved 10.0.0.1 duplicate observed: veth2 left veth1(expired)"]);
}

#[test]
fn probe_that_becomes_a_claim_contests_other_probes() {
    let mut node = Node::with_pods(3);
    node.address(3, "10.0.0.1");
    node.probe(1, "10.0.0.1");
    node.probe(2, "10.0.0.1");
    node.remove_link(3);
    node.conflict_events();
    node.frame(1, "10.0.0.1");
    node.expect(["raised 10.0.0.1 duplicate observed: veth1 veth2"]);
}
