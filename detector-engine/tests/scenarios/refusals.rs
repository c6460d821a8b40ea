//! What was refused at a bound is read again once there is room (`docs/detection-rules.md`, 9).

use std::collections::HashSet;

use super::*;

const BOUND: u8 = 10;

/// Pods `1..=pods`, each with a bound of ten addresses; the attach effects are taken.
fn bounded(pods: IfIndex) -> Node {
    let mut node = Node::with_bounds(Bounds {
        claims_per_device: BOUND.into(),
        overflow_addresses: 0,
        ..Bounds::default()
    });
    node.pods(pods);
    node.device_effects();
    node
}

fn nth(n: u8) -> String {
    format!("10.0.0.{n}")
}

/// Pod 1 has the addresses `0..count`.
fn with_addresses(count: u8) -> Node {
    let mut node = bounded(1);
    for n in 0..count {
        node.address(1, &nth(n));
    }
    node
}

/// A snapshot of pod 1 with these addresses is merged.
fn read(node: &mut Node, addresses: impl Iterator<Item = u8>) {
    let addresses: Vec<_> = addresses.map(nth).collect();
    let addresses: Vec<_> = addresses.iter().map(String::as_str).collect();
    node.read_pod_addresses(1, &addresses);
}

#[test]
fn refused_addresses_are_read_once_there_is_room() {
    let mut node = with_addresses(20);
    assert_eq!(
        node.device_effects(),
        ["bound of veth1: addresses of a pod device"]
    );
    node.wait_secs(100);
    assert!(node.device_effects().is_empty());
    for n in 0..BOUND {
        node.address_gone(1, &nth(n));
    }
    assert!(node.engine.view().addresses().is_empty());
    node.wait_secs(1);
    assert_eq!(node.device_effects(), ["read veth1#1"]);
    read(&mut node, 10..20);
    assert_eq!(node.engine.view().addresses().len(), 10);
    node.wait_secs(2_000);
    assert!(node.device_effects().is_empty());
    assert_eq!(node.engine.next_deadline(), None);
}

#[test]
fn snapshot_beyond_the_bound_is_read_again_once_there_is_room() {
    let mut node = bounded(1);
    read(&mut node, 0..20);
    assert_eq!(node.engine.view().addresses().len(), 10);
    node.address_gone(1, &nth(0));
    node.wait_secs(1);
    assert_eq!(
        node.device_effects(),
        ["bound of veth1: addresses of a pod device", "read veth1#1"]
    );
    read(&mut node, 1..20);
    assert_eq!(node.engine.view().addresses().len(), 10);
}

#[test]
fn removed_device_is_not_read_again() {
    let mut node = with_addresses(20);
    node.remove_link(1);
    node.pod(1);
    node.device_effects();
    node.wait_secs(100);
    assert!(node.device_effects().is_empty());
}

/// The snapshot may not contain what was refused after it had started.
#[test]
fn refusal_during_a_read_is_read_again() {
    let mut node = with_addresses(20);
    for n in 0..5 {
        node.address_gone(1, &nth(n));
    }
    node.wait_secs(1);
    node.device_effects();
    let token = node.begin_snapshot();
    for n in 20..30 {
        node.address(1, &nth(n));
    }
    for n in 5..BOUND {
        node.address_gone(1, &nth(n));
    }
    let left: Vec<_> = (10..20).map(nth).collect();
    let left: Vec<_> = left.iter().map(String::as_str).collect();
    let snapshot = Snapshot {
        pods: vec![pod_addresses(1, &left[..2])],
        ..Snapshot::default()
    };
    node.finish_device_snapshot(token, 1, snapshot);
    node.wait_secs(2);
    assert_eq!(node.device_effects(), ["read veth1#1"]);
}

#[test]
fn pod_that_changes_addresses_in_a_loop_is_read_rarely() {
    let mut node = with_addresses(20);
    node.device_effects();
    let mut reads = 0;
    for _ in 0..600 {
        node.address_gone(1, &nth(0));
        node.wait_secs(1);
        let effects = node.device_effects();
        reads += effects.len();
        if !effects.is_empty() {
            read(&mut node, 0..20);
        }
        for n in 0..20 {
            node.address(1, &nth(n));
        }
    }
    // Each of the first eight seconds, and then each 64.
    assert!((16..=18).contains(&reads), "{reads}");
}

