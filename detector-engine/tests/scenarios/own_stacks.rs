//! Pods whose stack is a program: a virtual machine behind a tap, or a runtime that took the
//! addresses of the interface (`docs/detection-rules.md`, 6).

use super::*;
use crate::anomaly_fixtures::*;

/// Pod 1 had 10.0.0.1, which its runtime took over; pod 2 has it assigned.
fn taken_over() -> Node {
    let mut node = Node::with_pods(3);
    node.read_pod_addresses(1, &["10.0.0.1"]);
    node.read_pod_addresses(2, &["10.0.0.1"]);
    node.read_pod_addresses(3, &["10.0.0.3"]);
    node.address_gone(1, "10.0.0.1");
    assert_eq!(
        node.conflict_events().last().unwrap(),
        "resolved 10.0.0.1 duplicate certain: veth2 left veth1(address_removed)"
    );
    node
}

#[test]
fn frame_after_the_removal_is_a_claim_that_does_not_expire() {
    let mut node = taken_over();
    node.frames([1, 3], "10.0.0.1");
    node.conflict_events();
    node.wait_secs(5000);
    assert_eq!(
        node.conflict_events(),
        ["updated 10.0.0.1 duplicate observed: veth2 veth1 left veth3(expired)"],
        "only the pod whose namespace has other addresses"
    );
    node.remove_link(1);
    node.expect(["resolved 10.0.0.1 duplicate observed: veth2 left veth3(expired) left veth1(device_removed)"]);
}

#[test]
fn claim_of_an_idle_program_counts_against_a_later_one() {
    let mut node = Node::with_pods(2);
    node.read_pod_addresses(1, &["fe80::1"]);
    node.frame(1, "10.0.0.1");
    node.frame(1, "2001:db8::1");
    node.wait_secs(5000);
    for address in ["10.0.0.1", "2001:db8::1"] {
        node.address(2, address);
        assert_eq!(
            node.conflict_events(),
            [format!("raised {address} duplicate observed: veth1 veth2")]
        );
    }
}

#[test]
fn unreadable_namespace_expires_nothing() {
    let mut node = Node::with_pods(1);
    let token = node.begin_snapshot();
    let snapshot = Snapshot {
        pods: vec![PodAddresses {
            addresses: None,
            ..pod_addresses(1, &[])
        }],
        ..Snapshot::default()
    };
    node.finish_device_snapshot(token, 1, snapshot);
    node.frame(1, "10.0.0.1");
    node.observe(tagged(1, "10.0.0.1"));
    node.wait_secs(5000);
    assert_eq!(node.engine.view().claim_count(), 1, "tagged claims expire");
}

#[test]
fn claims_of_a_tap_end_with_it() {
    let mut node = Node::new();
    node.link(tap(1));
    node.pod(2);
    node.read_pod_addresses(2, &["10.0.0.1"]);
    node.frame(1, "10.0.0.1");
    node.observe(tagged(1, "10.0.0.2"));
    node.conflict_events();
    node.wait_secs(5000);
    assert!(node.conflict_events().is_empty());
    assert_eq!(node.engine.view().claim_count(), 3);
    node.remove_link(1);
    node.expect(["resolved 10.0.0.1 duplicate observed: veth2 left veth1(device_removed)"]);
}

#[test]
fn first_address_of_the_interface_expires_what_is_overdue() {
    let mut node = taken_over();
    node.frame(1, "10.0.0.1");
    node.wait_secs(700);
    node.conflict_events();
    // Another kind of address shows nothing.
    node.address(1, "fe80::1");
    node.address(1, "2001:db8::1");
    assert!(node.conflict_events().is_empty());
    node.address(1, "10.0.0.9");
    node.wait_secs(10);
    node.expect(["resolved 10.0.0.1 duplicate observed: veth2 left veth1(expired)"]);
    // It does not come back.
    node.address_gone(1, "10.0.0.9");
    assert!(node.conflict_events().is_empty());
}

#[test]
fn address_given_up_without_later_frames_is_no_claim() {
    let mut node = taken_over();
    node.neighbour(1, "10.0.0.1", mac(1), NudState::Stale);
    node.wait_secs(700);
    assert!(node.conflict_events().is_empty());
}

