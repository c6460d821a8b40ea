//! Since when claims are known, and which claimant is the newest.

use super::*;

const SHARED: &str = "10.0.0.1";

/// A node without pods whose first snapshot is merged, so that what follows has just happened.
fn observed_node() -> Node {
    let mut node = Node::new();
    node.resync(Snapshot::default());
    node
}

/// A pod device appears and is read, at first without addresses.
fn appears(node: &mut Node, ifindex: IfIndex) {
    node.pod(ifindex);
    node.read_pod_addresses(ifindex, &[]);
}

/// The next agent on the same node, which finds these devices with [`SHARED`].
fn restarted(node: &Node, devices: &[IfIndex]) -> Node {
    let text = serde_json::to_string(&node.engine.view().open_records(node.now)).unwrap();
    restarted_with(&text, node.now, devices)
}

fn restarted_with(records: &str, now: Timestamp, devices: &[IfIndex]) -> Node {
    let mut next = Node::new();
    next.now = now + Duration::from_secs(60);
    next.engine
        .restore(serde_json::from_str(records).unwrap(), Vec::new());
    let addresses: &[&str] = &[SHARED];
    let pods: Vec<_> = devices.iter().map(|device| (*device, addresses)).collect();
    next.resync(snapshot(&pods));
    next
}

/// Each claimant of the one open conflict: since when it claims the address, if that is known.
fn since(node: &Node) -> Vec<(IfIndex, Option<Timestamp>)> {
    let open = node.engine.view().conflicts(node.now);
    assert_eq!(open.len(), 1);
    let known = |c: &Claimant| c.beginning.is_known().then_some(c.since);
    open[0].present().map(|c| (c.ifindex, known(c))).collect()
}

fn newest(node: &Node) -> Vec<IfIndex> {
    let open = node.engine.view().conflicts(node.now);
    let present = open.iter().flat_map(|conflict| conflict.present());
    let newest = present.filter(|c| c.is_newest);
    newest.map(|c| c.ifindex).collect()
}

/// Pods 1 and 2 get the address 44 seconds apart; the times.
fn with_known_order() -> (Node, [Timestamp; 2]) {
    let mut node = observed_node();
    appears(&mut node, 1);
    node.address(1, SHARED);
    let first = node.now;
    node.wait_secs(44);
    appears(&mut node, 2);
    node.address(2, SHARED);
    let second = node.now;
    (node, [first, second])
}

#[test]
fn claims_that_were_seen_to_begin_have_their_times() {
    let (mut node, [first, second]) = with_known_order();
    assert_eq!(since(&node), [(1, Some(first)), (2, Some(second))]);
    assert_eq!(newest(&node), [2]);
    let raised = node.reported_conflicts().remove(0);
    assert!(!raised.claimants[0].is_newest && raised.claimants[1].is_newest);
}

#[test]
fn claims_found_by_the_first_snapshot_have_no_time() {
    let mut node = Node::new();
    node.resync(snapshot(&[(1, &[SHARED]), (2, &[SHARED])]));
    assert_eq!(since(&node), [(1, None), (2, None)]);
    assert_eq!(newest(&node), [0; 0]);
    let open = node.engine.view().conflicts(node.now).remove(0);
    let because = open.claimants[0].beginning.unknown;
    assert_eq!(because, Some(UnknownBeginning::BeforeStart));
}

#[test]
fn claim_reported_before_the_first_snapshot_has_no_time() {
    let mut node = Node::with_duplicate();
    assert_eq!(since(&node), [(1, None), (2, None)]);
    node.frame(1, SHARED);
    assert_eq!(since(&node), [(1, None), (2, None)]);
}

#[test]
fn claim_that_began_after_one_without_a_time_is_the_newest() {
    let mut node = Node::new();
    node.resync(snapshot(&[(1, &[SHARED])]));
    node.wait_secs(10);
    appears(&mut node, 2);
    node.address(2, SHARED);
    let second = node.now;
    assert_eq!(since(&node), [(1, None), (2, Some(second))]);
    assert_eq!(newest(&node), [2]);
}