#[test]
fn few_devices_are_read_at_once_and_each_in_turn() {
    let mut node = bounded(20);
    for ifindex in 1..=20 {
        for n in 0..=BOUND {
            node.address(ifindex, &format!("10.0.{ifindex}.{n}"));
        }
        node.address_gone(ifindex, &format!("10.0.{ifindex}.0"));
    }
    node.device_effects();
    let mut read = HashSet::new();
    for _ in 0..5 {
        node.wait_secs(1);
        let effects = node.device_effects();
        assert_eq!(effects.len(), 4);
        read.extend(effects);
    }
    assert_eq!(read.len(), 20);
}

#[test]
fn reads_of_a_device_are_counted_together() {
    let mut node = with_addresses(20);
    node.device_effects();
    // Only a read shows what this means.
    let flood = |node: &mut Node, device| {
        for n in 0..100 {
            node.pod_link(device, mac(n));
        }
    };
    flood(&mut node, 1);
    assert_eq!(node.device_effects().len(), 8);
    // The other device has reads left.
    node.pod(2);
    for n in 0..20 {
        node.address(2, &format!("10.0.2.{n}"));
    }
    for device in [1, 2] {
        let gone = if device == 1 {
            nth(0)
        } else {
            "10.0.2.0".to_owned()
        };
        node.address_gone(device, &gone);
    }
    node.device_effects();
    node.wait_secs(1);
    assert_eq!(node.device_effects(), ["read veth2#2"]);
    // A change is read after ten seconds, and what was refused with it.
    node.wait_secs(9);
    assert_eq!(node.device_effects(), ["read veth1#1"]);
    read(&mut node, 1..BOUND);
    node.wait_secs(20);
    assert!(node.device_effects().is_empty());
}

#[test]
fn bound_is_named_again_only_after_a_recovery() {
    let mut node = bounded(1);
    let flood = |node: &mut Node| {
        for n in 0..200 {
            node.frame(1, &format!("10.1.0.{n}"));
        }
        node.device_effects()
    };
    let named = ["bound of veth1: claims of a device in frames"];
    assert_eq!(flood(&mut node), named);
    for _ in 0..5 {
        node.wait_secs(300);
        assert!(flood(&mut node).is_empty());
    }
    node.wait_secs(700);
    assert_eq!(flood(&mut node), named);
}

#[test]
fn refused_neighbour_of_a_device_is_read_again() {
    let mut node = bounded(1);
    for n in 0..=BOUND {
        node.neighbour(1, &nth(n), mac(1), NudState::Permanent);
    }
    assert_eq!(
        node.device_effects(),
        ["bound of veth1: neighbour entries of a pod device"]
    );
    node.neighbour_gone(1, &nth(0));
    node.wait_secs(1);
    assert_eq!(node.device_effects(), ["read veth1#1"]);
}

