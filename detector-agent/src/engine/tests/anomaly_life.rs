//! The life of an anomaly: how long it waits, what an earlier agent's is, and the bounds.

use std::collections::BTreeSet;

use super::{
    anomalies::{books, node, question},
    *,
};
use crate::engine::anomaly::Completeness;

/// What an earlier agent left open, and the agent after it with everything read.
fn next(before: &Node) -> Node {
    let mut node = Node::new();
    node.engine.restore_anomalies(before.engine.anomalies());
    node.pod(1);
    node.pod(2);
    node.was_read();
    node
}

/// One whose 10.0.0.3 stands in no books.
fn drifting() -> Node {
    let mut node = node();
    node.address(2, "10.0.0.3");
    node.now.0 += MS;
    let pool = books(&node, &[], Completeness::Deleted);
    node.books(pool);
    node
}

#[test]
fn what_an_earlier_agent_left_open_is_over_after_twenty_seconds_whatever_else_is_waited_for() {
    let mut node = next(&drifting());
    node.address(1, "10.0.0.2");
    node.now.0 += MS;
    let pool = books(&node, &["10.0.0.9"], Completeness::Complete);
    node.books(pool);
    node.wait_secs(19);
    assert_eq!(node.told_of_anomalies(), ["read books"]);
    node.wait_secs(1);
    assert_eq!(
        node.told_of_anomalies(),
        ["resolved ipam_drift 10.0.0.3 not_seen"]
    );
}

#[test]
fn another_addresss_anomaly_is_not_the_one_left_open() {
    let mut node = next(&drifting());
    node.address(1, "10.0.0.2");
    node.now.0 += MS;
    let pool = books(&node, &[], Completeness::Deleted);
    node.books(pool);
    assert_eq!(node.told_of_anomalies(), ["raised ipam_drift 10.0.0.2"]);
    assert_eq!(node.engine.anomalies().len(), 2);
}

#[test]
fn a_gateway_left_open_is_that_of_the_same_device() {
    let mut before = node();
    before.tell(question(1, "169.254.1.1"));
    before.effects.clear();
    let mut node = next(&before);
    node.tell(question(2, "169.254.1.1"));
    assert_eq!(
        node.told_of_anomalies(),
        ["raised gateway_unresolved 169.254.1.1"]
    );
    node.tell(question(1, "169.254.1.1"));
    assert!(node.told_of_anomalies().is_empty(), "it goes on");
    assert_eq!(node.engine.anomalies().len(), 2);
}

#[test]
fn the_end_is_told_with_its_time_and_that_of_the_books() {
    let mut node = drifting();
    node.effects.clear();
    node.now.0 += MS;
    let pool = books(&node, &["10.0.0.3"], Completeness::Complete);
    let read_at = pool.read_at;
    node.now.0 += 5 * MS;
    node.books(pool);
    let Some(Effect::Anomaly(AnomalyEffect::Resolved(over))) = node.effects.first() else {
        panic!("{:?}", node.effects)
    };
    assert_eq!(over.resolved_at, Some(node.now));
    assert_eq!(over.decided_at, read_at);
}

#[test]
fn what_is_waited_for_is_bounded_and_those_beyond_are_counted() {
    let mut node = Node::with_two_addresses(Bounds {
        kernel_entries: 1,
        ..Bounds::default()
    });
    node.now.0 += MS;
    let pool = books(&node, &[], Completeness::Complete);
    node.books(pool);
    node.wait_secs(3);
    assert_eq!(node.told_of_anomalies(), ["read books"]);
    let pool = books(&node, &[], Completeness::Complete);
    node.books(pool);
    assert_eq!(node.told_of_anomalies(), ["raised ipam_drift 10.0.0.2"]);
    assert_eq!(node.engine.anomalies_refused(), 1);
}

#[test]
fn one_turned_away_at_the_bound_is_looked_at_again_after_a_minute() {
    let mut node = Node::with_two_addresses(Bounds {
        open_conflicts: 1,
        ..Bounds::default()
    });
    node.now.0 += MS;
    let pool = books(&node, &[], Completeness::Deleted);
    node.books(pool);
    node.wait_secs(59);
    assert_eq!(node.engine.anomalies_refused(), 1);
    node.wait_secs(1);
    assert_eq!(node.engine.anomalies_refused(), 2);
}

#[test]
fn a_drift_left_open_goes_on_whoever_has_the_address_now() {
    let mut node = next(&drifting());
    node.address(1, "10.0.0.3");
    node.now.0 += MS;
    let pool = books(&node, &[], Completeness::Deleted);
    node.books(pool);
    assert!(node.told_of_anomalies().is_empty());
    let open = node.engine.anomalies();
    assert_eq!(open.len(), 1);
    assert_eq!(open[0].holder.as_ref().unwrap().device, "veth1");
}

#[test]
fn the_ids_of_two_agents_and_of_conflicts_differ_in_both_halves() {
    let mut halves = BTreeSet::new();
    for id_seed in 1..=4 {
        let mut node = Node::with(Settings {
            id_seed,
            ..Settings::default()
        });
        node.was_read();
        for ifindex in 1..=2 {
            node.address(ifindex, "10.0.0.2");
            node.address(ifindex, "10.0.0.3");
        }
        node.now.0 += MS;
        let pool = books(&node, &[], Completeness::Deleted);
        node.books(pool);
        let conflicts = node.engine.conflicts(node.now).into_iter().map(|c| c.id.0);
        let anomalies = node.engine.anomalies().into_iter().map(|a| a.id.0);
        let ids: Vec<u128> = conflicts.chain(anomalies).collect();
        assert_eq!(ids.len(), 4);
        for id in ids {
            assert!(halves.insert(id >> 64) && halves.insert(id & u128::from(u64::MAX)));
        }
    }
}