#[test]
fn address_found_by_the_first_read_of_a_new_device_has_its_time() {
    let mut node = observed_node();
    appears(&mut node, 1);
    node.address(1, SHARED);
    let first = node.now;
    node.wait_secs(5);
    node.pod(2);
    node.wait_secs(1);
    node.read_pod_addresses(2, &[SHARED]);
    assert_eq!(since(&node), [(1, Some(first)), (2, Some(node.now))]);
    assert_eq!(newest(&node), [2]);
}

#[test]
fn first_read_of_two_new_devices_shows_no_order() {
    let mut node = observed_node();
    node.pod(1);
    node.pod(2);
    node.read_pod_addresses(1, &[SHARED]);
    node.wait_secs(1);
    node.read_pod_addresses(2, &[SHARED]);
    assert!(since(&node).iter().all(|(_, since)| since.is_some()));
    assert_eq!(newest(&node), [0; 0]);
}

#[test]
fn address_found_by_a_snapshot_after_a_loss_has_no_time() {
    let mut node = observed_node();
    appears(&mut node, 2);
    appears(&mut node, 1);
    node.address(1, SHARED);
    let first = node.now;
    node.observe(Observation::NotificationsLost);
    node.wait_secs(1);
    node.resync(snapshot(&[(1, &[SHARED]), (2, &[SHARED])]));
    assert_eq!(since(&node), [(1, Some(first)), (2, None)]);
    let open = node.engine.view().conflicts(node.now).remove(0);
    let because = open.claimants[1].beginning.unknown;
    assert_eq!(because, Some(UnknownBeginning::FoundBySnapshot));
    assert_eq!(newest(&node), [0; 0]);
}

#[test]
fn device_reported_between_a_loss_and_its_snapshot_may_be_older() {
    let mut node = observed_node();
    appears(&mut node, 2);
    node.address(2, SHARED);
    node.observe(Observation::NotificationsLost);
    node.pod(1);
    node.frame(1, SHARED);
    assert_eq!(newest(&node), [0; 0]);
    node.resync(snapshot(&[(1, &[]), (2, &[SHARED])]));
    assert_eq!(newest(&node), [0; 0]);
}

#[test]
fn frame_of_a_pod_that_may_have_been_silent_does_not_make_it_the_newest() {
    let mut node = observed_node();
    appears(&mut node, 1);
    appears(&mut node, 2);
    node.address(2, SHARED);
    node.wait_secs(10);
    // The namespace has no address at all: the stack is the pod's own, and had the address before.
    node.frame(1, SHARED);
    assert_eq!(newest(&node), [0; 0]);
}

#[test]
fn frame_of_a_pod_without_the_address_makes_it_the_newest() {
    let mut node = observed_node();
    appears(&mut node, 1);
    node.address(1, "10.0.0.9");
    appears(&mut node, 2);
    node.address(2, SHARED);
    node.wait_secs(10);
    node.frame(1, SHARED);
    assert_eq!(newest(&node), [1]);
}

#[test]
fn frame_of_a_pod_from_before_the_start_does_not_make_it_the_newest() {
    let mut node = Node::new();
    node.resync(snapshot(&[(1, &["10.0.0.9"])]));
    appears(&mut node, 2);
    node.address(2, SHARED);
    node.wait_secs(10);
    node.frame(1, SHARED);
    assert_eq!(newest(&node), [0; 0]);
}

#[test]
fn claims_at_the_same_time_have_no_newest() {
    let mut node = observed_node();
    appears(&mut node, 1);
    appears(&mut node, 2);
    node.tick();
    for ifindex in [1, 2] {
        let address = Observation::PodAddress(peer(ifindex), assigned(SHARED));
        node.observe_at(node.now, address);
    }
    assert_eq!(newest(&node), [0; 0]);
}

