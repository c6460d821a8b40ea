//! `kubectl ipconflict` against a small API server, and real agents that listen on the loopback of their node only.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

use std::path::{Path, PathBuf};

use detector_testkit::{
    Agent, AgentCommand, DEADLINE, Frame, FrameSender, KubeApi, Node, Outcome, PodSpec,
    http::TestClient, kube_api::pod, until,
};
use serde_json::{Value, json};

const PLUGIN: &str = env!("CARGO_BIN_EXE_kubectl-ipconflict");
const NAMESPACE: &str = "ip-conflict-detector";
const ADDRESS: &str = "10.244.2.10";

/// The agent's program: beside the plugin, where `cargo xtask test` builds it.
fn agent() -> PathBuf {
    Path::new(PLUGIN).with_file_name("detector-agent")
}

/// A cluster: the API server, and nodes with an agent each.
struct Cluster {
    /// Where the API server and the plugin run.
    control: Node,
    api: KubeApi,
    nodes: Vec<(Node, Agent)>,
}

impl Cluster {
    fn new(nodes: &[&str]) -> Self {
        let control = Node::new("control").unwrap();
        let api = KubeApi::start(&control).unwrap();
        api.set_nodes(nodes);
        let mut cluster = Self {
            control,
            api,
            nodes: Vec::new(),
        };
        for name in nodes {
            cluster.add_node(name);
        }
        cluster
    }

    fn add_node(&mut self, name: &str) {
        let node = Node::new(name).unwrap();
        let command = AgentCommand::run_on(agent(), name)
            .arg("--cri-endpoint=off")
            .arg("--kube=off");
        let agent = Agent::start_ready(&node, &command).unwrap();
        self.apply(&agent_pod(name, "Running"));
        let pod = format!("agent-{name}");
        self.api.forward_ports(NAMESPACE, &pod, &node).unwrap();
        self.nodes.push((node, agent));
    }

    fn apply(&self, pod: &Value) {
        self.api.apply(pod.clone());
    }

    fn node(&self, index: usize) -> &Node {
        &self.nodes[index].0
    }

    /// Waits until the agent answers a request as wanted.
    fn wait_answer(&self, index: usize, path: &str, wanted: impl Fn(&Value) -> bool) {
        let client = TestClient::of_agent(self.node(index));
        until(DEADLINE, path, || {
            let answer = client.get(path)?.json()?;
            anyhow::ensure!(wanted(&answer), "{answer}");
            Ok(())
        })
        .unwrap();
    }

    /// Waits until the agent has counted its devices.
    fn wait_devices(&self, index: usize, count: usize) {
        self.wait_answer(index, "/readyz", |ready| ready["devices"] == count);
    }

    fn agent(&self, index: usize) -> &Agent {
        &self.nodes[index].1
    }

    fn run(&self, args: &[&str]) -> Outcome {
        AgentCommand::new(PLUGIN, args.iter().copied())
            .env("KUBECONFIG", self.api.kubeconfig())
            .run_to_end(&self.control, DEADLINE)
            .unwrap()
    }

    fn json(&self, args: &[&str]) -> (i32, Value) {
        let outcome = self.run(&[args, &["-o", "json"]].concat());
        let document = serde_json::from_str(&outcome.stdout);
        let document = document.unwrap_or_else(|error| panic!("{error} in {outcome:?}"));
        (outcome.code().unwrap(), document)
    }
}

/// The pod of the agent on a node.
fn agent_pod(node: &str, phase: &str) -> Value {
    let mut pod = pod(node, NAMESPACE, &format!("agent-{node}"), &[]);
    pod["metadata"]["labels"] = json!({"app.kubernetes.io/name": "ip-conflict-detector"});
    pod["status"]["phase"] = phase.into();
    pod
}

#[track_caller]
fn assert_shows(outcome: &Outcome, parts: &[&str]) {
    for part in parts {
        assert!(
            outcome.stdout.contains(part),
            "{part:?} is not in {outcome:?}"
        );
    }
}

