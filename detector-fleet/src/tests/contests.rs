//! How a contender asks, waits and gives its reasons.

use std::time::Duration;

use super::{
    super::{Mode, Outcome, Request},
    agent::{
        Agent, CONFIRMATION, HANDOVER, address, asked, holder, other_address, server, set_node,
    },
    server::Server,
};
use crate::objects::{ConflictClaimant, ConflictSpec, Party};

const SECOND: Duration = Duration::from_secs(1);

fn conflict(server: &Server) -> &ConflictSpec {
    &server.conflicts[&address().object_name()].spec
}

fn reads_of_nodes(sent: &[(Duration, Request)]) -> usize {
    let is_read = |request: &Request| matches!(request, Request::GetNode(_));
    sent.iter().filter(|(_, request)| is_read(request)).count()
}

/// Answers every read of a Node with this, and everything else as the server does, for so long.
fn run_with_nodes(b: &mut Agent, server: &mut Server, span: Duration, nodes: &Outcome) {
    let end = b.now + span;
    loop {
        b.watch(server);
        while let Some(call) = b.next() {
            let outcome = match call.request {
                Request::GetNode(_) => nodes.clone(),
                _ => server.apply(call.subject, &call.request),
            };
            b.answer(&call, outcome);
            b.watch(server);
        }
        match b.protocol.next_due().filter(|due| *due <= end) {
            Some(due) => b.now = due.max(b.now + Duration::from_nanos(1)),
            None => break b.now = end,
        }
    }
}

#[test]
fn full_conflict_is_not_joined() {
    let (mut server, _a, _b) = asked("web", "cart");
    let mut spec = conflict(&server).clone();
    for number in 0..40 {
        spec.claimants.push(ConflictClaimant {
            party: Party {
                node: format!("node-{number}"),
                ..Party::default()
            },
            ..ConflictClaimant::default()
        });
    }
    server.write_conflict(spec);
    let mut c = Agent::new("c");
    c.claim(address(), "checkout");
    c.run(&mut server);
    assert!(
        conflict(&server)
            .claimants
            .iter()
            .all(|c| c.party.node != "c")
    );
}

#[test]
fn own_pod_that_is_being_deleted_has_the_time_of_a_handover() {
    let (mut server, mut a, mut b) = asked("web", "cart");
    let mut local = b.local("cart");
    local.terminating = true;
    b.protocol.set_local(b.now, address(), Some(local));
    b.run(&mut server);
    assert!(conflict(&server).claimants[1].terminating);
    a.run(&mut server);
    b.run_for(&mut server, HANDOVER - SECOND);
    assert!(b.reports().is_empty());
    b.run_for(&mut server, 2 * SECOND);
    a.run(&mut server);
    b.run(&mut server);
    assert_eq!(b.reports().len(), 1);
}

#[test]
fn question_of_before_the_end_of_a_handover_proves_nothing_after_it() {
    let (mut server, mut a, mut b) = asked("db-0", "db-0");
    a.run(&mut server);
    b.run(&mut server);
    // The next claim of `b` begins the handover again; its question is answered when that is over.
    b.sleep(SECOND);
    b.claim(address(), "db-0");
    b.watch(&server);
    let call = b.next().unwrap();
    assert!(
        matches!(call.request, Request::ReplaceConflict(..)),
        "{call:?}"
    );
    let outcome = server.apply(call.subject, &call.request);
    a.run(&mut server);
    b.sleep(HANDOVER + SECOND);
    b.answer(&call, outcome);
    b.run(&mut server);
    assert!(b.reports().is_empty());
    a.run(&mut server);
    b.run(&mut server);
    assert_eq!(b.reports().len(), 1);
}

#[test]
fn another_claim_begins_the_handover_anew() {
    let (mut server, mut a, mut b) = asked("db-0", "db-0");
    a.run(&mut server);
    b.run_for(&mut server, HANDOVER - SECOND);
    b.claim(address(), "db-0");
    b.run(&mut server);
    a.run(&mut server);
    b.run_for(&mut server, HANDOVER - SECOND);
    a.run(&mut server);
    b.run(&mut server);
    assert!(b.reports().is_empty());
    b.run_for(&mut server, 2 * SECOND);
    a.run(&mut server);
    b.run(&mut server);
    assert_eq!(b.reports().len(), 1);
}

