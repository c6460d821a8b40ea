//! The cause of a conflict in its object.

use detector_engine::{ConflictId, diagnosis::Cause};
use detector_event::samples;

use super::{
    super::Request,
    agent::{Agent, address, asked},
    server::Server,
};
use crate::{
    objects::{ConflictCause, ConflictSpec, MAX_REASON},
    samples::cause,
};

/// `a` holds the claim, and `b` has reported the conflict.
fn reported() -> (Server, Agent, Agent) {
    let (mut server, mut a, mut b) = asked("web", "cart");
    a.run(&mut server);
    b.run(&mut server);
    a.run(&mut server);
    b.reports();
    (server, a, b)
}

fn stored(server: &Server) -> &ConflictSpec {
    &server.conflicts[&address().object_name()].spec
}

fn explain(agent: &mut Agent, server: &Server, cause: ConflictCause) {
    let id = stored(server).conflict_id;
    agent.protocol.set_cause(agent.now, address(), id, cause);
}

fn known(server: &Server) -> Option<&ConflictCause> {
    stored(server).cause.as_deref()
}

#[test]
fn cause_is_one_write_and_no_report() {
    let (mut server, mut a, mut b) = reported();
    explain(&mut b, &server, cause());
    let sent = b.run(&mut server);
    assert!(
        matches!(&sent[..], [Request::ReplaceConflict(..)]),
        "{sent:?}"
    );
    assert_eq!(known(&server), Some(&cause()));
    assert_eq!(a.run(&mut server), []);
    assert_eq!(b.reports(), []);
    // The same in other words.
    let reworded = ConflictCause {
        summary: "Another sentence.".to_owned(),
        ..cause()
    };
    explain(&mut b, &server, reworded);
    assert_eq!(b.run(&mut server), []);
    let proven = ConflictCause {
        name: "ipam_state_wiped".to_owned(),
        ..cause()
    };
    explain(&mut b, &server, proven.clone());
    b.run(&mut server);
    assert_eq!(known(&server), Some(&proven));
}

#[test]
fn only_the_agent_that_reports_writes_the_cause_of_this_conflict() {
    let (mut server, mut a, mut b) = reported();
    explain(&mut a, &server, cause());
    let other = ConflictId(99);
    b.protocol.set_cause(b.now, address(), other, cause());
    for agent in [&mut a, &mut b] {
        assert_eq!(agent.run(&mut server), []);
    }
    assert_eq!(known(&server), None);
}

#[test]
fn cause_outlives_a_restart_another_holder_and_the_end() {
    let (mut server, mut a, mut b) = reported();
    explain(&mut b, &server, cause());
    b.run(&mut server);
    let mut b = Agent::starting("b", 0, b.journal);
    b.claim(address(), "cart");
    b.protocol.local_is_complete(b.now);
    b.run(&mut server);
    a.run(&mut server);
    assert_eq!(known(&server), Some(&cause()));
    a.release(address());
    a.run(&mut server);
    b.run(&mut server);
    assert!(stored(&server).is_resolved());
    assert_eq!(known(&server), Some(&cause()));
}

#[test]
fn server_that_drops_the_cause_is_not_asked_again_and_again() {
    let (mut server, mut a, mut b) = reported();
    server.knows_no_causes = true;
    explain(&mut b, &server, cause());
    assert_eq!(b.run(&mut server).len(), 1);
    for agent in [&mut a, &mut b] {
        assert_eq!(agent.run(&mut server), []);
    }
}

#[test]
fn texts_of_a_cause_fit_into_the_schema() {
    let mut diagnosis = samples::diagnosis(Cause::PodCidrTwice, 1);
    diagnosis.summary = format!("web\n{}", "\u{e9}".repeat(MAX_REASON));
    let found = ConflictCause::of(&diagnosis).unwrap();
    assert!(found.summary.len() <= MAX_REASON);
    assert!(!found.summary.contains('\n'), "{}", found.summary);
    diagnosis.cause = Cause::Unknown;
    assert_eq!(ConflictCause::of(&diagnosis), None);
}
