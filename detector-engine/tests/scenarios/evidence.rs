//! Evidence: its times and details, and that it leaves no state behind.

use super::*;

fn evidence_of(node: &Node, address: &str) -> Vec<Evidence> {
    let mut claims = node.engine.view().claims_of(ip(address), node.now);
    claims.swap_remove(0).claimant.evidence
}

#[test]
fn repeated_address_update_refreshes_last_seen() {
    let mut node = Node::with_pods(1);
    node.link(uplink(9));
    node.address(1, "10.0.0.1");
    node.host(9, "10.0.0.1");
    let first = node.now;
    node.wait_secs(5);
    node.address(1, "10.0.0.1");
    node.host(9, "10.0.0.1");
    let open = node.engine.view().conflicts(node.now).remove(0);
    let [pod, host] = [0, 1].map(|n| open.claimants[n].evidence[0].clone());
    assert_eq!((host.seen.first, host.seen.last), (first, node.now));
    assert_eq!(pod.seen.first.0, first.0 - MS);
    assert_eq!(pod.seen.last.0, node.now.0 - MS);
}

#[test]
fn address_is_never_older_than_its_device() {
    let mut node = Node::with_pods(1);
    let address = Observation::PodAddress(peer(1), assigned("10.0.0.1"));
    let since = node.now;
    node.observe_at(Timestamp(since.0 - 1), address);
    let evidence = &evidence_of(&node, "10.0.0.1")[0];
    assert_eq!((evidence.seen.first, evidence.seen.last), (since, since));
}

#[test]
fn out_of_order_frames_count_from_the_earliest() {
    let mut node = Node::with_pods(1);
    let since = node.now;
    node.wait_secs(1);
    node.frame(1, "10.0.0.1");
    let last = node.now;
    let early = Timestamp(since.0 + 7);
    node.observe_at(early, Observation::Frame(frame(1, "10.0.0.1")));
    let evidence = &evidence_of(&node, "10.0.0.1")[0];
    assert_eq!((evidence.seen.first, evidence.seen.last), (early, last));
}

#[test]
fn frame_at_the_time_its_device_appears_counts() {
    let mut node = Node::with_pods(1);
    node.observe_at(node.now, Observation::Frame(frame(1, "10.0.0.1")));
    assert_eq!(node.engine.view().addresses(), [ip("10.0.0.1")]);
    assert_eq!(node.engine.view().drop_counters().unknown_device, 0);
}

#[test]
fn sender_of_the_newest_frame_is_shown() {
    let mut node = Node::with_pods(1);
    node.frame(1, "10.0.0.1");
    node.observe(Observation::Frame(FrameClaim {
        ether_source: mac(9),
        ..frame(1, "10.0.0.1")
    }));
    let detail = evidence_of(&node, "10.0.0.1").remove(0).detail;
    assert_eq!(detail.unwrap().to_string(), "sent by 02:00:00:00:00:09");
}

#[test]
fn untagged_removal_does_not_reject_older_tagged_frames() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    let before = node.now;
    node.address_gone(1, "10.0.0.1");
    node.observe_at(before, tagged(1, "10.0.0.1"));
    node.observe(tagged(2, "10.0.0.1"));
    node.expect(["raised 10.0.0.1@5 duplicate observed: veth1 veth2"]);
}

#[test]
fn non_station_macs_are_not_claims() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    for mac in [Mac::default(), Mac([1, 0, 0x5e, 0, 0, 1]), Mac([0xff; 6])] {
        node.neighbour(2, "10.0.0.1", mac, NudState::Permanent);
        assert!(node.conflict_events().is_empty(), "{mac}");
    }
    node.neighbour(2, "10.0.0.1", Mac([2, 1, 1, 1, 1, 1]), NudState::Permanent);
    assert_eq!(node.conflict_events().len(), 1);
}

#[test]
fn withdrawn_claims_free_the_devices_own_share() {
    let mut node = Node::with_bounds(Bounds {
        claims_per_device: 2,
        ..Bounds::default()
    });
    node.pod(1);
    node.pod(2);
    node.frames([2, 1], "10.0.0.1");
    node.frame(1, "10.0.0.2");
    node.address(1, "10.0.0.1");
    node.address_gone(1, "10.0.0.1");
    node.frame(1, "10.0.0.3");
    assert_eq!(node.engine.view().drop_counters().claims, 0);
    node.frame(1, "10.0.0.4");
    assert_eq!(node.engine.view().drop_counters().claims, 1);
}

