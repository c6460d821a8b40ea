//! The custom plugin for node-problem-detector: its configuration has the expected fields, and its
//! command gives the expected output and exit code. node-problem-detector itself is not run.

use std::fs;

use detector_testkit::{
    Agent, AgentCommand, Cni, DEADLINE, Node, Outcome, Pod, PodSpec, announce, until,
};
use serde_json::Value;

use crate::{
    AGENT,
    tools::{deploy, read},
};

#[test]
fn configuration_has_the_fields_the_detector_reads() {
    let text = read("deploy/node-problem-detector/ip-conflict-monitor.json");
    let file: Value = serde_json::from_str(&text).unwrap();
    let known = |value: &Value, known: &str| {
        let known: Vec<_> = known.split_whitespace().collect();
        for key in value.as_object().unwrap().keys() {
            assert!(known.contains(&key.as_str()), "{key}");
        }
    };
    let fields = "plugin pluginConfig source metricsReporting conditions rules";
    known(&file, fields);
    let fields = "invoke_interval timeout max_output_length concurrency
        enable_message_change_based_condition_update skip_initial_status";
    known(&file["pluginConfig"], fields);
    assert_eq!(file["plugin"], "custom");
    assert_eq!(file["pluginConfig"]["max_output_length"], 80);
    let list = |name: &str| file[name].as_array().unwrap().clone();
    let (conditions, rules) = (list("conditions"), list("rules"));
    assert_eq!(conditions.len(), rules.len());
    for (condition, rule) in conditions.iter().zip(rules) {
        known(condition, "type reason message");
        known(&rule, "type condition reason path args timeout");
        assert_eq!(rule["type"], "permanent");
        // A permanent rule sets one of the conditions that the file declares.
        assert_eq!(rule["condition"], condition["type"]);
        let path = rule["path"].as_str().unwrap();
        let script = path.rsplit('/').next().unwrap();
        let exists = deploy("node-problem-detector").join(script).exists();
        assert!(exists, "{path}");
    }
}

/// The plugin's command, with only bash at hand, as in node-problem-detector's image.
fn command() -> AgentCommand {
    command_with(&[])
}

fn command_with(arguments: &[&str]) -> AgentCommand {
    AgentCommand::new(
        deploy("node-problem-detector/check-ip-conflicts.sh"),
        arguments.iter().copied(),
    )
    .env("PATH", "/nonexistent")
}

/// The exit code and the line of the command.
fn run(node: &Node, command: AgentCommand) -> (i32, String) {
    let outcome: Outcome = command.run_to_end(node, DEADLINE).unwrap();
    assert_eq!(outcome.stdout.lines().count(), 1, "{outcome:?}");
    let line = outcome.stdout.trim_end();
    assert!(line.len() <= 80, "{outcome:?}");
    (outcome.code().unwrap(), line.to_owned())
}

fn agent(node: &Node, options: &[&str]) -> Agent {
    let command = AgentCommand::run(AGENT).args(options.iter().copied());
    Agent::start_ready(node, &command).unwrap()
}

fn duplicates(node: &Node, addresses: usize) -> Vec<Pod> {
    let specs = ["vetha", "vethb"].map(|device| {
        (1..=addresses).fold(PodSpec::new(device), |spec, last| {
            spec.address(format!("fd00:10:244::{last:x}/64"))
        })
    });
    node.add_pods(&specs).unwrap()
}

