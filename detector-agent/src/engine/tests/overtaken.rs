//! Readings that live words overtook, and what else a reading of one device brings.

use super::*;

/// A reading of nodes like [`Node::with_pods`] with two, where both hold 10.0.0.1.
fn reading() -> Snapshot {
    Snapshot {
        links: vec![pod(1), pod(2), bridge(9)],
        pods: vec![holds(1, &["10.0.0.1"]), holds(2, &["10.0.0.1"])],
        ..Snapshot::default()
    }
}

#[test]
fn a_reading_says_nothing_of_a_device_that_another_replaced_without_a_word_while_it_ran() {
    let mut node = Node::with_pods(2);
    node.bridge(9);
    node.address(2, "10.0.0.1");
    let old = Snapshot {
        neighbours: vec![
            neighbour(1, "10.0.0.1", mac(1), NudState::Permanent),
            neighbour(9, "10.0.0.1", mac(7), NudState::Reachable),
        ],
        host: vec![(1, assigned("10.0.0.1"))],
        fdb: vec![fdb(9, 1, mac(7))],
        routes: vec![route("10.0.0.1", 1)],
        ..reading()
    };
    let whole = node.begin();
    let device = node.begin();
    node.link(Link {
        name: "veth7".to_owned(),
        master: Some(9),
        ..pod(1)
    });
    node.finish_device(device, 1, old.clone());
    node.finish_node(whole, old);
    assert!(node.said().is_empty());
    node.address(1, "10.0.0.1");
    assert_eq!(
        node.said(),
        ["raised 10.0.0.1 duplicate certain: veth2 veth7"],
        "nor do the routes lead there"
    );
}

#[test]
fn a_forwarding_entry_that_ended_while_the_reading_ran_does_not_come_back() {
    let mut node = Node::with_pods(2);
    node.bridge(9);
    node.port(1, 9);
    let mut old = reading();
    old.links[0].master = Some(9);
    old.fdb = vec![fdb(9, 1, mac(7))];
    node.read_node(old.clone());
    let token = node.begin();
    node.fdb_gone(9, 1, mac(7));
    node.said();
    node.finish_node(token, old);
    node.neighbour(9, "10.0.0.2", mac(7), NudState::Reachable);
    assert!(node.engine.claims_of(ip("10.0.0.2"), node.now).is_empty());
}

#[test]
fn a_devices_reading_brings_its_neighbours_and_takes_those_it_lacks() {
    let mut node = Node::with_pods(1);
    node.neighbour(1, "10.0.0.1", mac(1), NudState::Permanent);
    let token = node.begin();
    let seen = Snapshot {
        neighbours: vec![neighbour(1, "10.0.0.2", mac(1), NudState::Permanent)],
        ..Snapshot::default()
    };
    node.finish_device(token, 1, seen);
    assert_eq!(node.engine.addresses(), [ip("10.0.0.2")]);
}

#[test]
fn a_route_told_before_its_link_was_known_ends_where_the_link_is_first_told_of_as_down() {
    for (up, receiver) in [(true, " -> veth1"), (false, "")] {
        let mut node = Node::new();
        let token = node.begin();
        node.route("10.0.0.1", 1);
        let told = Link { up, ..pod(1) };
        node.link(told.clone());
        let mut seen = reading();
        seen.links[0] = told;
        node.finish_node(token, seen);
        assert_eq!(
            node.said(),
            [format!(
                "raised 10.0.0.1 duplicate certain: veth1 veth2{receiver}"
            )]
        );
    }
}

#[test]
fn a_route_that_was_read_before_its_link_went_down_does_not_come_back() {
    let mut node = Node::new();
    let token = node.begin();
    node.link(Link {
        up: false,
        ..pod(1)
    });
    let mut old = reading();
    old.routes = vec![route("10.0.0.1", 1)];
    node.finish_node(token, old);
    assert_eq!(
        node.said(),
        ["raised 10.0.0.1 duplicate certain: veth1 veth2"]
    );
}
