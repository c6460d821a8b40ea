//! Addresses on internal interfaces of a pod, which it answers for on its devices
//! (`docs/detection-rules.md`, 10).

use super::*;

impl Node {
    /// A snapshot of one pod device: addresses on its peer, and on `lo`.
    fn read_internal(&mut self, ifindex: IfIndex, addresses: &[&str], on_lo: &[&str]) {
        let token = self.begin_snapshot();
        let on_lo = on_lo
            .iter()
            .map(|address| internal_address(&ip(address), "lo"));
        let snapshot = Snapshot {
            pods: vec![PodAddresses {
                internal: on_lo.collect(),
                ..pod_addresses(ifindex, addresses)
            }],
            ..Snapshot::default()
        };
        self.finish_device_snapshot(token, ifindex, snapshot);
    }

    /// A snapshot of one pod device: an address on `lo` that the pod does not answer for.
    fn read_silent(&mut self, ifindex: IfIndex, address: &str) {
        let token = self.begin_snapshot();
        let own = format!("10.0.1.{ifindex}");
        let snapshot = Snapshot {
            pods: vec![PodAddresses {
                internal: vec![InternalAddress {
                    place: InternalPlace::LocalSilent,
                    ..internal_address(&ip(address), "lo")
                }],
                ..pod_addresses(ifindex, &[&own])
            }],
            ..Snapshot::default()
        };
        self.finish_device_snapshot(token, ifindex, snapshot);
    }

    /// The devices that claim an address.
    fn claims(&self, address: &str) -> Vec<String> {
        let claims = self.engine.view().claims_of(ip(address), self.now);
        claims.into_iter().map(|c| c.claimant.device).collect()
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
    node.read_internal(2, &["10.0.0.2"], &["10.0.0.1"]);
    node.expect(["raised 10.0.0.1 duplicate certain: veth1 veth2"]);
    node.read_internal(2, &["10.0.0.2"], &[]);
    node.expect(["resolved 10.0.0.1 duplicate certain: veth1 left veth2(address_removed)"]);
}

#[test]
fn shared_address_on_lo_of_several_pods_is_no_conflict() {
    let mut node = Node::with_pods(3);
    node.read_internal(1, &["10.0.0.1"], &["10.0.0.9"]);
    node.read_internal(2, &["10.0.0.2"], &["10.0.0.9"]);
    assert!(node.conflict_events().is_empty());
    // Both pods answer for it as soon as a third one uses it.
    node.address(3, "10.0.0.9");
    node.expect(["raised 10.0.0.9 duplicate certain: veth1 veth2 veth3"]);
}

#[test]
fn address_on_lo_does_not_conflict_with_the_node() {
    let mut node = Node::with_pods(1);
    node.link(uplink(9));
    node.host(9, "10.96.0.1");
    node.read_internal(1, &["10.0.0.1"], &["10.96.0.1"]);
    assert!(node.conflict_events().is_empty());
    node.frame(1, "10.96.0.1");
    node.expect(["raised 10.96.0.1 host certain: node/eth9 veth1 -> eth9"]);
}

/// Two routed pods have 10.0.0.9 on `lo`, and a third pod.
fn anycast() -> Node {
    let mut node = Node::with_pods(3);
    node.read_internal(1, &["10.0.0.1"], &["10.0.0.9"]);
    node.read_internal(2, &["10.0.0.2"], &["10.0.0.9"]);
    node.read_internal(3, &["10.0.0.3"], &[]);
    node
}

#[test]
fn used_anycast_address_is_no_conflict() {
    for state in [NudState::Reachable, NudState::Stale] {
        let mut node = anycast();
        node.frame(1, "10.0.0.9");
        node.neighbour(1, "10.0.0.9", mac(1), state);
        node.frame(2, "10.0.0.9");
        node.neighbour(2, "10.0.0.9", mac(2), state);
        node.probe(1, "10.0.0.9");
        assert!(node.conflict_events().is_empty(), "{state:?}");
    }
}

#[test]
fn used_ipv6_anycast_address_is_no_conflict() {
    let mut node = Node::with_pods(2);
    for ifindex in [1, 2] {
        node.read_silent(ifindex, "2001:db8::9");
        node.frame(ifindex, "2001:db8::9");
    }
    assert!(node.conflict_events().is_empty());
    // The pod that has it on its device.
    node.pod(3);
    node.address(3, "2001:db8::9");
    node.expect(["raised 2001:db8::9 duplicate observed: veth1 veth2 veth3"]);
}

#[test]
fn silent_address_on_lo_alone_is_no_claim() {
    let mut node = Node::with_pods(2);
    node.read_silent(1, "2001:db8::9");
    node.address(2, "2001:db8::9");
    assert!(node.conflict_events().is_empty());
}

#[test]
fn anycast_address_used_by_a_pod_without_it_raises() {
    let mut node = anycast();
    node.frames([1, 3], "10.0.0.9");
    node.expect(["raised 10.0.0.9 duplicate observed: veth1 veth2 veth3"]);
    node.remove_link(3);
    let resolved = "resolved 10.0.0.9 duplicate observed: veth1 left veth2(expired) \
                    left veth3(device_removed)";
    assert_eq!(node.conflict_events(), [resolved]);
}

#[test]
fn address_of_another_on_lo_hides_no_frames() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    node.read_silent(2, "10.0.0.1");
    node.frame(2, "10.0.0.1");
    node.expect(["raised 10.0.0.1 duplicate observed: veth1 veth2"]);
    // A pod whose stack is a program's: nothing assigned shows the address.
    let mut node = Node::with_pods(2);
    node.read_pod_addresses(1, &[]);
    node.frame(1, "10.0.0.7");
    node.read_silent(2, "10.0.0.7");
    node.frame(2, "10.0.0.7");
    node.expect(["raised 10.0.0.7 duplicate observed: veth1 veth2"]);
}

