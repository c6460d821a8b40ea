//! What agents say about the right of their pods to the address.

use super::{
    super::Mode,
    agent::{Agent, address, server},
    server::Server,
};

/// A pod on node `a` that records give the address, and one on node `b` that has assigned it to itself.
fn contested() -> (Server, Agent, Agent) {
    given_and_assigned(server(&["a", "b"]))
}

fn given_and_assigned(mut server: Server) -> (Server, Agent, Agent) {
    let (mut a, mut b) = (Agent::new("a"), Agent::new("b"));
    let mut given = a.local("web");
    given.rightful = Some(true);
    a.protocol.set_local(a.now, address(), Some(given));
    a.run(&mut server);
    let mut assigned = b.local("squatter");
    (assigned.rightful, assigned.mode) = (Some(false), Mode::Lookup);
    b.protocol.set_local(b.now, address(), Some(assigned));
    for _ in 0..2 {
        b.run(&mut server);
        a.run(&mut server);
    }
    (server, a, b)
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
    let (_server, mut a, mut b) = contested();
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
