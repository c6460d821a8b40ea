//! One IPv4 address can be assigned to one link with several prefix lengths and with several other
//! ends, each removed on its own.

use super::*;

/// Two pods with 10.0.0.5; the first has it with two prefix lengths.
fn address_with_two_prefixes() -> Node {
    let mut node = Node::with_pods(2);
    for prefix_len in [24, 32] {
        let info = assigned_with_prefix("10.0.0.5", prefix_len);
        node.observe(Observation::PodAddress(peer(1), info));
    }
    node.address(2, "10.0.0.5");
    node.conflict_events();
    node
}

fn address_gone(prefix_len: u8) -> Observation {
    Observation::PodAddressGone(peer(1), assigned_with_prefix("10.0.0.5", prefix_len).id())
}

fn host_gone(address: &str, prefix_len: u8) -> Observation {
    Observation::HostAddressGone(9, assigned_with_prefix(address, prefix_len).id())
}

#[test]
fn snapshot_drops_only_the_missing_prefix_length() {
    let mut node = address_with_two_prefixes();
    let device_snapshot = |prefix_len| Snapshot {
        pods: vec![PodAddresses {
            addresses: Some(vec![assigned_with_prefix("10.0.0.5", prefix_len)]),
            ..pod_addresses(1, &[])
        }],
        ..Snapshot::default()
    };
    let token = node.begin_snapshot();
    node.finish_device_snapshot(token, 1, device_snapshot(24));
    assert!(node.conflict_events().is_empty());
    // The snapshot removed the /32, so the /24 was the last one.
    node.observe(address_gone(24));
    assert_eq!(node.conflict_events().len(), 1);
}

#[test]
fn host_address_is_gone_with_its_last_prefix_length() {
    let mut node = Node::with_pods(1);
    node.link(uplink(9));
    for prefix_len in [24, 32] {
        let info = assigned_with_prefix("10.0.0.5", prefix_len);
        node.observe(Observation::HostAddress(9, info));
    }
    node.address(1, "10.0.0.5");
    assert_eq!(node.conflict_events().len(), 1);
    node.observe(host_gone("10.0.0.5", 32));
    assert!(node.conflict_events().is_empty());
    node.observe(host_gone("10.0.0.5", 24));
    assert_eq!(node.conflict_events().len(), 1);
    assert!(node.open_conflicts().is_empty());
}

#[test]
fn device_snapshot_supplies_a_missing_peer() {
    let mut node = Node::with_pods(1);
    node.address(1, "10.0.0.5");
    node.link(pod_without_peer(2));
    node.device_effects();
    let token = node.begin_snapshot();
    let dump = Snapshot {
        links: vec![pod(2)],
        pods: vec![pod_addresses(2, &["10.0.0.5"])],
        ..Snapshot::default()
    };
    node.finish_device_snapshot(token, 2, dump);
    assert_eq!(
        node.open_conflicts(),
        ["10.0.0.5 duplicate certain: veth1 veth2"],
        "the peer and its addresses are known now"
    );
}

#[test]
fn three_prefix_lengths_are_removed_one_by_one() {
    let mut node = Node::with_pods(2);
    node.link(uplink(9));
    for prefix_len in [16, 24, 32] {
        let info = assigned_with_prefix("10.0.0.5", prefix_len);
        node.observe(Observation::PodAddress(peer(1), info));
        node.observe(Observation::PodAddress(peer(1), info));
    }
    node.address(2, "10.0.0.5");
    node.conflict_events();
    node.observe(address_gone(24));
    node.observe(address_gone(32));
    assert!(node.conflict_events().is_empty());
    node.observe(address_gone(16));
    node.expect(["resolved 10.0.0.5 duplicate certain: veth2 left veth1(address_removed)"]);
}

#[test]
fn prefix_lengths_of_another_holder_do_not_count() {
    let mut node = Node::with_pods(2);
    node.link(uplink(8));
    node.link(uplink(9));
    for prefix_len in [24, 32] {
        let info = assigned_with_prefix("10.0.0.1", prefix_len);
        node.observe(Observation::PodAddress(peer(1), info));
        node.observe(Observation::HostAddress(8, info));
    }
    let info = assigned_with_prefix("10.0.0.1", 24);
    node.observe(Observation::PodAddress(peer(2), info));
    node.observe(Observation::HostAddress(9, info));
    let gone = Observation::PodAddressGone(peer(2), info.id());
    node.observe(gone);
    node.observe(host_gone("10.0.0.1", 24));
    node.expect_open([
        "10.0.0.1 host certain: veth1 node/eth8 left veth2(address_removed) -> eth8",
    ]);
    node.conflict_events();
    let gone_on_8 = |prefix_len| {
        let id = assigned_with_prefix("10.0.0.1", prefix_len).id();
        Observation::HostAddressGone(8, id)
    };
    node.observe(gone_on_8(24));
    assert!(node.conflict_events().is_empty());
    node.observe(gone_on_8(32));
    assert_eq!(node.conflict_events().len(), 1);
    assert!(node.open_conflicts().is_empty());
}

