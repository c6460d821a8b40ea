//! Readings of the kernel's state, and live words in between.

use super::*;

#[test]
fn duplicates_are_found_from_the_first_reading_alone() {
    let mut node = Node::new();
    let mut seen = snapshot(&[(1, &["10.0.0.1"]), (2, &["10.0.0.1"])]);
    seen.links.push(bridge(9));
    seen.links.push(uplink(8));
    seen.links.push(Link {
        master: Some(9),
        ..pod(3)
    });
    seen.routes = vec![route("10.0.0.1", 2), route("10.0.0.2", 9)];
    seen.neighbours = vec![
        neighbour(9, "10.0.0.2", mac(3), NudState::Stale),
        neighbour(1, "10.0.0.2", mac(1), NudState::Permanent),
    ];
    seen.fdb = vec![fdb(9, 3, mac(3))];
    seen.host = vec![(8, assigned("10.0.0.3"))];
    seen.pods.push(PodAddresses {
        addresses: Some(vec![assigned("10.0.0.3"), assigned("10.0.0.2")]),
        ..holds(3, &[])
    });
    node.read_node(seen.clone());
    assert_eq!(
        node.said(),
        [
            "raised 10.0.0.1 duplicate certain: veth1 veth2 -> veth2",
            "raised 10.0.0.2 duplicate certain: veth1 veth3 -> veth3",
            "raised 10.0.0.3 host certain: node/eth8 veth3 -> eth8",
        ]
    );
    node.read_node(seen);
    assert!(node.said().is_empty(), "the same again is no news");
    node.read_node(Snapshot::default());
    assert_eq!(node.said().len(), 3);
    assert!(node.engine.addresses().is_empty());
}

#[test]
fn a_reading_takes_away_what_is_gone() {
    let mut node = Node::with_pods(2);
    for ifindex in 1..=2 {
        node.address(ifindex, "10.0.0.1");
        node.neighbour(ifindex, "10.0.0.2", mac(1), NudState::Permanent);
        node.host(ifindex, "10.0.0.3");
        node.frame(ifindex, "10.0.0.4");
    }
    node.frame(1, "10.0.0.3");
    node.said();
    node.read_node(snapshot(&[(1, &[]), (2, &["10.0.0.1"])]));
    assert_eq!(
        node.said(),
        [
            "resolved 10.0.0.1 duplicate certain: veth2 left veth1(address_removed)",
            "resolved 10.0.0.2 duplicate certain: left veth1(expired) left veth2(expired)",
            "resolved 10.0.0.3 host observed: veth1 left node/veth1(address_removed)",
        ],
        "what was heard is no state of the kernel and stays"
    );
    assert_eq!(node.open(), ["10.0.0.4 duplicate observed: veth1 veth2"]);
}

#[test]
fn nothing_is_decided_before_all_of_a_reading_is_merged() {
    let mut node = Node::with_pods(2);
    node.address(2, "10.0.0.1");
    node.route("10.0.0.1", 2);
    // Address, route, device: all moved while nobody looked.
    let mut seen = snapshot(&[(1, &["10.0.0.1"]), (2, &[])]);
    seen.routes = vec![route("10.0.0.1", 1)];
    node.read_node(seen);
    assert!(node.said().is_empty());
}

#[test]
fn a_live_word_during_the_reading_wins() {
    let mut node = Node::with_pods(4);
    node.bridge(9);
    node.address(1, "10.0.0.1");
    node.host(1, "10.0.0.2");
    node.neighbour(3, "10.0.0.3", mac(3), NudState::Permanent);
    node.route("10.0.0.7", 1);
    node.fdb(9, 3, mac(8));
    let mut before = snapshot(&[(1, &["10.0.0.1"]), (2, &[]), (3, &[]), (4, &[])]);
    before.links.push(bridge(9));
    before.host = vec![(1, assigned("10.0.0.2"))];
    before.neighbours = vec![neighbour(3, "10.0.0.3", mac(3), NudState::Permanent)];
    before.routes = vec![route("10.0.0.7", 1)];
    before.fdb = vec![fdb(9, 3, mac(8))];
    let token = node.begin();
    node.address_gone(1, "10.0.0.1");
    node.host_gone(1, "10.0.0.2");
    node.neighbour_gone(3, "10.0.0.3");
    node.route_gone("10.0.0.7", 1);
    node.fdb_gone(9, 3, mac(8));
    node.address(2, "10.0.0.1");
    node.address(2, "10.0.0.2");
    node.neighbour(4, "10.0.0.3", mac(4), NudState::Permanent);
    node.route("10.0.0.7", 2);
    node.fdb(9, 4, mac(8));
    node.link(pod(5));
    node.address(5, "10.0.0.5");
    node.gone(3);
    node.finish_node(token, before);
    assert!(node.said().is_empty());
    assert_eq!(node.engine.devices().len(), 4);
    assert_eq!(node.engine.device(3), None);
    assert_eq!(
        node.engine.claims_of(ip("10.0.0.5"), node.now).len(),
        1,
        "what appeared during the reading stays"
    );
    for (address, ifindex) in [("10.0.0.1", 2), ("10.0.0.2", 2), ("10.0.0.3", 4)] {
        let claims = node.engine.claims_of(ip(address), node.now);
        assert_eq!(claims.len(), 1, "{address}");
        assert_eq!(claims[0].claimant.ifindex, ifindex, "{address}");
    }
    node.address(1, "10.0.0.7");
    node.address(2, "10.0.0.7");
    assert_eq!(
        node.said(),
        ["raised 10.0.0.7 duplicate certain: veth1 veth2 -> veth2"]
    );
}

