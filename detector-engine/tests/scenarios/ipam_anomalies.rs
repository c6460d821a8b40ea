//! IPAM anomalies: what a pool is checked against, when, and what is reported.

use std::sync::Arc;

use super::*;
use crate::anomaly_fixtures::*;

/// The allocations of 10.0.0.0/24 are deleted: absent addresses are drift at once.
fn delete_allocations(node: &mut Node) {
    node.tick();
    node.read_pool(&[], Completeness::Deleted);
}

#[test]
fn nothing_is_concluded_before_the_first_snapshot() {
    let mut node = Node::with_pods(1);
    node.read_pod_addresses(1, &["10.0.0.2"]);
    node.read_pool(&["10.0.0.9"], Completeness::Deleted);
    node.frame(1, "10.0.0.2");
    node.wait_secs(700);
    assert!(node.anomaly_events().is_empty());
    node.read_pool(&["10.0.0.9"], Completeness::Deleted);
    node.resync(Snapshot {
        links: vec![pod(1)],
        pods: vec![pod_addresses(1, &["10.0.0.2"])],
        ..Snapshot::default()
    });
    node.expect_anomalies(["raised ipam_drift 10.0.0.2"]);
    node.wait_secs(601);
    node.expect_anomalies(["raised ipam_leak 10.0.0.9"]);
}

#[test]
fn partial_pool_update_checks_only_changed_addresses() {
    let mut node = synced_node();
    node.address(1, "10.0.0.2");
    node.address(1, "10.0.0.3");
    node.tick();
    node.read_pool(&["10.0.0.2", "10.0.0.3"], Completeness::Complete);
    node.tick();
    let pool = Arc::new(host_local_pool(node.now, &[], Completeness::Deleted));
    let touched = ChangedAddresses::Only(vec![ip("10.0.0.2")]);
    let update = PoolUpdate::Read(pool, touched);
    node.engine
        .step(node.now, update.observed(node.now), &mut node.effects);
    node.expect_anomalies(["raised ipam_drift 10.0.0.2"]);
}

/// One advertisement with the pods' prefix gives each pod an address that no IPAM knows.
#[test]
fn autoconfigured_address_is_no_drift() {
    let mut node = synced_node();
    let autoconfigured = AssignedAddress {
        autoconfigured: true,
        ..assigned("10.0.0.2")
    };
    node.observe(Observation::PodAddress(peer(1), autoconfigured));
    delete_allocations(&mut node);
    assert!(node.anomaly_events().is_empty());
    // It is a claim like any other.
    node.address(2, "10.0.0.2");
    assert_eq!(node.engine.view().conflicts(node.now).len(), 1);
    // It is now assigned there.
    node.expect_anomalies(["raised ipam_drift 10.0.0.2"]);
}

#[test]
fn removed_pool_resolves_its_anomalies() {
    let mut node = synced_node();
    node.address(1, "10.0.0.2");
    node.tick();
    node.read_pool(&["10.0.0.9"], Completeness::Deleted);
    node.wait_secs(601);
    node.expect_anomalies(["raised ipam_drift 10.0.0.2", "raised ipam_leak 10.0.0.9"]);
    let update = PoolUpdate::Gone(PoolId(1));
    node.engine
        .step(node.now, update.observed(node.now), &mut node.effects);
    node.expect_anomalies([
        "resolved ipam_drift 10.0.0.2 not_seen",
        "resolved ipam_leak 10.0.0.9 released",
    ]);
}

