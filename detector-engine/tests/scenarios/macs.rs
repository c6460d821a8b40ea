//! Hardware addresses on two ports (`docs/detection-rules.md`, sections 14.8 and 14.9).

use super::*;

/// How long a hardware address has to be back behind the port of its pod.
const BACK_FOR: Duration = Duration::from_secs(60);

/// A table row: its label, and what differs in the snapshot.
type SnapshotCase = (&'static str, fn(&mut Snapshot));

/// The same with the hardware address of pod 1 on pod 2.
fn dump_with_shared_mac() -> Snapshot {
    let mut dump = bridge_dump();
    dump.pods[1].mac = Some(mac(1));
    dump
}

fn node(dump: Snapshot) -> Node {
    let mut node = Node::new();
    node.resync(dump);
    node
}

/// The anomaly events since effects were last taken: `raised mac_moved 10.0.0.1 on veth1, veth2`.
fn mac_events(node: &mut Node) -> Vec<String> {
    let effects = std::mem::take(&mut node.effects);
    let text = |change: &str, a: &Anomaly| {
        let device = &a.holder.as_ref().unwrap().device;
        let reason = a
            .resolve_reason
            .map(|reason| format!(": {}", reason.name()));
        format!(
            "{change} {} {} on {device}, {}{}",
            a.kind.name(),
            a.address,
            a.also_on.join(", "),
            reason.unwrap_or_default()
        )
    };
    let of = |effect| match effect {
        Effect::Anomaly(AnomalyEffect::Raised(a)) => Some(text("raised", &a)),
        Effect::Anomaly(AnomalyEffect::Updated(a)) => Some(text("updated", &a)),
        Effect::Anomaly(AnomalyEffect::Resolved(a)) => Some(text("resolved", &a)),
        Effect::Raised(c) | Effect::Updated(c) | Effect::Resolved(c) => Some(conflict_text(&c)),
        _ => None,
    };
    effects.into_iter().filter_map(of).collect()
}

const DUPLICATE: &str = "raised mac_duplicate 10.0.0.1 on veth1, veth2";
const MOVED: &str = "raised mac_moved 10.0.0.1 on veth1, veth2";

/// Both pods send in turn.
fn send_in_turn(node: &mut Node, times: usize) {
    for _ in 0..times {
        for port in [1, 2] {
            node.fdb(9, port, mac(1));
            for address in ["10.0.0.1", "10.0.0.2"] {
                node.neighbour(9, address, mac(1), NudState::Reachable);
            }
        }
    }
}

#[test]
fn one_mac_on_two_ports_is_one_finding() {
    let mut node = node(dump_with_shared_mac());
    send_in_turn(&mut node, 10);
    assert!(mac_events(&mut node).is_empty());
    node.wait_secs(5);
    assert_eq!(mac_events(&mut node), [DUPLICATE]);
    let anomaly = &node.engine.view().anomalies()[0];
    assert_eq!(
        anomaly.detail,
        "the pods on veth1 and veth2 have one MAC address, 02:00:00:00:00:01, on br9: whichever sent last receives the packets of both"
    );
    send_in_turn(&mut node, 10);
    node.wait_secs(500);
    assert!(mac_events(&mut node).is_empty());
    let token = node.begin_snapshot();
    node.finish_device_snapshot(token, 2, pod_with_mac(2, mac(2), "10.0.0.2"));
    assert_eq!(
        mac_events(&mut node),
        ["resolved mac_duplicate 10.0.0.1 on veth1, veth2: mac_unique"]
    );
}

#[test]
fn duplicate_ends_with_its_devices() {
    let mut node = node(dump_with_shared_mac());
    node.wait_secs(5);
    mac_events(&mut node);
    node.remove_link(2);
    assert_eq!(
        mac_events(&mut node),
        ["resolved mac_duplicate 10.0.0.1 on veth1, veth2: mac_unique"]
    );
}

/// A pod that changed to the hardware address is not shown as the one that had it.
#[test]
fn pod_that_changed_its_mac_is_listed_last() {
    let mut node = node(bridge_dump());
    let token = node.begin_snapshot();
    node.finish_device_snapshot(token, 1, pod_with_mac(1, mac(2), "10.0.0.1"));
    node.wait_secs(5);
    assert_eq!(
        mac_events(&mut node),
        ["raised mac_duplicate 10.0.0.2 on veth2, veth1"]
    );
}

#[test]
fn equal_macs_that_do_not_meet_are_no_finding() {
    let cases: [SnapshotCase; 7] = [
        ("routed", |dump| {
            dump.links.iter_mut().for_each(|link| link.master = None);
        }),
        ("another bridge", |dump| {
            dump.links[1].master = Some(8);
            dump.links.push(bridge(8));
        }),
        ("another VLAN", |dump| {
            dump.links[3].vlan_filtering = Some(VlanFiltering {
                default_pvid: Some(1),
            });
            dump.port_vlans = [(1, 5), (2, 7)].map(port_vlan).to_vec();
        }),
        ("interfaces without one", |dump| {
            for pod in &mut dump.pods {
                pod.mac = Some(Mac::default());
            }
        }),
        ("no carrier", |dump| dump.links[1].running = false),
        ("one pod", |dump| {
            let second = Peer {
                ifindex: 3,
                ..peer(1)
            };
            dump.links[1].peer = Some(second);
            dump.pods[1].peer = second;
        }),
        ("Open vSwitch", |dump| {
            dump.links[3].kind = LinkKind::Switch;
        }),
    ];
    for (label, change) in cases {
        let mut dump = dump_with_shared_mac();
        change(&mut dump);
        let is_running = dump.links[1].running;
        let mut node = node(dump);
        // A bridge learns nothing on a port without carrier.
        for port in if is_running { [2, 1, 2] } else { [1; 3] } {
            node.fdb(9, port, mac(1));
        }
        node.wait_secs(60);
        assert!(mac_events(&mut node).is_empty(), "{label}");
    }
}

fn port_vlan((ifindex, pvid): (IfIndex, u16)) -> PortVlan {
    PortVlan {
        ifindex,
        pvid: Some(pvid),
    }
}

#[test]
fn stolen_mac_names_its_pod_and_the_other_port() {
    let mut node = node(bridge_dump());
    node.fdb(9, 2, mac(1));
    assert!(mac_events(&mut node).is_empty());
    node.wait_secs(5);
    assert_eq!(mac_events(&mut node), [MOVED]);
    let anomaly = &node.engine.view().anomalies()[0];
    assert_eq!(
        anomaly.detail,
        "br9 learned the MAC address of the pod on veth1, 02:00:00:00:00:01, on veth2: the pod's packets go there"
    );
    node.wait_secs(500);
    assert!(mac_events(&mut node).is_empty());
    node.fdb(9, 1, mac(1));
    node.wait(BACK_FOR - Duration::from_secs(1));
    assert!(mac_events(&mut node).is_empty());
    node.wait_secs(1);
    assert_eq!(
        mac_events(&mut node),
        ["resolved mac_moved 10.0.0.1 on veth1, veth2: mac_unique"]
    );
}

/// The victim sends as well: its packets are stolen one by one.
#[test]
fn mac_that_moves_again_and_again_is_one_finding() {
    let mut node = node(bridge_dump());
    for _ in 0..4 {
        node.fdb(9, 2, mac(1));
        node.fdb(9, 1, mac(1));
    }
    // An interface may have been given the hardware address, which is not known yet.
    node.wait_secs(4);
    assert!(mac_events(&mut node).is_empty());
    node.fdb(9, 2, mac(1));
    node.fdb(9, 1, mac(1));
    node.wait_secs(1);
    assert!(mac_events(&mut node).is_empty());
    node.fdb(9, 2, mac(1));
    assert_eq!(mac_events(&mut node), [MOVED]);
    for _ in 0..20 {
        node.fdb(9, 1, mac(1));
        node.wait_secs(30);
        node.fdb(9, 2, mac(1));
        node.wait_secs(1);
    }
    assert!(mac_events(&mut node).is_empty());
    node.remove_link(1);
    assert_eq!(
        mac_events(&mut node),
        ["resolved mac_moved 10.0.0.1 on veth1, veth2: device_gone"]
    );
}

#[test]
fn mac_behind_an_uplink_has_moved_too() {
    let mut dump = bridge_dump();
    dump.links.push(Link {
        master: Some(9),
        ..uplink(4)
    });
    let mut node = node(dump);
    node.fdb(9, 4, mac(1));
    node.wait_secs(5);
    assert_eq!(
        mac_events(&mut node),
        ["raised mac_moved 10.0.0.1 on veth1, eth4"]
    );
}

#[test]
fn moves_that_steal_nothing_are_no_finding() {
    let cases: [NodeCase; 6] = [
        ("returned in time", |node| {
            node.fdb(9, 2, mac(1));
            node.wait_secs(4);
            node.fdb(9, 1, mac(1));
        }),
        ("its device went", |node| {
            node.fdb(9, 2, mac(1));
            node.wait_secs(4);
            node.remove_link(1);
        }),
        ("not of an interface", |node| node.fdb(9, 2, mac(77))),
        ("aged out", |node| {
            node.fdb(9, 2, mac(1));
            node.fdb_gone(9, 2, mac(1));
        }),
        ("another VLAN", |node| {
            node.observe(Observation::Fdb(FdbEntry {
                vlan: Some(5),
                ..fdb(9, 2, mac(1))
            }));
        }),
        // It would make the pod that really has it look like a thief.
        ("taken by the pod itself", |node| {
            node.fdb(9, 2, mac(77));
            let token = node.begin_snapshot();
            node.finish_device_snapshot(token, 1, pod_with_mac(1, mac(77), "10.0.0.1"));
        }),
    ];
    for (label, happens) in cases {
        let mut node = node(bridge_dump());
        happens(&mut node);
        node.wait_secs(600);
        assert!(mac_events(&mut node).is_empty(), "{label}");
    }
}

#[test]
fn flood_of_macs_hides_no_stolen_one() {
    let mut node = Node::with_bounds(Bounds {
        claims_per_device: 10,
        ..Bounds::default()
    });
    node.resync(bridge_dump());
    for n in 0..100 {
        node.fdb(9, 2, mac(100 + n));
    }
    node.fdb(9, 2, mac(1));
    node.wait_secs(5);
    assert_eq!(mac_events(&mut node), [MOVED]);
}

#[test]
fn finding_continues_after_a_restart() {
    for (dump, event) in [(dump_with_shared_mac(), DUPLICATE), (bridge_dump(), MOVED)] {
        let mut before = node(dump.clone());
        let mut dump = dump;
        if event == MOVED {
            before.fdb(9, 2, mac(1));
            dump.fdb[0].port = 2;
        }
        before.wait_secs(5);
        assert_eq!(mac_events(&mut before), [event]);
        let open = before.engine.view().anomalies();
        let mut after = Node::new();
        after.now = before.now;
        after.engine.restore(Vec::new(), open.clone());
        after.resync(dump);
        after.wait_secs(60);
        assert!(mac_events(&mut after).is_empty(), "{event}");
        assert_eq!(after.engine.view().anomalies()[0].id, open[0].id);
    }
}

#[test]
fn pod_without_known_addresses_is_shown_with_its_link_local_one() {
    let mut dump = bridge_dump();
    dump.pods[0].addresses = Some(Vec::new());
    let mut node = node(dump);
    node.fdb(9, 2, mac(1));
    node.wait_secs(5);
    assert_eq!(
        mac_events(&mut node),
        ["raised mac_moved fe80::ff:fe00:1 on veth1, veth2"]
    );
}

#[test]
fn finding_ends_with_the_device_that_it_names() {
    let mut dump = dump_with_shared_mac();
    dump.pods[2].mac = Some(mac(1));
    let mut node = node(dump);
    node.wait_secs(5);
    assert_eq!(mac_events(&mut node), [format!("{DUPLICATE}, veth3")]);
    node.remove_link(1);
    node.wait_secs(5);
    assert_eq!(
        mac_events(&mut node),
        [
            "resolved mac_duplicate 10.0.0.1 on veth1, veth2, veth3: device_gone",
            "raised mac_duplicate 10.0.0.2 on veth2, veth3",
        ]
    );
}
