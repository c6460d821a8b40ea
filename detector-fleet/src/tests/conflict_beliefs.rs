//! What counts as news of an `IPConflict`, and the form in which one is used and written.

use detector_engine::{Confidence, ConflictId, ConflictScope, LeaveReason};
use detector_event::WallTime;

use super::super::{
    Stored, Version,
    conflict::{ConflictBelief, claimant, completed, new, sanitized},
    objects::{ConflictClaimant, ConflictSpec, ConflictState, Party},
};
use super::agent::address;

fn of(node: &str) -> ConflictClaimant {
    ConflictClaimant {
        party: Party {
            node: node.to_owned(),
            ..Party::default()
        },
        ..ConflictClaimant::default()
    }
}

fn conflict(claimants: Vec<ConflictClaimant>) -> ConflictSpec {
    ConflictSpec {
        claimants,
        ..new(address(), ConflictId(7))
    }
}

fn stored(uid: &str, number: u32) -> Stored<ConflictSpec> {
    Stored {
        version: Version {
            uid: uid.to_owned(),
            resource_version: number.to_string(),
        },
        spec: conflict(vec![of("a"), of("b")]),
    }
}

fn wall(seconds: i64) -> Option<WallTime> {
    WallTime::from_unix_nanos(seconds * 1_000_000_000)
}

#[test]
fn only_a_later_version_is_news() {
    let mut belief = ConflictBelief::default();
    assert!(belief.watched(stored("1", 9), 0));
    assert!(!belief.watched(stored("1", 9), 0));
    assert!(!belief.watched(stored("1", 8), 0));
    assert!(belief.watched(stored("1", 10), 0));
}

#[test]
fn events_of_an_object_that_was_deleted_are_no_news() {
    let mut belief = ConflictBelief::default();
    belief.watched(stored("1", 9), 0);
    assert!(belief.gone(Some("1")));
    assert!(!belief.watched(stored("1", 10), 0));
    assert_eq!(belief.spec(), None);
    assert!(belief.watched(stored("2", 11), 0));
}

#[test]
fn deletion_of_an_earlier_object_is_no_news() {
    let mut belief = ConflictBelief::default();
    belief.watched(stored("2", 9), 0);
    assert!(!belief.gone(Some("1")));
    assert!(belief.spec().is_some());
}

#[test]
fn only_what_is_older_than_the_end_of_the_watch_is_outdated() {
    let version = |uid: &str, number| stored(uid, number).version;
    let mut belief = ConflictBelief::default();
    belief.watched(stored("1", 9), 0);
    // Of an earlier state, and of another object.
    belief.unwatched(version("1", 8));
    belief.unwatched(version("2", 12));
    assert!(belief.spec().is_some());
    belief.unwatched(version("1", 12));
    assert_eq!(belief.spec(), None);
    assert!(!belief.watched(stored("1", 11), 0));
    belief.is_stale = true;
    belief.answered(stored("1", 11), 0);
    assert!(
        belief.is_stale && belief.spec().is_none(),
        "it is read again"
    );
    // The object is still there, and does not name this node.
    belief.answered(stored("1", 12), 0);
    assert!(!belief.is_stale && belief.spec().is_some());
    assert!(belief.watched(stored("1", 13), 0));
}

#[test]
fn conflict_within_a_node_is_not_used() {
    let mut local = stored("1", 9);
    local.spec.scope = ConflictScope::Node;
    assert_eq!(sanitized(local, &address()), None);
}

#[test]
fn node_that_is_listed_twice_counts_once() {
    let mut twice = stored("1", 9);
    let mut second = of("a");
    second.active = true;
    twice.spec.claimants = vec![of("a"), of("b"), second];
    let claimants = sanitized(twice, &address()).unwrap().spec.claimants;
    assert_eq!(claimants, [of("a"), of("b")]);
}

#[test]
fn time_of_raising_stays_until_nobody_is_active() {
    let mut active = of("b");
    active.active = true;
    let spec = completed(conflict(vec![of("a"), active]), wall(1));
    assert_eq!(
        (spec.state, spec.raised_at),
        (ConflictState::Active, wall(1))
    );
    let mut spec = completed(spec, wall(2));
    assert_eq!(spec.raised_at, wall(1));
    spec.claimants[1].active = false;
    let spec = completed(spec, wall(3));
    assert_eq!(
        (spec.state, spec.raised_at),
        (ConflictState::Suspected, None)
    );
}

#[test]
fn only_an_answered_question_makes_a_conflict_certain() {
    let confidence = |asked, confirmed| {
        let mut active = of("b");
        (active.active, active.asked, active.confirmed) = (true, asked, confirmed);
        completed(conflict(vec![of("a"), active]), wall(1)).confidence
    };
    assert_eq!(confidence(0, 0), Confidence::Observed);
    assert_eq!(confidence(2, 1), Confidence::Observed);
    assert_eq!(confidence(2, 2), Confidence::Certain);
}

#[test]
fn one_that_has_left_is_no_claimant() {
    let mut left = of("b");
    left.left = Some(LeaveReason::Expired);
    let spec = conflict(vec![of("a"), left]);
    assert!(claimant(&spec, "a").is_some());
    assert!(claimant(&spec, "b").is_none());
}