#[test]
fn host_addresses_are_bounded_and_free_their_place() {
    let mut node = Node::with_bounds(Bounds {
        kernel_entries: 1,
        ..Bounds::default()
    });
    node.link(uplink(9));
    node.host(9, "10.0.0.1");
    node.host(9, "10.0.0.1");
    assert_eq!(node.engine.view().drop_counters().kernel_entries, 0);
    node.host(9, "10.0.0.2");
    assert_eq!(node.engine.view().drop_counters().kernel_entries, 1);
    assert_eq!(
        node.engine.view().addresses().len(),
        1,
        "a refused address leaves no state"
    );
    node.host_gone(9, "10.0.0.1");
    node.host(9, "10.0.0.2");
    assert_eq!(node.engine.view().drop_counters().kernel_entries, 1);
}

#[test]
fn device_owns_only_addresses_it_has_evidence_for() {
    let mut node = Node::with_pods(2);
    let generation = node.engine.view().device(1).unwrap().generation;
    node.frame(1, "10.0.0.1");
    node.host(1, "10.0.0.2");
    node.neighbour(1, "10.0.0.3", mac(1), NudState::Reachable);
    for last in 1..=3 {
        node.frame(2, &format!("10.0.0.{last}"));
    }
    let listed = |node: &Node| node.engine.view().addresses_on((1, generation)).count();
    assert_eq!(listed(&node), 3);
    node.host_gone(1, "10.0.0.2");
    assert_eq!(listed(&node), 2);
    node.neighbour_gone(1, "10.0.0.3");
    assert_eq!(listed(&node), 1);
    node.wait_secs(601);
    assert_eq!(listed(&node), 0);
}

#[test]
fn uncontested_address_schedules_no_expiry() {
    let mut node = Node::with_pods(1);
    node.address(1, "10.0.0.1");
    node.neighbour(1, "10.0.0.1", mac(1), NudState::Reachable);
    assert_eq!(node.engine.next_deadline(), None);
}

#[test]
fn repeated_entry_update_refreshes_last_seen() {
    let mut node = Node::with_pods(1);
    node.neighbour(1, "10.0.0.1", mac(1), NudState::Reachable);
    let first = node.now;
    node.wait_secs(5);
    node.neighbour(1, "10.0.0.1", mac(1), NudState::Reachable);
    let evidence = &evidence_of(&node, "10.0.0.1")[0];
    assert_eq!((evidence.seen.first, evidence.seen.last), (first, node.now));
}

#[test]
fn entries_of_all_devices_share_one_bound() {
    let mut node = Node::with_bounds(Bounds {
        kernel_entries: 1,
        ..Bounds::default()
    });
    node.pod(1);
    node.pod(2);
    node.neighbour(1, "10.0.0.1", mac(1), NudState::Reachable);
    node.neighbour(2, "10.0.0.2", mac(2), NudState::Reachable);
    assert_eq!(node.engine.view().drop_counters().kernel_entries, 1);
    node.neighbour_gone(1, "10.0.0.1");
    node.neighbour(2, "10.0.0.2", mac(2), NudState::Reachable);
    assert_eq!(node.engine.view().drop_counters().kernel_entries, 1);
}

#[test]
fn frame_at_the_time_of_address_removal_is_ignored() {
    let mut node = Node::with_pods(1);
    node.address(1, "10.0.0.1");
    node.address_gone(1, "10.0.0.1");
    node.observe_at(node.now, Observation::Frame(frame(1, "10.0.0.1")));
    assert!(node.engine.view().addresses().is_empty());
}

/// The kernel programs publish a claim once within 30 seconds: they take one that has ended for known.
#[test]
fn claim_that_ended_with_its_address_is_published_again() {
    let mut node = Node::with_pods(2);
    node.addresses([1, 2], "10.0.0.1");
    node.frame(1, "10.0.0.1");
    node.neighbour(1, "10.0.0.1", mac(1), NudState::Stale);
    let published_again = |node: &mut Node| match node.engine.take_claimed_update() {
        Some(ClaimedUpdate::Changed(entries)) => entries.into_iter().map(|(a, _)| a).collect(),
        other => {
            assert_eq!(other, None);
            Vec::new()
        }
    };
    assert_eq!(published_again(&mut node), [ip("10.0.0.1")]);
    node.frame(1, "10.0.0.1");
    assert!(published_again(&mut node).is_empty());
    let before = node.now;
    node.address_gone(1, "10.0.0.1");
    assert_eq!(published_again(&mut node), [ip("10.0.0.1")]);
    // Sent before the removal, and processed after it.
    node.observe_at(before, Observation::Frame(frame(1, "10.0.0.1")));
    assert_eq!(published_again(&mut node), [ip("10.0.0.1")]);
    let claims = node.engine.view().claims_of(ip("10.0.0.1"), node.now);
    assert!(claims.iter().all(|claim| claim.claimant.ifindex == 2));
}
