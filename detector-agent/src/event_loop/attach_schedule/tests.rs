//! Explicit times; every device is on one node.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use crate::engine::{AssignedAddress, Mac};

const START: Timestamp = Timestamp(1_000_000_000);

fn after(millis: u64) -> Timestamp {
    START + Duration::from_millis(millis)
}

fn peer(ifindex: IfIndex) -> Peer {
    Peer {
        nsid: i32::try_from(ifindex).unwrap(),
        ifindex: 2,
    }
}

fn without_peer(ifindex: IfIndex) -> PodDevice {
    PodDevice {
        ifindex,
        generation: 1,
        name: format!("veth{ifindex}"),
        alias: None,
        peer: None,
    }
}

fn device(ifindex: IfIndex) -> PodDevice {
    PodDevice {
        peer: Some(peer(ifindex)),
        ..without_peer(ifindex)
    }
}

fn assigned(address: &str) -> AssignedAddress {
    AssignedAddress {
        address: address.parse().unwrap(),
        prefix_len: 32,
        other_end: None,
        tentative: false,
        dad_failed: false,
        no_dad: false,
        autoconfigured: false,
    }
}

/// What is attached to, with the time in milliseconds at which it is, if the schedule is asked when it wants to be, until `end`.
fn attached(schedule: &mut AttachSchedule, end: Timestamp) -> Vec<(u64, PodDevice)> {
    let mut attached = Vec::new();
    while let Some(at) = schedule.next_due().filter(|at| *at <= end) {
        let millis = u64::try_from(at.since(START).as_millis()).unwrap();
        let due = schedule.take_due(at).into_iter();
        attached.extend(due.map(|device| (millis, device)));
    }
    attached
}

#[test]
fn new_device_is_attached_once_it_was_quiet() {
    let mut schedule = AttachSchedule::default();
    schedule.insert(without_peer(7), START);
    schedule.insert(device(7), after(1));
    schedule.observe(
        &Observation::PodAddress(peer(7), assigned("10.0.0.1")),
        after(2),
    );
    schedule.observe(
        &Observation::HostAddress(7, assigned("10.0.0.254")),
        after(5),
    );
    assert_eq!(attached(&mut schedule, after(24)), []);
    assert!(schedule.contains(7));
    assert_eq!(attached(&mut schedule, after(1_000)), [(25, device(7))]);
    assert!(schedule.is_empty() && schedule.next_due().is_none() && schedule.by_peer.is_empty());
}

#[test]
fn device_that_keeps_changing_is_attached_within_the_bound() {
    let mut schedule = AttachSchedule::default();
    schedule.insert(device(7), START);
    let mut done = Vec::new();
    for millis in 1..=400 {
        let change = Observation::PodAddress(peer(7), assigned("10.0.0.1"));
        schedule.observe(&change, after(millis));
        // A changed name does not begin the wait again.
        if schedule.contains(7) && millis % 7 == 0 {
            schedule.insert(device(7), after(millis));
        }
        done.extend(attached(&mut schedule, after(millis)));
    }
    assert_eq!(done, [(200, device(7))]);
}

#[test]
fn changes_of_one_device_do_not_delay_another() {
    let mut schedule = AttachSchedule::default();
    schedule.insert(without_peer(7), START);
    schedule.insert(device(8), START);
    for millis in 1..=20 {
        let change = Observation::PodAddress(peer(8), assigned("10.0.0.1"));
        schedule.observe(&change, after(millis));
    }
    let due = [(20, without_peer(7))];
    assert_eq!(attached(&mut schedule, after(20)), due);
    assert!(schedule.contains(8));
}

#[test]
fn device_waits_while_its_other_end_changes() {
    let mut schedule = AttachSchedule::default();
    schedule.insert(device(7), START);
    let up = Observation::PodLink(peer(7), Mac([2; 6]));
    schedule.observe(&up, after(15));
    let attached = attached(&mut schedule, after(1_000));
    assert_eq!(attached.last(), Some(&(35, device(7))));
}

#[test]
fn removed_device_leaves_nothing() {
    let mut schedule = AttachSchedule::default();
    schedule.insert(device(7), START);
    assert_eq!(schedule.remove(7), Some(device(7)));
    assert_eq!(schedule.remove(7), None);
    assert!(schedule.is_empty() && schedule.next_due().is_none() && schedule.by_peer.is_empty());
    assert_eq!(schedule.next_due(), None);
}

#[test]
fn device_that_takes_over_an_index_waits_no_longer() {
    let mut schedule = AttachSchedule::default();
    schedule.insert(device(7), START);
    let next = PodDevice {
        generation: 2,
        peer: Some(peer(9)),
        ..device(7)
    };
    schedule.insert(next.clone(), after(190));
    let attached = attached(&mut schedule, after(1_000));
    assert_eq!(attached.last(), Some(&(200, next)));
    assert!(schedule.by_peer.is_empty());
}

#[test]
fn peer_that_moved_to_another_device_is_followed_there() {
    let mut schedule = AttachSchedule::default();
    schedule.insert(device(7), START);
    let taker = PodDevice {
        peer: Some(peer(7)),
        ..without_peer(8)
    };
    schedule.insert(taker.clone(), START);
    schedule.remove(7);
    let gone = assigned("10.0.0.1").id();
    schedule.observe(&Observation::PodAddressGone(peer(7), gone), after(15));
    assert_eq!(
        attached(&mut schedule, after(1_000)).last(),
        Some(&(35, taker))
    );
}
