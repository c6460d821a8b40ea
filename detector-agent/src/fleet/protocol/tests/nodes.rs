//! What is concluded from the Nodes of others, and how old that may be.

use std::time::Duration;

use super::{
    super::Request,
    agent::{Agent, CONFIRMATION, address, holder, other_address, server, set_node},
};
use crate::engine::Confidence;

const SECOND: Duration = Duration::from_secs(1);

fn reads_node(sent: &[(Duration, Request)], name: &str) -> bool {
    sent.iter()
        .any(|(_, request)| matches!(request, Request::GetNode(node) if node == name))
}

#[test]
fn silent_holder_on_a_node_that_is_not_ready_is_reported_after_the_deadline() {
    let mut server = server(&["a", "b"]);
    let (mut a, mut b) = (Agent::new("a"), Agent::new("b"));
    a.claim(address(), "web");
    a.run(&mut server);
    set_node(&mut server, "a", 0, false);
    b.claim(address(), "cart");
    b.run_for(&mut server, CONFIRMATION - SECOND);
    assert!(b.reports().is_empty());
    b.run_for(&mut server, 2 * SECOND);
    let reports = b.reports();
    let [report] = &reports[..] else {
        panic!("{reports:?}");
    };
    assert_eq!(report.conflict.confidence, Confidence::Observed);
    let because = report.conflict.claimants[0].unconfirmed_because.clone();
    assert!(because.unwrap().contains("not ready"));
}

#[test]
fn silence_is_judged_by_a_view_of_the_node_after_the_deadline() {
    let mut server = server(&["a", "b"]);
    let (mut a, mut b) = (Agent::new("a"), Agent::new("b"));
    a.claim(address(), "web");
    a.claim(other_address(), "shop");
    a.run(&mut server);
    set_node(&mut server, "a", 0, false);
    b.claim(address(), "cart");
    b.run_for(&mut server, 2 * CONFIRMATION);
    assert_eq!(b.reports().len(), 1);
    // The node works again; what was read of it is old.
    set_node(&mut server, "a", 0, true);
    b.claim(other_address(), "checkout");
    let sent = b.run_for(&mut server, 2 * CONFIRMATION);
    assert!(reads_node(&sent, "a"), "{sent:?}");
    b.run_for(&mut server, 40 * SECOND);
    assert!(b.reports().is_empty(), "its agent has a minute");
    b.run_for(&mut server, 20 * SECOND);
    assert_eq!(b.reports().len(), 1);
}

#[test]
fn claim_of_an_earlier_boot_is_taken_over() {
    let mut server = server(&["a", "b"]);
    let (mut a, mut b) = (Agent::new("a"), Agent::new("b"));
    a.claim(address(), "web");
    a.run(&mut server);
    set_node(&mut server, "a", 1, true);
    b.claim(address(), "cart");
    b.run_for(&mut server, 2 * CONFIRMATION);
    assert_eq!(holder(&server, address()).unwrap().node, "b");
    assert!(server.conflicts.is_empty());
    assert!(b.reports().is_empty());
}

#[test]
fn view_from_before_a_boot_does_not_void_a_claim_of_after_it() {
    let mut server = server(&["a", "b"]);
    let (mut a, mut b) = (Agent::new("a"), Agent::new("b"));
    a.claim(address(), "web");
    a.run(&mut server);
    b.claim(address(), "cart");
    b.run_for(&mut server, 2 * CONFIRMATION);
    b.release(address());
    b.run(&mut server);
    // `b` knows the Node of `a` as it was. Now it starts again.
    set_node(&mut server, "a", 1, true);
    let mut a = Agent::starting("a", 1, a.journal);
    a.claim(address(), "web");
    a.run(&mut server);
    assert_eq!(holder(&server, address()).unwrap().boot_id, "a-1");
    b.claim(address(), "cart");
    b.run(&mut server);
    assert_eq!(holder(&server, address()).unwrap().node, "a");
    a.run(&mut server);
    b.run(&mut server);
    assert_eq!(b.reports().len(), 1, "both have it");
}

#[test]
fn view_from_before_a_boot_does_not_remove_a_contender_of_after_it() {
    let mut server = server(&["a", "b"]);
    let (mut a, mut b) = (Agent::new("a"), Agent::new("b"));
    a.claim(address(), "web");
    a.run(&mut server);
    b.claim(address(), "cart");
    b.run(&mut server);
    let sent = a.run_for(&mut server, 80 * SECOND);
    assert!(reads_node(&sent, "b"), "{sent:?}");
    set_node(&mut server, "b", 1, true);
    let mut b = Agent::starting("b", 1, b.journal);
    b.claim(address(), "cart");
    b.run(&mut server);
    a.run(&mut server);
    b.run(&mut server);
    let conflict = &server.conflicts[&address().object_name()].spec;
    assert_eq!(conflict.claimants[1].party.boot_id, "b-1");
    assert_eq!(b.reports().len(), 1);
}

#[test]
fn contender_whose_node_is_gone_is_removed_by_the_holder() {
    let mut server = server(&["a", "b"]);
    let (mut a, mut b) = (Agent::new("a"), Agent::new("b"));
    a.claim(address(), "web");
    a.run(&mut server);
    b.claim(address(), "cart");
    b.run(&mut server);
    a.run(&mut server);
    server.delete_node("b");
    a.run_for(&mut server, 80 * SECOND);
    assert!(server.conflicts.is_empty());
    assert_eq!(holder(&server, address()).unwrap().node, "a");
}
