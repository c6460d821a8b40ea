//! An agent whose node no longer has the address takes itself out of the conflict.

use detector_engine::LeaveReason;

use super::{
    super::Request,
    agent::{Agent, address, asked, holder, server},
    server::Server,
};
use crate::objects::ConflictSpec;

/// `a` holds the claim; `b` and `c` contend. The conflict is active.
fn three() -> (Server, [Agent; 3]) {
    let mut server = server(&["a", "b", "c"]);
    let mut agents = ["a", "b", "c"].map(Agent::new);
    for (agent, pod) in agents.iter_mut().zip(["web", "cart", "checkout"]) {
        agent.claim(address(), pod);
        agent.run(&mut server);
    }
    for _ in 0..3 {
        for agent in &mut agents {
            agent.run(&mut server);
        }
    }
    assert_eq!(listed(&server), ["a", "b", "c"]);
    (server, agents)
}

fn conflict(server: &Server) -> Option<&ConflictSpec> {
    server.open_conflict(address())
}

/// The nodes that have not left.
fn listed(server: &Server) -> Vec<&str> {
    let claimants = conflict(server).into_iter().flat_map(|c| &c.claimants);
    let present = claimants.filter(|c| c.left.is_none());
    present.map(|c| c.party.node.as_str()).collect()
}

#[test]
fn holder_marks_itself_so_that_contenders_notice_at_once() {
    let (mut server, [mut a, mut b, mut c]) = three();
    a.release(address());
    let sent = a.run(&mut server);
    assert!(matches!(sent[0], Request::DeleteClaim(_)), "{sent:?}");
    assert_eq!(listed(&server), ["b", "c"]);
    let first = &conflict(&server).unwrap().claimants[0];
    assert_eq!(first.party.node, "a");
    assert_eq!(first.left, Some(LeaveReason::AddressRemoved));
    assert!(!first.active);
    // No time passes.
    b.run(&mut server);
    assert_eq!(holder(&server, address()).unwrap().node, "b");
    c.run(&mut server);
    b.run(&mut server);
    assert_eq!(listed(&server), ["b", "c"]);
    a.run(&mut server);
    assert!(a.journal.is_empty());
}

#[test]
fn contender_removes_itself() {
    let (mut server, [_a, mut b, mut c]) = three();
    b.reports();
    b.release(address());
    b.run(&mut server);
    assert_eq!(listed(&server), ["a", "c"]);
    assert!(b.reports().iter().any(|report| report.is_resolved));
    assert!(b.journal.is_empty());
    c.release(address());
    c.run(&mut server);
    assert_eq!(conflict(&server), None);
}

#[test]
fn report_ends_as_soon_as_nobody_else_is_left() {
    let (mut server, [mut a, mut b, mut c]) = three();
    c.release(address());
    c.run(&mut server);
    b.run(&mut server);
    b.reports();
    a.release(address());
    a.run(&mut server);
    b.watch(&server);
    let reports = b.reports();
    assert!(
        matches!(&reports[..], [end] if end.is_resolved && end.is_reporter),
        "{reports:?}"
    );
}

#[test]
fn last_contender_ends_the_conflict() {
    let (mut server, [mut a, mut b, mut c]) = three();
    for agent in [&mut b, &mut c] {
        agent.release(address());
        agent.run(&mut server);
    }
    a.run(&mut server);
    assert_eq!(conflict(&server), None);
    assert_eq!(holder(&server, address()).unwrap().node, "a");
}

#[test]
fn contender_that_left_while_the_server_was_away_removes_itself_after_a_restart() {
    let (mut server, [_a, b, _c]) = three();
    let mut b = Agent::starting("b", 0, b.journal);
    b.protocol.local_is_complete(b.now);
    b.run(&mut server);
    assert_eq!(listed(&server), ["a", "c"]);
}

#[test]
fn reporter_that_becomes_the_holder_goes_on_reporting() {
    let (mut server, [mut a, mut b, mut c]) = three();
    let reported = b.reports().remove(0);
    assert!(reported.is_reporter && c.reports().iter().all(|r| !r.is_reporter));
    a.release(address());
    for _ in 0..3 {
        for agent in [&mut a, &mut b, &mut c] {
            agent.run(&mut server);
        }
    }
    let spec = conflict(&server).unwrap();
    assert_eq!(
        (&*spec.claimants[0].party.node, spec.claimants[0].active),
        ("b", true)
    );
    let reports = b.reports();
    assert!(
        reports.iter().all(|r| r.is_reporter && !r.is_resolved),
        "{reports:?}"
    );
    // When it leaves, its report ends, and another reports what is left.
    b.release(address());
    b.run(&mut server);
    let reports = b.reports();
    let [end] = &reports[..] else {
        panic!("{reports:?}");
    };
    assert!(end.is_reporter && end.is_resolved);
    let of_b = end.conflict.claimants.iter().find(|c| c.party.node == "b");
    assert_eq!(of_b.unwrap().left, Some(LeaveReason::AddressRemoved));
    assert!(conflict(&server).is_none_or(|spec| {
        spec.claimants
            .iter()
            .all(|c| c.party.node != "b" || !c.active)
    }));
}

#[test]
fn holder_reports_the_end_for_a_reporter_whose_node_is_gone() {
    let (mut server, mut a, mut b) = asked("web", "cart");
    a.run(&mut server);
    b.run(&mut server);
    a.run(&mut server);
    assert!(a.reports().iter().all(|r| !r.is_reporter));
    assert!(a.journal.values().all(|memory| memory.reported.is_none()));
    server.nodes.remove("b");
    a.run_for(&mut server, std::time::Duration::from_secs(120));
    let reports = a.reports();
    assert!(
        matches!(&reports[..], [end] if end.is_resolved && end.is_reporter),
        "{reports:?}"
    );
    let left: Vec<_> = reports[0]
        .conflict
        .claimants
        .iter()
        .map(|c| c.left)
        .collect();
    assert_eq!(left, [None, Some(LeaveReason::Expired)]);
}

#[test]
fn reports_have_no_questions() {
    let (_, agents) = three();
    for mut agent in agents {
        for report in agent.reports() {
            let mut claimants = report.conflict.claimants.iter();
            assert!(claimants.all(|c| (c.asked, c.confirmed) == (0, 0)));
        }
    }
}
