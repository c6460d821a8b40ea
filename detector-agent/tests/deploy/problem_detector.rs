//! The custom plugin for node-problem-detector: its configuration has the expected fields, and its
//! command gives the expected output and exit code. node-problem-detector itself is not run.

use std::{fs, process::Command};

use detector_testkit::{AgentCommand, DEADLINE, Node, PodSpec};
use serde_json::Value;

use crate::{
    AGENT,
    tools::{deploy, output},
};

fn keys(value: &Value) -> Vec<&str> {
    value
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect()
}

#[test]
fn configuration_has_the_fields_the_detector_reads() {
    let text =
        fs::read_to_string(deploy("node-problem-detector/ip-conflict-monitor.json")).unwrap();
    let file: Value = serde_json::from_str(&text).unwrap();
    for (value, known) in [
        (
            &file,
            &[
                "plugin",
                "pluginConfig",
                "source",
                "metricsReporting",
                "conditions",
                "rules",
            ][..],
        ),
        (
            &file["pluginConfig"],
            &[
                "invoke_interval",
                "timeout",
                "max_output_length",
                "concurrency",
                "enable_message_change_based_condition_update",
                "skip_initial_status",
            ],
        ),
        (&file["conditions"][0], &["type", "reason", "message"]),
        (
            &file["rules"][0],
            &["type", "condition", "reason", "path", "args", "timeout"],
        ),
    ] {
        for key in keys(value) {
            assert!(known.contains(&key), "{key}");
        }
    }
    assert_eq!(file["plugin"], "custom");
    assert_eq!(file["rules"][0]["type"], "permanent");
    // A permanent rule sets one of the conditions that the file declares.
    assert_eq!(file["rules"][0]["condition"], file["conditions"][0]["type"]);
    assert_eq!(file["pluginConfig"]["max_output_length"], 80);
    let path = file["rules"][0]["path"].as_str().unwrap();
    let script = path.rsplit('/').next().unwrap();
    assert!(
        deploy("node-problem-detector").join(script).exists(),
        "{path}"
    );
}

#[test]
fn command_gives_one_short_line_and_the_exit_code() {
    let script = deploy("node-problem-detector/check-ip-conflicts.sh");
    let node = Node::new("npd").unwrap();
    let run = |allow: &str| {
        let command = AgentCommand::new(&script, [""; 0])
            .env("DETECTOR_AGENT", AGENT)
            .env("IPCONFLICT_ALLOW_NO_DEVICES", allow);
        let outcome = command.run_to_end(&node, DEADLINE).unwrap();
        assert_eq!(outcome.stdout.lines().count(), 1, "{outcome:?}");
        assert!(outcome.stdout.trim_end().len() <= 80, "{outcome:?}");
        (outcome.code().unwrap(), outcome.stdout)
    };
    for (allow, expected) in [("false", 2), ("true", 0)] {
        let (code, line) = run(allow);
        assert_eq!(code, expected, "{line}");
    }
    let specs = ["vetha", "vethb"].map(|device| PodSpec::new(device).address("10.244.2.10/24"));
    let _pods = node.add_pods(&specs).unwrap();
    assert_eq!(
        run("false"),
        (1, "1 IP address conflict: 10.244.2.10\n".to_owned())
    );
}

#[test]
fn missing_agent_gives_the_unknown_status() {
    let script = deploy("node-problem-detector/check-ip-conflicts.sh");
    let result = output(Command::new(script).env("DETECTOR_AGENT", "/nonexistent/detector-agent"));
    assert_eq!(result.status.code(), Some(2));
    assert!(
        String::from_utf8_lossy(&result.stdout).contains("no detector-agent here"),
        "{result:?}"
    );
}
