//! The claims of a Node that is deleted are garbage-collected, even if the machine continues to run.

use std::time::Duration;

use super::{
    super::{NodeState, Request},
    agent::{Agent, address, holder, other_address, server},
    server::Server,
};

/// Longer than the time after which a claim is verified that the garbage collector may still delete.
const COLLECTED: Duration = Duration::from_secs(90);

fn registered() -> (Server, Agent) {
    let mut server = server(&["a"]);
    let mut a = Agent::new("a");
    a.claim(address(), "web");
    a.claim(other_address(), "cart");
    a.run(&mut server);
    (server, a)
}

fn is_registered(server: &Server) -> bool {
    [address(), other_address()]
        .into_iter()
        .all(|subject| holder(server, subject).is_some())
}

fn make_again(server: &mut Server) {
    let again = NodeState {
        uid: "another".to_owned(),
        boot_id: "a-0".to_owned(),
        is_ready: true,
    };
    server.nodes.insert("a".to_owned(), again);
}

#[test]
fn own_node_costs_no_requests() {
    let (mut server, mut a) = registered();
    let sent = a.run_for(&mut server, Duration::from_secs(3_600));
    assert!(sent.is_empty(), "{sent:?}");
}

#[test]
fn claims_are_registered_again_as_soon_as_the_node_was_made_again() {
    let (mut server, mut a) = registered();
    server.delete_node("a");
    make_again(&mut server);
    assert!(!is_registered(&server));
    a.run(&mut server);
    assert!(is_registered(&server));
}

#[test]
fn claims_are_registered_again_after_the_node_was_deleted() {
    let (mut server, mut a) = registered();
    server.delete_node("a");
    a.run(&mut server);
    assert!(is_registered(&server));
}

#[test]
fn claims_that_are_collected_later_are_registered_again() {
    let (mut server, mut a) = registered();
    make_again(&mut server);
    let sent = a.run(&mut server);
    assert_eq!(sent, [Request::GetClaim, Request::GetClaim], "still there");
    server.claims.clear();
    a.run_for(&mut server, COLLECTED);
    assert!(is_registered(&server));
}

#[test]
fn node_that_is_known_for_the_first_time_is_no_news() {
    let mut server = Server::default();
    let mut a = Agent::new("a");
    a.claim(address(), "web");
    let sent = a.run(&mut server);
    let [Request::CreateClaim(_)] = &sent[..] else {
        panic!("{sent:?}");
    };
}
