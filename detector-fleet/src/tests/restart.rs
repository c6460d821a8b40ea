//! What the journal restores, until the agent knows what its node has.

use std::time::Duration;

use super::{
    agent::{Agent, address, asked, holder, other_address, server, writes_claim},
    server::{Event, Server},
};
use crate::objects::ConflictState;

const MINUTE: Duration = Duration::from_secs(60);

/// An agent that has registered two addresses starts again.
fn restarted() -> (Server, Agent) {
    let mut server = server(&["a", "b"]);
    let mut a = Agent::new("a");
    a.claim(address(), "web");
    a.claim(other_address(), "cart");
    a.run(&mut server);
    (server, Agent::starting("a", 0, a.journal))
}

#[test]
fn nothing_is_released_before_all_is_known_that_the_node_has() {
    let (mut server, mut a) = restarted();
    let before = server.claims.clone();
    let sent = a.run_for(&mut server, 30 * MINUTE);
    let sent: Vec<_> = sent.into_iter().map(|(_, request)| request).collect();
    assert!(!writes_claim(&sent), "{sent:?}");
    assert_eq!(server.claims, before);
    assert_eq!(a.journal.len(), 2);
}

#[test]
fn what_the_node_has_stays_and_the_rest_is_released() {
    let (mut server, mut a) = restarted();
    a.claim(address(), "web");
    a.run(&mut server);
    assert!(holder(&server, other_address()).is_some());
    a.protocol.local_is_complete(a.now);
    a.run_for(&mut server, 2 * MINUTE);
    assert!(holder(&server, address()).is_some());
    assert_eq!(holder(&server, other_address()), None);
    assert_eq!(a.journal.len(), 1);
}

/// `b` has reported a conflict with `a`.
fn reported() -> (Server, Agent, Agent) {
    let (mut server, mut a, mut b) = asked("web", "cart");
    a.run(&mut server);
    b.run(&mut server);
    (server, a, b)
}

#[test]
fn conflict_that_was_reported_goes_on() {
    let (mut server, _a, mut b) = reported();
    let reported = b.reports().pop().unwrap();
    let mut b = Agent::starting("b", 0, b.journal);
    b.run(&mut server);
    assert!(b.reports().is_empty(), "it may still be known to go on");
    b.claim(address(), "cart");
    b.protocol.local_is_complete(b.now);
    b.run(&mut server);
    let reports = b.reports();
    assert!(
        reports.iter().all(|r| r.is_update && !r.is_resolved),
        "{reports:?}"
    );
    let id = |r: &super::super::Report| r.conflict.conflict_id;
    assert_eq!(reports.last().map(id), Some(id(&reported)));
}

#[test]
fn conflict_that_was_reported_goes_on_if_the_list_is_behind() {
    let (mut server, _a, b) = reported();
    let mut b = Agent::starting("b", 0, b.journal);
    b.claim(address(), "cart");
    b.protocol.local_is_complete(b.now);
    let behind = server.conflicts_at(server.log.len() - 1, "b");
    assert_eq!(behind[0].spec.state, ConflictState::Suspected);
    b.list(behind);
    while b.exchange(&mut server).is_some() {}
    b.run(&mut server);
    let reports = b.reports();
    assert!(
        reports.iter().all(|r| r.is_update && !r.is_resolved),
        "{reports:?}"
    );
}

#[test]
fn conflict_that_ended_meanwhile_is_not_raised_by_old_events() {
    let (mut server, _a, b) = reported();
    server.delete_conflict(&address().object_name());
    let mut b = Agent::starting("b", 0, b.journal);
    b.claim(address(), "cart");
    b.protocol.local_is_complete(b.now);
    b.list(Vec::new());
    b.exchange(&mut server);
    let reports = b.reports();
    assert!(
        matches!(&reports[..], [r] if r.is_resolved && r.is_reporter),
        "{reports:?}"
    );
    for event in &server.log {
        if let Event::Changed(stored) = event.clone() {
            b.protocol.conflict_changed(b.now, stored);
        }
    }
    let reports = b.reports();
    assert!(reports.is_empty(), "{reports:?}");
}

#[test]
fn conflict_that_ended_meanwhile_is_resolved() {
    let (mut server, _a, b) = reported();
    let mut b = Agent::starting("b", 0, b.journal);
    b.protocol.local_is_complete(b.now);
    b.run(&mut server);
    let reports = b.reports();
    assert!(
        matches!(&reports[..], [r] if r.is_resolved && r.is_reporter),
        "{reports:?}"
    );
    assert_eq!(server.open_conflict(address()), None);
}
