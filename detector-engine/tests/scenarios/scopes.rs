//! Scopes: link-local addresses within one L2 domain, VLAN tags in the key
//! (`docs/detection-rules.md`, 2).

use super::*;

fn tagged_frame(ifindex: IfIndex, address: &str, outer: u16, inner: Option<u16>) -> Observation {
    Observation::Frame(FrameClaim {
        vlan: Vlan {
            outer: Some(outer),
            inner,
        },
        ..frame(ifindex, address)
    })
}

#[test]
fn link_local_addresses_of_separate_links_never_conflict() {
    let mut node = Node::with_pods(2);
    for address in ["fe80::1", "169.254.7.7"] {
        for ifindex in 1..=2 {
            node.address(ifindex, address);
            node.frame(ifindex, address);
        }
    }
    assert!(node.conflict_events().is_empty());
}

#[test]
fn link_local_addresses_behind_one_bridge_conflict() {
    let mut node = Node::new();
    node.bridge(9);
    node.bridge(8);
    node.port(1, 9);
    node.port(2, 9);
    node.port(3, 8);
    node.frames(1..=3, "fe80::1");
    node.expect(["raised fe80::1 duplicate observed: veth1 veth2"]);
}

#[test]
fn link_local_address_is_unique_on_its_link_again_without_the_routed_device() {
    let mut node = Node::new();
    node.link(bridge(9));
    node.port(1, 9);
    node.pod(2);
    node.route("fe80::1", 2);
    node.host(1, "fe80::1");
    node.frame(1, "fe80::1");
    assert!(node.conflict_events().is_empty());
    node.remove_link(2);
    node.expect(["raised fe80::1 host observed: node/veth1 veth1 -> veth1"]);
}

#[test]
fn port_moved_to_another_bridge_moves_link_local_claims() {
    let mut node = Node::new();
    node.bridge(9);
    node.bridge(8);
    node.port(1, 9);
    node.port(2, 9);
    node.port(3, 8);
    node.addresses(1..=3, "fe80::1");
    node.expect(["raised fe80::1 duplicate certain: veth1 veth2"]);
    node.port(1, 8);
    node.expect([
        "resolved fe80::1 duplicate certain: veth2 left veth1(address_removed)",
        "raised fe80::1 duplicate certain: veth1 veth3",
    ]);
}

#[test]
fn bridge_seen_after_its_ports_makes_them_one_domain() {
    let mut node = Node::new();
    node.port(1, 9);
    node.port(2, 9);
    node.frames([1, 2], "fe80::1");
    assert!(node.conflict_events().is_empty());
    node.bridge(9);
    node.expect(["raised fe80::1 duplicate observed: veth1 veth2"]);
    node.remove_link(9);
    node.expect(["resolved fe80::1 duplicate observed: left veth1(expired) left veth2(expired)"]);
}

#[test]
fn link_local_address_of_the_bridge_belongs_to_the_host() {
    let mut node = Node::new();
    node.bridge(9);
    node.port(1, 9);
    node.pod(2);
    node.host(9, "fe80::9");
    node.frame(2, "fe80::9");
    assert!(node.conflict_events().is_empty());
    node.frame(1, "fe80::9");
    node.expect(["raised fe80::9 host observed: node/br9 veth1 -> br9"]);
}

#[test]
fn vlan_tags_separate_claims() {
    let mut node = Node::with_pods(2);
    node.observe(tagged_frame(1, "10.0.0.1", 100, None));
    node.observe(tagged_frame(2, "10.0.0.1", 200, None));
    node.frame(2, "10.0.0.1");
    node.observe(tagged_frame(2, "10.0.0.1", 100, Some(7)));
    assert!(node.conflict_events().is_empty());
    node.observe(tagged_frame(2, "10.0.0.1", 100, None));
    node.observe(tagged_frame(1, "10.0.0.1", 100, Some(7)));
    node.expect([
        "raised 10.0.0.1@100 duplicate observed: veth1 veth2",
        "raised 10.0.0.1@100.7 duplicate observed: veth2 veth1",
    ]);
}

#[test]
fn removed_address_does_not_affect_tagged_claims() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    node.observe(tagged_frame(1, "10.0.0.1", 100, None));
    node.observe(tagged_frame(2, "10.0.0.1", 100, None));
    node.conflict_events();
    node.address_gone(1, "10.0.0.1");
    node.observe_at(
        Timestamp(node.now.0 - 1),
        tagged_frame(1, "10.0.0.1", 100, None),
    );
    assert!(node.conflict_events().is_empty());
    assert_eq!(node.open_conflicts().len(), 1);
}

#[test]
fn assigned_address_does_not_support_a_tagged_claim() {
    let mut node = Node::with_pods(2);
    for ifindex in 1..=2 {
        node.observe(tagged_frame(ifindex, "10.0.0.1", 100, None));
    }
    node.address(1, "10.0.0.1");
    node.conflict_events();
    node.wait_secs(601);
    node.expect(["resolved 10.0.0.1@100 duplicate observed: veth2 left veth1(expired)"]);
}

#[test]
fn neighbour_discovery_is_ndp_evidence() {
    let mut node = Node::with_pods(2);
    node.frames([1, 2], "2001:db8::1");
    let raised = node.reported_conflicts();
    assert_eq!(evidence_text(&raised[0].claimants[0]), ["ndp"]);
}

#[test]
fn address_in_dad_counts_and_shows_its_state() {
    let mut node = Node::with_pods(2);
    node.address(1, "2001:db8::1");
    let mut info = AssignedAddress {
        tentative: true,
        ..assigned("2001:db8::1")
    };
    node.observe(Observation::PodAddress(peer(2), info));
    let raised = node.reported_conflicts();
    assert_eq!(
        evidence_text(&raised[0].claimants[1]),
        ["address TENTATIVE"]
    );
    info.dad_failed = true;
    node.observe(Observation::PodAddress(peer(2), info));
    assert!(node.conflict_events().is_empty());
    let open = node.engine.view().conflicts(node.now);
    assert_eq!(evidence_text(&open[0].claimants[1]), ["address DADFAILED"]);
}
