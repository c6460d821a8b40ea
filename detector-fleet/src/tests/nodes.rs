//! What is concluded from the Nodes of others, and how old that may be.

use std::time::Duration;

use detector_engine::{Confidence, LeaveReason, Timestamp};

use super::{
    super::{
        NodeState, Request,
        nodes::{NodeView, Nodes},
        objects::Party,
    },
    agent::{
        Agent, CONFIRMATION, address, asked, holder, other_address, registered, server, set_node,
    },
};

const SECOND: Duration = Duration::from_secs(1);

fn reads_node(sent: &[(Duration, Request)], name: &str) -> bool {
    sent.iter()
        .any(|(_, request)| matches!(request, Request::GetNode(node) if node == name))
}

#[test]
fn silent_holder_on_a_node_that_is_not_ready_is_reported_after_the_deadline() {
    let (mut server, _a, mut b) = registered("web");
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
fn view_of_before_the_deadline_does_not_judge_silence() {
    let mut server = server(&["a", "b"]);
    let (mut a, mut b) = (Agent::new("a"), Agent::new("b"));
    a.claim(address(), "web");
    a.claim(other_address(), "shop");
    a.run(&mut server);
    set_node(&mut server, "a", 0, false);
    b.claim(address(), "cart");
    b.run_for(&mut server, 2 * SECOND);
    b.claim(other_address(), "checkout");
    // The Node is read for the first address, after the question about the second.
    b.run_for(&mut server, CONFIRMATION - SECOND);
    assert_eq!(b.reports().len(), 1);
    set_node(&mut server, "a", 0, true);
    b.run_for(&mut server, CONFIRMATION);
    assert!(b.reports().is_empty());
}

#[test]
fn claim_of_an_earlier_boot_is_taken_over() {
    let (mut server, _a, mut b) = registered("web");
    set_node(&mut server, "a", 1, true);
    b.claim(address(), "cart");
    b.run_for(&mut server, 2 * CONFIRMATION);
    assert_eq!(holder(&server, address()).unwrap().node, "b");
    assert!(server.conflicts.is_empty());
    assert!(b.reports().is_empty());
}

#[test]
fn claim_that_is_collected_after_it_was_taken_over_is_registered_again() {
    let (mut server, _a, mut b) = registered("web");
    // The garbage collector has looked at the claim, and deletes it only after it was taken over.
    server.nodes.remove("a");
    b.claim(address(), "cart");
    b.run_for(&mut server, 2 * CONFIRMATION);
    assert_eq!(holder(&server, address()).unwrap().node, "b");
    assert!(server.claims.remove(&address().object_name()).is_some());
    b.run_for(&mut server, Duration::from_secs(90));
    assert_eq!(holder(&server, address()).unwrap().node, "b");
    // From then on it is verified as rarely as others.
    let sent = b.run_for(&mut server, Duration::from_secs(600));
    let read = |(_, request): &(_, Request)| matches!(request, Request::GetClaim);
    assert!(!sent.iter().any(read), "{sent:?}");
}

#[test]
fn view_from_before_a_boot_does_not_void_a_claim_of_after_it() {
    let (mut server, a, mut b) = registered("web");
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
    let (mut server, mut a, b) = asked("web", "cart");
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
    let (mut server, mut a, _b) = asked("web", "cart");
    a.run(&mut server);
    server.delete_node("b");
    a.run_for(&mut server, 80 * SECOND);
    assert!(server.conflicts.is_empty());
    assert_eq!(holder(&server, address()).unwrap().node, "a");
}

/// What is known of the Node `a` after this view.
fn viewed(view: NodeView) -> Nodes {
    let (now, mut rng) = (Timestamp(1_000), fastrand::Rng::with_seed(7));
    let mut nodes = Nodes::default();
    nodes.poll("a", now, &mut rng);
    nodes.answered("a", view, (5, now), now, &mut rng);
    nodes
}

fn there(boot_id: &str) -> NodeView {
    NodeView::There(NodeState {
        uid: "1".to_owned(),
        boot_id: boot_id.to_owned(),
        is_ready: true,
    })
}

fn of_boot(boot_id: &str) -> Party {
    Party {
        node: "a".to_owned(),
        boot_id: boot_id.to_owned(),
        ..Party::default()
    }
}

#[test]
fn only_another_boot_or_a_missing_node_voids_a_claim() {
    let is_void = |view, boot_id| viewed(view).is_void(&of_boot(boot_id), 0);
    assert!(is_void(NodeView::Gone, "x"));
    assert!(is_void(there("y"), "x"));
    assert!(!is_void(there("x"), "x"));
    assert!(!is_void(there(""), "x"), "the Node does not have it yet");
    assert!(!is_void(there("x"), ""), "the claim does not have it");
    assert!(!is_void(NodeView::Unreadable, "x"));
}

#[test]
fn view_voids_only_what_was_known_before_its_request() {
    let nodes = viewed(NodeView::Gone);
    assert!(nodes.is_void(&of_boot("x"), 5));
    assert!(!nodes.is_void(&of_boot("x"), 6));
}

#[test]
fn node_is_not_polled_while_it_is_read() {
    let mut nodes = viewed(NodeView::Gone);
    assert!(nodes.poll_at("a").is_some());
    nodes.sent("a");
    assert_eq!((nodes.poll_at("a"), nodes.is_in_flight("a")), (None, true));
    nodes.failed("a");
    assert!(nodes.poll_at("a").is_some() && !nodes.is_in_flight("a"));
}

#[test]
fn nodes_that_no_conflict_needs_are_forgotten() {
    let mut rng = fastrand::Rng::with_seed(7);
    let mut nodes = Nodes::default();
    for number in 0..1_000_u64 {
        let now = Timestamp(0) + Duration::from_secs(10 * number);
        nodes.poll(&format!("node-{number}"), now, &mut rng);
    }
    let known = (0..1_000).filter(|n| nodes.poll_at(&format!("node-{n}")).is_some());
    assert!(known.count() <= 256);
}

#[test]
fn end_names_a_holder_whose_node_is_gone() {
    let (mut server, mut a, mut b) = asked("web", "cart");
    a.run(&mut server);
    b.run(&mut server);
    assert_eq!(b.reports().len(), 1);
    // Nothing collects the claim.
    server.nodes.remove("a");
    b.run_for(&mut server, 120 * SECOND);
    let reports = b.reports();
    let [.., end] = &reports[..] else {
        panic!("not resolved");
    };
    assert!(end.is_resolved && end.is_reporter);
    let left: Vec<_> = end.conflict.claimants.iter().map(|c| c.left).collect();
    assert_eq!(left, [Some(LeaveReason::Expired), None]);
    assert_eq!(holder(&server, address()).unwrap().node, "b");
}

#[test]
fn view_of_a_node_moves_all_its_conflicts() {
    let mut server = server(&["a", "b"]);
    let (mut a, mut b) = (Agent::new("a"), Agent::new("b"));
    for subject in [address(), other_address()] {
        a.claim(subject, "web");
        a.run(&mut server);
        b.claim(subject, "cart");
    }
    b.run(&mut server);
    set_node(&mut server, "a", 1, true);
    b.sleep(CONFIRMATION);
    b.run(&mut server);
    // No time passes.
    for subject in [address(), other_address()] {
        assert_eq!(holder(&server, subject).unwrap().node, "b");
    }
}