/// Waits until the command prints this line; the agent counts its devices once a second.
fn wait_for(node: &Node, make: impl Fn() -> AgentCommand, expected: (i32, &str)) {
    until(DEADLINE, "the line of the command", || {
        let (code, line) = run(node, make());
        anyhow::ensure!((code, line.as_str()) == expected, "{code} {line}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn command_asks_the_agent_with_bash_alone() {
    let node = Node::new("npd").unwrap();
    assert_eq!(
        run(&node, command()),
        (2, "no agent answers at http://127.0.0.1:9842".to_owned())
    );
    let _agent = agent(&node, &[]);
    assert_eq!(
        run(&node, command()),
        (2, "there is no pod device".to_owned())
    );
    let allowing = || command().env("IPCONFLICT_ALLOW_NO_DEVICES", "true");
    wait_for(
        &node,
        allowing,
        (0, "no IP address conflict on 0 pod devices"),
    );
    let specs = [("vetha", "10.244.2.10/24"), ("vethb", "10.244.2.11/24")]
        .map(|(device, address)| PodSpec::new(device).address(address));
    let pods = node.add_pods(&specs).unwrap();
    wait_for(
        &node,
        command,
        (0, "no IP address conflict on 2 pod devices"),
    );
    // Only an agent sees a claim in a frame.
    node.wait_attached(pods[1].device()).unwrap();
    announce(&pods[1], "10.244.2.10".parse().unwrap()).unwrap();
    wait_for(&node, command, (1, "1 IP address conflict: 10.244.2.10"));
}

#[test]
fn line_of_many_conflicts_has_at_most_80_bytes() {
    let node = Node::new("npdmany").unwrap();
    let _agent = agent(&node, &["--listen=[::1]:9842"]);
    let _pods = duplicates(&node, 12);
    let asking = || command().env("IPCONFLICT_URL", "http://[::1]:9842/");
    until(DEADLINE, "all conflicts", || {
        let (code, line) = run(&node, asking());
        anyhow::ensure!(
            code == 1 && line.starts_with("12 IP address conflicts: fd00:10:244::"),
            "{code} {line}"
        );
        Ok(())
    })
    .unwrap();
}

#[test]
fn token_is_sent_and_its_absence_is_unknown() {
    let node = Node::new("npdtoken").unwrap();
    let token = tempfile::NamedTempFile::new().unwrap();
    fs::write(token.path(), "a-token-of-the-agent").unwrap();
    let path = token.path().to_str().unwrap();
    let _agent = agent(
        &node,
        &["--http-token-file", path, "--metrics-detail=false"],
    );
    let _pods = duplicates(&node, 1);
    let (code, line) = run(&node, command());
    assert_eq!(code, 2, "{line}");
    assert!(line.contains("IPCONFLICT_TOKEN_FILE"), "{line}");
    let asking = || command().env("IPCONFLICT_TOKEN_FILE", path);
    // Without details, metrics name no address.
    wait_for(&node, asking, (1, "1 IP address conflict"));
    let (code, line) = run(
        &node,
        command().env("IPCONFLICT_TOKEN_FILE", "/nonexistent"),
    );
    assert_eq!(code, 2, "{line}");
}

#[test]
fn agent_that_does_not_see_everything_is_unknown() {
    let node = Node::new("npdblind").unwrap();
    let _pod = node.add_pod(&PodSpec::new("vetha")).unwrap();
    let _agent = agent(&node, &["--attach=tc"]);
    wait_for(
        &node,
        command,
        (0, "no IP address conflict on 1 pod device"),
    );
    // Nothing can stand before a filter of another kind at the lowest priority.
    let filter = "tc filter add dev vetha ingress protocol all prio 1 u32 match u32 0 0 flowid 1:1";
    node.exec(&filter.split(' ').collect::<Vec<_>>()).unwrap();
    wait_for(
        &node,
        command,
        (
            2,
            "no conflict known, but the agent does not see everything",
        ),
    );
}

/// The condition `IPAMDrift`: before there is a conflict.
#[test]
fn drift_is_reported_until_ipam_has_the_address_again() {
    let node = Node::new("npddrift").unwrap();
    let drift = || command_with(&["drift"]);
    assert_eq!(run(&node, drift()).0, 2);
    let open = || drift().env("IPCONFLICT_UNKNOWN_IS_OK", "true");
    assert_eq!(run(&node, open()).0, 0);
    let cni = Cni::ptp("kindnet", "10.244.2.0/24").unwrap();
    let conf = tempfile::tempdir().unwrap();
    cni.write_config(conf.path()).unwrap();
    let pod = cni.add_pod(&node, "web-1").unwrap();
    let directory = conf.path().to_str().unwrap();
    let _agent = agent(&node, &["--ipam=auto", "--cni-conf-dir", directory]);
    wait_for(&node, drift, (0, "no IPAM drift"));
    cni.wipe().unwrap();
    let address = pod.address().unwrap();
    let found = format!("1 IPAM drift: {address}");
    wait_for(&node, drift, (1, &found));
    assert_eq!(run(&node, open()), (1, found));
    // No conflict yet.
    let none = "no IP address conflict on 1 pod device";
    wait_for(&node, command, (0, none));
    // By the executable, which has no room for addresses in what it counts.
    let asking = || {
        drift()
            .env("DETECTOR_AGENT", AGENT)
            .env("IPCONFLICT_CNI_CONF_DIR", directory)
    };
    wait_for(&node, asking, (1, "1 IPAM drift"));
    cni.remove_pod(&node, pod).unwrap();
    wait_for(&node, drift, (0, "no IPAM drift"));
}

#[test]
fn drift_is_unknown_without_ipam_state() {
    let node = Node::new("npdnoipam").unwrap();
    let conf = tempfile::tempdir().unwrap();
    let directory = conf.path().to_str().unwrap();
    let _agent = agent(&node, &["--ipam=auto", "--cni-conf-dir", directory]);
    let drift = || command_with(&["drift"]);
    wait_for(&node, drift, (2, "no IPAM state is read"));
    let asking = || {
        drift()
            .env("DETECTOR_AGENT", AGENT)
            .env("IPCONFLICT_CNI_CONF_DIR", directory)
            .env("IPCONFLICT_ALLOW_NO_DEVICES", "true")
    };
    wait_for(&node, asking, (2, "no IPAM state is read"));
}

#[test]
fn invalid_url_is_unknown() {
    let node = Node::new("npdurl").unwrap();
    for url in ["https://127.0.0.1:9842", "http://127.0.0.1", "nonsense"] {
        let (code, line) = run(&node, command().env("IPCONFLICT_URL", url));
        assert_eq!(code, 2, "{line}");
        assert!(line.contains("IPCONFLICT_URL"), "{line}");
    }
}

/// For agents that use TLS, and to look at the kernel without one.
#[test]
fn executable_of_the_agent_is_used_if_it_is_given() {
    let node = Node::new("npdexec").unwrap();
    let looking = |allow: &str| {
        command()
            .env("DETECTOR_AGENT", AGENT)
            .env("IPCONFLICT_ALLOW_NO_DEVICES", allow)
    };
    for (allow, expected) in [("false", 2), ("true", 0)] {
        let (code, line) = run(&node, looking(allow));
        assert_eq!(code, expected, "{line}");
    }
    let _pods = duplicates(&node, 1);
    assert_eq!(
        run(&node, looking("false")),
        (1, "1 IP address conflict: fd00:10:244::1".to_owned())
    );
    let (code, line) = run(&node, command().env("DETECTOR_AGENT", "/nonexistent/agent"));
    assert_eq!(code, 2, "{line}");
    assert!(line.contains("/nonexistent/agent"), "{line}");
}
