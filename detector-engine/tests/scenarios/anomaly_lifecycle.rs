//! The lifecycle of an anomaly: how long it waits, how it is restored, and the bounds.

use std::collections::BTreeSet;

use super::*;
use crate::anomaly_fixtures::*;

/// The next agent after a first snapshot, with the open anomalies of the earlier one.
fn next(before: &Node) -> Node {
    let mut node = Node::new();
    node.engine
        .restore(Vec::new(), before.engine.view().anomalies());
    node.pod(1);
    node.pod(2);
    node.take_first_snapshot();
    node
}

/// A node whose 10.0.0.3 is in no pool.
fn drifting() -> Node {
    let mut node = synced_node();
    node.address(2, "10.0.0.3");
    node.tick();
    node.read_pool(&[], Completeness::Deleted);
    node
}

#[test]
fn unconfirmed_restored_anomaly_resolves_after_twenty_seconds() {
    let mut node = next(&drifting());
    node.address(1, "10.0.0.2");
    node.tick();
    node.read_pool(&["10.0.0.9"], Completeness::Complete);
    node.wait_secs(19);
    node.expect_anomalies(["read pool"]);
    node.wait_secs(1);
    node.expect_anomalies(["resolved ipam_drift 10.0.0.3 not_seen"]);
}

/// Before its pool is read, nothing is known about it; then it need not be found again first.
#[test]
fn restored_leak_ends_with_what_contradicts_it() {
    let leaking = || {
        let mut node = synced_node();
        node.read_pool(&["10.0.0.9"], Completeness::Complete);
        node.wait_secs(601);
        node
    };
    let mut node = next(&leaking());
    node.wait_secs(5);
    assert_eq!(node.engine.view().anomalies().len(), 1);
    let mut other = host_local_pool(node.now, &[], Completeness::Complete);
    other.id = PoolId(2);
    Arc::make_mut(&mut other.source).place = "/data/other".to_owned();
    node.update_pool(other);
    assert!(node.anomaly_events().is_empty());
    node.read_pool(&[], Completeness::Complete);
    node.expect_anomalies(["resolved ipam_leak 10.0.0.9 released"]);
    let mut node = next(&leaking());
    node.read_pool(&["10.0.0.9"], Completeness::Complete);
    node.address(2, "10.0.0.9");
    node.expect_anomalies(["resolved ipam_leak 10.0.0.9 in_use"]);
    assert!(node.engine.view().anomalies().is_empty());
}

#[test]
fn restored_drift_ends_once_its_pod_has_the_allocation() {
    let mut node = next(&drifting());
    node.address(2, "10.0.0.3");
    // Which pod it is, and so whether the allocation is its own, becomes known later.
    node.read_pool(&["10.0.0.3"], Completeness::Complete);
    node.wait_secs(5);
    assert!(node.anomaly_events().is_empty());
    node.know(2, rightful::known("any", &["10.0.0.3"]));
    node.expect_anomalies(["resolved ipam_drift 10.0.0.3 allocated"]);
}

#[test]
fn restored_drift_of_a_removed_device_ends_with_it() {
    let mut node = next(&drifting());
    node.address(2, "10.0.0.3");
    node.remove_link(2);
    node.expect_anomalies(["resolved ipam_drift 10.0.0.3 address_gone"]);
}

#[test]
fn restored_anomalies_of_a_removed_device_end_with_the_first_snapshot() {
    let mut before = drifting();
    before.observe(unanswered_probe(2, "169.254.1.1"));
    let mut node = Node::new();
    node.engine
        .restore(Vec::new(), before.engine.view().anomalies());
    let token = SnapshotToken(77);
    node.observe(Observation::SnapshotStarted(token));
    let snapshot = Snapshot {
        links: vec![pod(1)],
        ..Snapshot::default()
    };
    let snapshot = Box::new(snapshot);
    node.observe(Observation::Snapshot(token, SnapshotScope::Node, snapshot));
    node.expect_anomalies([
        "resolved ipam_drift 10.0.0.3 address_gone",
        "resolved gateway_unresolved 169.254.1.1 device_gone",
    ]);
}

#[test]
fn restored_anomaly_is_matched_by_address() {
    let mut node = next(&drifting());
    node.address(1, "10.0.0.2");
    node.tick();
    node.read_pool(&[], Completeness::Deleted);
    node.expect_anomalies(["raised ipam_drift 10.0.0.2"]);
    assert_eq!(node.engine.view().anomalies().len(), 2);
}

