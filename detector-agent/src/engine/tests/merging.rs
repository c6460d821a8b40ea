//! What a reading takes over, what it ends, and what it says nothing of.

use super::*;

fn with_links(links: Vec<Link>) -> Snapshot {
    Snapshot {
        links,
        ..Snapshot::default()
    }
}

#[test]
fn a_reading_of_a_device_speaks_of_that_device_alone_and_only_where_it_is_known() {
    let mut node = Node::with_pods(2);
    node.asked();
    let token = node.begin();
    let mut seen = with_links(vec![pod(3), pod(1)]);
    seen.pods = vec![holds(2, &["10.0.0.1"]), holds(1, &["10.0.0.2"])];
    node.finish_device(token, 1, seen);
    assert!(node.asked().is_empty());
    assert_eq!(node.engine.addresses(), [ip("10.0.0.2")]);
    let token = node.begin();
    node.finish_device(token, 3, with_links(vec![pod(3)]));
    assert_eq!(node.engine.devices().len(), 2);
}

#[test]
fn what_a_device_was_read_to_lack_it_has_not_got_unless_it_was_told_since() {
    let alone = Link {
        peer: None,
        ..pod(1)
    };
    let mut node = Node::with_pods(1);
    let token = node.begin();
    node.finish_device(token, 1, with_links(vec![alone.clone()]));
    assert_eq!(node.engine.device(1).unwrap().peer, None);
    let token = node.begin();
    node.pod(1);
    node.finish_device(token, 1, with_links(vec![alone]));
    assert_eq!(node.engine.device(1).unwrap().peer, Some(peer(1)));
}

#[test]
fn a_peer_goes_to_the_device_that_was_read_to_have_it() {
    let mut node = Node::with_pods(1);
    node.link(Link {
        peer: None,
        ..pod(2)
    });
    let mut seen = with_links(vec![
        Link {
            peer: Some(peer(1)),
            ..pod(2)
        },
        Link {
            peer: None,
            ..pod(1)
        },
    ]);
    seen.pods = vec![holds(1, &["10.0.0.1"])];
    node.read_node(seen);
    let claims = node.engine.claims_of(ip("10.0.0.1"), node.now);
    assert_eq!(claims[0].claimant.device, "veth2");
}

#[test]
fn what_a_reading_confirms_is_as_old_as_it_was() {
    let mut node = Node::with_pods(1);
    node.link(uplink(9));
    let mut seen = with_links(vec![pod(1), uplink(9)]);
    seen.pods = vec![holds(1, &["10.0.0.1"])];
    seen.host = vec![(9, assigned("10.0.0.1"))];
    node.read_node(seen.clone());
    let before = node.engine.conflicts(node.now);
    node.wait_secs(5);
    seen.pods[0].mac = None;
    node.read_node(seen);
    let after = node.engine.conflicts(node.now);
    for n in 0..2 {
        assert_eq!(before[0].claimants[n].since, after[0].claimants[n].since);
        assert_eq!(before[0].claimants[n].mac, after[0].claimants[n].mac);
    }
}

#[test]
fn a_route_that_a_reading_lacks_is_gone_unless_it_was_told_since() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    node.address(2, "10.0.0.1");
    let has: &[&str] = &["10.0.0.1"];
    let mut seen = with_links(vec![pod(1), pod(2)]);
    seen.pods = vec![holds(1, has), holds(2, has)];
    let token = node.begin();
    node.route("10.0.0.1", 2);
    node.said();
    node.finish_node(token, seen.clone());
    assert!(node.said().is_empty());
    node.read_node(seen);
    assert_eq!(
        node.said(),
        ["updated 10.0.0.1 duplicate certain: veth1 veth2"]
    );
}

