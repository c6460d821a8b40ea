//! What agents say about the right of their pods to the address.

use super::{
    super::{Mode, Request},
    agent::{Agent, address, server},
    server::Server,
};

/// A pod on node `a` that records give the address, and one on node `b` that has assigned it to itself.
fn contest(server: &mut Server) -> (Agent, Agent) {
    let (mut a, mut b) = (Agent::new("a"), Agent::new("b"));
    let mut given = a.local("web");
    given.rightful = Some(true);
    a.protocol.set_local(a.now, address(), Some(given));
    a.run(server);
    let mut assigned = b.local("squatter");
    (assigned.rightful, assigned.mode) = (Some(false), Mode::Lookup);
    b.protocol.set_local(b.now, address(), Some(assigned));
    for _ in 0..2 {
        b.run(server);
        a.run(server);
    }
    (a, b)
}

fn rights(agent: &mut Agent) -> Vec<(String, Option<bool>)> {
    let reports = agent.reports();
    let claimants = &reports.last().unwrap().conflict.claimants;
    let right = claimants.iter().map(|c| (c.party.node.clone(), c.rightful));
    right.collect()
}

fn stated(a: Option<bool>, b: Option<bool>) -> Vec<(String, Option<bool>)> {
    vec![("a".to_owned(), a), ("b".to_owned(), b)]
}

#[test]
fn each_agent_states_the_right_of_its_own_pod() {
    let (mut a, mut b) = contest(&mut server(&["a", "b"]));
    assert_eq!(rights(&mut b), stated(Some(true), Some(false)));
    assert_eq!(rights(&mut a), stated(Some(true), Some(false)));
}

#[test]
fn right_that_becomes_known_later_is_an_update() {
    let mut server = server(&["a", "b"]);
    let (mut a, mut b) = (Agent::new("a"), Agent::new("b"));
    let mut given = a.local("web");
    a.protocol.set_local(a.now, address(), Some(given.clone()));
    a.run(&mut server);
    b.claim(address(), "cart");
    b.run(&mut server);
    a.run(&mut server);
    b.run(&mut server);
    assert_eq!(rights(&mut b), stated(None, None));
    given.rightful = Some(true);
    a.protocol.set_local(a.now, address(), Some(given));
    a.run(&mut server);
    b.run(&mut server);
    assert_eq!(rights(&mut b), stated(Some(true), None));
}

#[test]
fn server_that_drops_the_right_is_not_asked_again_and_again() {
    let mut server = server(&["a", "b"]);
    server.knows_no_rights = true;
    let (mut a, mut b) = contest(&mut server);
    assert_eq!(rights(&mut b), stated(None, None));
    for agent in [&mut a, &mut b] {
        assert_eq!(agent.run(&mut server), []);
    }
    // What else changes is still written.
    b.release(address());
    let sent = b.run(&mut server);
    assert!(
        sent.iter().any(
            |request| matches!(request, Request::ReplaceConflict(_, spec) if spec.is_resolved())
        ),
        "{sent:?}"
    );
}
