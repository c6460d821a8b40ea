//! Devices that come, go, change, or take another's place.

use super::*;

#[test]
fn pod_devices_are_attached_once_and_detached_when_gone() {
    let mut node = Node::new();
    node.pod(1);
    node.pod(1);
    node.link(uplink(2));
    assert_eq!(node.asked(), ["attach veth1#1"]);
    node.gone(1);
    node.gone(2);
    node.gone(3);
    assert_eq!(node.asked(), ["detach veth1#1"]);
    assert!(node.engine.devices().is_empty());
}

#[test]
fn a_peer_learned_late_is_attached_again() {
    let mut node = Node::new();
    node.link(Link {
        peer: None,
        ..pod(1)
    });
    node.address(1, "10.0.0.1");
    assert!(
        node.engine.addresses().is_empty(),
        "whose it is is not known"
    );
    node.pod(1);
    assert_eq!(node.asked(), ["attach veth1#1", "attach veth1#1"]);
    assert_eq!(node.engine.device(1).unwrap().peer, Some(peer(1)));
    node.address(1, "10.0.0.1");
    assert_eq!(node.engine.addresses(), [ip("10.0.0.1")]);
}

#[test]
fn a_message_without_the_peer_does_not_forget_it() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    node.link(Link {
        peer: None,
        up: false,
        ..pod(1)
    });
    node.address(2, "10.0.0.1");
    assert_eq!(
        node.said(),
        ["raised 10.0.0.1 duplicate certain: veth1 veth2"]
    );
}

#[test]
fn a_device_that_is_no_pods_any_more_claims_nothing_and_forgets_what_it_claimed() {
    let mut node = Node::with_pods(2);
    for ifindex in 1..=2 {
        node.address(ifindex, "10.0.0.1");
        node.frame(ifindex, "10.0.0.1");
        node.neighbour(ifindex, "10.0.0.1", mac(1), NudState::Permanent);
    }
    node.said();
    node.link(Link {
        kind: LinkKind::Other,
        ..pod(1)
    });
    assert_eq!(
        node.said(),
        ["resolved 10.0.0.1 duplicate certain: veth2 left veth1(device_removed)"]
    );
    node.pod(1);
    assert!(node.said().is_empty());
    assert!(node.open().is_empty());
}

#[test]
fn what_the_node_has_on_a_device_stays_when_it_becomes_a_pods() {
    let mut node = Node::with_pods(2);
    node.link(Link {
        kind: LinkKind::Other,
        ..pod(3)
    });
    node.host(3, "10.0.0.1");
    node.pod(3);
    node.address(2, "10.0.0.1");
    assert_eq!(
        node.said(),
        ["raised 10.0.0.1 host certain: node/veth3 veth2 -> veth3"]
    );
}

#[test]
fn a_removed_device_takes_all_its_claims_along() {
    let mut node = Node::with_pods(2);
    for ifindex in 1..=2 {
        node.address(ifindex, "10.0.0.1");
        node.frame(ifindex, "10.0.0.1");
        node.neighbour(ifindex, "10.0.0.1", mac(1), NudState::Permanent);
    }
    node.said();
    node.gone(1);
    assert_eq!(
        node.said(),
        ["resolved 10.0.0.1 duplicate certain: veth2 left veth1(device_removed)"]
    );
    node.gone(2);
    assert!(node.engine.addresses().is_empty());
}

#[test]
fn a_device_of_the_same_name_and_index_is_another_one() {
    let mut node = Node::with_pods(2);
    node.frame(1, "10.0.0.1");
    node.gone(1);
    node.pod(1);
    node.frame(2, "10.0.0.1");
    assert!(node.said().is_empty());
    assert_eq!(node.engine.device(1).unwrap().generation, 3);
}