#[test]
fn silent_holder_has_the_time_of_a_handover_too() {
    let (mut server, _a, mut b) = asked("db-0", "db-0");
    set_node(&mut server, "a", 0, false);
    b.run_for(&mut server, HANDOVER - SECOND);
    assert!(b.reports().is_empty());
    b.run_for(&mut server, 2 * SECOND);
    assert_eq!(b.reports().len(), 1);
}

#[test]
fn silent_agent_of_a_node_that_cannot_be_read_has_a_minute() {
    let (mut server, _a, mut b) = asked("web", "cart");
    run_with_nodes(&mut b, &mut server, 55 * SECOND, &Outcome::Rejected);
    assert!(b.reports().is_empty());
    run_with_nodes(&mut b, &mut server, 10 * SECOND, &Outcome::Rejected);
    let reports = b.reports();
    let because = reports[0].conflict.claimants[0].unconfirmed_because.clone();
    assert!(because.unwrap().contains("cannot be read"));
    assert_eq!(holder(&server, address()).unwrap().node, "a");
}

#[test]
fn node_whose_read_failed_is_read_again() {
    let (mut server, _a, mut b) = asked("web", "cart");
    set_node(&mut server, "a", 0, false);
    run_with_nodes(&mut b, &mut server, 20 * SECOND, &Outcome::Failed);
    assert!(b.reports().is_empty());
    b.run_for(&mut server, 60 * SECOND);
    assert_eq!(b.reports().len(), 1);
}

#[test]
fn view_of_a_node_serves_all_conflicts_with_it() {
    let mut server = server(&["a", "b"]);
    let (mut a, mut b) = (Agent::new("a"), Agent::new("b"));
    for subject in [address(), other_address()] {
        a.claim(subject, "web");
        a.run(&mut server);
        b.claim(subject, "cart");
    }
    b.run(&mut server);
    set_node(&mut server, "a", 0, false);
    b.sleep(CONFIRMATION);
    b.watch(&server);
    let call = b.next().unwrap();
    assert!(matches!(call.request, Request::GetNode(_)), "{call:?}");
    assert!(b.next().is_none(), "it is being read");
    let outcome = server.apply(call.subject, &call.request);
    b.answer(&call, outcome);
    let sent = b.run_for(&mut server, SECOND);
    assert_eq!(reads_of_nodes(&sent), 0, "{sent:?}");
    assert_eq!(b.reports().len(), 2);
}

#[test]
fn numbers_of_questions_never_come_to_zero() {
    for (asked, confirmed) in [(u32::MAX, 1), (u32::MAX, u32::MAX), (2, u32::MAX)] {
        let (mut server, _a, mut b) = self::asked("web", "cart");
        let mut spec = conflict(&server).clone();
        (spec.claimants[1].asked, spec.claimants[1].confirmed) = (asked, confirmed);
        server.write_conflict(spec);
        b.run(&mut server);
        let me = &conflict(&server).claimants[1];
        assert!(![0, asked, confirmed].contains(&me.asked), "{me:?}");
        assert!(b.reports().is_empty());
    }
}

#[test]
fn address_that_is_only_looked_up_takes_no_claim_over() {
    let (mut server, _a, mut b) = asked("web", "cart");
    let mut local = b.local("cart");
    local.mode = Mode::Lookup;
    b.protocol.set_local(b.now, address(), Some(local));
    set_node(&mut server, "a", 1, true);
    b.run_for(&mut server, 200 * SECOND);
    assert_eq!(holder(&server, address()).unwrap().node, "a");
    assert!(b.reports().iter().all(|report| report.is_resolved));
}

