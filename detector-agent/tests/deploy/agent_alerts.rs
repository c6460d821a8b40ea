//! The alerts about agents, those that count conflicts and those between nodes, on what real agents export.

use std::{
    fs,
    net::{SocketAddr, TcpListener},
};

use anyhow::{Result, ensure};
use detector_testkit::{
    Agent, AgentCommand, DEADLINE, KubeApi, Node, Pod, PodSpec, prometheus::Prometheus,
    proxy::Proxy, until,
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
        ("blind[15m]", "blind[6s]"),
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

/// Requires that the alert is active.
fn ensure_firing(prometheus: &Prometheus<'_>, alert: &str) -> Result<()> {
    let active = prometheus.query("ALERTS{alertstate=\"firing\",alertname=~\"IP.*|Pod.*\"}")?;
    let is_firing = active
        .iter()
        .any(|(labels, _)| labels["alertname"] == alert);
    ensure!(is_firing, "{active:?}");
    Ok(())
}

fn wait_firing(prometheus: &Prometheus<'_>, alert: &str) {
    until(DEADLINE, alert, || ensure_firing(prometheus, alert)).unwrap();
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
    until(DEADLINE, "the alerts", || {
        pods[1].netns().ip_batch((0..600).flat_map(change))?;
        ensure_firing(&prometheus, "IPConflictDetectorBlind")?;
        ensure_firing(&prometheus, "IPConflictDetectorCoverageLow")?;
        ensure_firing(&prometheus, "IPConflictSinkFailing")
    })
    .unwrap();
    agent.kill().unwrap();
    wait_firing(&prometheus, "IPConflictDetectorDown");
    wait_firing(&prometheus, "IPConflictDetectorCoverageLow");
    drop(prometheus);
    let prometheus = start_prometheus(&node, "[]");
    wait_firing(&prometheus, "IPConflictDetectorAbsent");
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

/// The targets of a Prometheus on the first of two nodes, and the proxy to the second one.
fn targets_on(nodes: &[Node; 2]) -> (Proxy, String) {
    let bind = || Ok(TcpListener::bind("127.0.0.1:0")?);
    let agent = SocketAddr::from(([127, 0, 0, 1], 9842));
    let proxy = Proxy::start(nodes[0].run_in(bind).unwrap(), &nodes[1], agent).unwrap();
    let address = proxy.address();
    let other = format!("{{targets: ['{address}'], labels: {{cluster: east, node: b}}}}");
    (proxy, format!("[{TARGET}, {other}]"))
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
    let (_proxy, targets) = targets_on(&nodes);
    let prometheus = start_prometheus(&nodes[0], &targets);
    wait_firing(&prometheus, "IPAddressOnSeveralNodes");
}

const NODES: &str = "/api/v1/nodes";

/// An agent on the node of this name that compares addresses with other nodes.
fn start_fleet_agent(node: &Node, name: &str, api: &KubeApi) -> Agent {
    for resource in ["ipclaims", "ipconflicts"] {
        api.install(&format!("/apis/ipconflict.io/v1alpha1/{resource}"));
    }
    let command = AgentCommand::run_on(AGENT, name)
        .args(["--kube=on", "--fleet=kubernetes"])
        .env("KUBECONFIG", api.kubeconfig());
    Agent::start_ready(node, &command).unwrap()
}

#[test]
fn range_of_two_nodes_has_its_alert() {
    let nodes = ["cidra", "cidrb"].map(|name| Node::new(name).unwrap());
    let api = KubeApi::start(nodes[0].netns()).unwrap();
    api.listen(nodes[1].netns()).unwrap();
    let names = ["node-a", "node-b"];
    api.set_nodes(&names);
    let _agents = [0, 1].map(|n| {
        let spec = json!({"podCIDR": "10.99.7.0/24", "podCIDRs": ["10.99.7.0/24"]});
        let metadata = json!({"name": names[n]});
        let object =
            json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec});
        api.apply_object(NODES, object);
        start_fleet_agent(&nodes[n], names[n], &api)
    });
    let (_proxy, targets) = targets_on(&nodes);
    let prometheus = start_prometheus(&nodes[0], &targets);
    wait_firing(&prometheus, "PodCIDROverlap");
}

/// First the API server refuses connections, and then it has no Node of the agent's name.
#[test]
fn agent_that_compares_nothing_with_other_nodes_has_its_alert() {
    let node = Node::new("blindfleet").unwrap();
    let api = KubeApi::start_refusing(node.netns()).unwrap();
    let _agent = start_fleet_agent(&node, "testkit", &api);
    let prometheus = start_prometheus(&node, &format!("[{TARGET}]"));
    wait_firing(&prometheus, "IPConflictFleetBlind");
    api.set_nodes(&["testkit"]);
    api.listen(node.netns()).unwrap();
    let over = "absent(ALERTS{alertname=\"IPConflictFleetBlind\"})";
    prometheus.wait(over, |series| !series.is_empty()).unwrap();
    api.delete_object(NODES, "testkit");
    wait_firing(&prometheus, "IPConflictFleetBlind");
}
