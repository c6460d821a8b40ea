//! Pods that claim as many addresses of one another as they can: the agent stays within the memory that its manifest allows,
//! and reports what others do meanwhile.

use std::{fs, thread};

use detector_testkit::{Agent, AgentCommand, Node, Pod, PodSpec};

use crate::AGENT;

const PODS: usize = 16;
/// As many as the agent keeps of one device.
const ADDRESSES: u16 = 1_024;
const MANIFEST: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../deploy/manifests/base/daemonset.yaml"
);

/// The memory limit of the agent's container, in KiB.
fn memory_limit() -> u64 {
    let manifest = fs::read_to_string(MANIFEST).unwrap();
    let limits = manifest.split_once("limits:").unwrap().1;
    let memory = limits.split_once("memory: ").unwrap().1;
    let mebibytes = memory.split_once("Mi").unwrap().0;
    mebibytes.parse::<u64>().unwrap() << 10
}

/// The most memory that the agent has had resident, in KiB.
fn most_resident(agent: &Agent) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", agent.pid())).unwrap();
    let line = status.split_once("VmHWM:").unwrap().1;
    line.split_whitespace().next().unwrap().parse().unwrap()
}

fn assign_all(pod: &Pod) {
    let lines = (0..ADDRESSES).map(|n| {
        let [high, low] = n.to_be_bytes();
        format!("address add 10.20.{high}.{low}/32 dev eth0")
    });
    pod.netns().ip_batch(lines).unwrap();
}

#[test]
fn pods_that_all_claim_the_same_addresses_exhaust_no_memory() {
    let node = Node::new("exhaust").unwrap();
    let names: Vec<_> = (0..PODS).map(|n| format!("vethbad{n}")).collect();
    let specs: Vec<_> = names.iter().map(PodSpec::new).collect();
    let attackers = node.add_pods(&specs).unwrap();
    let victims = node
        .add_pods(&["vetha", "vethb"].map(PodSpec::new))
        .unwrap();
    let state = tempfile::tempdir().unwrap();
    let config = state.path().join("config.yaml");
    // Events wait for a receiver that is down.
    fs::write(
        &config,
        "webhooks:\n- {name: hook, url: 'http://127.0.0.1:9'}\n- {name: chat, format: slack, url: 'http://127.0.0.1:9'}\n",
    )
    .unwrap();
    let command = AgentCommand::run(AGENT)
        .arg("--config")
        .arg(&config)
        .arg("--state-dir")
        .arg(state.path().join("state"));
    let agent = Agent::start_ready(&node, &command).unwrap();
    thread::scope(|scope| {
        for pod in &attackers {
            scope.spawn(|| assign_all(pod));
        }
    });
    for pod in &victims {
        pod.add_address("10.9.9.9/32").unwrap();
    }
    let conflict = agent.wait_raised("10.9.9.9").unwrap();
    assert_eq!(conflict.devices(), ["vetha", "vethb"]);
    // Each address is in conflict, and its claimants beyond those listed are counted.
    for n in [0, ADDRESSES - 1] {
        let [high, low] = n.to_be_bytes();
        agent.wait_raised(&format!("10.20.{high}.{low}")).unwrap();
    }
    let (used, limit) = (most_resident(&agent), memory_limit());
    assert!(used < limit, "{used} of {limit} KiB");
}