#[test]
fn open_anomalies_are_listed_by_age_and_counted_by_kind() {
    let mut node = synced_node();
    node.read_pool(&["10.0.0.1"], Completeness::Complete);
    node.wait_secs(601);
    for address in ["10.0.0.9", "10.0.0.3"] {
        node.address(2, address);
        delete_allocations(&mut node);
    }
    node.address(1, "10.0.0.4");
    node.address(1, "10.0.0.2");
    delete_allocations(&mut node);
    let open = node.engine.view().anomalies();
    let addresses: Vec<_> = open.iter().map(|a| a.address.to_string()).collect();
    assert_eq!(
        addresses,
        ["10.0.0.9", "10.0.0.3", "10.0.0.2", "10.0.0.4"],
        "the leak is resolved: its pool was deleted"
    );
    let mut ids = node.engine.view().anomaly_ids();
    ids.sort_unstable();
    let ids: Vec<_> = ids.into_iter().map(|(.., id)| id).collect();
    assert_eq!(ids, open.iter().map(|a| a.id).collect::<Vec<_>>());
    let some = [ids[3], ids[1], ids[0]];
    let of: Vec<_> = node
        .engine
        .view()
        .anomalies_of(&some)
        .iter()
        .map(|a| a.id)
        .collect();
    assert_eq!(of, [ids[0], ids[1], ids[3]]);
    assert_eq!(node.engine.view().open_anomalies(AnomalyKind::IpamDrift), 4);
    assert_eq!(node.engine.view().open_anomalies(AnomalyKind::IpamLeak), 0);
    assert_eq!(node.engine.view().anomalies_refused(), 0);
}

#[test]
fn anomaly_over_the_bound_is_raised_once_there_is_room() {
    let mut node = Node::with_two_addresses(Bounds {
        open_conflicts: 1,
        ..Bounds::default()
    });
    delete_allocations(&mut node);
    node.expect_anomalies(["raised ipam_drift 10.0.0.2"]);
    assert_eq!(node.engine.view().anomalies_refused(), 1);
    node.address_gone(1, "10.0.0.2");
    node.wait_secs(61);
    node.expect_anomalies([
        "resolved ipam_drift 10.0.0.2 address_gone",
        "raised ipam_drift 10.0.0.3",
    ]);
}

#[test]
fn anomalies_of_one_device_take_no_room_from_others() {
    let mut node = Node::with_two_addresses(Bounds {
        anomalies_per_device: 1,
        ..Bounds::default()
    });
    node.pod(2);
    node.address(2, "10.0.0.4");
    delete_allocations(&mut node);
    node.expect_anomalies(["raised ipam_drift 10.0.0.2", "raised ipam_drift 10.0.0.4"]);
    assert_eq!(node.engine.view().anomalies_refused(), 1);
    node.address_gone(1, "10.0.0.2");
    node.wait_secs(61);
    node.expect_anomalies([
        "resolved ipam_drift 10.0.0.2 address_gone",
        "raised ipam_drift 10.0.0.3",
    ]);
}

#[test]
fn allowed_address_is_never_drift() {
    let mut node = Node::with_settings(Settings {
        allow: vec!["10.0.0.2/32".parse().unwrap()],
        ..Settings::default()
    });
    node.pod(1);
    node.take_first_snapshot();
    node.address(1, "10.0.0.2");
    delete_allocations(&mut node);
    assert!(node.anomaly_events().is_empty());
}

#[test]
fn allowed_address_is_a_leak_only_if_no_pod_has_it() {
    let mut node = Node::with_settings(Settings {
        allow: vec!["10.0.0.2/32".parse().unwrap()],
        ..Settings::default()
    });
    node.pod(1);
    node.take_first_snapshot();
    node.read_pod_addresses(1, &["10.7.0.1", "10.0.0.2"]);
    node.tick();
    node.read_pool(&["10.0.0.2"], Completeness::Complete);
    node.wait_secs(601);
    assert!(node.anomaly_events().is_empty());
    node.address_gone(1, "10.0.0.2");
    node.wait_secs(601);
    node.expect_anomalies(["raised ipam_leak 10.0.0.2"]);
}

#[test]
fn address_that_is_reserved_for_the_node_is_not_leaked() {
    let mut node = synced_node();
    node.link(uplink(9));
    node.host(9, "10.0.0.9");
    read_complete_pool(&mut node, &["10.0.0.9"]);
    node.wait_secs(601);
    assert!(node.anomaly_events().is_empty());
    node.host_gone(9, "10.0.0.9");
    node.wait_secs(601);
    node.expect_anomalies(["raised ipam_leak 10.0.0.9"]);
}