#[test]
fn a_forwarding_entry_that_a_reading_lacks_gives_way_unless_it_was_told_since() {
    let entry = |vlan, port| FdbEntry {
        vlan: Some(vlan),
        ..fdb(9, port, mac(7))
    };
    let mut seen = with_links(vec![bridge(9)]);
    seen.links.extend([1, 2].map(|port| Link {
        master: Some(9),
        ..pod(port)
    }));
    seen.neighbours = vec![neighbour(9, "10.0.0.1", mac(7), NudState::Reachable)];
    seen.fdb = vec![entry(20, 2)];
    let mut node = Node::new();
    node.read_node(seen.clone());
    node.frame(2, "10.0.0.1");
    let token = node.begin();
    node.tell(Observation::Fdb(entry(1, 1)));
    assert_eq!(node.said().len(), 1);
    node.finish_node(token, seen.clone());
    assert!(node.said().is_empty());
    node.read_node(seen);
    assert_eq!(
        node.said(),
        ["resolved 10.0.0.1 duplicate observed: veth2 left veth1(expired)"]
    );
}

#[test]
fn what_was_told_while_a_reading_was_under_way_wins() {
    let mut node = Node::with_pods(1);
    node.link(uplink(9));
    node.neighbour(1, "10.0.0.3", mac(1), NudState::Permanent);
    let token = node.begin();
    node.host(9, "10.0.0.2");
    node.neighbour_gone(1, "10.0.0.3");
    let mut seen = with_links(vec![pod(1), uplink(9)]);
    seen.neighbours = vec![neighbour(1, "10.0.0.3", mac(1), NudState::Permanent)];
    node.finish_node(token, seen);
    assert_eq!(node.engine.addresses(), [ip("10.0.0.2")]);
}

#[test]
fn an_aged_port_is_remembered_for_the_entry_that_a_reading_puts_in_place_of_another() {
    let mut node = Node::new();
    node.bridge(9);
    let mut seen = with_links(vec![bridge(9)]);
    for port in 1..=2u8 {
        node.port(port.into(), 9);
        seen.links.push(Link {
            master: Some(9),
            ..pod(port.into())
        });
    }
    node.fdb(9, 1, mac(1));
    node.neighbour(9, "10.0.0.1", mac(1), NudState::Reachable);
    node.fdb_gone(9, 1, mac(1));
    seen.neighbours = vec![neighbour(9, "10.0.0.2", mac(1), NudState::Reachable)];
    node.read_node(seen);
    node.frame(2, "10.0.0.2");
    assert_eq!(
        node.said(),
        ["raised 10.0.0.2 duplicate observed: veth1 veth2"]
    );
}

/// The first pod's device is a port of the bridge, and the address stands behind it.
fn with_port() -> Snapshot {
    let mut seen = with_links(vec![bridge(9), pod(2)]);
    seen.links.push(Link {
        master: Some(9),
        ..pod(1)
    });
    seen.neighbours = vec![neighbour(9, "10.0.0.1", mac(1), NudState::Reachable)];
    seen.fdb = vec![fdb(9, 1, mac(1))];
    seen
}

/// The kernel removes the entries of a port that leaves; a reading that was answered before still has them.
#[test]
fn what_stood_behind_a_port_that_left_its_bridge_meanwhile_is_not_taken_from_a_reading() {
    for comes_back in [false, true] {
        let mut node = Node::new();
        node.bridge(9);
        node.port(1, 9);
        node.pod(2);
        node.frame(2, "10.0.0.1");
        let seen = with_port();
        let token = node.begin();
        node.link(pod(1));
        if comes_back {
            node.port(1, 9);
        }
        node.finish_node(token, seen);
        assert!(node.said().is_empty(), "comes back: {comes_back}");
    }
}

/// The same where the agent hears of the port only after it has left.
#[test]
fn what_a_reading_has_behind_a_port_that_is_known_to_be_none_is_not_taken() {
    let mut node = Node::new();
    node.bridge(9);
    node.pod(2);
    node.frame(2, "10.0.0.1");
    let seen = with_port();
    let token = node.begin();
    node.link(pod(1));
    node.finish_node(token, seen);
    assert!(node.said().is_empty());
}
