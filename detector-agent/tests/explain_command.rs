//! `explain`: why the conflicts are there that the agent on the node knows.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

use detector_testkit::{Agent, AgentCommand, DEADLINE, Node, Outcome, PodSpec};
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
    agent
        .wait_event(DEADLINE, |event| event.raises("10.244.2.10"))
        .unwrap();
    // It waits for the diagnosis.
    let text = explain(&node, &[]);
    assert_eq!(text.code().unwrap(), 1, "{text:?}");
    for part in [
        "1 IP address conflict\n",
        "\nunknown  likely\n",
        "  finding: 10.244.2.10 is claimed by vetha and vethb",
        "  repair: ",
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
fn missing_agent_is_one_sentence_with_the_remedy() {
    let node = Node::new("explainnone").unwrap();
    let outcome = explain(&node, &["--format", "json"]);
    assert_eq!(outcome.code().unwrap(), 2, "{outcome:?}");
    assert!(
        outcome.stderr.contains("`detector-agent run`"),
        "{outcome:?}"
    );
    let document: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert!(document["conflicts"].is_null(), "{document}");
    let outcome = explain(&node, &["10.244.2"]);
    assert_eq!(outcome.code().unwrap(), 2, "{outcome:?}");
}