#[test]
fn host_address_and_frame_only_claim_are_not_drift() {
    let mut node = synced_node();
    node.link(uplink(9));
    node.host(9, "10.0.0.1");
    node.frame(1, "10.0.0.2");
    delete_allocations(&mut node);
    assert!(node.anomaly_events().is_empty());
}

#[test]
fn frame_claim_of_an_unreadable_pod_can_be_drift() {
    let mut node = synced_node();
    node.pod(3);
    node.frame(3, "10.0.0.2");
    delete_allocations(&mut node);
    node.expect_anomalies(["raised ipam_drift 10.0.0.2"]);
}

#[test]
fn unreadable_pod_suppresses_leaks_but_an_uplink_does_not() {
    let mut node = synced_node();
    node.link(uplink(9));
    node.read_pool(&["10.0.0.9"], Completeness::Complete);
    node.pod(3);
    node.wait_secs(601);
    node.frame(1, "10.0.0.9");
    assert!(node.anomaly_events().is_empty());
    node.remove_link(3);
    node.frame(2, "10.0.0.9");
    node.wait_secs(1300);
    node.expect_anomalies(["raised ipam_leak 10.0.0.9"]);
}

/// A complete read of the pool, one millisecond later.
fn read_complete_pool(node: &mut Node, held: &[&str]) {
    node.tick();
    node.read_pool(held, Completeness::Complete);
}

fn wait_millis(node: &mut Node, millis: u64) {
    node.wait(Duration::from_millis(millis));
}

#[test]
fn first_read_of_a_pool_checks_every_address() {
    let mut node = synced_node();
    node.address(1, "10.0.0.2");
    node.tick();
    let pool = Arc::new(host_local_pool(node.now, &[], Completeness::Deleted));
    let update = PoolUpdate::Read(pool, ChangedAddresses::Only(Vec::new()));
    node.engine
        .step(node.now, update.observed(node.now), &mut node.effects);
    node.expect_anomalies(["raised ipam_drift 10.0.0.2"]);
}

#[test]
fn pool_read_is_requested_once_until_it_arrives() {
    let mut node = synced_node();
    node.address(1, "10.0.0.2");
    node.address(1, "10.0.0.3");
    read_complete_pool(&mut node, &[]);
    node.wait_secs(3);
    node.expect_anomalies(["read pool"]);
    let old = Pool {
        read_at: Timestamp(node.now.0 - 2_000 * MS),
        ..host_local_pool(node.now, &[], Completeness::Complete)
    };
    node.update_pool(old);
    assert_eq!(node.anomaly_events(), ["read pool"], "the pool was too old");
}

#[test]
fn only_a_pool_older_than_the_address_is_read_again() {
    let mut node = synced_node();
    node.address(1, "10.0.0.2");
    node.read_pool(&[], Completeness::Deleted);
    node.expect_anomalies(["read pool"]);
    node.read_pool(&["10.0.0.2"], Completeness::Complete);
    node.read_pool(&[], Completeness::Complete);
    wait_millis(&mut node, 1000);
    node.read_pool(&[], Completeness::Complete);
    wait_millis(&mut node, 1000);
    node.expect_anomalies(["raised ipam_drift 10.0.0.2"]);
    // An open anomaly needs no fresh read.
    node.wait_secs(10);
    node.frame(1, "10.0.0.2");
    assert!(node.anomaly_events().is_empty());
}

#[test]
fn drift_grace_restarts_after_an_interruption() {
    let interruptions: [NodeCase; 3] = [
        ("address removed", |node| {
            node.address_gone(1, "10.0.0.2");
            node.address(1, "10.0.0.2");
        }),
        ("address allocated", |node| {
            read_complete_pool(node, &["10.0.0.2"])
        }),
        ("pool removed", |node| {
            let update = PoolUpdate::Gone(PoolId(1));
            node.engine
                .step(node.now, update.observed(node.now), &mut node.effects);
        }),
    ];
    for (case, interrupt) in interruptions {
        let mut node = synced_node();
        node.address(1, "10.0.0.2");
        read_complete_pool(&mut node, &[]);
        wait_millis(&mut node, 1500);
        interrupt(&mut node);
        read_complete_pool(&mut node, &[]);
        wait_millis(&mut node, 1000);
        assert!(node.anomaly_events().is_empty(), "{case}");
        wait_millis(&mut node, 1500);
        assert_eq!(node.anomaly_events(), ["read pool"], "{case}");
    }
}

