//! Which pod: a real containerd with its CRI plugin, runc and the real `ptp` and `host-local`, whose state is wiped while
//! pods run.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use detector_testkit::{
    Agent, AgentCommand, Containerd, DEADLINE, Node, Received, containerd::Sandbox, event::Conflict,
};
use serde_json::Value;

const AGENT: &str = env!("CARGO_BIN_EXE_detector-agent");
const SUBNET: &str = "10.244.2.0/24";

/// `run` as the tests read it, with containerd's own socket.
fn agent(containerd: &Containerd, cache: &str) -> AgentCommand {
    let run = [
        "run",
        "--events",
        "-",
        "--log-format",
        "json",
        "--node-name",
        "testkit",
        "--cni-cache-dir",
        cache,
        "--cri-endpoint",
    ];
    containerd.inside(AGENT, run).arg(containerd.socket())
}

/// The newest word on each address.
fn conflicts(events: &[Received]) -> BTreeMap<String, Conflict> {
    events
        .iter()
        .filter_map(|received| received.event.conflict())
        .map(|conflict| (conflict.address.clone(), conflict))
        .collect()
}

fn all_named(events: &[Received], addresses: usize) -> bool {
    let conflicts = conflicts(events);
    conflicts.len() == addresses
        && conflicts
            .values()
            .flat_map(|conflict| &conflict.claimants)
            .all(|claimant| claimant.pod.as_ref().is_some_and(|pod| pod["via"] == "cri"))
}

fn wipe_and_run_again(containerd: &mut Containerd) -> Vec<Sandbox> {
    let mut pods = containerd
        .run_pods((1..=5).map(|n| format!("old-{n}")))
        .unwrap();
    containerd.wipe_ipam().unwrap();
    pods.extend(
        containerd
            .run_pods((1..=5).map(|n| format!("new-{n}")))
            .unwrap(),
    );
    pods
}

/// The pods of these conflicts: namespace, name, uid and sandbox id.
fn named(conflicts: &BTreeMap<String, Conflict>) -> BTreeSet<[String; 4]> {
    conflicts
        .values()
        .flat_map(|conflict| &conflict.claimants)
        .map(|claimant| {
            let pod = claimant.pod.as_ref().unwrap();
            ["namespace", "name", "uid", "container_id"]
                .map(|field| pod[field].as_str().unwrap_or_default().to_owned())
        })
        .collect()
}

fn expected(pods: &[Sandbox]) -> BTreeSet<[String; 4]> {
    pods.iter()
        .cloned()
        .map(|pod| [pod.namespace, pod.name, pod.uid, pod.id])
        .collect()
}

#[test]
fn ten_of_ten_claimants_are_named_with_namespace_name_and_uid() {
    let node = Node::new("containerd").unwrap();
    let mut containerd = Containerd::ptp(&node, SUBNET).unwrap();
    let agent = Agent::start_ready(&node, &agent(&containerd, "off")).unwrap();
    let pods = wipe_and_run_again(&mut containerd);
    let events = agent
        .wait_until(DEADLINE, |events| all_named(events, 5))
        .unwrap();
    let conflicts = conflicts(&events);
    assert_eq!(named(&conflicts), expected(&pods));
    if let Some(directory) = std::env::var_os("IDENTIFY_DUMP") {
        let directory = Path::new(&directory);
        for (name, text) in containerd.cni_cache().unwrap() {
            std::fs::write(directory.join(name), text).unwrap();
        }
        for pod in &pods {
            let info = containerd.info(pod).unwrap();
            std::fs::write(directory.join(&pod.name), info.to_string()).unwrap();
        }
        std::fs::write(directory.join("log"), agent.log()).unwrap();
        let all: Vec<String> = events
            .iter()
            .map(|e| format!("{} {}", e.event.kind, e.event.data))
            .collect();
        std::fs::write(directory.join("events"), all.join("\n")).unwrap();
    }
}
