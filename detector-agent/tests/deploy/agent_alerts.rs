//! The alerts about agents, and those that count conflicts, on what real agents export.

use std::{
    fs,
    net::{SocketAddr, TcpListener},
};

use anyhow::ensure;
use detector_testkit::{
    Agent, AgentCommand, DEADLINE, Node, Pod, PodSpec, prometheus::Prometheus, proxy::Proxy, until,
};
use serde_json::json;

use crate::{
    AGENT,
    dashboards::queries::{agent_command, fast_rules, prometheus_configuration},
};

const ADDRESS: &str = "10.244.2.10";
const TARGET: &str = "{targets: ['127.0.0.1:9842'], labels: {cluster: east, node: a}}";

/// A Prometheus whose rules look back for seconds instead of minutes.
fn start_prometheus<'n>(node: &'n Node, targets: &str) -> Prometheus<'n> {
    let mut rules = fast_rules();
    for (minutes, seconds) in [
        ("pending[15m]", "pending[6s]"),
        ("[10m]", "[6s]"),
        ("[5m] offset 5m", "[5s] offset 5s"),
        ("[5m]", "[5s]"),
        ("for: 15m", "for: 1s"),
        ("for: 10m", "for: 1s"),
        ("for: 5m", "for: 1s"),
    ] {
        assert!(rules.contains(minutes), "{minutes}");
        rules = rules.replace(minutes, seconds);
    }
    let configuration = prometheus_configuration(targets, "{}");
    Prometheus::start_with(node, &configuration, &[("rules.yaml", &rules)]).unwrap()
}

fn wait_firing(prometheus: &Prometheus<'_>, alert: &str) {
    let query = format!("ALERTS{{alertname=\"{alert}\",alertstate=\"firing\"}}");
    prometheus
        .wait(&query, |series| !series.is_empty())
        .unwrap();
}

fn pods_with(node: &Node, addresses: &[String]) -> Vec<Pod> {
    let spec = |device| {
        let addresses = addresses.iter();
        addresses.fold(PodSpec::new(device), |spec, address| spec.address(address))
    };
    node.add_pods(&["vetha", "vethb"].map(spec)).unwrap()
}

/// An agent that misses changes and cannot deliver, and that dies in the end.
#[test]
fn agents_that_do_not_work_have_their_alerts() {
    let node = Node::new("badagent").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.yaml");
    let settings = json!({"webhooks": [{"name": "ops", "url": "http://127.0.0.1:9/"}]});
    fs::write(&config, settings.to_string()).unwrap();
    let mut agent = Agent::start_ready(&node, &agent_command(&config)).unwrap();
    let prometheus = start_prometheus(&node, &format!("[{TARGET}]"));
    let pods = pods_with(&node, &[format!("{ADDRESS}/32")]);
    let change = |n: u32| {
        let address = format!("10.100.{}.{}/32", n / 256, n % 256);
        ["add", "del"].map(|verb| format!("address {verb} {address} dev eth0"))
    };
    let alerts = [
        "IPConflictDetectorBlind",
        "IPConflictDetectorCoverageLow",
        "IPConflictSinkFailing",
    ];
    until(DEADLINE, "the alerts", || {
        pods[1].netns().ip_batch((0..600).flat_map(change))?;
        let query = "ALERTS{alertstate=\"firing\",alertname=~\"IPConflict.*\"}";
        let firing = prometheus.query(query)?;
        let is_firing = |alert: &&str| firing.iter().any(|(l, _)| l["alertname"] == *alert);
        ensure!(alerts.iter().all(is_firing), "{firing:?}");
        Ok(())
    })
    .unwrap();
    agent.kill().unwrap();
    wait_firing(&prometheus, "IPConflictDetectorDown");
    wait_firing(&prometheus, "IPConflictDetectorCoverageLow");
    drop(prometheus);
    wait_firing(&start_prometheus(&node, "[]"), "IPConflictDetectorAbsent");
}

#[test]
fn conflicts_beyond_the_bound_and_brief_ones_have_their_alerts() {
    let node = Node::new("manyalerts").unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let prometheus = start_prometheus(&node, &format!("[{TARGET}]"));
    prometheus
        .wait("ipconflict_conflicts_raised_total == 0", |series| {
            !series.is_empty()
        })
        .unwrap();
    // Over before the next scrape, mostly; else the alert for the conflict itself may fire, and this one does not.
    let pods = pods_with(&node, &[format!("{ADDRESS}/32")]);
    agent.wait_raised(ADDRESS).unwrap();
    node.delete_pods(pods).unwrap();
    agent.wait_resolved(ADDRESS).unwrap();
    wait_firing(&prometheus, "IPAddressConflictsBrief");

    // Two series for each.
    let addresses: Vec<_> = (0..600)
        .map(|n| format!("10.100.{}.{}/32", n / 250, n % 250 + 1))
        .collect();
    let _pods = pods_with(&node, &addresses);
    wait_firing(&prometheus, "IPAddressConflictsBeyondBound");
}

#[test]
fn address_on_two_nodes_has_its_alert() {
    let nodes = ["nodea", "nodeb"].map(|name| Node::new(name).unwrap());
    let command = AgentCommand::run(AGENT).arg("--export-claims");
    let _pods_and_agents = nodes.each_ref().map(|node| {
        let pod = PodSpec::new("vetha").address(format!("{ADDRESS}/32"));
        let agent = Agent::start_ready(node, &command).unwrap();
        (node.add_pod(&pod).unwrap(), agent)
    });
    let listener = nodes[0]
        .run_in(|| Ok(TcpListener::bind("127.0.0.1:0")?))
        .unwrap();
    let other = Proxy::start(
        listener,
        &nodes[1],
        SocketAddr::from(([127, 0, 0, 1], 9842)),
    );
    let other = other.unwrap();
    let targets = format!(
        "[{TARGET}, {{targets: ['{}'], labels: {{cluster: east, node: b}}}}]",
        other.address()
    );
    let prometheus = start_prometheus(&nodes[0], &targets);
    wait_firing(&prometheus, "IPAddressOnSeveralNodes");
}
