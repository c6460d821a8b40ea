//! A real Prometheus scrapes the agent and is queried.

use std::{
    collections::BTreeSet,
    io::{Seek as _, Write as _},
    process::Command,
};

use detector_testkit::{
    Agent, AgentCommand, Node, PodSpec, http::TestClient, prometheus::Prometheus,
};

use crate::AGENT;

const TARGET: &str = "127.0.0.1:9842";

#[test]
fn prometheus_ingests_every_metric_and_follows_a_conflict() {
    let node = Node::new("prometheus").unwrap();
    let command = AgentCommand::run(AGENT).arg("--export-claims");
    let agent = Agent::start_ready(&node, &command).unwrap();
    let prometheus = Prometheus::start(&node, TARGET).unwrap();
    prometheus
        .wait("up", |s| s.iter().any(|(_, up)| *up == 1.0))
        .unwrap();

    let specs = ["vetha", "vethb"].map(|device| PodSpec::new(device).address("10.244.2.10/24"));
    let mut pods = node.add_pods(&specs).unwrap();
    agent.wait_raised("10.244.2.10").unwrap();
    let one = |s: &[(serde_json::Value, f64)]| s.len() == 1 && s[0].1 == 1.0;
    prometheus
        .wait(
            r#"ipconflict_conflicts_active{kind="duplicate",scope="node"} == 1"#,
            one,
        )
        .unwrap();
    let info = prometheus
        .wait(
            r#"ipconflict_conflict_info{address="10.244.2.10",kind="duplicate"}"#,
            |s| s.len() == 2,
        )
        .unwrap();
    let mut devices: Vec<_> = info
        .iter()
        .map(|(labels, _)| labels["device"].as_str().unwrap())
        .collect();
    devices.sort_unstable();
    assert_eq!(devices, ["vetha", "vethb"]);
    // The alert uses this counter to catch even short conflicts.
    prometheus
        .wait(
            r#"ipconflict_conflicts_raised_total{kind="duplicate"} == 1"#,
            one,
        )
        .unwrap();
    prometheus
        .wait("ipconflict_detection_latency_seconds_count == 1", one)
        .unwrap();
    // One series per address even with two claimants, because rules compare it between nodes.
    prometheus
        .wait(
            r#"count(ipconflict_claim_info{address="10.244.2.10"}) == 1"#,
            one,
        )
        .unwrap();
    for metric in [
        "ipconflict_build_info",
        "ipconflict_claims",
        "ipconflict_devices_attached",
        "ipconflict_observations_total",
        "ipconflict_observations_dropped_total",
        "ipconflict_frames_rejected_total",
        "ipconflict_resyncs_total",
        "ipconflict_conflict_info_overflow",
        "process_cpu_seconds_total",
        "process_resident_memory_bytes",
        "process_open_fds",
        "process_start_time_seconds",
    ] {
        assert!(!prometheus.query(metric).unwrap().is_empty(), "{metric}");
    }
    let age = prometheus
        .query("time() - process_start_time_seconds")
        .unwrap();
    assert!((0.0..600.0).contains(&age[0].1), "{age:?}");

    pods.pop().unwrap().delete().unwrap();
    prometheus
        .wait(
            r#"ipconflict_conflicts_active{kind="duplicate",scope="node"} == 0"#,
            |s| s.len() == 1,
        )
        .unwrap();
    prometheus
        .wait("ipconflict_conflict_info", |s| s.is_empty())
        .unwrap();
}

/// Output of `promtool check metrics` about these metrics, and whether it accepts them.
fn promtool(metrics: &str) -> (bool, String) {
    let mut input = tempfile::tempfile().unwrap();
    input.write_all(metrics.as_bytes()).unwrap();
    input.rewind().unwrap();
    let output = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(input)
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    (output.status.success() && text.is_empty(), text)
}

#[test]
fn metrics_are_open_metrics_and_on_request_prometheus_text() {
    let node = Node::new("openmetrics").unwrap();
    let command = AgentCommand::run(AGENT).arg("--export-claims");
    let agent = Agent::start_ready(&node, &command).unwrap();
    let specs = ["vetha", "vethb"].map(|device| PodSpec::new(device).address("10.244.2.10/24"));
    let _pods = node.add_pods(&specs).unwrap();
    agent.wait_raised("10.244.2.10").unwrap();
    let metrics = TestClient::new(&node, format!("http://{TARGET}"))
        .get("/metrics")
        .unwrap();
    assert_eq!(
        metrics.header("content-type"),
        Some("application/openmetrics-text; version=1.0.0; charset=utf-8")
    );
    assert!(metrics.body.ends_with("# EOF\n"));
    assert!(!promtool(&metrics.body).0, "promtool knows OpenMetrics now");

    let client = TestClient::new(&node, format!("http://{TARGET}")).header("accept", "text/plain");
    let text = client.get("/metrics").unwrap();
    assert_eq!(
        text.header("content-type"),
        Some("text/plain; version=0.0.4; charset=utf-8")
    );
    let (accepted, complaints) = promtool(&text.body);
    assert!(accepted, "{complaints}\n{}", text.body);
    let series = |text: &str| -> BTreeSet<String> {
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        let names = samples.filter_map(|line| line.rsplit_once(' '));
        names.map(|(name, _)| name.to_owned()).collect()
    };
    assert!(series(&text.body).is_superset(&series(&metrics.body)));
}