#[test]
fn conflicts_of_all_nodes_are_listed_and_an_address_is_explained() {
    let cluster = Cluster::new(&["n1", "n2"]);
    let quiet = PodSpec::new("vethquiet").address("10.244.2.77/32");
    let _quiet = cluster.node(1).add_pod(&quiet).unwrap();
    cluster.wait_devices(0, 0);
    cluster.wait_devices(1, 1);

    // Nothing is wrong.
    let calm = cluster.run(&[]);
    assert_eq!(calm.code().unwrap(), 0, "{calm:?}");
    assert_shows(
        &calm,
        &["no IP address conflict on 1 pod device of 2 nodes"],
    );

    // One claim is assigned, the other one only shows in a frame.
    let owner = PodSpec::new("vetha")
        .address(format!("{ADDRESS}/32"))
        .host_route();
    let other = PodSpec::new("vethb").address("10.244.2.11/32");
    let _owner = cluster.node(0).add_pod(&owner).unwrap();
    let other = cluster.node(0).add_pod(&other).unwrap();
    cluster.node(0).wait_attached(other.device()).unwrap();
    let frame = Frame::announcement(other.mac(), ADDRESS.parse().unwrap());
    FrameSender::open(&other).unwrap().send(&frame).unwrap();
    let raised = cluster.agent(0).wait_raised(ADDRESS).unwrap();

    let table = cluster.run(&[]);
    assert_eq!(table.code().unwrap(), 1, "{table:?}");
    assert_shows(
        &table,
        &[
            "1 IP address conflict on 1 of 2 nodes\n",
            ADDRESS,
            "n1",
            "duplicate",
            "→vetha",
            "vethb",
            "kubectl ipconflict who-has 10.244.2.10",
            "runbooks/IPAddressConflict.md#duplicate",
        ],
    );
    let (code, document) = cluster.json(&[]);
    assert_eq!(code, 1);
    assert_eq!(document["conflicts"][0]["conflict_id"], raised.conflict_id);
    assert_eq!(document["nodes"][1]["node"], "n2");
    assert_eq!(document["nodes"][1]["error"], Value::Null);
    assert_eq!(document["incomplete"], json!([]));

    let who = cluster.run(&["who-has", ADDRESS]);
    assert_eq!(who.code().unwrap(), 1, "{who:?}");
    assert_shows(
        &who,
        &[
            "10.244.2.10 is claimed by 2 pod devices on 1 of 2 nodes\n",
            "\nnode n1\n",
            "SINCE",
            "→ receives the node's traffic",
            "ARP",
            "next: Only ARP, NDP or the neighbour table shows the claim of vethb",
        ],
    );
    // No source names the pods here.
    let why = cluster.run(&["explain", ADDRESS]);
    assert_eq!(why.code().unwrap(), 1, "{why:?}");
    assert_shows(
        &why,
        &[
            "1 IP address conflict on 1 of 2 nodes\n",
            "\nnode n1\nunknown\n",
            "10.244.2.10 is claimed by vetha and vethb on n1",
            "\n  next: Only ARP, NDP or the neighbour table shows",
            "\n  not checked:\n",
        ],
    );
    let (code, document) = cluster.json(&["explain"]);
    assert_eq!(code, 1);
    let conflict = &document["conflicts"][0];
    assert_eq!(conflict["diagnosis"]["cause"], "unknown");
    assert!(conflict["timeline"].is_array(), "{conflict:#}");
    let calm = cluster.run(&["explain", "10.9.9.9"]);
    assert_eq!(calm.code().unwrap(), 0, "{calm:?}");
    // An address without conflict, and one that no pod has.
    let sole = cluster.run(&["who-has", "10.244.2.77"]);
    assert_eq!(sole.code().unwrap(), 0, "{sole:?}");
    assert_shows(
        &sole,
        &[
            "claimed by 1 pod device on 1 of 2 nodes, without conflict",
            "node n2",
        ],
    );
    let unclaimed = cluster.run(&["who-has", "10.9.9.9"]);
    assert_eq!(unclaimed.code().unwrap(), 0, "{unclaimed:?}");
    assert_shows(&unclaimed, &["no pod device on 2 nodes claims 10.9.9.9"]);
}

