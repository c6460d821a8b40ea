//! Readings that overlap, and how much may change while they are under way.

use super::*;
use crate::engine::in_flight_snapshots::{Key, Outcome, Reads};

const FIRST: SnapshotToken = SnapshotToken(1);
const SECOND: SnapshotToken = SnapshotToken(2);

fn outdated(outcome: &Outcome, key: Key) -> Option<bool> {
    match outcome {
        Outcome::Usable(finished) => Some(finished.outdated(&key)),
        Outcome::Superseded | Outcome::Unusable => None,
    }
}

#[test]
fn what_changed_is_known_to_a_reading_though_an_earlier_one_failed() {
    let mut reads = Reads::default();
    reads.begin(FIRST);
    reads.begin(SECOND);
    reads.touch(Key::Link(1));
    reads.fail(FIRST);
    let done = reads.finish(SECOND, SnapshotScope::Node);
    assert_eq!(outdated(&done, Key::Link(1)), Some(true));
    assert_eq!(outdated(&done, Key::Link(2)), Some(false));
}

#[test]
fn a_devices_reading_supersedes_none_of_the_node() {
    let mut reads = Reads::default();
    reads.begin(FIRST);
    reads.begin(SECOND);
    reads.finish(SECOND, SnapshotScope::Device(1));
    let done = reads.finish(FIRST, SnapshotScope::Node);
    assert_eq!(outdated(&done, Key::Link(1)), Some(false));
}

#[test]
fn what_a_reading_can_follow_is_bounded_and_the_next_begins_with_nothing() {
    const MOST: u32 = 262_144;
    let mut reads = Reads::default();
    for (changes, usable) in [(MOST, true), (MOST + 1, false), (1, true)] {
        reads.begin(FIRST);
        for ifindex in 0..changes {
            reads.touch(Key::Link(ifindex));
        }
        reads.touch(Key::Link(0));
        let done = reads.finish(FIRST, SnapshotScope::Node);
        assert_eq!(outdated(&done, Key::Link(0)), usable.then_some(true));
    }
}

#[test]
fn nothing_is_remembered_of_what_changed_while_no_reading_was_under_way_or_one_came_to_its_end() {
    const MOST: u32 = 262_144;
    let full = |reads: &mut Reads| {
        for ifindex in 0..MOST {
            reads.touch(Key::Link(ifindex));
        }
    };
    let ends: [&dyn Fn(&mut Reads); 4] = [
        &|reads| full(reads),
        &|reads| {
            reads.begin(FIRST);
            full(reads);
            reads.fail(FIRST);
        },
        &|reads| {
            reads.begin(FIRST);
            full(reads);
            reads.finish(FIRST, SnapshotScope::Device(1));
        },
        &|reads| {
            reads.begin(FIRST);
            full(reads);
            reads.touch(Key::Link(MOST));
        },
    ];
    for end in ends {
        let mut reads = Reads::default();
        end(&mut reads);
        reads.begin(SECOND);
        reads.touch(Key::Link(MOST));
        let done = reads.finish(SECOND, SnapshotScope::Node);
        assert_eq!(outdated(&done, Key::Link(MOST)), Some(true));
        assert_eq!(outdated(&done, Key::Link(0)), Some(false));
    }
}

#[test]
fn an_address_is_told_of_with_whatever_prefix_length() {
    for length in [0, 24, 128] {
        let mut reads = Reads::default();
        reads.begin(FIRST);
        reads.touch(Key::Pod(peer(1), ip("10.0.0.1"), length));
        let Outcome::Usable(done) = reads.finish(FIRST, SnapshotScope::Node) else {
            panic!("it was begun");
        };
        assert!(done.told_of(peer(1), ip("10.0.0.1")));
        assert!(!done.told_of(peer(1), ip("10.0.0.2")));
        assert!(!done.told_of(peer(2), ip("10.0.0.1")));
    }
}
