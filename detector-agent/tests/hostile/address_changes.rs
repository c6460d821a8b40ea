//! A pod that adds and removes addresses as fast as it can.

use anyhow::ensure;
use detector_testkit::{Agent, AgentCommand, DEADLINE, Node, Pod, PodSpec, until};

use crate::{
    AGENT,
    metrics::{metric, wait_claims},
};

const VICTIM: &str = "10.244.1.10";
const LEFT: &str = "10.244.1.11";
/// Twice as many changes as a device may cause at once.
const ROUNDS: u32 = 2_048;

fn change(verb: &str, address: &str) -> String {
    format!("address {verb} {address}/32 dev eth0")
}

/// Adds and removes addresses of no other pod; in between changes `line`.
fn flood(pod: &Pod, line: String) {
    let round = |n: u32| {
        let address = format!("10.100.{}.{}", n / 256, n % 256);
        ["add", "del"].map(|verb| change(verb, &address))
    };
    let mut lines: Vec<_> = (0..ROUNDS).flat_map(round).collect();
    lines.push(line);
    lines.extend((0..ROUNDS).flat_map(round));
    pod.netns().ip_batch(lines).unwrap();
}

#[test]
fn claim_inside_a_flood_of_address_changes_raises() {
    let node = Node::new("churn").unwrap();
    let victim = PodSpec::new("vethvictim").address(format!("{VICTIM}/32"));
    let _victim = node.add_pod(&victim).unwrap();
    let hostile = node.add_pod(&PodSpec::new("vethhostile")).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    flood(&hostile, change("add", VICTIM));
    let conflict = agent.wait_raised(VICTIM).unwrap();
    assert_eq!(conflict.confidence, "certain");
    flood(&hostile, change("del", VICTIM));
    agent
        .wait_event(DEADLINE, |event| event.resolves(VICTIM))
        .unwrap();
    until(DEADLINE, "the changes to be counted", || {
        let series = r#"ipconflict_observations_dropped_total{reason="address_changes"}"#;
        let dropped = metric(&node, series)?;
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

#[test]
fn what_is_left_after_a_flood_of_address_changes_is_read() {
    let node = Node::new("churnend").unwrap();
    let hostile = node.add_pod(&PodSpec::new("vethhostile")).unwrap();
    let _agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    flood(&hostile, change("add", LEFT));
    wait_claims(&node, LEFT, 1);
    flood(&hostile, change("del", LEFT));
    wait_claims(&node, LEFT, 0);
}
