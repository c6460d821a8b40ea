//! `explain`: why the conflicts are there that the agent on the node knows, or that one look finds.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

use detector_testkit::{
    Agent, AgentCommand, DEADLINE, Node, Outcome, PodSpec, event::ANOMALY_RAISED,
};
use serde_json::Value;

const AGENT: &str = env!("CARGO_BIN_EXE_detector-agent");

fn explain(node: &Node, arguments: &[&str]) -> Outcome {
    let arguments = ["explain"].iter().chain(arguments).copied();
    AgentCommand::new(AGENT, arguments)
        .run_to_end(node, DEADLINE)
        .unwrap()
}

#[test]
fn conflict_made_by_hand_is_explained_as_unknown() {
    let node = Node::new("explain").unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let nothing = explain(&node, &[]);
    assert_eq!(nothing.code().unwrap(), 0, "{nothing:?}");
    assert!(
        nothing.stdout.starts_with("no IP address conflict"),
        "{nothing:?}"
    );

    let specs = ["vetha", "vethb"].map(|device| PodSpec::new(device).address("10.244.2.10/24"));
    let _pods = node.add_pods(&specs).unwrap();
    agent.wait_raised("10.244.2.10").unwrap();
    // It waits for the diagnosis.
    let text = explain(&node, &[]);
    assert_eq!(text.code().unwrap(), 1, "{text:?}");
    for part in [
        "1 IP address conflict\n",
        "\nunknown\n",
        "  finding: 10.244.2.10 is claimed by vetha and vethb",
        "  next: ",
        "  not checked:\n",
    ] {
        assert!(text.stdout.contains(part), "{part}: {}", text.stdout);
    }

    let json = explain(&node, &["10.244.2.10", "--format", "json"]);
    assert_eq!(json.code().unwrap(), 1, "{json:?}");
    let document: Value = serde_json::from_str(&json.stdout).unwrap();
    let conflict = &document["conflicts"][0];
    assert_eq!(conflict["address"], "10.244.2.10", "{document:#}");
    assert_eq!(conflict["diagnosis"]["cause"], "unknown", "{document:#}");
    assert!(conflict["timeline"].is_array(), "{document:#}");
    let other = explain(&node, &["10.244.2.11"]);
    assert_eq!(other.code().unwrap(), 0, "{other:?}");
}

#[test]
fn anomaly_is_found_by_any_address_of_its_pod() {
    let node = Node::new("explainpod").unwrap();
    let specs = [("vetha", "10.244.2.10/32"), ("vethb", "10.244.2.11/32")]
        .map(|(device, address)| PodSpec::new(device).address(address).host_route());
    let pods = node.add_pods(&specs).unwrap();
    let second = "address add 10.244.2.20/32 dev eth0";
    pods[0].netns().ip(second).unwrap();
    node.ip("route replace 10.244.2.10/32 dev vethb scope link")
        .unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    agent
        .wait_event(DEADLINE, |event| event.kind == ANOMALY_RAISED)
        .unwrap();
    for (address, expected) in [
        ("10.244.2.10", vec!["route_astray"]),
        ("10.244.2.20", vec!["route_astray"]),
        ("10.244.2.11", vec![]),
    ] {
        for source in [&[][..], &["--url", "none", "--ipam", "off"]] {
            let arguments = [&[address, "--format", "json"], source].concat();
            let outcome = explain(&node, &arguments);
            let document: Value = serde_json::from_str(&outcome.stdout).unwrap();
            let anomalies = document["anomalies"].as_array().unwrap();
            let kinds: Vec<_> = anomalies.iter().map(|a| &a["kind"]).collect();
            assert_eq!(kinds, expected, "{arguments:?}: {document:#}");
        }
    }
}

#[test]
fn node_without_an_agent_is_looked_at() {
    let node = Node::new("explainnone").unwrap();
    let specs = ["vetha", "vethb"].map(|device| PodSpec::new(device).address("10.244.2.10/24"));
    let _pods = node.add_pods(&specs).unwrap();
    let text = explain(&node, &["--ipam", "off"]);
    assert_eq!(text.code().unwrap(), 1, "{text:?}");
    for part in [
        "1 IP address conflict\nsource: one look at the kernel state of ",
        "no agent answers",
        "\nunknown\n",
        "  not checked:\n",
    ] {
        assert!(text.stdout.contains(part), "{part}: {}", text.stdout);
    }
    let arguments = ["10.244.2.11", "--url", "none", "--format", "json"];
    let other = explain(&node, &arguments);
    assert_eq!(other.code().unwrap(), 0, "{other:?}");
    let document: Value = serde_json::from_str(&other.stdout).unwrap();
    assert_eq!(document["source"], "kernel", "{document:#}");
    assert_eq!(document["conflicts"], Value::Array(Vec::new()));
    let outcome = explain(&node, &["10.244.2"]);
    assert_eq!(outcome.code().unwrap(), 2, "{outcome:?}");
}