#[test]
fn allocation_that_is_recorded_late_is_awaited() {
    for is_recorded in [true, false] {
        let mut node = synced_node();
        node.address(1, "10.0.0.9");
        let read = |node: &mut Node, allocated: &[&str]| {
            let mut pool = host_local_pool(node.now, allocated, Completeness::Complete);
            pool.record_delay = Duration::from_secs(60);
            node.update_pool(pool);
        };
        for _ in 0..5 {
            node.wait_secs(11);
            read(&mut node, &[]);
        }
        assert!(
            !node
                .anomaly_events()
                .iter()
                .any(|e| e.starts_with("raised"))
        );
        let allocated: &[_] = if is_recorded { &["10.0.0.9"] } else { &[] };
        // A minute after it was first missed.
        node.wait_secs(17);
        read(&mut node, allocated);
        let raised = node.anomaly_events();
        let raised = raised.iter().filter(|e| e.starts_with("raised")).count();
        assert_eq!(raised, usize::from(!is_recorded));
    }
}

#[test]
fn leak_delay_restarts_after_an_interruption() {
    let interruptions: [NodeCase; 3] = [
        ("address in use", |node| {
            node.address(1, "10.0.0.9");
            node.address_gone(1, "10.0.0.9");
        }),
        ("address released", |node| read_complete_pool(node, &[])),
        ("pool removed", |node| {
            let update = PoolUpdate::Gone(PoolId(1));
            node.engine
                .step(node.now, update.observed(node.now), &mut node.effects);
        }),
    ];
    for (case, interrupt) in interruptions {
        let mut node = synced_node();
        read_complete_pool(&mut node, &["10.0.0.9"]);
        node.wait_secs(500);
        interrupt(&mut node);
        read_complete_pool(&mut node, &["10.0.0.9"]);
        node.wait_secs(200);
        assert!(node.anomaly_events().is_empty(), "{case}");
        node.wait_secs(401);
        assert_eq!(
            node.anomaly_events(),
            ["raised ipam_leak 10.0.0.9"],
            "{case}"
        );
    }
}

#[test]
fn allocation_without_a_tracked_pod_is_not_a_leak() {
    for not_a_pod in [false, true] {
        let mut node = synced_node();
        let mut pool = host_local_pool(node.now, &["10.0.0.9"], Completeness::Complete);
        pool.can_detect_leaks = not_a_pod;
        pool.allocated.values_mut().next().unwrap().not_a_pod = not_a_pod;
        node.update_pool(pool);
        node.wait_secs(1300);
        assert!(node.anomaly_events().is_empty(), "not a pod: {not_a_pod}");
    }
}

#[test]
fn drift_detail_names_pool_and_ambiguous_owners() {
    for (second, sentence) in [
        (
            Some("b"),
            "is allocated twice in host-local (/data/net), to a and to b",
        ),
        (None, "is allocated in host-local (/data/net) to a, a name"),
    ] {
        let mut node = synced_node();
        node.address(1, "10.0.0.2");
        let mut pool = host_local_pool(node.now, &["10.0.0.2"], Completeness::Complete);
        let held = pool.allocated.values_mut().next().unwrap();
        held.owner = Some("a".into());
        held.second_owner = second.map(Into::into);
        held.owner_is_shared = second.is_none();
        node.update_pool(pool);
        node.expect_anomalies(["raised ipam_drift 10.0.0.2"]);
        let detail = &node.engine.view().anomalies()[0].detail;
        assert!(detail.contains(sentence), "{detail}");
    }
}