#[test]
fn newest_that_leaves_is_not_marked_any_more() {
    let (mut node, _) = with_known_order();
    node.wait_secs(1);
    appears(&mut node, 3);
    node.address(3, SHARED);
    assert_eq!(newest(&node), [3]);
    node.address_gone(3, SHARED);
    let updated = node.reported_conflicts().pop().unwrap();
    let marked: Vec<_> = updated
        .claimants
        .iter()
        .map(|c| (c.ifindex, c.is_newest))
        .collect();
    assert_eq!(marked, [(1, false), (2, true), (3, false)]);
}

#[test]
fn times_and_newest_survive_a_restart() {
    let (node, [first, second]) = with_known_order();
    let mut next = restarted(&node, &[2, 1]);
    assert!(next.conflict_events().is_empty());
    assert_eq!(since(&next), [(1, Some(first)), (2, Some(second))]);
    assert_eq!(newest(&next), [2]);
    // The list of claims shows the same.
    let claims = next.engine.view().claims_of(ip(SHARED), next.now);
    assert_eq!(claims[0].claimant.since, first);
    // And so does the agent after the next one.
    let third = restarted(&next, &[1, 2]);
    assert_eq!(since(&third), [(1, Some(first)), (2, Some(second))]);
    assert_eq!(newest(&third), [2]);
}

#[test]
fn evidence_that_the_record_lacks_is_no_older_than_the_claim() {
    let (node, [first, second]) = with_known_order();
    let text = serde_json::to_string(&node.engine.view().open_records(node.now)).unwrap();
    let mut next = Node::new();
    next.now = node.now + Duration::from_secs(60);
    next.engine
        .restore(serde_json::from_str(&text).unwrap(), Vec::new());
    let mut dump = snapshot(&[(1, &[SHARED]), (2, &[SHARED])]);
    dump.neighbours = vec![neighbour(1, SHARED, mac(1), NudState::Permanent)];
    next.resync(dump);
    assert_eq!(since(&next), [(1, Some(first)), (2, Some(second))]);
    assert_eq!(newest(&next), [2]);
    let open = next.engine.view().conflicts(next.now).remove(0);
    let known: Vec<_> = open.claimants[0]
        .evidence
        .iter()
        .map(|e| (e.kind, e.seen.beginning.is_known()))
        .collect();
    let expected = [
        (EvidenceKind::Address, true),
        (EvidenceKind::Neighbour, false),
    ];
    assert_eq!(known, expected);
}

#[test]
fn unknown_times_stay_unknown_over_a_restart() {
    let mut node = Node::new();
    node.resync(snapshot(&[(1, &[SHARED])]));
    appears(&mut node, 2);
    node.address(2, SHARED);
    let second = node.now;
    let next = restarted(&node, &[1, 2]);
    assert_eq!(since(&next), [(1, None), (2, Some(second))]);
    assert_eq!(newest(&next), [2]);
}

#[test]
fn claimant_that_joined_during_the_downtime_has_no_time() {
    let (node, [first, second]) = with_known_order();
    let next = restarted(&node, &[1, 2, 3]);
    let expected = [(1, Some(first)), (2, Some(second)), (3, None)];
    assert_eq!(since(&next), expected);
    assert_eq!(newest(&next), [0; 0]);
}

#[test]
fn another_device_of_that_index_has_no_time() {
    let (node, [first, _]) = with_known_order();
    let text = serde_json::to_string(&node.engine.view().open_records(node.now)).unwrap();
    let next = restarted_with(&text.replace("veth2", "vethx"), node.now, &[1, 2]);
    assert_eq!(since(&next), [(1, Some(first)), (2, None)]);
}

#[test]
fn record_of_an_earlier_version_has_no_known_times() {
    let (node, _) = with_known_order();
    let mut records = serde_json::to_value(node.engine.view().open_records(node.now)).unwrap();
    for claimant in records[0]["conflict"]["claimants"].as_array_mut().unwrap() {
        let claimant = claimant.as_object_mut().unwrap();
        claimant.remove("beginning");
        claimant.remove("is_newest");
        for evidence in claimant["evidence"].as_array_mut().unwrap() {
            evidence.as_object_mut().unwrap().remove("beginning");
        }
    }
    let next = restarted_with(&records.to_string(), node.now, &[1, 2]);
    assert_eq!(since(&next), [(1, None), (2, None)]);
    assert_eq!(newest(&next), [0; 0]);
}