#[test]
fn restored_gateway_anomaly_is_matched_by_device() {
    let mut before = synced_node();
    before.observe(unanswered_probe(1, "169.254.1.1"));
    before.effects.clear();
    let mut node = next(&before);
    node.observe(unanswered_probe(2, "169.254.1.1"));
    node.expect_anomalies(["raised gateway_unresolved 169.254.1.1"]);
    node.observe(unanswered_probe(1, "169.254.1.1"));
    assert!(node.anomaly_events().is_empty(), "restored");
    assert_eq!(node.engine.view().anomalies().len(), 2);
}

#[test]
fn resolution_carries_its_own_time_and_the_pools() {
    let mut node = drifting();
    node.effects.clear();
    node.tick();
    let pool = host_local_pool(node.now, &["10.0.0.3"], Completeness::Complete);
    let read_at = pool.read_at;
    node.now.0 += 5 * MS;
    node.update_pool(pool);
    let Some(Effect::Anomaly(AnomalyEffect::Resolved(over))) = node.effects.first() else {
        panic!("{:?}", node.effects)
    };
    assert_eq!(over.resolved_at, Some(node.now));
    assert_eq!(over.decided_at, read_at);
}

#[test]
fn pending_anomalies_are_bounded_and_refusals_counted() {
    let mut node = Node::with_two_addresses(Bounds {
        kernel_entries: 1,
        ..Bounds::default()
    });
    node.tick();
    node.read_pool(&[], Completeness::Complete);
    node.wait_secs(3);
    node.expect_anomalies(["read pool"]);
    node.read_pool(&[], Completeness::Complete);
    node.expect_anomalies(["raised ipam_drift 10.0.0.2"]);
    assert_eq!(node.engine.view().anomalies_refused(), 1);
}

#[test]
fn refused_anomaly_is_retried_after_a_minute() {
    let mut node = Node::with_two_addresses(Bounds {
        open_conflicts: 1,
        ..Bounds::default()
    });
    node.tick();
    node.read_pool(&[], Completeness::Deleted);
    node.wait_secs(59);
    assert_eq!(node.engine.view().anomalies_refused(), 1);
    node.wait_secs(1);
    assert_eq!(node.engine.view().anomalies_refused(), 2);
}

#[test]
fn restored_drift_continues_with_a_new_holder() {
    let mut node = next(&drifting());
    node.address(1, "10.0.0.3");
    node.tick();
    node.read_pool(&[], Completeness::Deleted);
    assert!(node.anomaly_events().is_empty());
    let open = node.engine.view().anomalies();
    assert_eq!(open.len(), 1);
    assert_eq!(open[0].holder.as_ref().unwrap().device, "veth1");
}

/// Else the latency of the update would be the age of the anomaly.
#[test]
fn restored_drift_with_another_cause_is_decided_anew() {
    let mut node = next(&drifting());
    node.address(2, "10.0.0.3");
    node.wait_secs(5);
    let mut pool = host_local_pool(node.now, &["10.0.0.3"], Completeness::Complete);
    let held = pool.allocated.values_mut().next().unwrap();
    (held.owner, held.owner_is_shared) = (Some("shop.web-0".into()), true);
    node.update_pool(pool);
    let decided_at = node.engine.view().anomalies()[0].decided_at;
    assert_eq!(decided_at, node.now);
    node.expect_anomalies(["updated ipam_drift 10.0.0.3"]);
}

#[test]
fn ids_are_unique_in_both_halves_across_agents_and_types() {
    let mut halves = BTreeSet::new();
    for id_seed in 1..=4 {
        let mut node = Node::with_settings(Settings {
            id_seed,
            ..Settings::default()
        });
        node.take_first_snapshot();
        for ifindex in 1..=2 {
            node.address(ifindex, "10.0.0.2");
            node.address(ifindex, "10.0.0.3");
        }
        node.tick();
        node.read_pool(&[], Completeness::Deleted);
        let conflicts = node
            .engine
            .view()
            .conflicts(node.now)
            .into_iter()
            .map(|c| c.id.0);
        let anomalies = node.engine.view().anomalies().into_iter().map(|a| a.id.0);
        let ids: Vec<u128> = conflicts.chain(anomalies).collect();
        assert_eq!(ids.len(), 4, "seed {id_seed}");
        for id in ids {
            let unique = halves.insert(id >> 64) && halves.insert(id & u128::from(u64::MAX));
            assert!(unique, "seed {id_seed}: {id:032x}");
        }
    }
}
