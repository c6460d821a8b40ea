//! The cause of a conflict in its object.

use std::time::Duration;

use detector_engine::{ConflictId, diagnosis::Cause};
use detector_event::samples;

use super::{
    super::Request,
    agent::{Agent, address, asked, set_node},
    server::Server,
};
use crate::{
    objects::{ConflictCause, ConflictSpec, MAX_REASON, MAX_REPAIR},
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

/// The cause as the agent of a node has written it.
fn found_on(node: &str) -> ConflictCause {
    ConflictCause {
        node: node.to_owned(),
        ..cause()
    }
}

fn likely() -> ConflictCause {
    ConflictCause {
        confidence: "likely".to_owned(),
        ..cause()
    }
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
    assert_eq!(known(&server), Some(&found_on("b")));
    assert_eq!(a.run(&mut server), []);
    assert_eq!(b.reports(), []);
    // The same in other words.
    let reworded = ConflictCause {
        summary: "Another sentence.".to_owned(),
        ..cause()
    };
    explain(&mut b, &server, reworded);
    assert_eq!(b.run(&mut server), []);
    let other = ConflictCause {
        name: "ipam_state_wiped".to_owned(),
        ..found_on("b")
    };
    explain(&mut b, &server, other.clone());
    b.run(&mut server);
    assert_eq!(known(&server), Some(&other));
}

#[test]
fn cause_of_another_conflict_is_not_written() {
    let (mut server, _, mut b) = reported();
    let other = ConflictId(99);
    b.protocol.set_cause(b.now, address(), other, cause());
    assert_eq!(b.run(&mut server), []);
    assert_eq!(known(&server), None);
}

/// What the last report of an agent has of the cause.
fn shown(agent: &mut Agent) -> Option<ConflictCause> {
    let last = agent.reports().pop().unwrap();
    last.conflict.cause.map(|cause| *cause)
}

#[test]
fn holder_that_knows_the_cause_explains_it_to_the_reporter() {
    let (mut server, mut a, mut b) = reported();
    explain(&mut a, &server, cause());
    assert_eq!(a.run(&mut server).len(), 1);
    assert_eq!(known(&server), Some(&found_on("a")));
    b.run(&mut server);
    assert_eq!(shown(&mut b), Some(found_on("a")));
    let found = stored(&server).found_elsewhere().unwrap();
    assert_eq!(found.cause, Cause::PodCidrTwice);
    assert!(found.summary.starts_with("On node a: "), "{found:?}");
}

#[test]
fn more_certain_cause_replaces_that_of_another_node() {
    let (mut server, mut a, mut b) = reported();
    explain(&mut b, &server, likely());
    b.run(&mut server);
    explain(&mut a, &server, likely());
    assert_eq!(a.run(&mut server), [], "it is as certain");
    explain(&mut a, &server, cause());
    a.run(&mut server);
    assert_eq!(known(&server), Some(&found_on("a")));
    assert_eq!(b.run(&mut server), [], "it is more certain");
    explain(&mut b, &server, cause());
    assert_eq!(b.run(&mut server), [], "it is as certain");
}

#[test]
fn cause_goes_with_the_claim_of_its_node() {
    let (mut server, mut a, mut b) = reported();
    let mut c = Agent::new("c");
    set_node(&mut server, "c", 0, true);
    c.claim(address(), "db");
    for _ in 0..2 {
        for agent in [&mut c, &mut a, &mut b] {
            agent.run(&mut server);
        }
    }
    explain(&mut c, &server, cause());
    explain(&mut b, &server, likely());
    for agent in [&mut c, &mut b, &mut a] {
        agent.run(&mut server);
    }
    assert_eq!(known(&server), Some(&found_on("c")));
    c.release(address());
    c.run(&mut server);
    assert_eq!(known(&server), None);
    b.run(&mut server);
    let of_b = ConflictCause {
        node: "b".to_owned(),
        ..likely()
    };
    assert_eq!(
        known(&server),
        Some(&of_b),
        "no other cause is more certain any more"
    );
    assert_eq!(shown(&mut b), None);
    // Another pod of the same node has the address: the cause was that of the first one.
    b.sleep(Duration::from_secs(1));
    b.claim(address(), "another");
    b.run(&mut server);
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
    assert_eq!(known(&server), Some(&found_on("b")));
    a.release(address());
    a.run(&mut server);
    b.run(&mut server);
    assert!(stored(&server).is_resolved());
    assert_eq!(known(&server), Some(&found_on("b")));
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
    diagnosis.repair = diagnosis.summary.repeat(2);
    let found = ConflictCause::of(&diagnosis).unwrap();
    assert!(found.summary.len() <= MAX_REASON && found.repair.len() <= MAX_REPAIR);
    assert!(!found.summary.contains('\n'), "{}", found.summary);
    diagnosis.cause = Cause::Unknown;
    assert_eq!(ConflictCause::of(&diagnosis), None);
}
