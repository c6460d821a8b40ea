//! Two Nodes with one podCIDR, at one API server. The test stands in for the controller that gives a Node its range.

use anyhow::Context as _;
use detector_testkit::{
    Agent, AgentCommand, DEADLINE, KubeApi, Node, RUN_ARGS, http::TestClient, until,
};
use jiff::{SignedDuration, Timestamp, Unit};
use serde_json::{Value, json};

use super::diagnosis::wait_nothing_open;
use crate::AGENT;

const CLAIMS: &str = "/apis/ipconflict.io/v1alpha1/ipclaims";
const CONFLICTS: &str = "/apis/ipconflict.io/v1alpha1/ipconflicts";
const NODES: &str = "/api/v1/nodes";
const NAMES: [&str; 2] = ["node-1", "node-2"];
const RANGE: &str = "10.99.7.0/24";

fn put_node(api: &KubeApi, name: &str, range: &str, manager: &str, written: Timestamp) {
    let fields = json!({"f:spec": {"f:podCIDR": {}, "f:podCIDRs": {".": {}}}});
    api.apply_object(
        NODES,
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"kubernetes.io/os": "linux"},
            "managedFields": [{"manager": manager, "operation": "Update", "apiVersion": "v1",
                "time": written.to_string(), "fieldsType": "FieldsV1", "fieldsV1": fields}]},
            "spec": {"podCIDR": range, "podCIDRs": [range]}}),
    );
}

fn start(node: &Node, name: &str, api: &KubeApi) -> Agent {
    let args = RUN_ARGS.map(|arg| if arg == "testkit" { name } else { arg });
    let command = AgentCommand::new(AGENT, args)
        .args(["--kube=on", "--fleet=kubernetes"])
        .env("KUBECONFIG", api.kubeconfig());
    Agent::start_ready(node, &command).unwrap()
}

/// The diagnosis of the overlap, at the agent that reports it.
fn cause(nodes: &[Node]) -> Value {
    until(DEADLINE, "the cause of the overlap", || {
        let mut seen = Vec::new();
        for node in nodes {
            let open = TestClient::of_agent(node)
                .get("/api/v1/anomalies")?
                .json()?;
            let mut all = open["anomalies"].as_array().into_iter().flatten();
            let overlap = all.find(|a| a["kind"] == "pod_cidr_overlap");
            let overlap = overlap.with_context(|| format!("{open:#}"))?;
            seen.push(overlap["diagnosis"].clone());
        }
        let diagnosis = seen.into_iter().find(Value::is_object);
        diagnosis.context("no diagnosis")
    })
    .unwrap()
}

#[test]
fn range_of_two_nodes_is_explained_and_over_once_one_has_another() {
    let nodes = ["cidra", "cidrb"].map(|prefix| Node::new(prefix).unwrap());
    let api = KubeApi::start(nodes[0].netns()).unwrap();
    api.listen(nodes[1].netns()).unwrap();
    api.set_nodes(&NAMES);
    api.install(CLAIMS);
    api.install(CONFLICTS);
    let written = Timestamp::now().round(Unit::Second).unwrap();
    let before = written - SignedDuration::from_hours(20);
    put_node(&api, NAMES[0], RANGE, "kube-controller-manager", before);
    put_node(&api, NAMES[1], RANGE, "kubectl-patch", written);
    let _first = start(&nodes[0], NAMES[0], &api);
    let mut second = start(&nodes[1], NAMES[1], &api);
    let diagnosis = cause(&nodes);
    assert_eq!(diagnosis["cause"], "pod_cidr_twice", "{diagnosis:#}");
    assert_eq!(diagnosis["confidence"], "proven", "{diagnosis:#}");
    let since: Timestamp = diagnosis["since"].as_str().unwrap().parse().unwrap();
    assert_eq!(since, written, "{diagnosis:#}");
    let evidence = diagnosis["evidence"].to_string();
    let who = "kubectl-patch wrote the podCIDR of node node-2";
    assert!(evidence.contains(who), "{evidence}");
    let repair = diagnosis["repair"].as_str().unwrap();
    assert!(repair.contains("delete their Node objects"), "{repair}");
    second.terminate(DEADLINE).unwrap();
    api.delete_object(NODES, NAMES[1]);
    put_node(
        &api,
        NAMES[1],
        "10.99.8.0/24",
        "kube-controller-manager",
        Timestamp::now().round(Unit::Second).unwrap(),
    );
    let _second = start(&nodes[1], NAMES[1], &api);
    for node in &nodes {
        wait_nothing_open(node);
    }
}
