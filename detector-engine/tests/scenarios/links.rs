//! Devices that appear, disappear, change, or replace another one.

use super::*;

#[test]
fn pod_devices_are_attached_once_and_detached_when_gone() {
    let mut node = Node::new();
    node.pod(1);
    node.pod(1);
    node.link(uplink(2));
    assert_eq!(node.device_effects(), ["attach veth1#1"]);
    node.remove_link(1);
    node.remove_link(2);
    node.remove_link(3);
    assert_eq!(node.device_effects(), ["detach veth1#1"]);
    assert!(node.engine.view().devices().is_empty());
}

#[test]
fn device_is_attached_again_when_its_peer_appears() {
    let mut node = Node::new();
    node.link(pod_without_peer(1));
    node.address(1, "10.0.0.1");
    assert!(
        node.engine.view().addresses().is_empty(),
        "no device has this peer"
    );
    node.pod(1);
    assert_eq!(node.device_effects(), ["attach veth1#1", "attach veth1#1"]);
    assert_eq!(node.engine.view().device(1).unwrap().peer, Some(peer(1)));
    node.address(1, "10.0.0.1");
    assert_eq!(node.engine.view().addresses(), [ip("10.0.0.1")]);
}

#[test]
fn link_update_without_peer_keeps_the_peer() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    node.link(Link {
        peer: None,
        up: false,
        ..pod(1)
    });
    node.address(2, "10.0.0.1");
    node.expect(["raised 10.0.0.1 duplicate certain: veth1 veth2"]);
}

#[test]
fn device_reclassified_as_other_loses_its_claims() {
    let mut node = Node::with_pods(2);
    for ifindex in 1..=2 {
        node.address(ifindex, "10.0.0.1");
        node.frame(ifindex, "10.0.0.1");
        node.neighbour(ifindex, "10.0.0.1", mac(1), NudState::Permanent);
    }
    node.conflict_events();
    node.link(Link {
        kind: LinkKind::Other,
        ..pod(1)
    });
    node.expect(["resolved 10.0.0.1 duplicate certain: veth2 left veth1(device_removed)"]);
    node.pod(1);
    assert!(node.conflict_events().is_empty());
    assert!(node.open_conflicts().is_empty());
}

#[test]
fn host_address_stays_when_its_link_becomes_a_pod_device() {
    let mut node = Node::with_pods(2);
    node.link(Link {
        kind: LinkKind::Other,
        ..pod(3)
    });
    node.host(3, "10.0.0.1");
    node.pod(3);
    node.address(2, "10.0.0.1");
    node.expect(["raised 10.0.0.1 host certain: node/veth3 veth2 -> veth3"]);
}

#[test]
fn removed_device_withdraws_all_its_claims() {
    let mut node = Node::with_pods(2);
    for ifindex in 1..=2 {
        node.address(ifindex, "10.0.0.1");
        node.frame(ifindex, "10.0.0.1");
        node.neighbour(ifindex, "10.0.0.1", mac(1), NudState::Permanent);
    }
    node.conflict_events();
    node.remove_link(1);
    node.expect(["resolved 10.0.0.1 duplicate certain: veth2 left veth1(device_removed)"]);
    node.remove_link(2);
    assert!(node.engine.view().addresses().is_empty());
}

#[test]
fn recreated_device_is_a_new_generation() {
    let mut node = Node::with_pods(2);
    node.frame(1, "10.0.0.1");
    node.remove_link(1);
    node.pod(1);
    node.frame(2, "10.0.0.1");
    assert!(node.conflict_events().is_empty());
    assert_eq!(node.engine.view().device(1).unwrap().generation, 3);
}

#[test]
fn silently_replaced_device_inherits_nothing() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    node.frame(1, "10.0.0.1");
    node.neighbour(1, "10.0.0.1", mac(1), NudState::Permanent);
    node.host(1, "10.0.0.9");
    node.device_effects();
    node.link(Link {
        name: "veth9".to_owned(),
        peer: Some(peer(9)),
        ..pod(1)
    });
    assert_eq!(node.device_effects(), ["resync", "attach veth9#3"]);
    node.address(2, "10.0.0.1");
    assert!(node.conflict_events().is_empty());
    assert_eq!(node.engine.view().addresses(), [ip("10.0.0.1")]);
}

#[test]
fn peer_moved_to_another_namespace_is_another_pod() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    node.frame(1, "10.0.0.1");
    node.link(pod_with_peer(1, peer(9)));
    node.address(2, "10.0.0.1");
    assert!(node.conflict_events().is_empty());
}