#[test]
fn a_device_replaced_without_a_word_inherits_nothing() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    node.frame(1, "10.0.0.1");
    node.neighbour(1, "10.0.0.1", mac(1), NudState::Permanent);
    node.host(1, "10.0.0.9");
    node.asked();
    node.link(Link {
        name: "veth9".to_owned(),
        peer: Some(peer(9)),
        ..pod(1)
    });
    assert_eq!(node.asked(), ["read again", "attach veth9#3"]);
    node.address(2, "10.0.0.1");
    assert!(node.said().is_empty());
    assert_eq!(node.engine.addresses(), [ip("10.0.0.1")]);
}

#[test]
fn a_pods_end_that_moved_to_another_namespace_is_another_pods() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    node.frame(1, "10.0.0.1");
    node.link(Link {
        peer: Some(peer(9)),
        ..pod(1)
    });
    node.address(2, "10.0.0.1");
    assert!(node.said().is_empty());
}

#[test]
fn a_pods_device_of_another_name_is_another_device_also_with_the_same_peer() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    node.frame(1, "10.0.0.1");
    node.link(Link {
        name: "veth9".to_owned(),
        ..pod(1)
    });
    node.address(2, "10.0.0.1");
    assert!(node.said().is_empty());
}

#[test]
fn a_renamed_link_of_the_node_is_shown_by_its_new_name() {
    let mut node = Node::with_pods(1);
    node.link(uplink(9));
    node.host(9, "10.0.0.1");
    node.address(1, "10.0.0.1");
    node.said();
    node.link(Link {
        name: "wan0".to_owned(),
        ..uplink(9)
    });
    assert_eq!(
        node.said(),
        ["updated 10.0.0.1 host certain: node/wan0 veth1 -> wan0"]
    );
}

#[test]
fn a_namespace_number_that_is_given_anew_belongs_to_the_newer_device() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    // The kernel frees the number of a dying namespace before the dying devices are gone.
    node.link(Link {
        peer: Some(peer(1)),
        ..pod(3)
    });
    node.address(2, "10.0.0.1");
    assert!(node.said().is_empty(), "veth3 has not got veth1's address");
    node.address(1, "10.0.0.3");
    // The dying device's last words do not take the number back, nor does its end take anything away.
    node.link(Link {
        up: false,
        ..pod(1)
    });
    node.gone(1);
    node.address(2, "10.0.0.3");
    assert_eq!(
        node.said(),
        ["raised 10.0.0.3 duplicate certain: veth3 veth2"]
    );
}

#[test]
fn a_frame_older_than_its_device_is_an_earlier_devices() {
    let mut node = Node::with_pods(2);
    node.frame(2, "10.0.0.1");
    node.gone(1);
    let before = node.now;
    node.pod(1);
    node.tell_at(before, Observation::Frame(frame(1, "10.0.0.1")));
    assert!(node.said().is_empty());
    assert_eq!(node.engine.drop_counters().unknown_device, 1);
    node.frame(1, "10.0.0.1");
    assert_eq!(
        node.said(),
        ["raised 10.0.0.1 duplicate observed: veth2 veth1"]
    );
}

#[test]
fn frames_of_unknown_devices_are_counted_only() {
    let mut node = Node::with_pods(1);
    node.link(uplink(2));
    for ifindex in 1..=3 {
        node.frame(ifindex, "10.0.0.1");
    }
    assert!(node.said().is_empty());
    assert_eq!(node.engine.drop_counters().unknown_device, 2);
}

#[test]
fn a_late_frame_does_not_bring_back_a_removed_address() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    let sent = node.now;
    node.address_gone(1, "10.0.0.1");
    node.tell_at(sent, Observation::Frame(frame(1, "10.0.0.1")));
    node.address(2, "10.0.0.1");
    assert!(node.said().is_empty());
    node.frame(1, "10.0.0.1");
    assert_eq!(
        node.said(),
        ["raised 10.0.0.1 duplicate observed: veth2 veth1"]
    );
}

#[test]
fn a_removed_address_takes_the_frames_for_it_along() {
    let mut node = Node::with_pods(2);
    node.frame(1, "10.0.0.1");
    node.frame(2, "10.0.0.1");
    node.said();
    // Removed, although that it was there was never told.
    node.address_gone(1, "10.0.0.1");
    assert_eq!(
        node.said(),
        ["resolved 10.0.0.1 duplicate observed: veth2 left veth1(expired)"]
    );
}

