//! What IPAM's books are held against, when, and what is told of it.

use std::sync::Arc;

use super::{
    anomalies::{books, node},
    *,
};

/// Completeness of 10.0.0.0/24 that were deleted: what they lack is believed at once.
fn lost(node: &mut Node) {
    node.now.0 += MS;
    let pool = books(node, &[], Completeness::Deleted);
    node.books(pool);
}

#[test]
fn nothing_is_concluded_before_everything_was_read_once() {
    let mut node = Node::with_pods(1);
    node.read_pod(1, &["10.0.0.2"]);
    let pool = books(&node, &["10.0.0.9"], Completeness::Deleted);
    node.books(pool);
    node.frame(1, "10.0.0.2");
    node.wait_secs(700);
    assert!(node.told_of_anomalies().is_empty());
    let pool = books(&node, &["10.0.0.9"], Completeness::Deleted);
    node.books(pool);
    node.read_node(Snapshot {
        links: vec![pod(1)],
        pods: vec![holds(1, &["10.0.0.2"])],
        ..Snapshot::default()
    });
    assert_eq!(node.told_of_anomalies(), ["raised ipam_drift 10.0.0.2"]);
    node.wait_secs(601);
    assert_eq!(node.told_of_anomalies(), ["raised ipam_leak 10.0.0.9"]);
}

#[test]
fn books_that_changed_for_some_addresses_are_held_against_those() {
    let mut node = node();
    node.address(1, "10.0.0.2");
    node.address(1, "10.0.0.3");
    node.now.0 += MS;
    let pool = books(&node, &["10.0.0.2", "10.0.0.3"], Completeness::Complete);
    node.books(pool);
    node.now.0 += MS;
    let pool = Arc::new(books(&node, &[], Completeness::Deleted));
    let touched = ChangedAddresses::Only(vec![ip("10.0.0.2")]);
    let news = PoolUpdate::Read(pool, touched);
    node.engine.update_pool(node.now, news, &mut node.effects);
    assert_eq!(node.told_of_anomalies(), ["raised ipam_drift 10.0.0.2"]);
}

#[test]
fn books_that_are_gone_end_what_was_concluded_from_them() {
    let mut node = node();
    node.address(1, "10.0.0.2");
    node.now.0 += MS;
    let pool = books(&node, &["10.0.0.9"], Completeness::Deleted);
    node.books(pool);
    node.wait_secs(601);
    assert_eq!(
        node.told_of_anomalies(),
        ["raised ipam_drift 10.0.0.2", "raised ipam_leak 10.0.0.9"]
    );
    let news = PoolUpdate::Gone(PoolId(1));
    node.engine.update_pool(node.now, news, &mut node.effects);
    assert_eq!(
        node.told_of_anomalies(),
        [
            "resolved ipam_drift 10.0.0.2 not_seen",
            "resolved ipam_leak 10.0.0.9 released"
        ]
    );
}

#[test]
fn open_anomalies_are_listed_by_age_and_counted_by_kind() {
    let mut node = node();
    let pool = books(&node, &["10.0.0.1"], Completeness::Complete);
    node.books(pool);
    node.wait_secs(601);
    for address in ["10.0.0.9", "10.0.0.3"] {
        node.address(2, address);
        lost(&mut node);
    }
    node.address(1, "10.0.0.4");
    node.address(1, "10.0.0.2");
    lost(&mut node);
    let open = node.engine.anomalies();
    let addresses: Vec<_> = open.iter().map(|a| a.address.to_string()).collect();
    assert_eq!(
        addresses,
        ["10.0.0.9", "10.0.0.3", "10.0.0.2", "10.0.0.4"],
        "the leak is over: the books that held it were deleted"
    );
    let ids = node.engine.anomaly_ids();
    assert_eq!(ids, open.iter().map(|a| a.id).collect::<Vec<_>>());
    let some = [ids[3], ids[1], ids[0]];
    let of: Vec<_> = node
        .engine
        .anomalies_of(&some)
        .iter()
        .map(|a| a.id)
        .collect();
    assert_eq!(of, [ids[0], ids[1], ids[3]]);
    assert_eq!(node.engine.open_anomalies(AnomalyKind::IpamDrift), 4);
    assert_eq!(node.engine.open_anomalies(AnomalyKind::IpamLeak), 0);
    assert_eq!(node.engine.anomalies_refused(), 0);
}