#[test]
fn address_on_lo_and_on_the_device_is_not_shared() {
    let mut node = Node::with_pods(2);
    node.read_internal(1, &["10.0.0.9"], &["10.0.0.9"]);
    node.read_internal(2, &["10.0.0.2"], &["10.0.0.9"]);
    node.expect(["raised 10.0.0.9 duplicate certain: veth1 veth2"]);
    // A static entry of the node is not the pod's doing.
    let mut node = anycast();
    node.neighbour(1, "10.0.0.9", mac(1), NudState::Permanent);
    node.expect(["raised 10.0.0.9 duplicate certain: veth1 veth2"]);
}

#[test]
fn anycast_pod_that_ends_raises_nothing() {
    let mut node = anycast();
    for ifindex in [1, 2] {
        node.frame(ifindex, "10.0.0.9");
        node.neighbour(ifindex, "10.0.0.9", mac(1), NudState::Reachable);
    }
    node.observe(Observation::NamespaceIdFreed(peer(1).nsid));
    assert!(node.conflict_events().is_empty());
    node.remove_link(1);
    assert!(node.conflict_events().is_empty());
}

#[test]
fn frames_of_an_address_on_lo_do_not_expire() {
    let mut node = anycast();
    node.frame(1, "10.0.0.9");
    node.wait_secs(5000);
    assert_eq!(node.claims("10.0.0.9"), ["veth1"]);
    // Removed on `lo`, the frame is over as well.
    node.read_internal(1, &["10.0.0.1"], &[]);
    assert!(node.claims("10.0.0.9").is_empty());
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
fn removed_device_takes_its_internal_addresses_along() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    node.read_internal(2, &["10.0.0.2"], &["10.0.0.1"]);
    node.conflict_events();
    node.remove_link(2);
    node.expect(["resolved 10.0.0.1 duplicate certain: veth1 left veth2(device_removed)"]);
    assert_eq!(node.engine.view().addresses(), [ip("10.0.0.1")]);
}

/// 10.1.0.0 and the addresses after it, more than are stored of one pod.
fn many() -> Vec<String> {
    let address = |n: u32| std::net::Ipv4Addr::from(0x0a01_0000 + n).to_string();
    (0..1500).map(address).collect()
}

#[test]
fn address_beyond_the_bound_on_lo_conflicts_with_an_earlier_pod() {
    let mut node = Node::with_pods(2);
    let many = many();
    let on_lo: Vec<_> = many.iter().map(String::as_str).collect();
    node.address(1, on_lo[1400]);
    node.read_internal(2, &["10.0.0.2"], &on_lo);
    node.expect(["raised 10.1.5.120 duplicate certain: veth1 veth2"]);
    assert!(node.engine.view().addresses().len() <= 1027);
}

#[test]
fn address_beyond_the_bound_on_lo_conflicts_with_a_later_pod() {
    let mut node = Node::with_pods(2);
    let many = many();
    let on_lo: Vec<_> = many.iter().map(String::as_str).collect();
    node.read_internal(2, &["10.0.0.2"], &on_lo);
    node.device_effects();
    node.address(1, on_lo[1400]);
    assert_eq!(node.device_effects(), ["read veth2#2"]);
    node.read_internal(2, &["10.0.0.2"], &on_lo);
    node.expect(["raised 10.1.5.120 duplicate certain: veth1 veth2"]);
    node.remove_link(2);
    node.address(1, on_lo[1401]);
    assert_eq!(node.device_effects(), ["detach veth2#2"]);
}

#[test]
fn addresses_on_lo_that_a_snapshot_omits_are_counted() {
    let mut node = Node::with_pods(1);
    let token = node.begin_snapshot();
    let snapshot = Snapshot {
        pods: vec![PodAddresses {
            is_missing_internal: true,
            ..pod_addresses(1, &["10.0.0.1"])
        }],
        ..Snapshot::default()
    };
    node.finish_device_snapshot(token, 1, snapshot);
    assert_eq!(node.engine.view().drop_counters().claims, 1);
    let is_named = |effect: &Effect| matches!(effect, Effect::BoundReached(reached) if reached.bound == BoundKind::InternalAddresses);
    assert!(node.effects.iter().any(is_named));
}
