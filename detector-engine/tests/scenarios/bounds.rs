//! Whatever others can make grow is bounded, counted, and recovers (`docs/detection-rules.md`, 9).

use super::*;

/// Pod devices that may claim ten addresses in each way.
fn with_ten_claims(pods: IfIndex) -> Node {
    let mut node = Node::with_bounds(Bounds {
        claims_per_device: 10,
        ..Bounds::default()
    });
    node.pods(pods);
    node
}

/// A device fills its bounds.
fn flood(node: &mut Node, ifindex: IfIndex) {
    for n in 0..100 {
        node.frame(ifindex, &format!("10.{ifindex}.1.{n}"));
        node.address(ifindex, &format!("10.{ifindex}.2.{n}"));
        node.neighbour(
            ifindex,
            &format!("10.{ifindex}.3.{n}"),
            mac(1),
            NudState::Stale,
        );
    }
}

#[test]
fn claim_flood_of_one_pod_hides_no_conflict_of_others() {
    let mut node = with_ten_claims(3);
    flood(&mut node, 1);
    assert_eq!(node.engine.view().addresses().len(), 30);
    assert_eq!(node.engine.view().drop_counters().claims, 90, "frames");
    assert_eq!(node.engine.view().drop_counters().kernel_entries, 90);
    node.frames([2, 3], "10.0.0.1");
    node.expect(["raised 10.0.0.1 duplicate observed: veth2 veth3"]);
}

#[test]
fn full_device_still_conflicts_with_earlier_claims_of_others() {
    let mut node = with_ten_claims(2);
    for last in 1..=3 {
        node.address(2, &format!("10.0.0.{last}"));
    }
    flood(&mut node, 1);
    node.frame(1, "10.0.0.1");
    node.address(1, "10.0.0.2");
    node.neighbour(1, "10.0.0.3", mac(1), NudState::Reachable);
    node.expect([
        "raised 10.0.0.1 duplicate observed: veth2 veth1",
        "raised 10.0.0.2 duplicate certain: veth2 veth1",
        "raised 10.0.0.3 duplicate observed: veth2 veth1",
    ]);
    // What is contested stays.
    flood(&mut node, 1);
    assert!(node.conflict_events().is_empty());
    assert_eq!(node.open_conflicts().len(), 3);
}

#[test]
fn address_beyond_the_bound_conflicts_with_a_later_claim() {
    let mut node = with_ten_claims(5);
    for ifindex in 1..=4 {
        flood(&mut node, ifindex);
    }
    node.conflict_events();
    for ifindex in 1..=4 {
        let address = format!("10.{ifindex}.2.99");
        node.address(5, &address);
        assert_eq!(
            node.conflict_events(),
            [format!(
                "raised {address} duplicate certain: veth{ifindex} veth5"
            )]
        );
        node.address_gone(ifindex, &address);
        assert_eq!(
            node.conflict_events(),
            [format!(
                "resolved {address} duplicate certain: veth5 left veth{ifindex}(address_removed)"
            )]
        );
    }
    // By any other claim, and between devices beyond their bounds.
    node.frame(5, "10.1.2.98");
    node.address(2, "10.1.2.97");
    node.expect([
        "raised 10.1.2.98 duplicate observed: veth1 veth5",
        "raised 10.1.2.97 duplicate certain: veth1 veth2",
    ]);
}

#[test]
fn removed_address_beyond_the_bound_is_forgotten() {
    let mut node = with_ten_claims(2);
    flood(&mut node, 1);
    node.address_gone(1, "10.1.2.99");
    node.read_pod_addresses(1, &["10.1.2.98"]);
    node.address(2, "10.1.2.99");
    node.address(2, "10.1.2.97");
    assert!(node.conflict_events().is_empty());
    node.address(2, "10.1.2.98");
    assert_eq!(node.conflict_events().len(), 1);
    // The next device with the same peer does not inherit it.
    flood(&mut node, 1);
    node.remove_link(1);
    node.pod(1);
    node.conflict_events();
    node.address(2, "10.1.2.50");
    assert!(node.conflict_events().is_empty());
}

