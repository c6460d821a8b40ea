//! A conflict of the same claimants that begins again within a minute of its end is the same one.

use super::*;

const SHARED: &str = "10.0.0.1";

/// The conflict events since effects were last taken: what happened, which conflict it was, and how often it has begun again.
fn events(node: &mut Node) -> Vec<(&'static str, ConflictId, u32)> {
    let effects = std::mem::take(&mut node.effects).into_iter();
    let event = |effect| match effect {
        Effect::Raised(c) => Some(("raised", c.id, c.repeats)),
        Effect::Updated(c) => Some(("updated", c.id, c.repeats)),
        Effect::Resolved(c) => Some(("resolved", c.id, c.repeats)),
        _ => None,
    };
    effects.filter_map(event).collect()
}

/// The conflict ended and began again; its id.
fn repeated() -> (Node, ConflictId) {
    let mut node = Node::with_duplicate();
    let raised = events(&mut node);
    let id = raised[0].1;
    assert_eq!(raised, [("raised", id, 0)]);
    node.address_gone(2, SHARED);
    assert_eq!(events(&mut node), [("resolved", id, 0)]);
    node.address(2, SHARED);
    assert_eq!(events(&mut node), [("raised", id, 1)]);
    (node, id)
}

fn is_quiet(node: &Node) -> bool {
    let open = node.engine.view().conflicts(node.now);
    assert_eq!(open.len(), 1);
    assert_eq!(
        node.engine.view().open_conflicts(ConflictKind::Duplicate),
        1
    );
    open[0].quiet_since.is_some()
}

#[test]
fn address_added_and_removed_in_a_loop_is_one_conflict() {
    let (mut node, id) = repeated();
    for _ in 0..1000 {
        node.address_gone(2, SHARED);
        assert!(is_quiet(&node));
        node.wait(Duration::from_millis(50));
        node.address(2, SHARED);
        assert!(!is_quiet(&node));
        node.wait(Duration::from_millis(50));
    }
    assert_eq!(events(&mut node), [], "open all the time");
    node.address_gone(2, SHARED);
    node.wait_secs(9);
    assert_eq!(events(&mut node), []);
    node.wait_secs(1);
    assert_eq!(events(&mut node), [("resolved", id, 1001)]);
    assert!(node.engine.view().conflicts(node.now).is_empty());
    // Its end is forgotten after a minute.
    node.wait_secs(50);
    node.address(2, SHARED);
    assert_eq!(events(&mut node), [("raised", id, 1002)]);
    node.address_gone(2, SHARED);
    node.wait_secs(71);
    node.address(2, SHARED);
    let raised = events(&mut node);
    assert!(raised[1].1 != id && raised[1].2 == 0, "{raised:?}");
}

#[test]
fn conflict_of_other_claimants_is_another_one() {
    let mut node = Node::with_duplicate();
    let id = events(&mut node)[0].1;
    node.address_gone(2, SHARED);
    node.pod(3);
    node.address(3, SHARED);
    let other = events(&mut node);
    assert!(other[1].1 != id && other[1].2 == 0, "{other:?}");
    node.address_gone(3, SHARED);
    node.address(2, SHARED);
    assert_eq!(events(&mut node)[1], ("raised", id, 1));
}

#[test]
fn change_of_a_conflict_that_is_over_for_a_moment_is_an_update() {
    let (mut node, id) = repeated();
    node.address_gone(2, SHARED);
    node.pod(3);
    node.address(3, SHARED);
    assert_eq!(events(&mut node), [("updated", id, 2)]);
    node.expect_open(["10.0.0.1 duplicate certain: veth1 veth3 left veth2(address_removed)"]);
}

#[test]
fn conflict_whose_device_is_gone_does_not_wait() {
    for during_quiet in [false, true] {
        let (mut node, id) = repeated();
        if during_quiet {
            node.address_gone(2, SHARED);
            assert!(is_quiet(&node));
        }
        node.remove_link(2);
        assert_eq!(events(&mut node), [("resolved", id, 1)], "{during_quiet}");
    }
}

#[test]
fn quiet_conflict_is_resolved_after_a_restart() {
    let (mut node, id) = repeated();
    node.address_gone(2, SHARED);
    let records = serde_json::to_string(&node.engine.view().open_records(node.now)).unwrap();
    let mut next = Node::new();
    next.now = node.now + Duration::from_secs(1);
    next.engine
        .restore(serde_json::from_str(&records).unwrap(), Vec::new());
    next.resync(snapshot(&[(1, &[SHARED]), (2, &["10.0.0.2"])]));
    assert!(is_quiet(&next));
    next.wait_secs(10);
    assert_eq!(events(&mut next), [("resolved", id, 1)]);
}

#[test]
fn remembered_ends_are_bounded() {
    let mut node = Node::with_bounds(Bounds {
        open_conflicts: 2,
        ..Bounds::default()
    });
    node.pod(1);
    node.pod(2);
    let mut ids = Vec::new();
    for n in 1..=3 {
        let address = format!("10.0.0.{n}");
        node.addresses([1, 2], &address);
        ids.push(events(&mut node)[0].1);
        node.address_gone(2, &address);
        events(&mut node);
    }
    for (n, is_known) in [(1, false), (2, true), (3, true)] {
        node.address(2, &format!("10.0.0.{n}"));
        let raised = events(&mut node);
        assert_eq!(raised[0].1 == ids[n - 1], is_known, "{n}");
        assert_eq!(raised[0].2 > 0, is_known, "{n}");
    }
}

#[test]
fn end_that_waits_for_a_bridge_that_is_gone_survives_a_restart() {
    let claim = |node: &mut Node, ifindex| {
        node.neighbour(ifindex, SHARED, mac(1), NudState::Reachable);
    };
    let mut node = Node::new();
    node.link(bridge(9));
    for ifindex in [1, 2] {
        node.port(ifindex, 9);
        claim(&mut node, ifindex);
    }
    node.neighbour_gone(2, SHARED);
    claim(&mut node, 2);
    let on_bridge = events(&mut node)[0].1;
    // The same two claim it in the node's network now.
    node.remove_link(9);
    let [("raised", on_node, 0)] = events(&mut node)[..] else {
        panic!("another conflict");
    };
    let records = node.engine.view().open_records(node.now);
    assert_eq!(records.len(), 2);

    let mut next = Node::new();
    next.now = node.now;
    next.engine.restore(records, Vec::new());
    next.resync(Snapshot {
        links: [1, 2].map(pod).into(),
        neighbours: [1, 2]
            .map(|ifindex| neighbour(ifindex, SHARED, mac(1), NudState::Reachable))
            .into(),
        ..Snapshot::default()
    });
    next.wait_secs(10);
    assert_eq!(events(&mut next), [("resolved", on_bridge, 1)]);
    let open = next.engine.view().conflict_ids();
    assert_eq!(
        open.iter().map(|(.., id)| *id).collect::<Vec<_>>(),
        [on_node]
    );
}
