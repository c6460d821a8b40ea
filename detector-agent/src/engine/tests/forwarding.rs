//! Forwarding entries: which of them stay when something else goes, and how many there may be.

use super::*;

/// A bridge (9) with ports 1 and 2, and the hardware addresses that stand behind port 1.
fn behind_1(hardware: &[u8]) -> Node {
    let mut node = Node::new();
    node.bridge(9);
    node.port(1, 9);
    node.port(2, 9);
    for n in hardware {
        node.fdb(9, 1, mac(*n));
    }
    node
}

/// Whose claim a neighbour entry of the bridge with this hardware address is.
fn stands(node: &mut Node, bridge: IfIndex, n: u8) -> Option<String> {
    node.neighbour(bridge, "10.0.0.1", mac(n), NudState::Reachable);
    let claims = node.engine.claims_of(ip("10.0.0.1"), node.now);
    claims.first().map(|c| c.claimant.device.clone())
}

#[test]
fn an_entry_that_the_kernel_holds_stays_when_no_neighbour_leads_to_it_any_more() {
    let mut node = behind_1(&[1]);
    stands(&mut node, 9, 1);
    node.neighbour_gone(9, "10.0.0.1");
    assert_eq!(stands(&mut node, 9, 1).as_deref(), Some("veth1"));
}

#[test]
fn a_port_that_changes_bridges_keeps_what_was_told_of_the_new_one_before() {
    let mut node = behind_1(&[1]);
    node.bridge(8);
    node.fdb(8, 1, mac(1));
    node.port(1, 8);
    assert_eq!(stands(&mut node, 8, 1).as_deref(), Some("veth1"));
}

#[test]
fn what_moved_to_another_port_stays_when_the_one_it_left_goes() {
    let mut node = behind_1(&[1]);
    node.fdb(9, 2, mac(1));
    node.gone(1);
    assert_eq!(stands(&mut node, 9, 1).as_deref(), Some("veth2"));
}

#[test]
fn a_port_takes_along_what_still_stands_behind_it_though_something_moved_away() {
    let mut node = behind_1(&[1, 7]);
    node.fdb(9, 2, mac(7));
    node.gone(1);
    node.port(1, 9);
    assert_eq!(stands(&mut node, 9, 1), None, "an earlier port's");
}

#[test]
fn a_ports_share_is_what_it_says() {
    let mut node = Node::within(Bounds {
        claims_per_device: 1,
        ..Bounds::default()
    });
    node.bridge(9);
    node.port(1, 9);
    node.fdb(9, 1, mac(1));
    assert_eq!(node.engine.drop_counters().kernel_entries, 0);
    node.fdb(9, 1, mac(2));
    assert_eq!(node.engine.drop_counters().kernel_entries, 1);
}

#[test]
fn what_is_no_pods_port_has_no_share() {
    let mut node = Node::within(Bounds {
        claims_per_device: 1,
        kernel_entries: 2,
        ..Bounds::default()
    });
    node.bridge(9);
    node.link(Link {
        master: Some(9),
        ..uplink(3)
    });
    for n in 1..=3 {
        node.fdb(9, 3, mac(n));
    }
    assert_eq!(node.engine.drop_counters().kernel_entries, 1);
}
