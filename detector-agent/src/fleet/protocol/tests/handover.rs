//! A pod that moves keeps its address for a moment on both nodes: that is no conflict unless it lasts.

use std::time::Duration;

use super::agent::{Agent, HANDOVER, address, holder, server};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn pod_that_moves_is_not_reported() {
    let mut server = server(&["a", "b"]);
    let (mut a, mut b) = (Agent::new("a"), Agent::new("b"));
    a.claim(address(), "db-0");
    a.run(&mut server);
    b.claim(address(), "db-0");
    b.run(&mut server);
    a.run(&mut server);
    b.run_for(&mut server, HANDOVER - SECOND);
    a.release(address());
    a.run(&mut server);
    b.run_for(&mut server, HANDOVER);
    assert!(b.reports().is_empty());
    assert_eq!(holder(&server, address()).unwrap().node, "b");
    assert!(server.conflicts.is_empty());
}

#[test]
fn handover_that_lasts_is_reported_after_another_confirmation() {
    let mut server = server(&["a", "b"]);
    let (mut a, mut b) = (Agent::new("a"), Agent::new("b"));
    a.claim(address(), "db-0");
    a.run(&mut server);
    b.claim(address(), "db-0");
    b.run(&mut server);
    a.run(&mut server);
    b.run_for(&mut server, HANDOVER - SECOND);
    assert!(b.reports().is_empty());
    // The confirmation of the beginning does not count: `a` may have released the address since.
    b.run_for(&mut server, 2 * SECOND);
    assert!(b.reports().is_empty());
    a.run(&mut server);
    b.run(&mut server);
    assert_eq!(b.reports().len(), 1);
}

#[test]
fn pod_that_is_being_deleted_has_the_time_of_a_handover() {
    let mut server = server(&["a", "b"]);
    let (mut a, mut b) = (Agent::new("a"), Agent::new("b"));
    let mut local = a.local("web");
    local.terminating = true;
    a.protocol.set_local(a.now, address(), Some(local));
    a.run(&mut server);
    b.claim(address(), "cart");
    b.run(&mut server);
    a.run(&mut server);
    b.run_for(&mut server, HANDOVER - SECOND);
    assert!(b.reports().is_empty());
    b.run_for(&mut server, 2 * SECOND);
    a.run(&mut server);
    b.run(&mut server);
    assert_eq!(b.reports().len(), 1);
}