#[test]
fn a_route_replaced_during_the_reading_stays_replaced() {
    let mut node = Node::with_pods(2);
    let mut old = snapshot(&[(1, &["10.0.0.1"]), (2, &["10.0.0.1"])]);
    old.routes = vec![route("10.0.0.1", 1)];
    node.read_node(old.clone());
    let token = node.begin();
    node.route("10.0.0.1", 2);
    node.said();
    node.finish_node(token, old);
    assert_eq!(
        node.open(),
        ["10.0.0.1 duplicate certain: veth1 veth2 -> veth2"]
    );
}

#[test]
fn a_live_word_before_the_reading_does_not_win() {
    let mut node = Node::with_pods(2);
    let token = node.begin();
    node.address(1, "10.0.0.1");
    let later = node.begin();
    node.finish_node(later, snapshot(&[(1, &[]), (2, &["10.0.0.1"])]));
    assert!(node.said().is_empty());
    node.finish_node(token, snapshot(&[]));
    assert_eq!(
        node.engine.devices().len(),
        2,
        "a reading that began before a merged one says nothing"
    );
    assert!(node.asked().is_empty());
}

#[test]
fn a_device_reading_begun_before_a_node_reading_says_nothing_after_it() {
    let mut node = Node::with_pods(2);
    node.address(2, "10.0.0.1");
    let device = node.begin();
    node.read_node(snapshot(&[(1, &[]), (2, &["10.0.0.1"])]));
    let old = snapshot(&[(1, &["10.0.0.1"])]);
    node.finish_device(device, 1, old);
    assert!(node.said().is_empty());
}

#[test]
fn a_reading_says_nothing_of_a_device_that_came_while_it_ran() {
    let mut node = Node::with_pods(2);
    node.bridge(9);
    node.address(2, "10.0.0.1");
    let mut old = snapshot(&[(1, &["10.0.0.1"]), (2, &["10.0.0.1"])]);
    old.links.push(bridge(9));
    old.neighbours = vec![
        neighbour(1, "10.0.0.1", mac(1), NudState::Permanent),
        neighbour(9, "10.0.0.1", mac(7), NudState::Reachable),
    ];
    old.host = vec![(1, assigned("10.0.0.1"))];
    old.fdb = vec![fdb(9, 1, mac(7))];
    old.routes = vec![route("10.0.0.1", 1)];
    let whole = node.begin();
    let device = node.begin();
    node.gone(1);
    // The index and the namespace's number are given anew.
    node.port(1, 9);
    node.finish_device(device, 1, old.clone());
    node.finish_node(whole, old);
    assert!(node.said().is_empty());
    node.address(1, "10.0.0.1");
    assert_eq!(
        node.said(),
        ["raised 10.0.0.1 duplicate certain: veth2 veth1"],
        "nor do the routes lead there"
    );
}

#[test]
fn a_namespace_number_given_anew_while_the_reading_ran_brings_no_addresses_along() {
    let mut node = Node::with_pods(2);
    node.address(2, "10.0.0.1");
    let old = snapshot(&[(1, &["10.0.0.1"]), (2, &["10.0.0.1"])]);
    // As at the start of the agent: what goes was never known.
    let token = node.begin();
    node.gone(1);
    node.link(Link {
        peer: Some(peer(1)),
        ..pod(3)
    });
    node.finish_node(token, old);
    assert!(node.said().is_empty());
    assert_eq!(node.engine.devices().len(), 2);
}

#[test]
fn a_dying_device_read_late_does_not_take_its_namespaces_number_back() {
    let mut node = Node::with_pods(2);
    node.gone(1);
    node.address(2, "10.0.0.1");
    let token = node.begin();
    node.link(Link {
        peer: Some(peer(1)),
        ..pod(3)
    });
    node.address(1, "10.0.0.1");
    assert_eq!(
        node.said(),
        ["raised 10.0.0.1 duplicate certain: veth2 veth3"]
    );
    node.finish_node(token, snapshot(&[(1, &[]), (2, &["10.0.0.1"])]));
    assert!(node.said().is_empty());
}