#[test]
fn device_beyond_its_bound_keeps_only_contested_claims_there() {
    let mut node = with_ten_claims(2);
    flood(&mut node, 1);
    let generation = node.engine.view().device(1).unwrap().generation;
    // The other pod takes one address after the other.
    for n in 10..100 {
        let address = format!("10.1.2.{n}");
        node.address(2, &address);
        node.address_gone(2, &address);
        let claimed = node.engine.view().addresses_on((1, generation));
        let assigned = claimed.filter(|a| a.to_string().starts_with("10.1.2."));
        let own = assigned.count();
        assert!(own <= 21, "{own}");
    }
    assert_counts(&node.engine, node.now);
    assert_eq!(
        node.conflict_events().len(),
        180,
        "each raised and resolved"
    );
}

#[test]
fn overflow_of_one_device_takes_no_room_from_others() {
    let mut node = Node::with_bounds(Bounds {
        claims_per_device: 10,
        overflow_addresses: 60,
        ..Bounds::default()
    });
    node.pods(3);
    for n in 0..200 {
        node.address(1, &format!("10.1.0.{n}"));
    }
    for n in 0..40 {
        node.address(2, &format!("10.2.0.{n}"));
    }
    for n in 0..40 {
        node.address(3, &format!("10.2.0.{n}"));
    }
    assert_eq!(node.open_conflicts().len(), 40);
    let named = |effect: &Effect| match effect {
        Effect::BoundReached(reached) => reached.device.as_ref().map(|d| d.name.clone()),
        _ => None,
    };
    let named: Vec<_> = node.effects.iter().filter_map(named).collect();
    assert_eq!(named, ["veth1"]);
}

#[test]
fn full_device_evicts_its_oldest_claim_that_nothing_contests() {
    let mut node = Node::with_bounds(Bounds {
        claims_per_device: 3,
        ..Bounds::default()
    });
    node.link(tap(1));
    node.pod(2);
    node.read_pod_addresses(2, &["10.0.0.1"]);
    for last in 1..=4 {
        node.frame(1, &format!("10.0.0.{last}"));
    }
    let count = |node: &Node, address| node.engine.view().claims_of(ip(address), node.now).len();
    assert_eq!(count(&node, "10.0.0.1"), 2, "contested");
    assert_eq!(count(&node, "10.0.0.2"), 0);
    assert_eq!(count(&node, "10.0.0.3"), 1);
    assert_eq!(count(&node, "10.0.0.4"), 1);
    assert_eq!(node.engine.view().drop_counters().claims, 1);
}

#[test]
fn mac_flood_of_one_port_keeps_entries_of_other_ports() {
    let mut node = Node::with_bounds(Bounds {
        claims_per_device: 10,
        ..Bounds::default()
    });
    node.bridge(9);
    node.port(1, 9);
    node.port(2, 9);
    for n in 0..100 {
        node.fdb(9, 1, mac(100 + n));
    }
    assert_eq!(node.engine.view().drop_counters().kernel_entries, 90);
    node.fdb(9, 2, mac(2));
    node.neighbour(9, "10.0.0.1", mac(2), NudState::Reachable);
    node.address(1, "10.0.0.1");
    assert_eq!(node.conflict_events().len(), 1);
    // A MAC that moves to a port at its bound resolves to no port.
    node.fdb(9, 1, mac(2));
    node.expect([
        "resolved 10.0.0.1 duplicate observed: veth1 left br9/02:00:00:00:00:02(expired)",
    ]);
}

#[test]
fn links_over_the_bound_are_counted() {
    let mut node = Node::with_bounds(Bounds {
        links: 2,
        ..Bounds::default()
    });
    node.pods(5);
    node.pod(1);
    assert_eq!(node.engine.view().devices().len(), 2);
    assert_eq!(node.engine.view().drop_counters().links, 3);
}

