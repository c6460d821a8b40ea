//! Device names with control sequences, quotes and markup: they are data wherever they are shown.

use detector_testkit::{Agent, AgentCommand, DEADLINE, LOOK_ARGS, Node, PodSpec, http::TestClient};

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
    let client = TestClient::new(&node, "http://127.0.0.1:9842");
    let metrics = client.get("/metrics").unwrap().body;
    let series = metrics
        .lines()
        .find(|line| line.starts_with("ipconflict_conflict_info{") && line.contains("<b>"));
    assert!(series.unwrap().contains("\\\"}<b>"), "{series:?}");
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
