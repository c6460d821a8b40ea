//! A pod that adds and removes addresses as fast as it can.

use std::collections::BTreeSet;

use anyhow::ensure;
use detector_testkit::{Agent, AgentCommand, Barrier, DEADLINE, Node, Pod, PodSpec, until};

use crate::{
    AGENT,
    metrics::{metric, wait_claims},
};

const VICTIM: &str = "10.244.1.10";
const LEFT: &str = "10.244.1.11";
/// Twice as many changes as a device may cause at once.
const ROUNDS: u32 = 2_048;

fn change(verb: &str, address: &str) -> String {
    match (address.contains(':'), verb) {
        (true, "add") => format!("address add {address}/128 dev eth0 nodad"),
        (true, _) => format!("address {verb} {address}/128 dev eth0"),
        (false, _) => format!("address {verb} {address}/32 dev eth0"),
    }
}

/// Adds and removes addresses of no other pod; in between makes these changes, and adds and removes addresses of their family.
fn flood(pod: &Pod, changes: impl IntoIterator<Item = String>) {
    let changes: Vec<_> = changes.into_iter().collect();
    let is_ipv6 = changes.iter().any(|change| change.contains(':'));
    let round = |n: u32| {
        let address = if is_ipv6 {
            format!("2001:db8:100::{n:x}")
        } else {
            format!("10.100.{}.{}", n / 256, n % 256)
        };
        ["add", "del"].map(|verb| change(verb, &address))
    };
    let mut lines: Vec<_> = (0..ROUNDS).flat_map(round).collect();
    lines.extend(changes);
    lines.extend((0..ROUNDS).flat_map(round));
    pod.netns().ip_batch(lines).unwrap();
}

#[test]
fn claim_inside_a_flood_of_address_changes_raises() {
    let node = Node::new("churn").unwrap();
    raises_inside_a_flood(&node, VICTIM, |pod| pod);
}

#[test]
fn claim_inside_a_flood_of_ipv6_address_changes_raises() {
    let node = Node::new("churn6").unwrap();
    raises_inside_a_flood(&node, "2001:db8::10", |pod| pod);
}

#[test]
fn claim_inside_a_flood_of_address_changes_behind_a_bridge_raises() {
    let node = Node::new("churnbridge").unwrap();
    node.add_bridge("cni0", &["10.244.1.1/24"]).unwrap();
    raises_inside_a_flood(&node, VICTIM, |pod| pod.master("cni0"));
}

fn raises_inside_a_flood(node: &Node, address: &str, attach: impl Fn(PodSpec) -> PodSpec) {
    let length = if address.contains(':') { 128 } else { 32 };
    let victim = PodSpec::new("vethvictim").address(format!("{address}/{length}"));
    let _victim = node.add_pod(&attach(victim)).unwrap();
    let hostile = PodSpec::new("vethhostile").ipv6();
    let hostile = node.add_pod(&attach(hostile)).unwrap();
    let agent = Agent::start_ready(node, &AgentCommand::run(AGENT)).unwrap();
    flood(&hostile, [change("add", address)]);
    let conflict = agent.wait_raised(address).unwrap();
    assert_eq!(conflict.confidence, "certain");
    flood(&hostile, [change("del", address)]);
    agent.wait_resolved(address).unwrap();
    until(DEADLINE, "the changes to be counted", || {
        let series = r#"ipconflict_observations_dropped_total{reason="address_changes"}"#;
        let dropped = metric(node, series)?;
        ensure!(dropped > u64::from(ROUNDS), "{dropped}");
        Ok(())
    })
    .unwrap();
    let log = agent.log();
    let named = log.lines().filter(|line| line.contains("changes of the"));
    let named: Vec<_> = named.collect();
    assert_eq!(named.len(), 1, "{log}");
    assert!(named[0].contains("vethhostile"), "{log}");
}

/// Too short for a read of the device to find it.
#[test]
fn claim_of_a_moment_inside_a_flood_of_address_changes_raises() {
    let node = Node::new("churnmoment").unwrap();
    let victim = PodSpec::new("vethvictim").address(format!("{VICTIM}/32"));
    let _victim = node.add_pod(&victim).unwrap();
    let hostile = node.add_pod(&PodSpec::new("vethhostile")).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    flood(&hostile, ["add", "del"].map(|verb| change(verb, VICTIM)));
    let conflict = agent.wait_raised(VICTIM).unwrap();
    assert_eq!(conflict.confidence, "certain");
    agent.wait_resolved(VICTIM).unwrap();
}

#[test]
fn what_is_left_after_a_flood_of_address_changes_is_read() {
    let node = Node::new("churnend").unwrap();
    let hostile = node.add_pod(&PodSpec::new("vethhostile")).unwrap();
    let _agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    flood(&hostile, [change("add", LEFT)]);
    wait_claims(&node, LEFT, 1);
    flood(&hostile, [change("del", LEFT)]);
    wait_claims(&node, LEFT, 0);
}

/// However fast it is: the conflict begins again under its id, and is then open until it has been over for a while.
#[test]
fn address_added_and_removed_in_a_loop_is_one_conflict() {
    let node = Node::new("loop").unwrap();
    let victim = PodSpec::new("vethvictim").address(format!("{VICTIM}/32"));
    let _victim = node.add_pod(&victim).unwrap();
    let hostile = node.add_pod(&PodSpec::new("vethhostile")).unwrap();
    let barrier = Barrier::prepare(&node).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let round = || [change("add", VICTIM), change("del", VICTIM)];
    let rounds = std::iter::repeat_with(round).take(100).flatten();
    hostile
        .netns()
        .ip_batch(rounds.chain([change("add", VICTIM)]))
        .unwrap();
    let events = barrier.pass(&node, &agent).unwrap();
    let about_victim = events.iter().map(|received| &received.event);
    let about_victim: Vec<_> = about_victim
        .filter(|event| event.subject == VICTIM)
        .collect();
    assert!((1..6).contains(&about_victim.len()), "{about_victim:#?}");
    let conflicts = about_victim.iter().map(|event| event.conflict().unwrap());
    let ids: BTreeSet<_> = conflicts.map(|conflict| conflict.conflict_id).collect();
    assert_eq!(ids.len(), 1, "{about_victim:#?}");
    assert!(!about_victim[about_victim.len() - 1].resolves(VICTIM));
}