#[test]
fn kernel_entries_over_the_bound_are_counted() {
    let mut node = Node::with_bounds(Bounds {
        kernel_entries: 2,
        ..Bounds::default()
    });
    node.link(bridge(9));
    node.pod(1);
    for n in 1..=4u8 {
        let address = format!("10.0.0.{n}");
        node.neighbour(9, &address, mac(n), NudState::Stale);
        node.fdb(9, 1, mac(n));
        node.route(&address, 9);
        node.host(9, &address);
    }
    assert_eq!(node.engine.view().drop_counters().kernel_entries, 8);
}

#[test]
fn claimants_over_the_bound_are_counted_in_the_conflict() {
    let mut node = Node::with_bounds(Bounds {
        claimants_per_conflict: 2,
        ..Bounds::default()
    });
    for ifindex in 1..=4 {
        node.pod(ifindex);
        node.address(ifindex, "10.0.0.1");
    }
    node.expect([
        "raised 10.0.0.1 duplicate certain: veth1 veth2",
        "updated 10.0.0.1 duplicate certain: veth1 veth2 +1",
        "updated 10.0.0.1 duplicate certain: veth1 veth2 +2",
    ]);
    node.remove_link(1);
    node.remove_link(4);
    node.expect([
        "updated 10.0.0.1 duplicate certain: veth2 veth3 +1 left veth1(device_removed)",
        "updated 10.0.0.1 duplicate certain: veth2 veth3 left veth1(device_removed)",
    ]);
}

#[test]
fn receiver_beyond_the_bound_takes_a_place_in_the_list() {
    let mut node = Node::with_bounds(Bounds {
        claimants_per_conflict: 2,
        ..Bounds::default()
    });
    node.route("10.0.0.1", 3);
    for ifindex in 1..=4 {
        node.pod(ifindex);
        node.address(ifindex, "10.0.0.1");
    }
    node.expect([
        "raised 10.0.0.1 duplicate certain: veth1 veth2",
        "updated 10.0.0.1 duplicate certain: veth1 veth3 +1 -> veth3",
        "updated 10.0.0.1 duplicate certain: veth1 veth3 +2 -> veth3",
    ]);
    node.route_gone("10.0.0.1", 3);
    node.route("10.0.0.1", 4);
    node.expect([
        "updated 10.0.0.1 duplicate certain: veth1 veth2 +2",
        "updated 10.0.0.1 duplicate certain: veth1 veth4 +2 -> veth4",
    ]);
    // Not listed, so not among those that left.
    node.remove_link(2);
    node.expect(["updated 10.0.0.1 duplicate certain: veth1 veth4 +1 -> veth4"]);
}

#[test]
fn all_claimants_that_left_at_once_are_listed() {
    let mut node = Node::new();
    for ifindex in 1..=16 {
        node.pod(ifindex);
        node.address(ifindex, "10.0.0.1");
    }
    node.conflict_events();
    node.resync(Snapshot::default());
    let resolved = node.reported_conflicts().remove(0);
    assert_eq!(resolved.claimants.len(), 16);
    assert!(
        resolved
            .claimants
            .iter()
            .all(|c| c.left == Some(LeaveReason::DeviceRemoved))
    );
}

#[test]
fn refused_conflict_is_raised_once_there_is_room() {
    let mut node = Node::with_bounds(Bounds {
        open_conflicts: 2,
        conflicts_per_device: 0,
        ..Bounds::default()
    });
    node.pod(1);
    node.pod(2);
    for n in 1..=5 {
        node.addresses(1..=2, &format!("10.0.0.{n}"));
    }
    assert_eq!(node.conflict_events().len(), 2);
    // Evaluated again, it is not counted twice.
    node.frame(1, "10.0.0.3");
    assert_eq!(node.engine.view().drop_counters().conflicts, 3);
    for n in 1..=5 {
        node.address_gone(1, &format!("10.0.0.{n}"));
    }
    let events = node.conflict_events();
    let starts: Vec<_> = events.iter().map(|s| &s[..17.min(s.len())]).collect();
    assert_eq!(
        starts,
        [
            "resolved 10.0.0.1",
            "raised 10.0.0.3 d",
            "resolved 10.0.0.2",
            "raised 10.0.0.4 d",
            "resolved 10.0.0.3",
            "raised 10.0.0.5 d",
            "resolved 10.0.0.4",
            "resolved 10.0.0.5",
        ]
    );
}