#[test]
fn renamed_pod_device_keeps_its_claims_and_conflicts() {
    let mut node = Node::with_duplicate();
    node.frame(1, "10.0.0.1");
    let id = node.engine.view().conflicts(node.now)[0].id;
    node.conflict_events();
    node.link(renamed(pod(1), "veth9"));
    let updated = node.reported_conflicts();
    assert_eq!(updated.len(), 1);
    assert_eq!(updated[0].id, id);
    assert_eq!(
        conflict_text(&updated[0]),
        "10.0.0.1 duplicate certain: veth9 veth2"
    );
    assert_eq!(
        evidence_text(&updated[0].claimants[0]),
        ["address", "arp"],
        "no evidence is lost"
    );
}

#[test]
fn renames_cause_no_read_of_the_node() {
    let mut node = Node::with_pods(1);
    node.link(pod_without_peer(2));
    node.device_effects();
    for name in ["a", "b", "c", "d", "e", "f"] {
        node.link(renamed(pod(1), name));
        node.link(renamed(pod_without_peer(2), &format!("tap{name}")));
        assert_eq!(
            node.device_effects(),
            [format!("rename {name}#1"), format!("rename tap{name}#2")]
        );
    }
}

#[test]
fn other_name_after_a_loss_is_another_device() {
    for link in [pod(1), pod_without_peer(1)] {
        let mut node = Node::new();
        node.link(link.clone());
        node.pod(2);
        node.frame(1, "10.0.0.1");
        node.observe(Observation::NotificationsLost);
        node.device_effects();
        node.link(renamed(link.clone(), "veth9"));
        assert_eq!(node.device_effects(), ["resync", "attach veth9#3"]);
        node.frame(2, "10.0.0.1");
        assert!(node.conflict_events().is_empty());
        // The link has been reported since the loss.
        node.link(renamed(link, "veth8"));
        assert_eq!(node.device_effects(), ["rename veth8#3"]);
    }
}

#[test]
fn rename_may_make_a_link_a_pod_device_or_none() {
    let mut node = Node::with_duplicate();
    node.conflict_events();
    node.link(Link {
        kind: LinkKind::Other,
        ..renamed(pod(1), "uplink")
    });
    node.expect(["resolved 10.0.0.1 duplicate certain: veth2 left veth1(device_removed)"]);
    node.link(renamed(pod(1), "veth1"));
    assert_eq!(node.device_effects(), ["attach veth1#1"]);
    node.address(1, "10.0.0.1");
    assert_eq!(node.conflict_events().len(), 1);
}

#[test]
fn renamed_participant_of_flapping_has_its_new_name() {
    let mut node = Node::with_settings(Settings {
        allow: vip_range(),
        ..Settings::default()
    });
    node.pod(1);
    node.pod(2);
    for n in 0..6 {
        let ifindex = 1 + n % 2;
        node.address(ifindex, "10.9.0.1");
        node.address_gone(ifindex, "10.9.0.1");
    }
    node.conflict_events();
    node.link(renamed(pod(1), "veth9"));
    node.expect(["updated 10.9.0.1 flapping certain: veth9 veth2"]);
}

#[test]
fn renamed_uplink_is_shown_by_its_new_name() {
    let mut node = Node::with_pods(1);
    node.link(uplink(9));
    node.host(9, "10.0.0.1");
    node.address(1, "10.0.0.1");
    node.conflict_events();
    node.link(renamed(uplink(9), "wan0"));
    node.expect(["updated 10.0.0.1 host certain: node/wan0 veth1 -> wan0"]);
}

#[test]
fn reused_nsid_belongs_to_the_newer_device() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    // The kernel frees the number of a dying namespace before the dying devices are gone.
    node.link(pod_with_peer(3, peer(1)));
    node.address(2, "10.0.0.1");
    assert!(
        node.conflict_events().is_empty(),
        "veth3 does not inherit the address of veth1"
    );
    node.address(1, "10.0.0.3");
    // Late updates and the removal of the dying device do not take the number back.
    node.link(link_down(pod(1)));
    node.remove_link(1);
    node.address(2, "10.0.0.3");
    node.expect(["raised 10.0.0.3 duplicate certain: veth3 veth2"]);
}

