//! Device names with control sequences, quotes and markup: they are data wherever they are shown.

use anyhow::Context as _;
use detector_testkit::{
    Agent, AgentCommand, DEADLINE, LOOK_ARGS, Node, PodSpec, Receiver, http::TestClient, until,
};

use crate::AGENT;

const ADDRESS: &str = "10.9.9.9";
/// Clears a terminal's screen, ends a string, a label and an element.
const NAME: &str = "\u{1b}[2J\"}<b>\u{7}";

#[test]
fn control_sequences_and_quotes_in_a_name_stay_data() {
    let node = Node::new("oddname").unwrap();
    let spec = |device| PodSpec::new(device).address(format!("{ADDRESS}/32"));
    let _pods = node.add_pods(&[NAME, "vethb"].map(spec)).unwrap();
    let interfaces = ["--interfaces", "*"];
    let command = AgentCommand::run(AGENT);
    let command = command.arg(interfaces[0]).arg(interfaces[1]);
    let agent = Agent::start_ready(&node, &command).unwrap();
    let conflict = agent.wait_raised(ADDRESS).unwrap();
    assert!(conflict.devices().contains(&NAME), "whole in the event");
    let client = TestClient::of_agent(&node);
    // The metrics follow the line.
    let series = until(DEADLINE, "the series of the conflict", || {
        let metrics = client.get("/metrics")?.body;
        let mut series = metrics.lines();
        let series = series
            .find(|line| line.starts_with("ipconflict_conflict_info{") && line.contains("<b>"));
        series.map(str::to_owned).context("no series yet")
    })
    .unwrap();
    assert!(series.contains("\\\"}<b>"), "{series:?}");
    let check = |args: &[&str]| {
        let command = AgentCommand::new(AGENT, args.iter().copied()).args(interfaces);
        let outcome = command.run_to_end(&node, DEADLINE).unwrap();
        assert_eq!(outcome.code().unwrap(), 1);
        outcome.stdout
    };
    for text in [agent.log(), check(&["check"]), check(&LOOK_ARGS)] {
        assert!(text.contains(ADDRESS));
        assert!(!text.contains(['\u{1b}', '\u{7}']), "{text:?}");
    }
}

/// Reverses the direction of what follows, and takes no room.
const HIDDEN: &str = "ve\u{202e}th\u{200b}a";

#[test]
fn hidden_characters_in_a_name_reach_nobody() {
    let node = Node::new("hiddenname").unwrap();
    let receiver = node.run_in(Receiver::start).unwrap();
    let config = tempfile::NamedTempFile::new().unwrap();
    let chat = format!(
        "webhooks: [{{name: chat, format: slack, url: '{}'}}]\n",
        receiver.url()
    );
    std::fs::write(config.path(), chat).unwrap();
    let spec = |device| PodSpec::new(device).address(format!("{ADDRESS}/32"));
    let _first = node.add_pod(&spec("vethb")).unwrap();
    let interfaces = ["--interfaces", "*"];
    let command = AgentCommand::run(AGENT)
        .args(interfaces)
        .arg("--config")
        .arg(config.path());
    let agent = Agent::start_ready(&node, &command).unwrap();
    // The newest claimant is in the next step.
    let _hidden = node.add_pod(&spec(HIDDEN)).unwrap();
    let conflict = agent.wait_raised(ADDRESS).unwrap();
    assert!(conflict.devices().contains(&HIDDEN), "whole in the event");
    let step = conflict.guidance.unwrap().next_step;
    assert!(step.contains("ve\u{fffd}th\u{fffd}a"), "{step:?}");
    let client = TestClient::of_agent(&node);
    let metrics = client.get("/metrics").unwrap().body;
    let check = |args: &[&str]| {
        let command = AgentCommand::new(AGENT, args.iter().copied()).args(interfaces);
        command.run_to_end(&node, DEADLINE).unwrap().stdout
    };
    let texts = [agent.log(), check(&["check"]), check(&LOOK_ARGS), metrics];
    let mut terminate = agent;
    // What is being collected for a chat is sent before the agent stops.
    terminate.terminate(DEADLINE).unwrap();
    let posted = receiver.requests();
    let posted = posted.iter().map(|post| post.json().unwrap().to_string());
    let messages: Vec<_> = posted.collect();
    assert!(!messages.is_empty());
    for text in texts.into_iter().chain(messages).chain([step]) {
        assert!(!text.contains(['\u{202e}', '\u{200b}']), "{text:?}");
        assert!(!text.contains("\\u202e"), "{text:?}");
    }
}
