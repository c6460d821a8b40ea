//! When an `IPConflict`, or the claim beside it, is read again: what a list, an event and an answer have may differ.

use super::{
    super::{Outcome, Request},
    agent::{Agent, address, asked, server},
};

#[test]
fn conflict_of_others_is_found_by_creating_it() {
    let mut server = server(&["a", "b", "c"]);
    let (mut b, mut c) = (Agent::new("b"), Agent::new("c"));
    b.claim(address(), "cart");
    b.run(&mut server);
    c.claim(address(), "checkout");
    c.run(&mut server);
    let mut a = Agent::new("a");
    a.watch(&server);
    assert!(
        a.protocol.entries.is_empty(),
        "it does not concern this node"
    );
    a.claim(address(), "web");
    let sent: Vec<_> = std::iter::from_fn(|| a.exchange(&mut server)).collect();
    let [
        Request::CreateClaim(_),
        Request::GetClaim,
        Request::CreateConflict(_),
        Request::GetConflict,
        Request::ReplaceConflict(_, joined),
    ] = &sent[..]
    else {
        panic!("{sent:?}");
    };
    let nodes: Vec<_> = joined.claimants.iter().map(|c| &*c.party.node).collect();
    assert_eq!(nodes, ["b", "c", "a"]);
}

#[test]
fn conflict_that_no_longer_names_the_node_is_let_go_until_it_does_again() {
    let (mut server, mut a, _b) = asked("web", "cart");
    a.run(&mut server);
    let name = address().object_name();
    let with_both = server.conflicts[&name].spec.clone();
    let mut without = with_both.clone();
    without.claimants.remove(0);
    server.write_conflict(without);
    a.watch(&server);
    assert_eq!(a.protocol.entries[&address()].conflict.version(), None);
    // It is the same object, not another one.
    server.write_conflict(with_both);
    a.watch(&server);
    assert_eq!(
        a.protocol.entries[&address()].conflict.version(),
        Some(&server.conflicts[&name].version)
    );
}

#[test]
fn list_that_differs_from_an_answer_is_checked() {
    let (mut server, _a, mut b) = asked("web", "cart");
    b.list(Vec::new());
    let next = b.exchange(&mut server);
    assert_eq!(next, Some(Request::GetConflict));
    assert!(b.exchange(&mut server).is_none(), "it is as it was");
}

#[test]
fn missing_conflict_of_an_earlier_answer_does_not_undo_a_later_event() {
    let (mut server, _a, mut b) = asked("web", "cart");
    let name = address().object_name();
    let spec = server.conflicts[&name].spec.clone();
    b.list(Vec::new());
    let call = b.next().unwrap();
    assert_eq!(call.request, Request::GetConflict);
    server.delete_conflict(&name);
    let outcome = server.apply(call.subject, &call.request);
    assert_eq!(outcome, Outcome::NotFound);
    server.write_conflict(spec);
    b.watch(&server);
    b.answer(&call, outcome);
    assert_eq!(
        b.protocol.entries[&address()].conflict.version(),
        Some(&server.conflicts[&name].version)
    );
}

#[test]
fn holder_that_is_no_longer_listed_first_reads_its_claim() {
    let (mut server, mut a, _b) = asked("web", "cart");
    a.run(&mut server);
    server.delete_conflict(&address().object_name());
    let sent = a.run(&mut server);
    assert_eq!(sent, [Request::GetClaim]);
}
