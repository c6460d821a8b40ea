//! One IPv4 address can be assigned to one link with several prefix lengths, each removed on its
//! own.

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
    Observation::PodAddressGone(peer(1), ip("10.0.0.5"), prefix_len)
}

#[test]
fn pod_address_is_gone_with_its_last_prefix_length() {
    let mut node = address_with_two_prefixes();
    node.observe(address_gone(24));
    assert!(node.conflict_events().is_empty());
    node.observe(address_gone(32));
    assert_eq!(
        node.conflict_events(),
        ["resolved 10.0.0.5 duplicate certain: veth2 left veth1(address_removed)"]
    );
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
    node.observe(Observation::HostAddressGone(9, ip("10.0.0.5"), 32));
    assert!(node.conflict_events().is_empty());
    node.observe(Observation::HostAddressGone(9, ip("10.0.0.5"), 24));
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
    assert_eq!(node.engine.facts().assigned_prefixes(peer(1)).len(), 3);
    node.address(2, "10.0.0.5");
    node.conflict_events();
    node.observe(address_gone(24));
    node.observe(address_gone(32));
    assert!(node.conflict_events().is_empty());
    node.observe(address_gone(16));
    assert_eq!(node.conflict_events().len(), 1);
}

#[test]
fn later_host_prefix_length_outlives_the_first() {
    let mut node = Node::with_pods(1);
    node.link(uplink(9));
    node.address(1, "10.0.0.1");
    for prefix_len in [24, 32] {
        let info = assigned_with_prefix("10.0.0.1", prefix_len);
        node.observe(Observation::HostAddress(9, info));
    }
    node.conflict_events();
    node.observe(Observation::HostAddressGone(9, ip("10.0.0.1"), 24));
    assert!(node.conflict_events().is_empty());
    node.observe(Observation::HostAddressGone(9, ip("10.0.0.1"), 32));
    assert_eq!(node.conflict_events().len(), 1);
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
    let gone = Observation::PodAddressGone(peer(2), ip("10.0.0.1"), 24);
    node.observe(gone);
    node.observe(Observation::HostAddressGone(9, ip("10.0.0.1"), 24));
    assert_eq!(
        node.engine
            .facts()
            .host_addresses()
            .map(|(i, ..)| i)
            .collect::<Vec<_>>(),
        [8, 8]
    );
    assert_eq!(
        node.open_conflicts(),
        ["10.0.0.1 host certain: veth1 node/eth8 left veth2(address_removed) -> eth8"]
    );
}

#[test]
fn snapshot_removes_an_address_whatever_its_prefix_length() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    let info = assigned_with_prefix("10.0.0.1", 24);
    node.observe(Observation::PodAddress(peer(2), info));
    node.conflict_events();
    node.read_pod_addresses(2, &[]);
    assert_eq!(
        node.conflict_events(),
        ["resolved 10.0.0.1 duplicate certain: veth1 left veth2(address_removed)"]
    );
}