#[test]
fn history_of_all_nodes_is_listed_newest_first() {
    let mut cluster = Cluster::new(&["n1", "n2"]);
    let none = cluster.run(&["history"]);
    assert_eq!(none.code().unwrap(), 0, "{none:?}");
    assert_shows(
        &none,
        &["no ended conflict or anomaly is known; 2 of 2 nodes asked\n"],
    );
    // One ends after the other.
    for (index, address) in ["10.244.2.10", "10.244.2.11"].into_iter().enumerate() {
        let specs =
            ["vetha", "vethb"].map(|name| PodSpec::new(name).address(format!("{address}/32")));
        let mut pods = cluster.node(index).add_pods(&specs).unwrap();
        cluster.agent(index).wait_raised(address).unwrap();
        pods.pop().unwrap().delete().unwrap();
        cluster.wait_answer(index, "/api/v1/history", |answer| {
            answer["history"][0]["address"] == address
        });
    }
    let table = cluster.run(&["history"]);
    assert_eq!(table.code().unwrap(), 0, "{table:?}");
    assert_shows(
        &table,
        &[
            "2 ended conflicts, 0 ended anomalies; 2 of 2 nodes asked\n",
            "CAUSE",
        ],
    );
    let (code, document) = cluster.json(&["history"]);
    assert_eq!(code, 0);
    let entries = document["history"].as_array().unwrap().iter();
    let entries: Vec<_> = entries.map(|e| json!([e["address"], e["node"]])).collect();
    let expected = [["10.244.2.11", "n2"], ["10.244.2.10", "n1"]];
    assert_eq!(json!(entries), json!(expected));
    let (_, document) = cluster.json(&["history", "10.244.2.10"]);
    assert_eq!(document["history"].as_array().unwrap().len(), 1);
    assert_eq!(document["has_older"], false);
    // What an agent that is gone knew is missing.
    cluster.nodes[1].1.kill().unwrap();
    let part = cluster.run(&["history"]);
    assert_eq!(part.code().unwrap(), 2, "{part:?}");
    assert_shows(
        &part,
        &["1 of 2 nodes asked\nincomplete: 1 node (n2): could not be asked"],
    );
}

#[test]
fn address_on_several_nodes_is_contested() {
    let cluster = Cluster::new(&["n1", "n2"]);
    let mut pods = Vec::new();
    for index in 0..2 {
        let spec = PodSpec::new("vetha").address(format!("{ADDRESS}/32"));
        pods.push(cluster.node(index).add_pod(&spec).unwrap());
    }
    let is_claimed = |document: &Value| document["claims"].as_array().map(Vec::len) == Some(2);
    let path = format!("/api/v1/claims?address={ADDRESS}");
    for index in 0..2 {
        cluster.wait_answer(index, &path, |answer| answer["claims"] != json!([]));
        cluster.wait_devices(index, 1);
    }
    let (code, document) = cluster.json(&["who-has", ADDRESS]);
    assert_eq!(code, 1, "{document:#}");
    assert!(is_claimed(&document), "{document:#}");
    let mut nodes = [0, 1].map(|index| document["claims"][index]["node"].as_str().unwrap());
    nodes.sort_unstable();
    assert_eq!(nodes, ["n1", "n2"]);
    assert_eq!(document["contested"], true);
    // With one node selected there is nothing to compare.
    let (code, document) = cluster.json(&["who-has", ADDRESS, "--node", "n1"]);
    assert_eq!((code, &document["contested"]), (0, &json!(false)));
}

