//! A conflict that was reported is kept as resolved when it ends, and is none any more for the agents.

use std::time::Duration;

use detector_engine::LeaveReason;

use super::{
    super::Request,
    agent::{Agent, address, asked, set_node},
    server::Server,
};
use crate::objects::{ConflictSpec, ConflictState};

/// `a` holds the claim, and `b` has reported the conflict.
fn reported() -> (Server, Agent, Agent) {
    let (mut server, mut a, mut b) = asked("web", "cart");
    a.run(&mut server);
    b.run(&mut server);
    a.run(&mut server);
    assert_eq!(stored(&server).state, ConflictState::Active);
    a.reports();
    b.reports();
    (server, a, b)
}

fn stored(server: &Server) -> &ConflictSpec {
    &server.conflicts[&address().object_name()].spec
}

/// The nodes of a resolved conflict, and why they left.
fn resolved(server: &Server) -> Vec<(&str, Option<LeaveReason>)> {
    let spec = stored(server);
    assert!(spec.is_resolved(), "{spec:?}");
    assert!(spec.raised_at.is_some() && spec.resolved_at.is_some());
    let claimants = spec.claimants.iter();
    claimants.map(|c| (&*c.party.node, c.left)).collect()
}

const REMOVED: Option<LeaveReason> = Some(LeaveReason::AddressRemoved);
const EXPIRED: Option<LeaveReason> = Some(LeaveReason::Expired);

#[test]
fn contender_that_leaves_keeps_the_conflict() {
    let (mut server, mut a, mut b) = reported();
    b.release(address());
    b.run(&mut server);
    assert_eq!(resolved(&server), [("a", None), ("b", REMOVED)]);
    // Nothing is left to do for either.
    assert_eq!(b.run(&mut server), []);
    a.run(&mut server);
    assert_eq!(resolved(&server).len(), 2);
    assert!(b.journal.is_empty());
    assert_eq!(
        [a, b].map(|agent| agent.protocol.counts().conflicts),
        [0; 2]
    );
}

#[test]
fn contender_that_becomes_the_holder_keeps_the_conflict() {
    let (mut server, mut a, mut b) = reported();
    a.release(address());
    a.run(&mut server);
    b.run(&mut server);
    assert_eq!(resolved(&server), [("b", None), ("a", REMOVED)]);
    assert!(b.reports().iter().any(|report| report.is_resolved));
}

#[test]
fn holder_keeps_the_conflict_with_a_node_that_is_gone() {
    let (mut server, mut a, _b) = reported();
    set_node(&mut server, "b", 1, true);
    a.run_for(&mut server, Duration::from_secs(120));
    assert_eq!(resolved(&server), [("a", None), ("b", EXPIRED)]);
}

#[test]
fn conflict_that_was_never_active_is_not_kept() {
    let (mut server, _a, mut b) = asked("web", "cart");
    b.release(address());
    b.run(&mut server);
    assert!(server.conflicts.is_empty());
}

#[test]
fn without_room_a_conflict_is_deleted_at_its_end() {
    let (mut server, _a, mut b) = reported();
    b.protocol.keep_resolved(false);
    b.release(address());
    b.run(&mut server);
    assert!(server.conflicts.is_empty());
}

#[test]
fn address_that_conflicts_again_has_another_conflict() {
    for is_known in [true, false] {
        let (mut server, mut a, mut b) = reported();
        let before = stored(&server).conflict_id;
        b.release(address());
        b.run(&mut server);
        a.run(&mut server);
        b.reports();
        if !is_known {
            b = Agent::new("b");
        }
        b.claim(address(), "cart");
        let mut sent = b.run(&mut server);
        a.run(&mut server);
        sent.extend(b.run(&mut server));
        let is_burst = sent.len() <= 7;
        assert!(is_burst, "no request waits: {sent:?}");
        let deletions = sent.iter();
        let deletions = deletions.filter(|r| matches!(r, Request::DeleteConflict(_)));
        assert_eq!(deletions.count(), 1);
        assert_eq!(stored(&server).state, ConflictState::Active);
        assert_ne!(stored(&server).conflict_id, before);
        let reports = b.reports();
        assert!(
            matches!(&reports[..], [raised] if !raised.is_resolved && !raised.is_update),
            "{reports:?}"
        );
    }
}

#[test]
fn restart_repeats_no_end_of_a_resolved_conflict() {
    let (mut server, _a, mut b) = reported();
    b.release(address());
    b.run(&mut server);
    assert_eq!(b.reports().len(), 1);
    let kept = server.conflicts[&address().object_name()].clone();
    let mut b = Agent::starting("b", 0, b.journal);
    b.protocol.local_is_complete(b.now);
    // Its label has it in the list of the agent that wrote it.
    b.list(vec![kept]);
    assert_eq!(b.run(&mut server), []);
    assert!(b.reports().is_empty());
}