#[test]
fn forgotten_refused_conflict_is_raised_once_there_is_room() {
    let mut node = Node::with_bounds(Bounds {
        open_conflicts: 1,
        conflicts_per_device: 0,
        ..Bounds::default()
    });
    node.pod(1);
    node.pod(2);
    for n in 1..=4 {
        node.addresses(1..=2, &format!("10.0.0.{n}"));
    }
    assert_eq!(node.engine.view().drop_counters().conflicts, 3);
    node.frame(1, "10.0.0.2");
    assert_eq!(
        node.engine.view().drop_counters().conflicts,
        3,
        "remembered"
    );
    node.frame(1, "10.0.0.3");
    assert_eq!(
        node.engine.view().drop_counters().conflicts,
        4,
        "one is remembered"
    );
    for n in 1..=4 {
        node.address_gone(1, &format!("10.0.0.{n}"));
        assert_eq!(node.open_conflicts().len(), usize::from(n < 4), "{n}");
    }
}

/// Devices that claim the same addresses leave room for the conflicts of others.
#[test]
fn conflicts_of_a_few_devices_take_no_room_from_others() {
    let mut node = Node::with_bounds(Bounds {
        open_conflicts: 8,
        conflicts_per_device: 2,
        ..Bounds::default()
    });
    node.pods(6);
    for n in 0..20 {
        node.frames(1..=4, &format!("10.0.1.{n}"));
    }
    assert_eq!(node.open_conflicts().len(), 6, "observed: three quarters");
    for n in 0..20 {
        node.addresses(1..=4, &format!("10.0.2.{n}"));
    }
    assert_eq!(node.open_conflicts().len(), 8);
    assert!(node.engine.view().drop_counters().conflicts > 0);
    node.conflict_events();
    // Another pod, or one of those that are at the bound, and a pod that is not.
    node.frames([5, 6], "10.0.3.1");
    node.addresses([5, 1], "10.0.3.2");
    node.expect([
        "raised 10.0.3.1 duplicate observed: veth5 veth6",
        "raised 10.0.3.2 duplicate certain: veth5 veth1",
    ]);
}

/// All of the room for conflicts of devices that take part in many is used up, and stays so.
#[test]
fn conflict_with_reserved_room_is_tried_again_at_the_bound() {
    let mut node = Node::with_bounds(Bounds {
        open_conflicts: 2,
        conflicts_per_device: 4,
        ..Bounds::default()
    });
    node.pods(4);
    let claim = |node: &mut Node, n: u32, devices: [IfIndex; 2]| {
        for device in devices {
            node.address(device, &format!("10.0.0.{n}"));
        }
    };
    // Eight in all have room, two of these devices take part in four.
    for n in 1..=4 {
        claim(&mut node, n, [1, 2]);
        claim(&mut node, 10 + n, [3, 4]);
    }
    assert_eq!(node.open_conflicts().len(), 8);
    node.pod(5);
    node.pod(6);
    claim(&mut node, 20, [5, 6]);
    assert_eq!(node.open_conflicts().len(), 8, "no room");
    node.conflict_events();
    node.address_gone(1, "10.0.0.1");
    node.expect([
        "resolved 10.0.0.1 duplicate certain: veth2 left veth1(address_removed)",
        "raised 10.0.0.20 duplicate certain: veth5 veth6",
    ]);
}
