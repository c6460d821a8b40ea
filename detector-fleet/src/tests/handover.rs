//! A pod that moves keeps its address for a moment on both nodes: that is no conflict unless it lasts.

use std::time::Duration;

use super::{
    super::Report,
    agent::{Agent, HANDOVER, address, asked, holder, server},
    server::Server,
};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn pod_that_moves_is_not_reported() {
    let (mut server, mut a, mut b) = asked("db-0", "db-0");
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
    let (mut server, mut a, mut b) = asked("db-0", "db-0");
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

/// `b` has reported its conflict with `a`, and the pod of `b` is moving to `c`.
fn reported() -> (Server, [Agent; 3]) {
    let mut server = server(&["a", "b", "c"]);
    let mut agents = ["a", "b", "c"].map(Agent::new);
    agents[0].claim(address(), "web");
    agents[0].run(&mut server);
    agents[1].claim(address(), "db-0");
    exchange(&mut server, &mut agents);
    assert!(is_open(&agents[1].reports()));
    (server, agents)
}

/// Everyone sends what is due, until nothing is.
fn exchange(server: &mut Server, agents: &mut [Agent]) {
    let mut is_quiet = false;
    while !is_quiet {
        is_quiet = agents.iter_mut().all(|agent| agent.run(server).is_empty());
    }
}

/// The same, while so much time passes.
fn exchange_for(server: &mut Server, agents: &mut [Agent], span: Duration) {
    let mut passed = Duration::ZERO;
    while passed < span {
        agents.iter_mut().for_each(|agent| agent.sleep(SECOND / 10));
        passed += SECOND / 10;
        exchange(server, agents);
    }
}

/// Whether an event that the conflict is open came after those that it is over.
fn is_open(reports: &[Report]) -> bool {
    let last = reports.iter().rfind(|report| report.is_reporter);
    last.is_some_and(|last| !last.is_resolved)
}

#[test]
fn report_ends_when_only_a_handover_is_left() {
    let (mut server, mut agents) = reported();
    agents[2].claim(address(), "db-0");
    exchange(&mut server, &mut agents);
    agents[0].release(address());
    exchange(&mut server, &mut agents);
    let reports = agents[1].reports();
    let resolved = reports.iter().filter(|r| r.is_reporter && r.is_resolved);
    assert_eq!(resolved.count(), 1, "{reports:?}");
    assert!(!is_open(&reports), "{reports:?}");
    assert!(!is_open(&agents[2].reports()));
    exchange_for(&mut server, &mut agents, HANDOVER - SECOND);
    let open = agents.each_mut().map(|agent| is_open(&agent.reports()));
    assert_eq!(open, [false; 3]);
    exchange_for(&mut server, &mut agents, 3 * SECOND);
    let open = agents.each_mut().map(|agent| is_open(&agent.reports()));
    assert_eq!(open.iter().filter(|open| **open).count(), 1, "{open:?}");
}

#[test]
fn earlier_reporter_does_not_report_a_handover() {
    let (mut server, mut agents) = reported();
    // The claim of `a` was deleted by hand, and `c` gets it.
    server.claims.clear();
    agents[2].claim(address(), "db-0");
    exchange(&mut server, &mut agents);
    // A contender reads the claim again, and then the conflict names `c`.
    let first = |server: &Server| {
        let conflict = &server.conflicts[&address().object_name()].spec;
        conflict.claimants[0].party.node.clone()
    };
    while first(&server) != "c" {
        agents[1].run_for(&mut server, SECOND);
    }
    exchange(&mut server, &mut agents);
    assert!(is_open(&agents[0].reports()), "it is listed before `b` now");
    agents[1].reports();
    agents[0].release(address());
    exchange(&mut server, &mut agents);
    let open = agents.each_mut().map(|agent| is_open(&agent.reports()));
    assert_eq!(open, [false; 3]);
    agents[1].release(address());
    exchange(&mut server, &mut agents);
    assert!(server.conflicts.is_empty());
}

#[test]
fn report_goes_on_while_a_pod_of_it_is_deleted() {
    for deleted in [0, 1] {
        let (mut server, mut agents) = reported();
        let agent = &mut agents[deleted];
        let mut local = agent.local(["web", "db-0"][deleted]);
        local.terminating = true;
        agent.protocol.set_local(agent.now, address(), Some(local));
        exchange(&mut server, &mut agents);
        exchange_for(&mut server, &mut agents, 2 * HANDOVER);
        let reports = agents[1].reports();
        assert!(reports.iter().all(|report| !report.is_resolved));
        assert!(is_open(&reports), "it is updated");
    }
}
