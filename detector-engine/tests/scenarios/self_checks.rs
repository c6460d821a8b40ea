//! Self-checks correct the engine, and report what no live update explains.

use super::*;

/// A self-check of pod device 1, whose snapshot is `found`.
fn self_check(node: &mut Node, found: Snapshot) {
    let token = begin_self_check(node);
    node.finish_device_snapshot(token, 1, found);
}

fn begin_self_check(node: &mut Node) -> SnapshotToken {
    node.tokens += 1;
    let token = SnapshotToken(node.tokens);
    node.observe(Observation::SelfCheckStarted(token));
    token
}

/// A snapshot of pod device 1 with these addresses, and these neighbours on the device.
fn snapshot_with(addresses: &[&str], neighbours: Vec<Neighbour>) -> Snapshot {
    Snapshot {
        links: vec![pod(1)],
        pods: vec![pod_addresses(1, addresses)],
        neighbours,
        ..Snapshot::default()
    }
}

/// What differed, as the engine had it and as the kernel has it.
type Difference = (DevicePart, Option<PartValue>, Option<PartValue>);

/// The corrections reported since effects were last taken.
fn corrections(node: &mut Node) -> Vec<Difference> {
    let effects = std::mem::take(&mut node.effects);
    let corrected = effects.into_iter().filter_map(|effect| match effect {
        Effect::Corrected(found) => Some(found),
        _ => None,
    });
    corrected
        .map(|found| {
            assert_eq!((found.device.as_str(), found.ifindex), ("veth1", 1));
            (found.part, found.believed, found.kernel)
        })
        .collect()
}

fn address_difference(address: &str, in_kernel: bool) -> Difference {
    let present = |is_there: bool| is_there.then_some(PartValue::Present);
    let part = DevicePart::Address(assigned(address).id());
    (part, present(!in_kernel), present(in_kernel))
}

#[test]
fn what_the_kernel_has_not_is_withdrawn_at_once_and_reported() {
    let mut node = Node::with_duplicate();
    node.effects.clear();
    self_check(&mut node, snapshot_with(&[], vec![]));
    node.expect(["resolved 10.0.0.1 duplicate certain: veth2 left veth1(address_removed)"]);
    node.wait_secs(4);
    assert_eq!(
        corrections(&mut node),
        [address_difference("10.0.0.1", false)]
    );
}

#[test]
fn what_the_kernel_has_is_added_at_once_and_reported() {
    let mut node = Node::with_pods(2);
    node.address(2, "10.0.0.1");
    node.effects.clear();
    let entry = neighbour(1, "10.0.0.7", mac(1), NudState::Reachable);
    self_check(&mut node, snapshot_with(&["10.0.0.1"], vec![entry]));
    node.expect(["raised 10.0.0.1 duplicate certain: veth2 veth1"]);
    node.wait_secs(4);
    let lladdr = Some(PartValue::Lladdr(mac(1)));
    let entry = (DevicePart::Neighbour(ip("10.0.0.7")), None, lladdr);
    assert_eq!(
        corrections(&mut node),
        [address_difference("10.0.0.1", true), entry]
    );
}

#[test]
fn a_peer_and_a_master_that_differ_are_reported() {
    let mut node = Node::with_pods(1);
    node.bridge(9);
    node.effects.clear();
    let moved = Peer {
        nsid: 7,
        ifindex: 2,
    };
    let found = Snapshot {
        links: vec![Link {
            master: Some(9),
            ..pod(1)
        }],
        ..Snapshot::default()
    };
    self_check(&mut node, found);
    node.wait_secs(4);
    let master = (DevicePart::Master, None, Some(PartValue::Link(9)));
    assert_eq!(corrections(&mut node), [master]);
    let found = Snapshot {
        links: vec![Link {
            master: Some(9),
            ..pod_with_peer(1, moved)
        }],
        ..Snapshot::default()
    };
    self_check(&mut node, found);
    node.wait_secs(4);
    let [before, after] = [peer(1), moved].map(|peer| Some(PartValue::Peer(peer)));
    let peer = (DevicePart::Peer, before, after);
    assert_eq!(corrections(&mut node), [peer]);
}

#[test]
fn a_state_that_agrees_is_not_reported() {
    let mut node = Node::with_pods(1);
    node.address(1, "10.0.0.1");
    node.neighbour(1, "10.0.0.7", mac(1), NudState::Reachable);
    let entry = neighbour(1, "10.0.0.7", mac(1), NudState::Stale);
    self_check(&mut node, snapshot_with(&["10.0.0.1"], vec![entry]));
    node.wait_secs(5);
    assert!(corrections(&mut node).is_empty());
}

#[test]
fn a_live_update_explains_a_difference() {
    let cases: [NodeCase; 3] = [
        ("before the merge", |node| {
            let token = begin_self_check(node);
            node.address(1, "10.0.0.1");
            node.finish_device_snapshot(token, 1, snapshot_with(&[], vec![]));
        }),
        ("after the merge", |node| {
            self_check(node, snapshot_with(&["10.0.0.1"], vec![]));
            node.address(1, "10.0.0.1");
        }),
        ("the device was removed", |node| {
            self_check(node, snapshot_with(&["10.0.0.1"], vec![]));
            node.remove_link(1);
        }),
    ];
    for (label, happens) in cases {
        let mut node = Node::with_pods(1);
        happens(&mut node);
        node.wait_secs(5);
        assert!(corrections(&mut node).is_empty(), "{label}");
    }
}

#[test]
fn other_snapshots_report_no_differences() {
    let mut node = Node::with_pods(1);
    node.read_pod_addresses(1, &["10.0.0.1"]);
    node.wait_secs(5);
    assert!(corrections(&mut node).is_empty());
}

#[test]
fn devices_are_checked_in_turn() {
    let node = Node::with_pods(5);
    assert_eq!(node.engine.view().next_devices(0, 2), [1, 2]);
    assert_eq!(node.engine.view().next_devices(2, 2), [3, 4]);
    assert_eq!(node.engine.view().next_devices(4, 3), [5, 1, 2]);
    assert_eq!(node.engine.view().next_devices(9, 9), [1, 2, 3, 4, 5]);
}
