//! The claims of a Node that is deleted are garbage-collected, even if the machine goes on.

use std::time::Duration;

use super::{
    super::{NodeState, Request},
    agent::{Agent, address, holder, other_address, server},
    server::Server,
};

/// Longer than the time between two reads of the own Node.
const PERIOD: Duration = Duration::from_secs(360);

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

#[test]
fn own_node_is_read_every_few_minutes() {
    let (mut server, mut a) = registered();
    let sent = a.run_for(&mut server, 10 * PERIOD);
    let of_node = |request: &Request| matches!(request, Request::GetNode(node) if node == "a");
    let reads = sent.iter().filter(|(_, request)| of_node(request)).count();
    assert!((9..=15).contains(&reads), "{sent:?}");
    assert_eq!(reads, sent.len(), "{sent:?}");
}

#[test]
fn claims_are_registered_again_after_the_node_was_made_again() {
    let (mut server, mut a) = registered();
    a.run_for(&mut server, PERIOD);
    server.delete_node("a");
    let again = NodeState {
        uid: "another".to_owned(),
        boot_id: "a-0".to_owned(),
        is_ready: true,
    };
    server.nodes.insert("a".to_owned(), again);
    assert!(!is_registered(&server));
    a.run_for(&mut server, PERIOD);
    assert!(is_registered(&server));
}

#[test]
fn claims_are_registered_again_after_the_node_was_deleted() {
    let (mut server, mut a) = registered();
    a.run_for(&mut server, PERIOD);
    server.delete_node("a");
    a.run_for(&mut server, PERIOD);
    assert!(is_registered(&server));
}

#[test]
fn node_that_was_made_again_soon_after_the_start_is_noticed() {
    let (mut server, mut a) = registered();
    server.delete_node("a");
    let again = NodeState {
        uid: "another".to_owned(),
        boot_id: "a-0".to_owned(),
        is_ready: true,
    };
    server.nodes.insert("a".to_owned(), again);
    a.run_for(&mut server, PERIOD);
    assert!(is_registered(&server));
}

#[test]
fn node_that_is_missing_at_the_first_read_makes_the_claims_be_read_again() {
    let mut server = Server::default();
    let mut a = Agent::new("a");
    a.claim(address(), "web");
    let sent = a.run(&mut server);
    let [
        Request::CreateClaim(_),
        Request::GetNode(_),
        Request::GetClaim,
    ] = &sent[..]
    else {
        panic!("{sent:?}");
    };
}
