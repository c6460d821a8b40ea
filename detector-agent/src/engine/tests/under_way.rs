//! Readings that overlap, and how much may change while they are under way.

use super::*;
use crate::engine::in_flight_snapshots::{InFlightSnapshots, SnapshotOutcome, StateKey};

const FIRST: SnapshotToken = SnapshotToken(1);
const SECOND: SnapshotToken = SnapshotToken(2);

fn outdated(outcome: &SnapshotOutcome, key: StateKey) -> Option<bool> {
    match outcome {
        SnapshotOutcome::Usable(finished) => Some(finished.is_outdated(&key)),
        SnapshotOutcome::Superseded | SnapshotOutcome::Unusable => None,
    }
}

#[test]
fn what_changed_is_known_to_a_reading_though_an_earlier_one_failed() {
    let mut reads = InFlightSnapshots::default();
    reads.start(FIRST);
    reads.start(SECOND);
    reads.touch(StateKey::Link(1));
    reads.fail(FIRST);
    let done = reads.finish(SECOND, SnapshotScope::Node);
    assert_eq!(outdated(&done, StateKey::Link(1)), Some(true));
    assert_eq!(outdated(&done, StateKey::Link(2)), Some(false));
}

#[test]
fn a_devices_reading_supersedes_none_of_the_node() {
    let mut reads = InFlightSnapshots::default();
    reads.start(FIRST);
    reads.start(SECOND);
    reads.finish(SECOND, SnapshotScope::Device(1));
    let done = reads.finish(FIRST, SnapshotScope::Node);
    assert_eq!(outdated(&done, StateKey::Link(1)), Some(false));
}

#[test]
fn what_a_reading_can_follow_is_bounded_and_the_next_begins_with_nothing() {
    const MOST: u32 = 262_144;
    let mut reads = InFlightSnapshots::default();
    for (changes, usable) in [(MOST, true), (MOST + 1, false), (1, true)] {
        reads.start(FIRST);
        for ifindex in 0..changes {
            reads.touch(StateKey::Link(ifindex));
        }
        reads.touch(StateKey::Link(0));
        let done = reads.finish(FIRST, SnapshotScope::Node);
        assert_eq!(outdated(&done, StateKey::Link(0)), usable.then_some(true));
    }
}

#[test]
fn nothing_is_remembered_of_what_changed_while_no_reading_was_under_way_or_one_came_to_its_end() {
    const MOST: u32 = 262_144;
    let full = |reads: &mut InFlightSnapshots| {
        for ifindex in 0..MOST {
            reads.touch(StateKey::Link(ifindex));
        }
    };
    let ends: [&dyn Fn(&mut InFlightSnapshots); 4] = [
        &|reads| full(reads),
        &|reads| {
            reads.start(FIRST);
            full(reads);
            reads.fail(FIRST);
        },
        &|reads| {
            reads.start(FIRST);
            full(reads);
            reads.finish(FIRST, SnapshotScope::Device(1));
        },
        &|reads| {
            reads.start(FIRST);
            full(reads);
            reads.touch(StateKey::Link(MOST));
        },
    ];
    for end in ends {
        let mut reads = InFlightSnapshots::default();
        end(&mut reads);
        reads.start(SECOND);
        reads.touch(StateKey::Link(MOST));
        let done = reads.finish(SECOND, SnapshotScope::Node);
        assert_eq!(outdated(&done, StateKey::Link(MOST)), Some(true));
        assert_eq!(outdated(&done, StateKey::Link(0)), Some(false));
    }
}

#[test]
fn an_address_is_told_of_with_whatever_prefix_length() {
    for length in [0, 24, 128] {
        let mut reads = InFlightSnapshots::default();
        reads.start(FIRST);
        reads.touch(StateKey::PodAddress(peer(1), ip("10.0.0.1"), length));
        let SnapshotOutcome::Usable(done) = reads.finish(FIRST, SnapshotScope::Node) else {
            panic!("it was begun");
        };
        assert!(done.has_live_update(peer(1), ip("10.0.0.1")));
        assert!(!done.has_live_update(peer(1), ip("10.0.0.2")));
        assert!(!done.has_live_update(peer(2), ip("10.0.0.1")));
    }
}
