//! A holder confirms only what its node has at that moment.

use std::time::Duration;

use super::{
    super::Request,
    agent::{Agent, address, asked, holder},
    server::Server,
};

fn is_confirmed(server: &Server) -> bool {
    let conflict = &server.conflicts[&address().object_name()].spec;
    conflict.claimants.iter().any(|c| c.confirmed != 0)
}

#[test]
fn holder_with_the_address_confirms() {
    let (mut server, mut a, _b) = asked("web", "cart");
    a.run(&mut server);
    assert!(is_confirmed(&server));
}

#[test]
fn holder_without_the_address_releases_it_instead() {
    let (mut server, mut a, _b) = asked("web", "cart");
    a.release(address());
    let sent = a.run(&mut server);
    assert!(matches!(sent[0], Request::DeleteClaim(_)), "{sent:?}");
    assert!(!is_confirmed(&server));
    assert_eq!(holder(&server, address()), None);
}

#[test]
fn restarted_holder_confirms_only_once_it_has_seen_the_address() {
    let (mut server, a, _b) = asked("web", "cart");
    let mut a = Agent::starting("a", 0, a.journal);
    a.run_for(&mut server, Duration::from_secs(60));
    assert!(!is_confirmed(&server));
    a.claim(address(), "web");
    a.run_for(&mut server, Duration::from_secs(1));
    assert!(is_confirmed(&server));
}

#[test]
fn holder_whose_claim_was_taken_over_confirms_nothing() {
    let (mut server, mut a, _b) = asked("web", "cart");
    // The claim of `a` was deleted by hand, and `b` has it now.
    let name = address().object_name();
    server.claims.remove(&name);
    let mut b = Agent::new("b");
    b.claim(address(), "cart");
    b.run(&mut server);
    assert_eq!(holder(&server, address()).unwrap().node, "b");
    a.run(&mut server);
    let conflict = &server.conflicts[&name].spec;
    let of_b = conflict.claimants.iter().find(|c| c.party.node == "b");
    assert!(of_b.is_none_or(|c| c.confirmed == 0), "{conflict:?}");
}
