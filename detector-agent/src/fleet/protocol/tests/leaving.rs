//! An agent whose node no longer has the address takes itself out of the conflict.

use super::{
    super::Request,
    agent::{Agent, address, holder, server},
    server::Server,
};
use crate::{engine::LeaveReason, fleet::objects::ConflictSpec};

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
    let stored = server.conflicts.get(&address().object_name())?;
    Some(&stored.spec)
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
fn last_contender_deletes_the_conflict() {
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
