//! FDB entries: which of them stay when something else is removed, and how many there may be.

use super::*;

/// Bridge 9 with ports 1 and 2, and the MACs behind port 1.
fn with_macs_behind_port_1(macs: &[u8]) -> Node {
    let mut node = Node::new();
    node.bridge(9);
    node.port(1, 9);
    node.port(2, 9);
    for n in macs {
        node.fdb(9, 1, mac(*n));
    }
    node
}

/// The port that the bridge has for a MAC: a permanent neighbour entry is its claim.
fn resolved_device(node: &mut Node, bridge: IfIndex, n: u8) -> Option<String> {
    node.neighbour(bridge, "10.0.0.1", mac(n), NudState::Permanent);
    let claims = node.engine.view().claims_of(ip("10.0.0.1"), node.now);
    let claimant = claims.first().map(|c| &c.claimant)?;
    matches!(claimant.id, ClaimantId::Device(..)).then(|| claimant.device.clone())
}

#[test]
fn live_fdb_entry_stays_without_a_neighbour() {
    let mut node = with_macs_behind_port_1(&[1]);
    resolved_device(&mut node, 9, 1);
    node.neighbour_gone(9, "10.0.0.1");
    assert_eq!(resolved_device(&mut node, 9, 1).as_deref(), Some("veth1"));
}

#[test]
fn fdb_entries_may_precede_the_ports_change_of_bridge() {
    let mut node = with_macs_behind_port_1(&[1]);
    node.bridge(8);
    node.fdb(8, 1, mac(1));
    node.port(1, 8);
    assert_eq!(resolved_device(&mut node, 8, 1).as_deref(), Some("veth1"));
}

#[test]
fn moved_mac_stays_when_its_former_port_is_removed() {
    let mut node = with_macs_behind_port_1(&[1]);
    node.fdb(9, 2, mac(1));
    node.remove_link(1);
    assert_eq!(resolved_device(&mut node, 9, 1).as_deref(), Some("veth2"));
}

#[test]
fn removed_port_drops_its_macs_after_one_moved_away() {
    let mut node = with_macs_behind_port_1(&[1, 7]);
    node.fdb(9, 2, mac(7));
    node.remove_link(1);
    node.port(1, 9);
    assert_eq!(
        resolved_device(&mut node, 9, 1),
        None,
        "the entry belonged to the earlier port"
    );
}

#[test]
fn port_share_equals_claims_per_device() {
    let mut node = Node::with_bounds(Bounds {
        claims_per_device: 1,
        ..Bounds::default()
    });
    node.bridge(9);
    node.port(1, 9);
    node.fdb(9, 1, mac(1));
    assert_eq!(node.engine.view().drop_counters().kernel_entries, 0);
    node.fdb(9, 1, mac(2));
    assert_eq!(node.engine.view().drop_counters().kernel_entries, 1);
}

#[test]
fn non_pod_port_is_bounded_only_by_the_total() {
    let mut node = Node::with_bounds(Bounds {
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
    assert_eq!(node.engine.view().drop_counters().kernel_entries, 1);
}
