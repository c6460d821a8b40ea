//! Addresses on further interfaces of a pod, which it answers for on its devices
//! (`docs/detection-rules.md`, 10).

use super::*;

impl Node {
    /// A snapshot of one pod device: addresses on its peer, and on `lo`.
    fn read_further(&mut self, ifindex: IfIndex, addresses: &[&str], on_lo: &[&str]) {
        let token = self.begin_snapshot();
        let on_lo = on_lo.iter().map(|address| further(&ip(address), "lo"));
        let snapshot = Snapshot {
            pods: vec![PodAddresses {
                further: on_lo.collect(),
                ..pod_addresses(ifindex, addresses)
            }],
            ..Snapshot::default()
        };
        self.finish_device_snapshot(token, ifindex, snapshot);
    }

    /// An address is added to `lo` in the namespace of a pod device.
    fn address_on_lo(&mut self, ifindex: IfIndex, address: &str) {
        let lo = Peer {
            ifindex: 1,
            ..peer(ifindex)
        };
        self.observe(Observation::PodAddress(lo, assigned(address)));
    }
}

#[test]
fn address_on_lo_conflicts_with_the_pod_that_has_it() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    node.read_further(2, &["10.0.0.2"], &["10.0.0.1"]);
    assert_eq!(
        node.conflict_events(),
        ["raised 10.0.0.1 duplicate certain: veth1 veth2"]
    );
    node.read_further(2, &["10.0.0.2"], &[]);
    assert_eq!(
        node.conflict_events(),
        ["resolved 10.0.0.1 duplicate certain: veth1 left veth2(address_removed)"]
    );
}

#[test]
fn shared_address_on_lo_of_several_pods_is_no_conflict() {
    let mut node = Node::with_pods(3);
    node.read_further(1, &["10.0.0.1"], &["10.0.0.9"]);
    node.read_further(2, &["10.0.0.2"], &["10.0.0.9"]);
    assert!(node.conflict_events().is_empty());
    // Both pods answer for it as soon as a third one uses it.
    node.address(3, "10.0.0.9");
    assert_eq!(
        node.conflict_events(),
        ["raised 10.0.0.9 duplicate certain: veth1 veth2 veth3"]
    );
}

#[test]
fn address_on_lo_does_not_conflict_with_the_node() {
    let mut node = Node::with_pods(1);
    node.link(uplink(9));
    node.host(9, "10.96.0.1");
    node.read_further(1, &["10.0.0.1"], &["10.96.0.1"]);
    assert!(node.conflict_events().is_empty());
    node.frame(1, "10.96.0.1");
    assert_eq!(
        node.conflict_events(),
        ["raised 10.96.0.1 host certain: node/eth9 veth1 -> eth9"]
    );
}

#[test]
fn frames_of_an_address_on_lo_do_not_expire() {
    let mut node = Node::with_pods(2);
    node.read_further(1, &["10.0.0.1"], &["10.0.0.9"]);
    node.read_further(2, &["10.0.0.2"], &["10.0.0.9"]);
    node.frame(1, "10.0.0.9");
    node.conflict_events();
    node.wait_secs(5000);
    assert!(node.conflict_events().is_empty());
    assert_eq!(
        node.open_conflicts(),
        ["10.0.0.9 duplicate certain: veth1 veth2"]
    );
    // Removed on `lo`, the frame is over as well.
    node.read_further(1, &["10.0.0.1"], &[]);
    assert_eq!(
        node.conflict_events(),
        ["resolved 10.0.0.9 duplicate certain: left veth1(address_removed) left veth2(expired)"]
    );
}

#[test]
fn namespace_is_read_after_each_change_within_its_budget() {
    let mut node = Node::with_pods(2);
    node.device_effects();
    let reads = |node: &mut Node| node.device_effects().len();
    node.address_on_lo(2, "10.0.0.1");
    assert_eq!(node.device_effects(), ["read veth2#2"]);
    for n in 0..100 {
        node.address_on_lo(2, &format!("10.0.1.{n}"));
    }
    assert_eq!(reads(&mut node), 7, "the rest of the burst");
    node.wait_secs(9);
    assert_eq!(reads(&mut node), 0);
    node.wait_secs(2);
    assert_eq!(reads(&mut node), 1, "what came without budget is read");
    node.wait_secs(600);
    assert_eq!(reads(&mut node), 0, "nothing changed");
    node.address_on_lo(2, "10.0.0.1");
    assert_eq!(reads(&mut node), 1, "at once again");
    // Another pod is not affected.
    for n in 0..100 {
        node.address_on_lo(2, &format!("10.0.1.{n}"));
    }
    node.device_effects();
    node.address_on_lo(1, "10.0.0.1");
    assert_eq!(node.device_effects(), ["read veth1#1"]);
}

#[test]
fn removed_device_takes_its_further_addresses_along() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    node.read_further(2, &["10.0.0.2"], &["10.0.0.1"]);
    node.conflict_events();
    node.remove_link(2);
    assert_eq!(
        node.conflict_events(),
        ["resolved 10.0.0.1 duplicate certain: veth1 left veth2(device_removed)"]
    );
    assert_eq!(node.engine.addresses(), [ip("10.0.0.1")]);
}
