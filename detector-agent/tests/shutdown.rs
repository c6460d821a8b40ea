//! How the agent shuts down, and that it leaves nothing behind on the devices.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

use detector_testkit::{Agent, AgentCommand, DEADLINE, Node, Pod, PodSpec};
use nix::sys::signal::Signal;

const AGENT: &str = env!("CARGO_BIN_EXE_detector-agent");

fn node_with_pods(prefix: &str) -> (Node, Vec<Pod>) {
    let node = Node::new(prefix).unwrap();
    let specs: Vec<_> = (0..5)
        .map(|number| PodSpec::new(format!("veth{number}")))
        .collect();
    let pods = node.add_pods(&specs).unwrap();
    (node, pods)
}

/// The clsact ingress filters of these devices, one per line.
fn filters(node: &Node, pods: &[Pod]) -> Vec<String> {
    pods.iter()
        .flat_map(|pod| {
            let shown = node
                .exec(&["tc", "filter", "show", "dev", pod.device(), "ingress"])
                .unwrap();
            shown
                .lines()
                .filter(|line| line.contains("bpf"))
                .map(ToOwned::to_owned)
                .collect::<Vec<_>>()
        })
        .filter(|line| line.contains("handle"))
        .collect()
}

#[test]
fn sigterm_detaches_and_exits_0() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let (node, pods) = node_with_pods("term");
        let mut agent =
            Agent::start_ready(&node, &AgentCommand::run(AGENT).arg("--attach").arg("tc")).unwrap();
        assert_eq!(filters(&node, &pods).len(), pods.len());
        agent.signal(signal).unwrap();
        let (status, _) = agent.wait_exit(DEADLINE).unwrap();
        assert_eq!(status.code(), Some(0), "{signal}: {}", agent.log());
        assert_eq!(filters(&node, &pods), Vec::<String>::new());
    }
}

#[test]
fn sigterm_during_startup_exits_0_and_leaves_nothing() {
    let (node, pods) = node_with_pods("early");
    let mut agent =
        Agent::start(&node, &AgentCommand::run(AGENT).arg("--attach").arg("tc")).unwrap();
    // Its signal handlers are installed before its first log line.
    agent.wait_log(DEADLINE, "{").unwrap();
    let (status, _) = agent.terminate(DEADLINE).unwrap();
    assert_eq!(status.code(), Some(0), "{}", agent.log());
    assert_eq!(filters(&node, &pods), Vec::<String>::new());
}

#[test]
fn next_start_removes_the_filters_of_a_killed_agent() {
    let (node, pods) = node_with_pods("kill");
    let command = AgentCommand::run(AGENT).arg("--attach").arg("tc");
    let mut killed = Agent::start_ready(&node, &command).unwrap();
    killed.kill().unwrap();
    assert_eq!(
        filters(&node, &pods).len(),
        pods.len(),
        "a killed agent leaves its filters"
    );
    let mut next = Agent::start_ready(&node, &command).unwrap();
    assert_eq!(
        filters(&node, &pods).len(),
        pods.len(),
        "one filter a device, not two"
    );
    next.terminate(DEADLINE).unwrap();
    assert_eq!(filters(&node, &pods), Vec::<String>::new());
}

#[test]
fn cleanup_removes_the_filters_of_a_killed_agent() {
    let (node, pods) = node_with_pods("cleanup");
    let mut killed =
        Agent::start_ready(&node, &AgentCommand::run(AGENT).arg("--attach").arg("tc")).unwrap();
    killed.kill().unwrap();
    let outcome = AgentCommand::new(AGENT, ["cleanup"])
        .run_to_end(&node, DEADLINE)
        .unwrap();
    assert_eq!(outcome.code().unwrap(), 0, "{outcome:?}");
    assert_eq!(filters(&node, &pods), Vec::<String>::new());
}

#[test]
fn cleanup_while_an_agent_runs_needs_force() {
    let (node, pods) = node_with_pods("beside");
    let _agent =
        Agent::start_ready(&node, &AgentCommand::run(AGENT).arg("--attach").arg("tc")).unwrap();
    let attached = filters(&node, &pods);
    let cleanup = AgentCommand::new(AGENT, ["cleanup"]);
    let outcome = cleanup.run_to_end(&node, DEADLINE).unwrap();
    assert_eq!(outcome.code().unwrap(), 2, "{outcome:?}");
    assert!(outcome.stderr.contains("--force"), "{outcome:?}");
    assert_eq!(filters(&node, &pods), attached);
    let outcome = cleanup.arg("--force").run_to_end(&node, DEADLINE).unwrap();
    assert_eq!(outcome.code().unwrap(), 0, "{outcome:?}");
    assert!(outcome.stdout.contains("from 5 devices"), "{outcome:?}");
}

#[test]
fn second_agent_on_a_node_exits_2_and_the_first_keeps_running() {
    let (node, _pods) = node_with_pods("second");
    let first = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    // Neither directory matters: the lock is the network namespace's.
    let state = tempfile::tempdir().unwrap();
    let second = AgentCommand::new(AGENT, ["run", "--events", "-", "--listen", "127.0.0.1:0"])
        .arg("--state-dir")
        .arg(state.path());
    let outcome = second.run_to_end(&node, DEADLINE).unwrap();
    assert_eq!(outcome.code().unwrap(), 2, "{outcome:?}");
    assert_eq!(
        outcome.stderr.trim().lines().count(),
        1,
        "{}",
        outcome.stderr
    );
    let specs = ["vethx", "vethy"].map(|device| PodSpec::new(device).address("10.244.2.10/32"));
    let _claimants = node.add_pods(&specs).unwrap();
    first
        .wait_event(DEADLINE, |event| event.raises("10.244.2.10"))
        .unwrap();
}

#[test]
fn agents_on_two_nodes_of_one_machine_are_independent() {
    let (one, _pods_of_one) = node_with_pods("one");
    let (two, _pods_of_two) = node_with_pods("two");
    let agents =
        [&one, &two].map(|node| Agent::start_ready(node, &AgentCommand::run(AGENT)).unwrap());
    let specs = ["vethx", "vethy"].map(|device| PodSpec::new(device).address("10.244.2.10/32"));
    let _on_one = one.add_pod(&specs[0]).unwrap();
    // The same address on another node of the same kernel is no conflict; twice on one node it is.
    let _on_two = two.add_pods(&specs).unwrap();
    agents[1]
        .wait_event(DEADLINE, |event| event.raises("10.244.2.10"))
        .unwrap();
    assert_eq!(agents[0].event_count(), 0);
}
