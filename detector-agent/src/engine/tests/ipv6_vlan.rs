//! Rule 2: link-local addresses only inside one L2 domain, VLAN tags in the key.

use super::*;

fn tagged(ifindex: IfIndex, address: &str, outer: u16, inner: Option<u16>) -> Observation {
    Observation::Frame(FrameClaim {
        vlan: Vlan {
            outer: Some(outer),
            inner,
        },
        ..frame(ifindex, address)
    })
}

#[test]
fn link_local_addresses_of_separate_devices_never_meet() {
    let mut node = Node::with_pods(2);
    for address in ["fe80::1", "169.254.7.7"] {
        for ifindex in 1..=2 {
            node.address(ifindex, address);
            node.frame(ifindex, address);
        }
    }
    assert!(node.said().is_empty());
}

#[test]
fn link_local_addresses_behind_one_bridge_meet() {
    let mut node = Node::new();
    node.bridge(9);
    node.bridge(8);
    node.port(1, 9);
    node.port(2, 9);
    node.port(3, 8);
    for ifindex in 1..=3 {
        node.frame(ifindex, "fe80::1");
    }
    assert_eq!(
        node.said(),
        ["raised fe80::1 duplicate observed: veth1 veth2"]
    );
}

#[test]
fn a_port_moved_to_another_bridge_takes_its_link_local_claims_there() {
    let mut node = Node::new();
    node.bridge(9);
    node.bridge(8);
    node.port(1, 9);
    node.port(2, 9);
    node.port(3, 8);
    for ifindex in 1..=3 {
        node.address(ifindex, "fe80::1");
    }
    assert_eq!(
        node.said(),
        ["raised fe80::1 duplicate certain: veth1 veth2"]
    );
    node.port(1, 8);
    assert_eq!(
        node.said(),
        [
            "resolved fe80::1 duplicate certain: veth2 left veth1(address_removed)",
            "raised fe80::1 duplicate certain: veth1 veth3",
        ]
    );
}

#[test]
fn a_bridge_known_after_its_ports_makes_them_one_domain() {
    let mut node = Node::new();
    node.port(1, 9);
    node.port(2, 9);
    node.frame(1, "fe80::1");
    node.frame(2, "fe80::1");
    assert!(node.said().is_empty());
    node.bridge(9);
    assert_eq!(
        node.said(),
        ["raised fe80::1 duplicate observed: veth1 veth2"]
    );
    node.gone(9);
    assert_eq!(
        node.said(),
        ["resolved fe80::1 duplicate observed: left veth1(expired) left veth2(expired)"]
    );
}

#[test]
fn a_link_local_address_of_the_bridge_itself_is_the_nodes() {
    let mut node = Node::new();
    node.bridge(9);
    node.port(1, 9);
    node.pod(2);
    node.host(9, "fe80::9");
    node.frame(2, "fe80::9");
    assert!(node.said().is_empty());
    node.frame(1, "fe80::9");
    assert_eq!(
        node.said(),
        ["raised fe80::9 host observed: node/br9 veth1 -> br9"]
    );
}

#[test]
fn tags_keep_claims_apart() {
    let mut node = Node::with_pods(2);
    node.tell(tagged(1, "10.0.0.1", 100, None));
    node.tell(tagged(2, "10.0.0.1", 200, None));
    node.frame(2, "10.0.0.1");
    node.tell(tagged(2, "10.0.0.1", 100, Some(7)));
    assert!(node.said().is_empty());
    node.tell(tagged(2, "10.0.0.1", 100, None));
    node.tell(tagged(1, "10.0.0.1", 100, Some(7)));
    assert_eq!(
        node.said(),
        [
            "raised 10.0.0.1@100 duplicate observed: veth1 veth2",
            "raised 10.0.0.1@100.7 duplicate observed: veth2 veth1",
        ]
    );
}

#[test]
fn a_removed_address_says_nothing_of_tagged_claims() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    node.tell(tagged(1, "10.0.0.1", 100, None));
    node.tell(tagged(2, "10.0.0.1", 100, None));
    node.said();
    node.address_gone(1, "10.0.0.1");
    node.tell_at(Timestamp(node.now.0 - 1), tagged(1, "10.0.0.1", 100, None));
    assert!(node.said().is_empty());
    assert_eq!(node.open().len(), 1);
}

#[test]
fn an_assigned_address_does_not_support_a_tagged_claim() {
    let mut node = Node::with_pods(2);
    for ifindex in 1..=2 {
        node.tell(tagged(ifindex, "10.0.0.1", 100, None));
    }
    node.address(1, "10.0.0.1");
    node.said();
    node.wait_secs(601);
    assert_eq!(
        node.said(),
        ["resolved 10.0.0.1@100 duplicate observed: veth2 left veth1(expired)"]
    );
}

#[test]
fn neighbour_discovery_is_evidence_of_its_own_kind() {
    let mut node = Node::with_pods(2);
    node.frame(1, "2001:db8::1");
    node.frame(2, "2001:db8::1");
    let raised = node.conflicts_said();
    assert_eq!(evidence(&raised[0].claimants[0]), ["ndp"]);
}

#[test]
fn an_address_in_duplicate_detection_counts_and_says_so() {
    let mut node = Node::with_pods(2);
    node.address(1, "2001:db8::1");
    let mut info = AssignedAddress {
        tentative: true,
        ..assigned("2001:db8::1")
    };
    node.tell(Observation::PodAddress(peer(2), info));
    let raised = node.conflicts_said();
    assert_eq!(evidence(&raised[0].claimants[1]), ["address TENTATIVE"]);
    info.dad_failed = true;
    node.tell(Observation::PodAddress(peer(2), info));
    assert!(node.said().is_empty());
    let open = node.engine.conflicts(node.now);
    assert_eq!(evidence(&open[0].claimants[1]), ["address DADFAILED"]);
}
