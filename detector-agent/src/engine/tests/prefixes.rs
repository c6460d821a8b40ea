//! One IPv4 address may stand on one link with several prefix lengths, each with a life of its own; and a reading of one
//! device tells the link, too.

use super::*;

fn with_length(address: &str, prefix_len: u8) -> AssignedAddress {
    AssignedAddress {
        prefix_len,
        ..assigned(address)
    }
}

/// Two pods with one address; the first has it with two prefix lengths.
fn twice_on_the_first() -> Node {
    let mut node = Node::with_pods(2);
    for prefix_len in [24, 32] {
        let info = with_length("10.0.0.5", prefix_len);
        node.tell(Observation::PodAddress(peer(1), info));
    }
    node.address(2, "10.0.0.5");
    node.said();
    node
}

fn gone(prefix_len: u8) -> Observation {
    Observation::PodAddressGone(peer(1), ip("10.0.0.5"), prefix_len)
}

#[test]
fn an_address_is_gone_from_a_pod_with_its_last_prefix_length() {
    let mut node = twice_on_the_first();
    node.tell(gone(24));
    assert!(node.said().is_empty());
    node.tell(gone(32));
    assert_eq!(
        node.said(),
        ["resolved 10.0.0.5 duplicate certain: veth2 left veth1(address_removed)"]
    );
}

#[test]
fn a_reading_that_lacks_one_prefix_length_leaves_the_other() {
    let mut node = twice_on_the_first();
    let reading = |length| Snapshot {
        pods: vec![PodAddresses {
            addresses: Some(vec![with_length("10.0.0.5", length)]),
            ..holds(1, &[])
        }],
        ..Snapshot::default()
    };
    let token = node.begin();
    node.finish_device(token, 1, reading(24));
    assert!(node.said().is_empty());
    // The /32 is known to be gone by the reading: now the /24 is all there is.
    node.tell(gone(24));
    assert_eq!(node.said().len(), 1);
}

#[test]
fn an_address_is_gone_from_the_node_with_its_last_prefix_length() {
    let mut node = Node::with_pods(1);
    node.link(uplink(9));
    for prefix_len in [24, 32] {
        let info = with_length("10.0.0.5", prefix_len);
        node.tell(Observation::HostAddress(9, info));
    }
    node.address(1, "10.0.0.5");
    assert_eq!(node.said().len(), 1);
    node.tell(Observation::HostAddressGone(9, ip("10.0.0.5"), 32));
    assert!(node.said().is_empty());
    node.tell(Observation::HostAddressGone(9, ip("10.0.0.5"), 24));
    assert_eq!(node.said().len(), 1);
    assert!(node.open().is_empty());
}

#[test]
fn a_reading_of_a_device_tells_the_peer_that_no_message_told() {
    let mut node = Node::with_pods(1);
    node.address(1, "10.0.0.5");
    node.link(Link {
        peer: None,
        ..pod(2)
    });
    node.asked();
    let token = node.begin();
    let reading = Snapshot {
        links: vec![pod(2)],
        pods: vec![holds(2, &["10.0.0.5"])],
        ..Snapshot::default()
    };
    node.finish_device(token, 2, reading);
    assert_eq!(
        node.open(),
        ["10.0.0.5 duplicate certain: veth1 veth2"],
        "its addresses are its own now"
    );
}

#[test]
fn of_three_prefix_lengths_each_goes_alone() {
    let mut node = Node::with_pods(2);
    node.link(uplink(9));
    for length in [16, 24, 32] {
        let info = with_length("10.0.0.5", length);
        node.tell(Observation::PodAddress(peer(1), info));
        node.tell(Observation::PodAddress(peer(1), info));
    }
    assert_eq!(node.engine.facts().assigned_prefixes(peer(1)).len(), 3);
    node.address(2, "10.0.0.5");
    node.said();
    node.tell(gone(24));
    node.tell(gone(32));
    assert!(node.said().is_empty());
    node.tell(gone(16));
    assert_eq!(node.said().len(), 1);
}

#[test]
fn of_the_nodes_prefix_lengths_the_one_told_later_stays_too() {
    let mut node = Node::with_pods(1);
    node.link(uplink(9));
    node.address(1, "10.0.0.1");
    for length in [24, 32] {
        let info = with_length("10.0.0.1", length);
        node.tell(Observation::HostAddress(9, info));
    }
    node.said();
    node.tell(Observation::HostAddressGone(9, ip("10.0.0.1"), 24));
    assert!(node.said().is_empty());
    node.tell(Observation::HostAddressGone(9, ip("10.0.0.1"), 32));
    assert_eq!(node.said().len(), 1);
}

#[test]
fn another_holders_prefix_lengths_keep_nothing() {
    let mut node = Node::with_pods(2);
    node.link(uplink(8));
    node.link(uplink(9));
    for length in [24, 32] {
        let info = with_length("10.0.0.1", length);
        node.tell(Observation::PodAddress(peer(1), info));
        node.tell(Observation::HostAddress(8, info));
    }
    let info = with_length("10.0.0.1", 24);
    node.tell(Observation::PodAddress(peer(2), info));
    node.tell(Observation::HostAddress(9, info));
    let gone = Observation::PodAddressGone(peer(2), ip("10.0.0.1"), 24);
    node.tell(gone);
    node.tell(Observation::HostAddressGone(9, ip("10.0.0.1"), 24));
    assert_eq!(
        node.engine
            .facts()
            .host_addresses()
            .map(|(i, ..)| i)
            .collect::<Vec<_>>(),
        [8, 8]
    );
    assert_eq!(
        node.open(),
        ["10.0.0.1 host certain: veth1 node/eth8 left veth2(address_removed) -> eth8"]
    );
}

#[test]
fn a_reading_ends_what_it_lacks_by_the_holders_own_prefix_length() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    let info = with_length("10.0.0.1", 24);
    node.tell(Observation::PodAddress(peer(2), info));
    node.said();
    node.read_pod(2, &[]);
    assert_eq!(
        node.said(),
        ["resolved 10.0.0.1 duplicate certain: veth1 left veth2(address_removed)"]
    );
}