#[test]
fn a_link_first_heard_of_during_the_reading_is_read_with_all_it_has() {
    let mut node = Node::new();
    let mut seen = snapshot(&[(1, &["10.0.0.1"])]);
    seen.links = vec![bridge(9), pod(1)];
    seen.links[1].master = Some(9);
    seen.host = vec![(9, assigned("10.0.0.1"))];
    seen.neighbours = vec![neighbour(9, "10.0.0.2", mac(1), NudState::Permanent)];
    seen.fdb = vec![fdb(9, 1, mac(1))];
    seen.routes = vec![route("10.0.0.1", 9)];
    let token = node.begin();
    node.bridge(9);
    node.port(1, 9);
    node.finish_node(token, seen);
    assert_eq!(
        node.said(),
        ["raised 10.0.0.1 host certain: node/br9 veth1 -> br9"]
    );
    let claims = node.engine.claims_of(ip("10.0.0.2"), node.now);
    assert_eq!(claims[0].claimant.device, "veth1");
}

#[test]
fn a_reading_does_not_bring_back_the_routes_of_a_link_that_went_down() {
    let mut node = Node::with_pods(2);
    let mut old = snapshot(&[(1, &["10.0.0.1"]), (2, &["10.0.0.1"])]);
    old.routes = vec![route("10.0.0.1", 1)];
    node.read_node(old.clone());
    let token = node.begin();
    node.link(Link {
        up: false,
        ..pod(1)
    });
    node.said();
    node.finish_node(token, old);
    assert_eq!(node.open(), ["10.0.0.1 duplicate certain: veth1 veth2"]);
    assert!(node.said().is_empty());
}

#[test]
fn a_device_reading_touches_only_that_device() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    node.neighbour(2, "10.0.0.1", mac(2), NudState::Reachable);
    node.said();
    let token = node.begin();
    let stray = Snapshot {
        pods: vec![holds(1, &["10.0.0.1"])],
        neighbours: vec![neighbour(2, "10.0.0.9", mac(2), NudState::Reachable)],
        ..Snapshot::default()
    };
    node.finish_device(token, 1, stray);
    assert!(node.said().is_empty());
    assert_eq!(node.open().len(), 1);
    assert_eq!(node.engine.addresses(), [ip("10.0.0.1")]);
}

#[test]
fn a_device_reading_of_a_device_that_is_gone_says_nothing() {
    let mut node = Node::with_pods(2);
    let token = node.begin();
    node.gone(1);
    node.finish_device(token, 1, snapshot(&[(1, &["10.0.0.1"])]));
    assert!(node.engine.addresses().is_empty());
    assert!(node.said().is_empty());
}

#[test]
fn an_unreadable_namespace_keeps_what_was_known() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    node.address(2, "10.0.0.1");
    node.said();
    let mut seen = snapshot(&[(1, &["10.0.0.1"]), (2, &[])]);
    seen.pods[1].addresses = None;
    node.read_node(seen);
    assert!(node.said().is_empty());
}

#[test]
fn a_pods_end_that_a_reading_no_longer_finds_is_gone() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    node.address(2, "10.0.0.1");
    let mut seen = snapshot(&[(1, &["10.0.0.1"]), (2, &[])]);
    seen.links[1].peer = None;
    seen.pods.pop();
    node.said();
    node.read_node(seen);
    assert_eq!(
        node.said(),
        ["resolved 10.0.0.1 duplicate certain: veth1 left veth2(address_removed)"]
    );
}

#[test]
fn a_reading_that_failed_changes_nothing() {
    let mut node = Node::with_pods(1);
    node.address(1, "10.0.0.1");
    let token = node.begin();
    node.tell(Observation::SnapshotFailed(token));
    assert!(node.asked().contains(&"attach veth1#1".to_owned()));
    assert_eq!(node.engine.addresses().len(), 1);
    node.finish_node(token, Snapshot::default());
    assert_eq!(node.asked(), ["read again"]);
    assert_eq!(node.engine.addresses().len(), 1);
}

#[test]
fn a_reading_during_a_storm_is_begun_anew_and_the_next_is_sound() {
    let mut node = Node::with_pods(1);
    node.asked();
    let first = node.begin();
    let second = node.begin();
    for n in 0..300_000u32 {
        let address: IpAddr = std::net::Ipv4Addr::from(0x0a00_0000 + n).into();
        node.tell(Observation::RouteGone(Route {
            destination: address,
            ..route("10.0.0.0", 1)
        }));
    }
    let third = node.begin();
    node.finish_node(first, snapshot(&[]));
    assert_eq!(node.asked(), ["read again"]);
    node.finish_node(second, snapshot(&[]));
    assert_eq!(node.asked(), ["read again"]);
    assert_eq!(node.engine.devices().len(), 1);
    node.finish_node(third, snapshot(&[]));
    assert_eq!(node.asked(), ["detach veth1#1"]);
}

#[test]
fn a_live_word_during_an_earlier_reading_is_older_than_the_one_begun_after_it() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    node.address(2, "10.0.0.1");
    let earlier = node.begin();
    node.address_gone(1, "10.0.0.1");
    node.said();
    let later = node.begin();
    node.tell(Observation::SnapshotFailed(earlier));
    node.finish_node(later, snapshot(&[(1, &["10.0.0.1"]), (2, &["10.0.0.1"])]));
    assert_eq!(
        node.said(),
        ["raised 10.0.0.1 duplicate certain: veth2 veth1"]
    );
}
