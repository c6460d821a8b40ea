//! What evidence shows: its times, what was said, and that nothing of it stays behind.

use super::*;
use crate::engine::facts::Owner;

fn shown(node: &Node, address: &str) -> Vec<Evidence> {
    let mut claims = node.engine.claims_of(ip(address), node.now);
    claims.swap_remove(0).claimant.evidence
}

#[test]
fn an_address_told_again_was_seen_then() {
    let mut node = Node::with_pods(1);
    node.link(uplink(9));
    node.address(1, "10.0.0.1");
    node.host(9, "10.0.0.1");
    let first = node.now;
    node.wait_secs(5);
    node.address(1, "10.0.0.1");
    node.host(9, "10.0.0.1");
    let open = node.engine.conflicts(node.now).remove(0);
    let [pod, host] = [0, 1].map(|n| open.claimants[n].evidence[0].clone());
    assert_eq!((host.first_seen, host.last_seen), (first, node.now));
    assert_eq!(pod.first_seen.0, first.0 - MS);
    assert_eq!(pod.last_seen.0, node.now.0 - MS);
}

#[test]
fn no_address_was_seen_before_the_device_it_is_on() {
    let mut node = Node::with_pods(1);
    let told = Observation::PodAddress(peer(1), assigned("10.0.0.1"));
    let since = node.now;
    node.tell_at(Timestamp(since.0 - 1), told);
    let seen = &shown(&node, "10.0.0.1")[0];
    assert_eq!((seen.first_seen, seen.last_seen), (since, since));
}

#[test]
fn frames_that_are_read_out_of_order_count_from_the_earliest() {
    let mut node = Node::with_pods(1);
    let since = node.now;
    node.wait_secs(1);
    node.frame(1, "10.0.0.1");
    let last = node.now;
    let early = Timestamp(since.0 + 7);
    node.tell_at(early, Observation::Frame(frame(1, "10.0.0.1")));
    let seen = &shown(&node, "10.0.0.1")[0];
    assert_eq!((seen.first_seen, seen.last_seen), (early, last));
}

#[test]
fn a_frame_of_the_moment_its_device_became_known_counts() {
    let mut node = Node::with_pods(1);
    node.tell_at(node.now, Observation::Frame(frame(1, "10.0.0.1")));
    assert_eq!(node.engine.addresses(), [ip("10.0.0.1")]);
    assert_eq!(node.engine.drop_counters().unknown_device, 0);
}

#[test]
fn who_sent_the_newest_frame_is_shown() {
    let mut node = Node::with_pods(1);
    node.frame(1, "10.0.0.1");
    node.tell(Observation::Frame(FrameClaim {
        ether_source: mac(9),
        ..frame(1, "10.0.0.1")
    }));
    let detail = shown(&node, "10.0.0.1").remove(0).detail;
    assert_eq!(detail.as_deref(), Some("sent by 02:00:00:00:00:09"));
}

#[test]
fn a_tagged_frame_from_before_the_untagged_address_was_removed_is_believed() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    let before = node.now;
    node.address_gone(1, "10.0.0.1");
    node.tell_at(before, tagged(1, "10.0.0.1"));
    node.tell(tagged(2, "10.0.0.1"));
    assert_eq!(
        node.said(),
        ["raised 10.0.0.1@5 duplicate observed: veth1 veth2"]
    );
}

#[test]
fn hardware_addresses_that_are_no_stations_are_no_claims() {
    let mut node = Node::with_pods(2);
    node.address(1, "10.0.0.1");
    for mac in [Mac::default(), Mac([1, 0, 0x5e, 0, 0, 1]), Mac([0xff; 6])] {
        node.neighbour(2, "10.0.0.1", mac, NudState::Permanent);
        assert!(node.said().is_empty(), "{mac}");
    }
    node.neighbour(2, "10.0.0.1", Mac([2, 1, 1, 1, 1, 1]), NudState::Permanent);
    assert_eq!(node.said().len(), 1);
}

#[test]
fn an_invalid_entry_is_none_whatever_hardware_address_it_still_gives() {
    let mut node = Node::with_pods(1);
    node.neighbour(1, "10.0.0.1", mac(1), NudState::Reachable);
    node.neighbour(1, "10.0.0.1", mac(1), NudState::Invalid);
    assert!(node.engine.addresses().is_empty());
}