#[test]
fn node_that_cannot_be_asked_is_named_and_makes_the_result_inconclusive() {
    let mut cluster = Cluster::new(&["n1"]);
    let quiet = PodSpec::new("vethquiet").address("10.244.2.77/32");
    let _quiet = cluster.node(0).add_pod(&quiet).unwrap();
    cluster.wait_devices(0, 1);
    // Its port-forward is refused; its pod does not run; its agent was killed; it has no pod.
    cluster.apply(&agent_pod("refused", "Running"));
    cluster.apply(&agent_pod("pending", "Pending"));
    cluster.add_node("killed");
    cluster.nodes[1].1.kill().unwrap();
    cluster
        .api
        .set_nodes(&["n1", "refused", "pending", "killed", "bare"]);
    let outcome = cluster.run(&[]);
    assert_eq!(outcome.code().unwrap(), 2, "{outcome:?}");
    assert_shows(
        &outcome,
        &[
            "inconclusive: no conflict is known, but 4 of 5 nodes could not be asked\n",
            "incomplete: 1 node (pending): could not be asked: its pod is Pending\n",
            "(refused): could not be asked: ",
            "(killed): could not be asked: connecting to port 9842",
            "incomplete: 1 node (bare): no agent runs there\n",
        ],
    );
    let (code, document) = cluster.json(&[]);
    assert_eq!(code, 2);
    assert_eq!(document["nodes_without_agent"], json!(["bare"]));
    assert_eq!(document["incomplete"].as_array().unwrap().len(), 4);
    // A conflict still is one.
    let specs = ["vetha", "vethb"].map(|name| PodSpec::new(name).address("10.244.2.12/32"));
    let _pods = cluster.node(0).add_pods(&specs).unwrap();
    cluster.agent(0).wait_raised("10.244.2.12").unwrap();
    assert_eq!(cluster.run(&[]).code().unwrap(), 1);
    // Only the nodes that were asked for count.
    let one = cluster.run(&["who-has", "10.244.2.77", "--node", "n1"]);
    assert_eq!(one.code().unwrap(), 0, "{one:?}");
}

#[test]
fn silent_agent_delays_the_result_until_its_deadline_only() {
    let mut cluster = Cluster::new(&["n1"]);
    cluster.add_node("stopped");
    cluster.nodes[1]
        .1
        .signal(nix::sys::signal::Signal::SIGSTOP)
        .unwrap();
    let outcome = cluster.run(&["--timeout", "2s"]);
    assert_eq!(outcome.code().unwrap(), 2, "{outcome:?}");
    assert_shows(
        &outcome,
        &["(stopped): could not be asked: no answer within 2s"],
    );
}

#[test]
fn failure_without_a_result_exits_2_with_the_reason() {
    let control = Node::new("noagents").unwrap();
    let api = KubeApi::start(&control).unwrap();
    let run = |args: &[&str]| {
        AgentCommand::new(PLUGIN, args.iter().copied())
            .env("KUBECONFIG", api.kubeconfig())
            .run_to_end(&control, DEADLINE)
            .unwrap()
    };
    let none = run(&[]);
    assert_eq!(none.code().unwrap(), 2, "{none:?}");
    assert!(
        none.stderr.contains("use --namespace or --all-namespaces"),
        "{none:?}"
    );
    let json = run(&["-o", "json"]);
    assert_eq!(json.code().unwrap(), 2);
    let document: Value = serde_json::from_str(&json.stdout).unwrap();
    assert!(document["error"].is_string() && document["conflicts"].is_null());
    api.apply(agent_pod("n1", "Running"));
    let unknown = run(&["--node", "n7"]);
    assert!(
        unknown.stderr.contains("no node named n7 has an agent"),
        "{unknown:?}"
    );
    let context = run(&["--context", "nowhere"]);
    assert_eq!(context.code().unwrap(), 2, "{context:?}");
    assert!(context.stderr.contains("kubeconfig"), "{context:?}");
}