#[test]
fn anomalies_beyond_the_bound_are_counted_and_raised_when_there_is_room() {
    let mut node = Node::with_two_addresses(Bounds {
        open_conflicts: 1,
        ..Bounds::default()
    });
    lost(&mut node);
    assert_eq!(node.told_of_anomalies(), ["raised ipam_drift 10.0.0.2"]);
    assert_eq!(node.engine.anomalies_refused(), 1);
    node.address_gone(1, "10.0.0.2");
    node.wait_secs(61);
    assert_eq!(
        node.told_of_anomalies(),
        [
            "resolved ipam_drift 10.0.0.2 address_gone",
            "raised ipam_drift 10.0.0.3"
        ]
    );
}

#[test]
fn shared_addresses_come_from_no_pool() {
    let mut node = Node::with(Settings {
        allow: vec!["10.0.0.2/32".parse().unwrap()],
        ..Settings::default()
    });
    node.pod(1);
    node.was_read();
    node.address(1, "10.0.0.2");
    lost(&mut node);
    assert!(node.told_of_anomalies().is_empty());
}

#[test]
fn the_nodes_own_address_and_one_that_was_only_heard_are_no_drift() {
    let mut node = node();
    node.link(uplink(9));
    node.host(9, "10.0.0.1");
    node.frame(1, "10.0.0.2");
    lost(&mut node);
    assert!(node.told_of_anomalies().is_empty());
}

#[test]
fn what_is_heard_of_a_pod_that_cannot_be_read_is_held_against_the_books() {
    let mut node = node();
    node.pod(3);
    node.frame(3, "10.0.0.2");
    lost(&mut node);
    assert_eq!(node.told_of_anomalies(), ["raised ipam_drift 10.0.0.2"]);
}

#[test]
fn while_a_pod_cannot_be_read_nothing_is_a_leak_and_links_of_the_node_do_not_matter() {
    let mut node = node();
    node.link(uplink(9));
    let pool = books(&node, &["10.0.0.9"], Completeness::Complete);
    node.books(pool);
    node.pod(3);
    node.wait_secs(601);
    node.frame(1, "10.0.0.9");
    assert!(node.told_of_anomalies().is_empty());
    node.gone(3);
    node.frame(2, "10.0.0.9");
    node.wait_secs(1300);
    assert_eq!(node.told_of_anomalies(), ["raised ipam_leak 10.0.0.9"]);
}

/// The books of [`books`], whole, read now, as the only news.
fn whole(node: &mut Node, held: &[&str]) {
    node.now.0 += MS;
    let pool = books(node, held, Completeness::Complete);
    node.books(pool);
}

fn millis(node: &mut Node, millis: u64) {
    node.wait(Duration::from_millis(millis));
}

#[test]
fn the_first_books_of_a_pool_are_held_against_everything() {
    let mut node = node();
    node.address(1, "10.0.0.2");
    node.now.0 += MS;
    let pool = Arc::new(books(&node, &[], Completeness::Deleted));
    let news = PoolUpdate::Read(pool, ChangedAddresses::Only(Vec::new()));
    node.engine.update_pool(node.now, news, &mut node.effects);
    assert_eq!(node.told_of_anomalies(), ["raised ipam_drift 10.0.0.2"]);
}

#[test]
fn books_are_asked_for_once_until_they_come() {
    let mut node = node();
    node.address(1, "10.0.0.2");
    node.address(1, "10.0.0.3");
    whole(&mut node, &[]);
    node.wait_secs(3);
    assert_eq!(node.told_of_anomalies(), ["read books"]);
    let old = Pool {
        read_at: Timestamp(node.now.0 - 2_000 * MS),
        ..books(&node, &[], Completeness::Complete)
    };
    node.books(old);
    assert_eq!(node.told_of_anomalies(), ["read books"], "they were old");
}

