//! A request without an answer may have taken effect, may not have, and may yet do so.

use std::time::Duration;

use super::{
    super::{Call, Outcome, Request},
    agent::{Agent, address, asked, holder, registered, server, writes_claim},
    server::Server,
};

const SECOND: Duration = Duration::from_secs(1);

/// Watches and exchanges until the next request is one that `matches`; that one is not sent.
fn call(agent: &mut Agent, server: &mut Server, matches: fn(&Request) -> bool) -> Call {
    agent.watch(server);
    loop {
        let call = agent.next().expect("no such request");
        if matches(&call.request) {
            return call;
        }
        let outcome = server.apply(call.subject, &call.request);
        agent.answer(&call, outcome);
    }
}

#[test]
fn registration_that_was_lost_is_repeated() {
    let mut server = server(&["a"]);
    let mut a = Agent::new("a");
    a.claim(address(), "web");
    let lost = call(&mut a, &mut server, |r| {
        matches!(r, Request::CreateClaim(_))
    });
    a.answer(&lost, Outcome::Failed);
    assert!(a.next().is_none(), "not at once");
    let sent = a.run_for(&mut server, SECOND);
    assert!(matches!(sent[0].1, Request::GetClaim), "{sent:?}");
    assert_eq!(holder(&server, address()).unwrap().node, "a");
}

#[test]
fn registration_whose_answer_was_lost_is_found() {
    let mut server = server(&["a"]);
    let mut a = Agent::new("a");
    a.claim(address(), "web");
    let lost = call(&mut a, &mut server, |r| {
        matches!(r, Request::CreateClaim(_))
    });
    server.apply(lost.subject, &lost.request);
    a.answer(&lost, Outcome::Failed);
    let sent = a.run_for(&mut server, SECOND);
    let sent: Vec<_> = sent.into_iter().map(|(_, request)| request).collect();
    assert!(!writes_claim(&sent), "{sent:?}");
    assert_eq!(a.protocol.counts().registered, 1);
}

#[test]
fn release_that_was_lost_is_repeated() {
    let mut server = server(&["a"]);
    let mut a = Agent::new("a");
    a.claim(address(), "web");
    a.run(&mut server);
    a.release(address());
    let lost = call(&mut a, &mut server, |r| {
        matches!(r, Request::DeleteClaim(_))
    });
    a.answer(&lost, Outcome::Failed);
    assert!(!a.journal.is_empty(), "a restart has to find it");
    a.run_for(&mut server, SECOND);
    assert_eq!(holder(&server, address()), None);
}

#[test]
fn registration_that_takes_effect_late_is_found_and_released() {
    let mut server = server(&["a"]);
    let mut a = Agent::new("a");
    a.claim(address(), "web");
    let late = call(&mut a, &mut server, |r| {
        matches!(r, Request::CreateClaim(_))
    });
    a.answer(&late, Outcome::Failed);
    a.release(address());
    a.run_for(&mut server, 59 * SECOND);
    assert_eq!(holder(&server, address()), None);
    assert!(!a.journal.is_empty(), "it may still appear");
    server.apply(late.subject, &late.request);
    a.run_for(&mut server, 20 * SECOND);
    assert_eq!(holder(&server, address()), None);
    assert!(a.journal.is_empty());
}

#[test]
fn registration_that_is_answered_after_the_address_is_gone_is_released() {
    let mut server = server(&["a"]);
    let mut a = Agent::new("a");
    a.claim(address(), "web");
    let pending = call(&mut a, &mut server, |r| {
        matches!(r, Request::CreateClaim(_))
    });
    a.release(address());
    a.run(&mut server);
    assert!(!a.journal.is_empty(), "it is under way");
    let outcome = server.apply(pending.subject, &pending.request);
    a.answer(&pending, outcome);
    a.run(&mut server);
    assert_eq!(holder(&server, address()), None);
    assert!(a.journal.is_empty());
}

#[test]
fn question_that_was_lost_is_repeated() {
    let (mut server, mut a, mut b) = registered("web");
    b.claim(address(), "cart");
    let lost = call(&mut b, &mut server, |r| {
        matches!(r, Request::CreateConflict(_))
    });
    b.answer(&lost, Outcome::Failed);
    b.run_for(&mut server, SECOND);
    assert_eq!(server.conflicts.len(), 1);
    a.run(&mut server);
    b.run(&mut server);
    assert_eq!(b.reports().len(), 1);
}

#[test]
fn confirmation_that_was_lost_is_repeated() {
    let (mut server, mut a, mut b) = asked("web", "cart");
    let lost = call(&mut a, &mut server, |r| {
        matches!(r, Request::ReplaceConflict(..))
    });
    a.answer(&lost, Outcome::Failed);
    a.run_for(&mut server, SECOND);
    b.run(&mut server);
    assert_eq!(b.reports().len(), 1);
}

#[test]
fn removal_from_a_conflict_that_was_lost_is_repeated() {
    let (mut server, _a, mut b) = asked("web", "cart");
    b.release(address());
    let lost = call(&mut b, &mut server, |r| {
        matches!(r, Request::DeleteConflict(_))
    });
    b.answer(&lost, Outcome::Failed);
    b.run_for(&mut server, SECOND);
    assert!(server.conflicts.is_empty());
}