#[test]
fn holder_that_left_is_not_listed_any_more() {
    let (mut server, mut a, mut b) = asked("web", "cart");
    let mut c = Agent::new("c");
    c.claim(address(), "checkout");
    c.run(&mut server);
    a.release(address());
    a.run(&mut server);
    assert!(conflict(&server).claimants[0].left.is_some());
    // `b` gets the claim and writes nothing yet; `c` sees both.
    b.watch(&server);
    while holder(&server, address()).is_none() {
        b.exchange(&mut server).unwrap();
    }
    c.run(&mut server);
    let claimants = conflict(&server).claimants.iter();
    let nodes: Vec<_> = claimants.map(|c| &*c.party.node).collect();
    assert_eq!(nodes, ["b", "c"]);
}

#[test]
fn pod_in_the_claim_counts_for_a_handover_too() {
    let (mut server, mut a, mut b) = asked("db-0", "db-0");
    // What `b` has read of the claim is old by now.
    a.sleep(SECOND);
    a.claim(address(), "web");
    a.run(&mut server);
    b.run(&mut server);
    assert_eq!(conflict(&server).claimants[0].party.pod, "web");
    assert!(b.reports().is_empty());
    b.run_for(&mut server, HANDOVER + SECOND);
    a.run(&mut server);
    b.run(&mut server);
    assert_eq!(b.reports().len(), 1);
}

#[test]
fn another_holder_has_its_own_time_to_answer() {
    let (mut server, _a, mut b) = asked("web", "cart");
    set_node(&mut server, "c", 0, true);
    b.run_for(&mut server, 50 * SECOND);
    let mut of_c = server.claims[&address().object_name()].spec.clone();
    (of_c.party.node, of_c.party.boot_id) = ("c".to_owned(), "c-0".to_owned());
    let mut spec = conflict(&server).clone();
    spec.claimants[0].party = of_c.party.clone();
    server.claims.clear();
    server.apply(address(), &Request::CreateClaim(of_c));
    server.write_conflict(spec);
    b.run_for(&mut server, 50 * SECOND);
    assert!(b.reports().is_empty());
    b.run_for(&mut server, 20 * SECOND);
    assert_eq!(b.reports().len(), 1);
}

#[test]
fn proof_that_is_not_reported_yet_does_not_count_for_the_next_claim() {
    let (mut server, mut a, mut b) = asked("web", "cart");
    a.run(&mut server);
    b.watch(&server);
    let call = b.next().unwrap();
    let outcome = server.apply(call.subject, &call.request);
    assert!(conflict(&server).claimants[1].active);
    b.sleep(SECOND);
    b.claim(address(), "checkout");
    b.answer(&call, outcome);
    b.run(&mut server);
    assert!(b.reports().is_empty());
    a.run(&mut server);
    b.run(&mut server);
    assert_eq!(b.reports().len(), 1);
}

#[test]
fn holder_with_huge_texts_is_bounded_in_the_conflict() {
    let mut server = server(&["a", "b"]);
    let spec = crate::objects::ClaimSpec {
        address: address(),
        party: Party {
            node: "a".to_owned(),
            boot_id: "a-0".to_owned(),
            device: "ä".repeat(100_000),
            ..Party::default()
        },
    };
    server.apply(address(), &Request::CreateClaim(spec));
    let mut b = Agent::new("b");
    b.claim(address(), "cart");
    b.run(&mut server);
    assert!(conflict(&server).claimants[0].party.device.len() <= 253);
}

#[test]
fn reason_for_an_earlier_claim_is_not_that_for_the_next() {
    let (mut server, _a, mut b) = asked("web", "cart");
    b.run_for(&mut server, 55 * SECOND);
    // It writes that the agent of `a` does not answer, and then has another claim before it has reported that.
    let call = loop {
        b.sleep(SECOND);
        if let Some(call) = b.next() {
            break call;
        }
    };
    let outcome = server.apply(call.subject, &call.request);
    assert!(conflict(&server).claimants[0].unconfirmed_because.is_some());
    b.claim(address(), "checkout");
    b.answer(&call, outcome);
    set_node(&mut server, "a", 0, false);
    b.run_for(&mut server, CONFIRMATION - SECOND);
    assert_eq!(conflict(&server).claimants[0].unconfirmed_because, None);
    b.run_for(&mut server, 2 * SECOND);
    let reports = b.reports();
    let because = reports[0].conflict.claimants[0].unconfirmed_because.clone();
    assert!(because.unwrap().contains("not ready"));
}
