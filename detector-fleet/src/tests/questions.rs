//! Which confirmations prove an overlap: only those of a question that this run of the agent asked, for the present claim, in the
//! present object.

use std::time::Duration;

use super::{
    super::Request,
    agent::{Agent, HANDOVER, address, asked, registered, server},
    server::Server,
};
use crate::objects::{ConflictClaimant, ConflictSpec, ConflictState};

/// What the conflict has of `b`.
fn stored(server: &Server) -> &ConflictClaimant {
    let conflict = &server.conflicts[&address().object_name()].spec;
    conflict
        .claimants
        .iter()
        .find(|c| c.party.node == "b")
        .unwrap()
}

/// The question that one of these requests asks for `b`.
fn question(requests: &[Request]) -> Option<u32> {
    let asked = |spec: &ConflictSpec| {
        let mut claimants = spec.claimants.iter();
        claimants.find(|c| c.party.node == "b").map(|c| c.asked)
    };
    requests.iter().find_map(|request| match request {
        Request::CreateConflict(spec) | Request::ReplaceConflict(_, spec) => asked(spec),
        _ => None,
    })
}

/// `b` reports the conflict once `a` has confirmed again, and not before.
fn reports_after_another_confirmation(mut server: Server, mut a: Agent, mut b: Agent) {
    let before = stored(&server).asked;
    b.watch(&server);
    let sent = b.run(&mut server);
    assert_eq!(question(&sent), Some(before + 1), "{sent:?}");
    assert!(b.reports().is_empty());
    let conflict = &server.conflicts[&address().object_name()].spec;
    assert_eq!(conflict.state, ConflictState::Suspected);
    a.run(&mut server);
    b.run(&mut server);
    let reports = b.reports();
    assert!(
        matches!(&reports[..], [report] if report.is_reporter && !report.is_resolved),
        "{reports:?}"
    );
}

#[test]
fn confirmed_question_is_reported() {
    let (mut server, mut a, mut b) = asked("web", "cart");
    a.run(&mut server);
    b.run(&mut server);
    assert_eq!(b.reports().len(), 1);
    assert!(a.reports().iter().all(|report| !report.is_reporter));
}

#[test]
fn confirmation_for_an_earlier_claim_proves_nothing() {
    let (mut server, mut a, mut b) = asked("web", "cart");
    b.sleep(Duration::from_secs(1));
    b.claim(address(), "checkout");
    a.run(&mut server);
    assert_eq!(stored(&server).confirmed, 1);
    reports_after_another_confirmation(server, a, b);
}

#[test]
fn question_that_was_under_way_when_the_claim_changed_proves_nothing() {
    let (mut server, mut a, mut b) = registered("web");
    b.claim(address(), "cart");
    b.watch(&server);
    let call = loop {
        let call = b.next().unwrap();
        if matches!(call.request, Request::CreateConflict(_)) {
            break call;
        }
        let outcome = server.apply(call.subject, &call.request);
        b.answer(&call, outcome);
    };
    let outcome = server.apply(call.subject, &call.request);
    b.sleep(Duration::from_secs(1));
    b.claim(address(), "checkout");
    b.answer(&call, outcome);
    a.run(&mut server);
    assert_eq!(stored(&server).confirmed, 1);
    reports_after_another_confirmation(server, a, b);
}

#[test]
fn question_of_an_earlier_run_proves_nothing() {
    let (mut server, mut a, b) = asked("web", "cart");
    a.run(&mut server);
    // It crashes, and its journal is lost.
    let mut restarted = Agent::new("b");
    restarted.now = b.now;
    restarted.claim(address(), "cart");
    restarted.run(&mut server);
    assert!(restarted.reports().is_empty());
    assert_eq!(stored(&server).asked, 2);
    a.run(&mut server);
    restarted.run(&mut server);
    assert_eq!(restarted.reports().len(), 1);
}

#[test]
fn question_in_an_object_that_was_deleted_proves_nothing() {
    let (mut server, a, mut b) = asked("web", "cart");
    let name = address().object_name();
    let mut spec = server.conflicts[&name].spec.clone();
    spec.claimants[1].confirmed = spec.claimants[1].asked;
    server.delete_conflict(&name);
    server.write_conflict(spec);
    b.watch(&server);
    assert!(b.reports().is_empty());
    reports_after_another_confirmation(server, a, b);
}

#[test]
fn confirmation_of_another_number_proves_nothing() {
    let (mut server, _a, mut b) = asked("web", "cart");
    let mut spec = server.conflicts[&address().object_name()].spec.clone();
    spec.claimants[1].confirmed = 7;
    server.write_conflict(spec);
    b.run(&mut server);
    assert!(b.reports().is_empty());
}

#[test]
fn confirmation_of_an_earlier_holder_proves_nothing() {
    let (mut server, mut a, mut b) = asked("web", "cart");
    a.run(&mut server);
    // `c` has registered the address since and is silent; `d` writes that into the conflict.
    let mut claim = server.claims[&address().object_name()].spec.clone();
    claim.party.node = "c".to_owned();
    claim.party.boot_id = "c-0".to_owned();
    server.claims.clear();
    server.apply(address(), &Request::CreateClaim(claim));
    let mut d = Agent::new("d");
    d.claim(address(), "shop");
    d.run(&mut server);
    assert_eq!(stored(&server).confirmed, 0);
    b.run(&mut server);
    assert!(b.reports().is_empty());
}

#[test]
fn active_in_the_object_proves_nothing_by_itself() {
    let (mut server, _a, mut b) = asked("web", "cart");
    let mut spec = server.conflicts[&address().object_name()].spec.clone();
    spec.claimants[1].active = true;
    spec.state = ConflictState::Active;
    server.write_conflict(spec);
    b.run(&mut server);
    assert!(b.reports().is_empty());
}

#[test]
fn reporter_that_another_one_precedes_asks_for_its_present_claim_at_once() {
    let mut server = server(&["a", "b", "c"]);
    let (mut a, mut b, mut c) = (Agent::new("a"), Agent::new("b"), Agent::new("c"));
    a.claim(address(), "db-0");
    a.run(&mut server);
    // Listed before `c`, and active after it: its pod may be the one of `a`.
    b.claim(address(), "db-0");
    b.run(&mut server);
    a.run(&mut server);
    c.claim(address(), "cart");
    c.run(&mut server);
    a.run(&mut server);
    c.run(&mut server);
    assert!(c.reports()[0].is_reporter);
    c.sleep(Duration::from_secs(1));
    c.claim(address(), "shop");
    c.run(&mut server);
    b.run_for(&mut server, HANDOVER);
    a.run(&mut server);
    b.run(&mut server);
    assert!(b.reports().last().unwrap().is_reporter);
    let asked = |server: &Server| {
        let spec = &server.conflicts[&address().object_name()].spec;
        spec.claimants[2].asked
    };
    let before = asked(&server);
    c.run(&mut server);
    assert_eq!(asked(&server), before + 1);
}