#[test]
fn frame_older_than_its_device_is_ignored() {
    let mut node = Node::with_pods(2);
    node.frame(2, "10.0.0.1");
    node.remove_link(1);
    let before = node.now;
    node.pod(1);
    node.observe_at(before, Observation::Frame(frame(1, "10.0.0.1")));
    assert!(node.conflict_events().is_empty());
    assert_eq!(node.engine.view().drop_counters().unknown_device, 1);
    node.frame(1, "10.0.0.1");
    node.expect(["raised 10.0.0.1 duplicate observed: veth2 veth1"]);
}

#[test]
fn frames_of_unknown_devices_are_only_counted() {
    let mut node = Node::with_pods(1);
    node.link(uplink(2));
    node.frames(1..=3, "10.0.0.1");
    assert!(node.conflict_events().is_empty());
    assert_eq!(node.engine.view().drop_counters().unknown_device, 2);
}

#[test]
fn late_frame_does_not_restore_a_removed_address() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    let sent = node.now;
    node.address_gone(1, "10.0.0.1");
    node.observe_at(sent, Observation::Frame(frame(1, "10.0.0.1")));
    node.address(2, "10.0.0.1");
    assert!(node.conflict_events().is_empty());
    node.frame(1, "10.0.0.1");
    node.expect(["raised 10.0.0.1 duplicate observed: veth2 veth1"]);
}

#[test]
fn removed_address_withdraws_its_frame_claims() {
    let mut node = Node::with_observed_duplicate();
    node.conflict_events();
    // Removed, although its assignment was never reported.
    node.address_gone(1, "10.0.0.1");
    node.expect(["resolved 10.0.0.1 duplicate observed: veth2 left veth1(expired)"]);
}

#[test]
fn bridge_seen_after_its_neighbour_has_the_node_read() {
    let mut node = Node::new();
    node.neighbour(9, "10.0.0.1", mac(1), NudState::Reachable);
    node.bridge(9);
    assert_eq!(node.device_effects(), ["read the node: LateBridge"]);
    node.bridge(9);
    node.bridge(8);
    assert!(node.device_effects().is_empty());
}

#[test]
fn alias_change_is_a_rename() {
    let mut node = Node::with_pods(1);
    node.device_effects();
    node.link(Link {
        alias: Some("a".to_owned()),
        ..pod(1)
    });
    assert_eq!(node.device_effects(), ["rename veth1#1"]);
    node.bridge(9);
    node.link(Link {
        alias: Some("a".to_owned()),
        master: Some(9),
        ..pod(1)
    });
    assert!(node.device_effects().is_empty(), "only the bridge changed");
}

#[test]
fn displaced_namespace_no_longer_refutes_entries() {
    let mut node = Node::with_pods(3);
    node.read_pod_addresses(1, &[]);
    node.neighbour(1, "10.0.0.1", mac(1), NudState::Stale);
    node.address(3, "10.0.0.1");
    assert!(node.conflict_events().is_empty());
    node.link(pod_with_peer(4, peer(1)));
    node.expect(["raised 10.0.0.1 duplicate observed: veth1 veth3"]);
}

#[test]
fn unrelated_bridge_and_port_changes_keep_entries() {
    let mut node = Node::with_bridge(2);
    node.neighbour(9, "10.0.0.1", mac(1), NudState::Reachable);
    node.address(2, "10.0.0.1");
    node.route("10.0.0.1", 9);
    node.conflict_events();
    node.link(Link {
        alias: Some("b".to_owned()),
        ..bridge(9)
    });
    node.link(Link {
        alias: Some("p".to_owned()),
        master: Some(9),
        ..pod(1)
    });
    node.expect_open(["10.0.0.1 duplicate observed: br9/02:00:00:00:00:01 veth2 -> br9"]);
    assert!(node.conflict_events().is_empty());
}

#[test]
fn only_tracked_unknown_links_request_a_resync() {
    let mut node = Node::with_bounds(Bounds {
        links: 2,
        ..Bounds::default()
    });
    node.link(uplink(9));
    for ifindex in [9, 11, 12, 13] {
        node.neighbour(ifindex, "10.0.0.1", mac(1), NudState::Reachable);
    }
    node.remove_link(9);
    for (bridge, read) in [(9, 0), (13, 0), (11, 1)] {
        node.bridge(bridge);
        assert_eq!(node.device_effects().len(), read, "{bridge}");
        node.remove_link(bridge);
    }
}

#[test]
fn snapshot_neighbour_on_unknown_link_needs_no_resync() {
    let mut node = Node::new();
    node.resync(Snapshot {
        neighbours: vec![neighbour(9, "10.0.0.1", mac(1), NudState::Reachable)],
        ..Snapshot::default()
    });
    node.bridge(9);
    assert!(node.device_effects().is_empty());
}