/// A table row: the bound, what reaches it, and what makes room.
type BoundCase = (&'static str, fn(&mut Node), fn(&mut Node));

#[test]
fn node_is_read_again_when_one_of_its_bounds_has_room() {
    let cases: [BoundCase; 5] = [
        (
            "routes",
            |node| (0..3).for_each(|n| node.route(&nth(n), 9)),
            |node| node.route_gone(&nth(0), 9),
        ),
        (
            "addresses of the node",
            |node| (0..3).for_each(|n| node.host(9, &nth(n))),
            |node| node.host_gone(9, &nth(0)),
        ),
        (
            "neighbour entries",
            |node| (0..3).for_each(|n| node.neighbour(9, &nth(n), mac(n), NudState::Permanent)),
            |node| node.neighbour_gone(9, &nth(1)),
        ),
        (
            "forwarding entries",
            |node| (0..3).for_each(|n| node.fdb(9, 1, mac(n))),
            |node| node.fdb_gone(9, 1, mac(0)),
        ),
        (
            "links",
            |node| (3..6).for_each(|n| node.pod(n)),
            |node| node.remove_link(1),
        ),
    ];
    for (bound, fill, make_room) in cases {
        let mut node = Node::with_bounds(Bounds {
            kernel_entries: 2,
            links: 4,
            ..Bounds::default()
        });
        node.link(bridge(9));
        node.port(1, 9);
        node.device_effects();
        fill(&mut node);
        let named: Vec<_> = node.device_effects();
        let named: Vec<_> = named.iter().filter(|e| e.starts_with("bound")).collect();
        assert_eq!(named, [&format!("bound of the node: {bound}")]);
        node.wait_secs(10);
        assert!(node.device_effects().is_empty(), "{bound}");
        make_room(&mut node);
        node.device_effects();
        node.wait_secs(1);
        assert_eq!(node.device_effects(), ["read the node: Room"], "{bound}");
        node.resync(Snapshot::default());
        node.device_effects();
        node.wait_secs(2_000);
        assert!(node.device_effects().is_empty(), "{bound}");
    }
}

#[test]
fn mac_flood_of_a_port_has_the_node_read_rarely() {
    let mut node = bounded(0);
    node.bridge(9);
    node.port(1, 9);
    node.device_effects();
    let mut reads = 0;
    for _ in 0..600 {
        for n in 0..20 {
            node.fdb(9, 1, mac(n));
        }
        node.fdb_gone(9, 1, mac(0));
        node.wait_secs(1);
        let effects = node.device_effects();
        let read = effects.iter().any(|e| e == "read the node: Room");
        reads += usize::from(read);
        if read {
            node.resync(Snapshot {
                links: vec![bridge(9), bridge_port(1, 9)],
                ..Snapshot::default()
            });
            node.device_effects();
        }
    }
    // Each of the first eight seconds, and then each 64.
    assert!((16..=18).contains(&reads), "{reads}");
}

#[test]
fn address_whose_assignments_are_unknown_is_read_again() {
    let mut node = bounded(1);
    node.link(uplink(9));
    let all: Vec<_> = (0..17)
        .map(|n| assigned_with_peer("10.0.0.5", &format!("10.1.0.{n}"), 32))
        .collect();
    for info in &all {
        node.observe(Observation::PodAddress(peer(1), *info));
        node.observe(Observation::HostAddress(9, *info));
    }
    node.device_effects();
    node.wait_secs(10);
    assert!(node.device_effects().is_empty());
    for info in &all {
        node.observe(Observation::PodAddressGone(peer(1), info.id()));
        node.observe(Observation::HostAddressGone(9, info.id()));
    }
    node.wait_secs(1);
    assert_eq!(
        node.device_effects(),
        [
            "bound of veth1: assignments of one address",
            "bound of the node: assignments of one address",
            "read the node: Room",
            "read veth1#1",
        ]
    );
    read(&mut node, 0..0);
    let mut snapshot = snapshot(&[(1, &[])]);
    snapshot.links.push(uplink(9));
    node.resync(snapshot);
    assert!(node.engine.view().addresses().is_empty());
}

/// A list that ends at a bound does not say what is absent.
#[test]
fn truncated_lists_remove_nothing() {
    let mut node = Node::with_bridge(1);
    node.address(1, "10.0.0.1");
    node.host(9, "10.0.0.2");
    node.neighbour(9, "10.0.0.3", mac(1), NudState::Permanent);
    node.route("10.0.0.4", 9);
    node.pod(2);
    node.address(2, "10.0.0.1");
    node.frame(2, "10.0.0.2");
    node.frame(2, "10.0.0.3");
    let before = node.open_conflicts();
    assert_eq!(before.len(), 3, "{before:?}");
    node.conflict_events();
    node.resync(Snapshot {
        pods: vec![PodAddresses {
            is_truncated: true,
            internal: Vec::new(),
            ..pod_addresses(1, &["10.0.0.9"])
        }],
        links: vec![bridge(9), bridge_port(1, 9)],
        truncated: TruncatedLists {
            links: true,
            host: true,
            neighbours: true,
            fdb: true,
            routes: true,
        },
        ..Snapshot::default()
    });
    assert!(node.conflict_events().is_empty());
    assert_eq!(node.open_conflicts(), before);
    assert!(node.engine.view().addresses().contains(&ip("10.0.0.9")));
}