#[test]
fn snapshot_removes_an_address_whatever_its_prefix_length() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    let info = assigned_with_prefix("10.0.0.1", 24);
    node.observe(Observation::PodAddress(peer(2), info));
    node.conflict_events();
    node.read_pod_addresses(2, &[]);
    node.expect(["resolved 10.0.0.1 duplicate certain: veth1 left veth2(address_removed)"]);
}

fn with_peer(other: &str) -> AssignedAddress {
    assigned_with_peer("10.0.0.5", other, 32)
}

#[test]
fn pod_address_with_two_other_ends_is_gone_with_the_last() {
    let mut node = Node::with_pods(2);
    node.address(2, "10.0.0.5");
    for other in ["10.0.0.6", "10.0.0.7"] {
        node.observe(Observation::PodAddress(peer(1), with_peer(other)));
    }
    node.conflict_events();
    let gone = |other| Observation::PodAddressGone(peer(1), with_peer(other).id());
    node.observe(gone("10.0.0.7"));
    assert!(node.conflict_events().is_empty());
    node.observe(gone("10.0.0.6"));
    node.expect(["resolved 10.0.0.5 duplicate certain: veth2 left veth1(address_removed)"]);
}

#[test]
fn node_address_with_two_other_ends_is_gone_with_the_last() {
    let mut node = Node::with_pods(1);
    node.link(uplink(9));
    node.address(1, "10.0.0.5");
    for other in ["10.0.0.6", "10.0.0.7"] {
        node.observe(Observation::HostAddress(9, with_peer(other)));
    }
    assert_eq!(node.conflict_events().len(), 1);
    let gone = |other| Observation::HostAddressGone(9, with_peer(other).id());
    node.observe(gone("10.0.0.6"));
    assert!(node.conflict_events().is_empty());
    node.observe(gone("10.0.0.7"));
    assert_eq!(node.conflict_events().len(), 1);
    assert!(node.open_conflicts().is_empty());
}

/// The kernel rejects a second assignment whose other end is in the same prefix.
#[test]
fn host_bits_of_the_other_end_do_not_count() {
    let id = |other| assigned_with_peer("10.0.0.5", other, 24).id();
    assert_eq!(id("10.1.0.1"), id("10.1.0.2"));
    assert_ne!(id("10.1.0.1"), id("10.1.1.1"));
}

/// `ip address change` gives an IPv6 address another other end without a removal.
#[test]
fn ipv6_address_is_assigned_once_whatever_its_other_end() {
    let info = |other| assigned_with_peer("2001:db8::1", other, 128);
    let mut node = Node::with_pods(1);
    for other in ["2001:db8::2", "2001:db8::3"] {
        node.observe(Observation::PodAddress(peer(1), info(other)));
    }
    node.observe(Observation::PodAddressGone(
        peer(1),
        info("2001:db8::3").id(),
    ));
    assert!(node.engine.view().addresses().is_empty());
}

/// More assignments of one address than are remembered; the address is claimed until a snapshot
/// shows that none is left.
#[test]
fn address_with_too_many_assignments_ends_with_a_snapshot() {
    let mut node = Node::with_pods(2);
    node.link(uplink(9));
    let all: Vec<_> = (0..40).map(|n| with_peer(&format!("10.1.0.{n}"))).collect();
    for info in &all {
        node.observe(Observation::PodAddress(peer(1), *info));
        node.observe(Observation::HostAddress(9, *info));
    }
    node.address(2, "10.0.0.5");
    assert_eq!(node.conflict_events().len(), 2);
    let remove = |node: &mut Node, info: &AssignedAddress| {
        node.observe(Observation::PodAddressGone(peer(1), info.id()));
        node.observe(Observation::HostAddressGone(9, info.id()));
    };
    for info in &all[..39] {
        remove(&mut node, info);
    }
    let snapshot = |left: &[AssignedAddress]| Snapshot {
        links: vec![pod(1), pod(2), uplink(9)],
        pods: vec![
            PodAddresses {
                addresses: Some(left.to_vec()),
                ..pod_addresses(1, &[])
            },
            pod_addresses(2, &["10.0.0.5"]),
        ],
        host: left.iter().map(|info| (9, *info)).collect(),
        ..Snapshot::default()
    };
    // A live update of the address is newer than the snapshot.
    let token = node.begin_snapshot();
    remove(&mut node, &all[0]);
    node.finish_node_snapshot(token, snapshot(&[]));
    node.resync(snapshot(&all[39..]));
    assert!(node.conflict_events().is_empty());
    remove(&mut node, &all[39]);
    assert_eq!(
        node.conflict_events().last().unwrap(),
        "resolved 10.0.0.5 host certain: veth2 left veth1(address_removed) left node/eth9(address_removed)"
    );

    for info in &all {
        node.observe(Observation::PodAddress(peer(1), *info));
        node.observe(Observation::HostAddress(9, *info));
    }
    for info in &all {
        remove(&mut node, info);
    }
    node.conflict_events();
    node.resync(snapshot(&[]));
    assert_eq!(node.conflict_events().len(), 1);
    assert!(node.open_conflicts().is_empty());
}