#[test]
fn address_of_the_node_keeps_its_time_over_a_restart() {
    let mut node = observed_node();
    node.link(uplink(9));
    node.host(9, SHARED);
    let first = node.now;
    appears(&mut node, 1);
    node.address(1, SHARED);
    let second = node.now;
    let text = serde_json::to_string(&node.engine.view().open_records(node.now)).unwrap();
    let mut next = Node::new();
    next.now = node.now + Duration::from_secs(60);
    next.engine
        .restore(serde_json::from_str(&text).unwrap(), Vec::new());
    let mut dump = snapshot(&[(1, &[SHARED])]);
    dump.links.push(uplink(9));
    dump.host = vec![(9, assigned(SHARED))];
    next.resync(dump);
    assert_eq!(since(&next), [(9, Some(first)), (1, Some(second))]);
    assert_eq!(newest(&next), [1]);
}

#[test]
fn last_report_survives_a_restart() {
    let (mut node, _) = with_known_order();
    let open = node.engine.view().conflicts(node.now).remove(0);
    let reported = Reported {
        latency_us: 47,
        digest: ConflictDigest::default(),
    };
    node.engine.set_reported(&open, reported.clone());
    // The record is made of the conflict as it was when it was raised.
    let record = node.engine.view().open_record(&open).unwrap();
    assert_eq!(record.conflict.reported, Some(reported.clone()));
    let next = restarted(&node, &[1, 2]);
    let open = next.engine.view().conflicts(next.now).remove(0);
    assert_eq!(next.engine.view().reported(&open), Some(&reported));
}

/// An IPv6 address with these flags is reported on a device whose namespace was read before.
fn reported(node: &mut Node, ifindex: IfIndex, [tentative, dad_failed]: [bool; 2]) {
    node.observe(Observation::PodAddress(
        peer(ifindex),
        AssignedAddress {
            tentative,
            dad_failed,
            no_dad: false,
            autoconfigured: false,
            ..assigned(SHARED6)
        },
    ));
}

const SHARED6: &str = "2001:db8::1";

#[test]
fn address_first_seen_after_detection_has_no_beginning() {
    for first_seen in [[false, true], [true, true], [false, false]] {
        let mut node = observed_node();
        appears(&mut node, 1);
        appears(&mut node, 2);
        reported(&mut node, 2, [true, false]);
        let second = node.now;
        // Another pod: this one may have had the address for long.
        reported(&mut node, 1, first_seen);
        assert_eq!(newest(&node), [0; 0], "{first_seen:?}");
        assert_eq!(since(&node), [(2, Some(second)), (1, None)]);
    }
}

#[test]
fn tentative_address_begins_when_it_is_reported() {
    let mut node = observed_node();
    appears(&mut node, 1);
    appears(&mut node, 2);
    reported(&mut node, 1, [false, false]);
    reported(&mut node, 2, [true, false]);
    let second = node.now;
    assert_eq!(since(&node), [(1, None), (2, Some(second))]);
    assert_eq!(newest(&node), [2]);
}

#[test]
fn failed_address_found_by_the_first_read_has_no_beginning() {
    let mut node = observed_node();
    appears(&mut node, 1);
    reported(&mut node, 1, [true, false]);
    node.pod(2);
    let token = node.begin_snapshot();
    let mut found = pod_addresses(2, &[]);
    found.addresses = Some(vec![AssignedAddress {
        dad_failed: true,
        ..assigned(SHARED6)
    }]);
    let snapshot = Snapshot {
        pods: vec![found],
        ..Snapshot::default()
    };
    node.finish_device_snapshot(token, 2, snapshot);
    let known: Vec<_> = since(&node)
        .into_iter()
        .map(|(i, at)| (i, at.is_some()))
        .collect();
    assert_eq!(known, [(1, true), (2, false)]);
}