#[test]
fn a_bridge_told_after_a_neighbour_on_it_asks_for_a_reading() {
    let mut node = Node::new();
    node.neighbour(9, "10.0.0.1", mac(1), NudState::Reachable);
    node.bridge(9);
    assert_eq!(node.asked(), ["read again"]);
    node.bridge(9);
    node.bridge(8);
    assert!(node.asked().is_empty());
}

#[test]
fn another_alias_is_a_rename_and_another_name_another_device() {
    let mut node = Node::with_pods(1);
    node.asked();
    node.link(Link {
        alias: Some("a".to_owned()),
        ..pod(1)
    });
    assert_eq!(node.asked(), ["rename veth1#1"]);
    node.bridge(9);
    node.link(Link {
        alias: Some("a".to_owned()),
        master: Some(9),
        ..pod(1)
    });
    assert!(node.asked().is_empty(), "a port of a bridge now, no more");
    node.link(Link {
        name: "vethX".to_owned(),
        ..pod(1)
    });
    assert_eq!(node.asked(), ["read again", "attach vethX#3"]);
}

#[test]
fn a_peer_that_a_reading_lacks_takes_its_addresses_along() {
    let mut node = Node::with_pods(1);
    node.address(1, "10.0.0.1");
    node.read_node(Snapshot {
        links: vec![Link {
            peer: None,
            ..pod(1)
        }],
        ..Snapshot::default()
    });
    assert!(node.engine.addresses().is_empty());
    assert_eq!(node.engine.device(1).unwrap().peer, None);
}

#[test]
fn a_displaced_devices_namespace_speaks_against_nothing_any_more() {
    let mut node = Node::with_pods(3);
    node.read_pod(1, &[]);
    node.neighbour(1, "10.0.0.1", mac(1), NudState::Stale);
    node.address(3, "10.0.0.1");
    assert!(node.said().is_empty());
    node.link(Link {
        peer: Some(peer(1)),
        ..pod(4)
    });
    assert_eq!(
        node.said(),
        ["raised 10.0.0.1 duplicate observed: veth1 veth3"]
    );
}

#[test]
fn other_changes_of_a_bridge_or_a_port_leave_entries_and_routes_as_they_are() {
    let mut node = Node::new();
    node.bridge(9);
    for port in 1..=2u8 {
        node.port(port.into(), 9);
        node.fdb(9, port.into(), mac(port));
    }
    node.neighbour(9, "10.0.0.1", mac(1), NudState::Reachable);
    node.frame(2, "10.0.0.1");
    node.route("10.0.0.1", 9);
    node.said();
    node.link(Link {
        alias: Some("b".to_owned()),
        ..bridge(9)
    });
    node.link(Link {
        alias: Some("p".to_owned()),
        master: Some(9),
        ..pod(1)
    });
    assert_eq!(
        node.open(),
        ["10.0.0.1 duplicate observed: veth1 veth2 -> veth1"]
    );
    assert!(node.said().is_empty());
}

#[test]
fn a_neighbour_on_a_link_that_is_known_or_beyond_the_bound_makes_no_reading() {
    let mut node = Node::within(Bounds {
        links: 2,
        ..Bounds::default()
    });
    node.link(uplink(9));
    for ifindex in [9, 11, 12, 13] {
        node.neighbour(ifindex, "10.0.0.1", mac(1), NudState::Reachable);
    }
    node.gone(9);
    for (bridge, read) in [(9, 0), (13, 0), (11, 1)] {
        node.bridge(bridge);
        assert_eq!(node.asked().len(), read, "{bridge}");
        node.gone(bridge);
    }
}

#[test]
fn a_neighbour_that_was_read_on_an_unknown_link_makes_no_reading() {
    let mut node = Node::new();
    node.read_node(Snapshot {
        neighbours: vec![neighbour(9, "10.0.0.1", mac(1), NudState::Reachable)],
        ..Snapshot::default()
    });
    node.bridge(9);
    assert!(node.asked().is_empty());
}
