//! Overlapping snapshots, and the bound on updates recorded while they are in flight.

#![allow(clippy::panic, reason = "a test that cannot continue fails")]

use super::*;
use crate::model::AssignedAddress;

/// A table row: its label, and what happens to the snapshots in flight.
type SnapshotsCase<'a> = (&'a str, &'a dyn Fn(&mut InFlightSnapshots));

const FIRST: SnapshotToken = SnapshotToken(1);
const SECOND: SnapshotToken = SnapshotToken(2);

const PEER: Peer = Peer {
    nsid: 1,
    ifindex: 2,
};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}

/// The assignment of 10.0.0.1 with this prefix length.
fn assignment(prefix_len: u8) -> AssignmentId {
    let info = AssignedAddress {
        address: ip("10.0.0.1"),
        prefix_len,
        other_end: None,
        tentative: false,
        dad_failed: false,
        no_dad: true,
        autoconfigured: false,
    };
    info.id()
}

fn is_outdated(outcome: &SnapshotOutcome, key: StateKey) -> Option<bool> {
    match outcome {
        SnapshotOutcome::Usable(finished) => Some(finished.is_outdated(&key)),
        SnapshotOutcome::Superseded | SnapshotOutcome::Unusable => None,
    }
}

#[test]
fn failed_snapshot_keeps_updates_for_later_ones() {
    let mut snapshots = InFlightSnapshots::default();
    snapshots.start(FIRST, false);
    snapshots.start(SECOND, false);
    snapshots.touch(StateKey::Link(1));
    snapshots.fail(FIRST);
    let done = snapshots.finish(SECOND, SnapshotScope::Node);
    assert_eq!(is_outdated(&done, StateKey::Link(1)), Some(true));
    assert_eq!(is_outdated(&done, StateKey::Link(2)), Some(false));
}

/// The record is not copied: the one that is merged holds it meanwhile.
#[test]
fn merged_snapshot_leaves_the_record_to_those_in_flight() {
    let mut snapshots = InFlightSnapshots::default();
    snapshots.start(FIRST, false);
    snapshots.touch(StateKey::Link(1));
    snapshots.start(SECOND, false);
    snapshots.touch(StateKey::Link(2));
    let SnapshotOutcome::Usable(first) = snapshots.finish(FIRST, SnapshotScope::Device(1)) else {
        panic!("the snapshot was started");
    };
    assert!(first.is_outdated(&StateKey::Link(1)));
    snapshots.touch(StateKey::Link(3));
    snapshots.merged(first);
    let second = snapshots.finish(SECOND, SnapshotScope::Device(2));
    for (ifindex, outdated) in [(1, false), (2, true), (3, true), (4, false)] {
        let key = StateKey::Link(ifindex);
        assert_eq!(is_outdated(&second, key), Some(outdated), "{ifindex}");
    }
}

#[test]
fn device_snapshot_does_not_supersede_a_node_snapshot() {
    let mut snapshots = InFlightSnapshots::default();
    snapshots.start(FIRST, false);
    snapshots.start(SECOND, false);
    snapshots.finish(SECOND, SnapshotScope::Device(1));
    let done = snapshots.finish(FIRST, SnapshotScope::Node);
    assert_eq!(is_outdated(&done, StateKey::Link(1)), Some(false));
}

#[test]
fn recorded_updates_are_bounded_per_snapshot() {
    const MAX: u32 = 262_144;
    let mut snapshots = InFlightSnapshots::default();
    for (changes, usable) in [(MAX, true), (MAX + 1, false), (1, true)] {
        snapshots.start(FIRST, false);
        for ifindex in 0..changes {
            snapshots.touch(StateKey::Link(ifindex));
        }
        snapshots.touch(StateKey::Link(0));
        let done = snapshots.finish(FIRST, SnapshotScope::Node);
        assert_eq!(
            is_outdated(&done, StateKey::Link(0)),
            usable.then_some(true),
            "{changes} changes"
        );
    }
}

#[test]
fn updates_outside_a_snapshot_are_not_kept() {
    const MAX: u32 = 262_144;
    let fill = |snapshots: &mut InFlightSnapshots| {
        for ifindex in 0..MAX {
            snapshots.touch(StateKey::Link(ifindex));
        }
    };
    let cases: [SnapshotsCase; 4] = [
        ("none in flight", &|snapshots| fill(snapshots)),
        ("failed", &|snapshots| {
            snapshots.start(FIRST, false);
            fill(snapshots);
            snapshots.fail(FIRST);
        }),
        ("device finished", &|snapshots| {
            snapshots.start(FIRST, false);
            fill(snapshots);
            snapshots.finish(FIRST, SnapshotScope::Device(1));
        }),
        ("overflowed", &|snapshots| {
            snapshots.start(FIRST, false);
            fill(snapshots);
            snapshots.touch(StateKey::Link(MAX));
        }),
    ];
    for (case, run) in cases {
        let mut snapshots = InFlightSnapshots::default();
        run(&mut snapshots);
        snapshots.start(SECOND, false);
        snapshots.touch(StateKey::Link(MAX));
        let done = snapshots.finish(SECOND, SnapshotScope::Node);
        assert_eq!(
            is_outdated(&done, StateKey::Link(MAX)),
            Some(true),
            "{case}"
        );
        assert_eq!(is_outdated(&done, StateKey::Link(0)), Some(false), "{case}");
    }
}

#[test]
fn assignments_of_an_address_are_touched_each() {
    for prefix_len in [0, 24, 32] {
        let id = assignment(prefix_len);
        let mut snapshots = InFlightSnapshots::default();
        snapshots.start(FIRST, false);
        snapshots.touch(StateKey::Assignment(Owner::Peer(PEER), id));
        snapshots.touch(StateKey::Address(Owner::Peer(PEER), ip("10.0.0.1")));
        snapshots.touch(StateKey::Assignment(Owner::Link(9), id));
        snapshots.touch(StateKey::Address(Owner::Link(9), ip("10.0.0.1")));
        let SnapshotOutcome::Usable(done) = snapshots.finish(FIRST, SnapshotScope::Node) else {
            panic!("/{prefix_len}: the snapshot was started");
        };
        let other = assignment(8);
        let other_peer = Peer { nsid: 2, ..PEER };
        for (key, outdated) in [
            (StateKey::Assignment(Owner::Peer(PEER), id), true),
            (StateKey::Assignment(Owner::Peer(PEER), other), false),
            (StateKey::Address(Owner::Peer(PEER), ip("10.0.0.1")), true),
            (StateKey::Address(Owner::Peer(PEER), ip("10.0.0.2")), false),
            (
                StateKey::Address(Owner::Peer(other_peer), ip("10.0.0.1")),
                false,
            ),
            (StateKey::Assignment(Owner::Link(9), id), true),
            (StateKey::Assignment(Owner::Link(9), other), false),
            (StateKey::Address(Owner::Link(9), ip("10.0.0.1")), true),
            (StateKey::Address(Owner::Link(8), ip("10.0.0.1")), false),
        ] {
            assert_eq!(done.is_outdated(&key), outdated, "/{prefix_len} {key:?}");
        }
    }
}