#[test]
fn what_one_device_has_to_say_no_more_is_taken_off_its_own_share() {
    let mut node = Node::within(Bounds {
        claims_per_device: 2,
        ..Bounds::default()
    });
    node.pod(1);
    node.pod(2);
    node.frame(2, "10.0.0.1");
    node.frame(1, "10.0.0.1");
    node.frame(1, "10.0.0.2");
    node.address(1, "10.0.0.1");
    node.address_gone(1, "10.0.0.1");
    node.frame(1, "10.0.0.3");
    assert_eq!(node.engine.drop_counters().claims, 0);
    node.frame(1, "10.0.0.4");
    assert_eq!(node.engine.drop_counters().claims, 1);
}

#[test]
fn the_nodes_addresses_take_a_place_each_and_give_it_back() {
    let mut node = Node::within(Bounds {
        kernel_entries: 1,
        ..Bounds::default()
    });
    node.link(uplink(9));
    node.host(9, "10.0.0.1");
    node.host(9, "10.0.0.1");
    assert_eq!(node.engine.drop_counters().kernel_entries, 0);
    node.host(9, "10.0.0.2");
    assert_eq!(node.engine.drop_counters().kernel_entries, 1);
    assert_eq!(node.engine.address_count(), 1, "nothing of it is kept");
    node.host_gone(9, "10.0.0.1");
    node.host(9, "10.0.0.2");
    assert_eq!(node.engine.drop_counters().kernel_entries, 1);
}

#[test]
fn a_device_is_listed_for_no_address_it_says_nothing_of() {
    let mut node = Node::with_pods(2);
    node.frame(1, "10.0.0.1");
    node.host(1, "10.0.0.2");
    node.neighbour(1, "10.0.0.3", mac(1), NudState::Reachable);
    for last in 1..=3 {
        node.frame(2, &format!("10.0.0.{last}"));
    }
    let listed = |node: &Node| node.engine.facts().owned_by(Owner::Link(1)).len();
    assert_eq!(listed(&node), 3);
    node.host_gone(1, "10.0.0.2");
    assert_eq!(listed(&node), 2);
    node.neighbour_gone(1, "10.0.0.3");
    assert_eq!(listed(&node), 1);
    node.wait_secs(601);
    assert_eq!(listed(&node), 0);
}

#[test]
fn what_is_not_shared_by_many_plans_no_look() {
    let mut node = Node::with_pods(1);
    node.address(1, "10.0.0.1");
    node.neighbour(1, "10.0.0.1", mac(1), NudState::Reachable);
    assert_eq!(node.engine.next_expiry(), None);
}

#[test]
fn an_entry_told_again_was_seen_then() {
    let mut node = Node::with_pods(1);
    node.neighbour(1, "10.0.0.1", mac(1), NudState::Reachable);
    let first = node.now;
    node.wait_secs(5);
    node.neighbour(1, "10.0.0.1", mac(1), NudState::Reachable);
    let seen = &shown(&node, "10.0.0.1")[0];
    assert_eq!((seen.first_seen, seen.last_seen), (first, node.now));
}

#[test]
fn entries_of_all_devices_share_one_bound_and_give_their_places_back() {
    let mut node = Node::within(Bounds {
        kernel_entries: 1,
        ..Bounds::default()
    });
    node.pod(1);
    node.pod(2);
    node.neighbour(1, "10.0.0.1", mac(1), NudState::Reachable);
    node.neighbour(2, "10.0.0.2", mac(2), NudState::Reachable);
    assert_eq!(node.engine.drop_counters().kernel_entries, 1);
    node.neighbour_gone(1, "10.0.0.1");
    node.neighbour(2, "10.0.0.2", mac(2), NudState::Reachable);
    assert_eq!(node.engine.drop_counters().kernel_entries, 1);
}

#[test]
fn a_frame_of_the_moment_its_address_was_removed_is_not_believed() {
    let mut node = Node::with_pods(1);
    node.address(1, "10.0.0.1");
    node.address_gone(1, "10.0.0.1");
    node.tell_at(node.now, Observation::Frame(frame(1, "10.0.0.1")));
    assert!(node.engine.addresses().is_empty());
}