#[test]
fn confirmed_entry_is_not_refuted_by_an_empty_namespace() {
    let mut node = taken_over();
    node.neighbour(1, "10.0.0.1", mac(1), NudState::Reachable);
    assert_eq!(node.conflict_events().len(), 1);
    node.neighbour(1, "10.0.0.1", mac(1), NudState::Stale);
    assert!(node.conflict_events().is_empty());
    node.address(1, "10.0.0.9");
    node.wait_secs(10);
    node.expect(["resolved 10.0.0.1 duplicate observed: veth2 left veth1(expired)"]);
}

/// A frame of device `ifindex` that contains the hardware address of the machine behind tap 1.
fn with_the_machines_mac(node: &mut Node, ifindex: IfIndex, address: &str) {
    node.observe(Observation::Frame(FrameClaim {
        mac: mac(1),
        ..frame(ifindex, address)
    }));
}

#[test]
fn machine_that_moved_to_another_tap_is_one_claim_after_the_ttl() {
    let mut node = Node::new();
    node.link(tap(1));
    node.link(tap(2));
    node.pod(3);
    node.read_pod_addresses(3, &["10.0.0.3"]);
    node.frame(1, "10.0.0.1");
    // No process has the former tap open any more.
    let abandoned = Link {
        running: false,
        ..tap(1)
    };
    node.link(abandoned);
    // A pod of the kernel's cannot take the machine's place by its hardware address.
    node.wait_secs(400);
    with_the_machines_mac(&mut node, 3, "10.0.0.1");
    node.wait_secs(300);
    node.expect_open(["10.0.0.1 duplicate observed: veth1 veth3"]);
    node.wait_secs(700);
    node.conflict_events();
    with_the_machines_mac(&mut node, 2, "10.0.0.1");
    assert!(node.conflict_events().is_empty(), "the older one is over");
    let claims = node.engine.view().claims_of(ip("10.0.0.1"), node.now);
    assert_eq!(claims.len(), 1);
    assert_eq!(claims[0].claimant.device, "veth2");
}

/// Whoever sends with the address and the hardware address of a silent machine is in conflict with
/// it for as long as the machine is there.
#[test]
fn silent_machine_is_not_superseded_while_it_is_there() {
    for address in ["10.0.0.1", "2001:db8::1"] {
        let mut node = Node::new();
        node.link(tap(1));
        node.pod(2);
        node.read_pod_addresses(2, &[]);
        node.frame(1, address);
        node.wait_secs(5000);
        with_the_machines_mac(&mut node, 2, address);
        assert_eq!(
            node.conflict_events(),
            [format!("raised {address} duplicate observed: veth1 veth2")]
        );
        node.frame(1, address);
        assert!(node.conflict_events().is_empty());
    }
}

#[test]
fn address_removed_on_one_interface_withdraws_frames_on_the_others() {
    let mut node = Node::with_pods(2);
    let second = Peer {
        ifindex: 3,
        ..peer(1)
    };
    node.link(pod_with_peer(3, second));
    node.read_pod_addresses(1, &["10.0.0.1"]);
    // Linux may send with any of its addresses on any interface.
    node.frame(3, "10.0.0.1");
    node.address_gone(1, "10.0.0.1");
    node.address(2, "10.0.0.1");
    assert!(node.conflict_events().is_empty());
}

#[test]
fn allocation_of_a_pod_with_a_program_is_no_leak_but_its_claim_may_be_drift() {
    let mut node = synced_node();
    node.pod(3);
    node.read_pod_addresses(3, &[]);
    node.tick();
    node.read_pool(&["10.0.0.9"], Completeness::Complete);
    node.wait_secs(700);
    assert!(node.anomaly_events().is_empty(), "it may have the address");
    node.frame(3, "10.0.0.9");
    node.frame(3, "10.0.0.2");
    node.tick();
    node.read_pool(&["10.0.0.9"], Completeness::Deleted);
    node.expect_anomalies(["raised ipam_drift 10.0.0.2"]);
    node.remove_link(3);
    node.wait_secs(700);
    node.expect_anomalies([
        "resolved ipam_drift 10.0.0.2 address_gone",
        "raised ipam_leak 10.0.0.9",
    ]);
}