#[test]
fn books_read_when_the_address_was_seen_are_read_again_and_a_second_old_are_not() {
    let mut node = node();
    node.address(1, "10.0.0.2");
    let pool = books(&node, &[], Completeness::Deleted);
    node.books(pool);
    assert_eq!(node.told_of_anomalies(), ["read books"]);
    let pool = books(&node, &["10.0.0.2"], Completeness::Complete);
    node.books(pool);
    let pool = books(&node, &[], Completeness::Complete);
    node.books(pool);
    millis(&mut node, 1000);
    let pool = books(&node, &[], Completeness::Complete);
    node.books(pool);
    millis(&mut node, 1000);
    assert_eq!(node.told_of_anomalies(), ["raised ipam_drift 10.0.0.2"]);
    // What is told already needs no fresh books.
    node.wait_secs(10);
    node.frame(1, "10.0.0.2");
    assert!(node.told_of_anomalies().is_empty());
}

#[test]
fn an_address_that_was_gone_or_held_in_between_is_missed_anew() {
    let between: [fn(&mut Node); 3] = [
        |node| {
            node.address_gone(1, "10.0.0.2");
            node.address(1, "10.0.0.2");
        },
        |node| whole(node, &["10.0.0.2"]),
        |node| {
            let news = PoolUpdate::Gone(PoolId(1));
            node.engine.update_pool(node.now, news, &mut node.effects);
        },
    ];
    for between in between {
        let mut node = node();
        node.address(1, "10.0.0.2");
        whole(&mut node, &[]);
        millis(&mut node, 1500);
        between(&mut node);
        whole(&mut node, &[]);
        millis(&mut node, 1000);
        assert!(node.told_of_anomalies().is_empty());
        millis(&mut node, 1500);
        assert_eq!(node.told_of_anomalies(), ["read books"]);
    }
}

#[test]
fn an_address_that_was_released_or_used_in_between_is_idle_anew() {
    let between: [fn(&mut Node); 3] = [
        |node| {
            node.address(1, "10.0.0.9");
            node.address_gone(1, "10.0.0.9");
        },
        |node| whole(node, &[]),
        |node| {
            let news = PoolUpdate::Gone(PoolId(1));
            node.engine.update_pool(node.now, news, &mut node.effects);
        },
    ];
    for between in between {
        let mut node = node();
        whole(&mut node, &["10.0.0.9"]);
        node.wait_secs(500);
        between(&mut node);
        whole(&mut node, &["10.0.0.9"]);
        node.wait_secs(200);
        assert!(node.told_of_anomalies().is_empty());
        node.wait_secs(401);
        assert_eq!(node.told_of_anomalies(), ["raised ipam_leak 10.0.0.9"]);
    }
}

#[test]
fn what_is_held_for_no_pod_or_for_pods_that_are_not_followed_is_no_leak() {
    for not_a_pod in [false, true] {
        let mut node = node();
        let mut pool = books(&node, &["10.0.0.9"], Completeness::Complete);
        pool.can_detect_leaks = not_a_pod;
        pool.allocated.values_mut().next().unwrap().not_a_pod = not_a_pod;
        node.books(pool);
        node.wait_secs(1300);
        assert!(node.told_of_anomalies().is_empty());
    }
}

#[test]
fn an_address_held_for_two_or_for_a_shared_name_is_told_with_its_place() {
    for (second, sentence) in [
        (
            Some("b"),
            "is allocated twice in host-local (/data/net), to a and to b",
        ),
        (None, "is allocated in host-local (/data/net) to a, a name"),
    ] {
        let mut node = node();
        node.address(1, "10.0.0.2");
        let mut pool = books(&node, &["10.0.0.2"], Completeness::Complete);
        let held = pool.allocated.values_mut().next().unwrap();
        held.owner = Some("a".into());
        held.second_owner = second.map(Into::into);
        held.owner_is_shared = second.is_none();
        node.books(pool);
        assert_eq!(node.told_of_anomalies(), ["raised ipam_drift 10.0.0.2"]);
        let detail = &node.engine.anomalies()[0].detail;
        assert!(detail.contains(sentence), "{detail}");
    }
}
