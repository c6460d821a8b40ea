//! Addresses across nodes: what the tests do with several nodes, and ask their agents and the registry.

mod alerts;
mod crowd;
mod duplicate;
mod earlier;
mod faults;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use detector_testkit::{
    cluster::{ClusterOptions, PAUSE_IMAGE},
    http::TestClient,
    until,
};
use serde_json::Value;

use crate::installation::Installation;

/// For steps with a timeout of Kubernetes or of the protocol in them: a node is not ready after 40 seconds, and the agent of a
/// ready node may be silent for a minute.
const LONGER: Duration = Duration::from_secs(240);

/// No pods.
const NONE: &[&str] = &[];

/// Two nodes that give their pods addresses of one range.
fn two_nodes() -> Installation {
    Installation::prepare(&ClusterOptions {
        nodes: 2,
        same_pod_subnet: true,
        ..ClusterOptions::default()
    })
}

fn node_name(it: &Installation, node: usize) -> &str {
    it.cluster.nodes()[node].name()
}

/// Creates a pod on a node, with this address.
fn run_pod_with(it: &Installation, name: &str, node: usize, address: &str) {
    give_next(it, node, address);
    assert_eq!(run_pod_on(it, name, node_name(it, node)), address);
}

fn give_next(it: &Installation, node: usize, address: &str) {
    let address: IpAddr = address.parse().unwrap();
    it.cluster.nodes()[node].give_next(address).unwrap();
}

/// Waits until the registry has this pod as the holder of an address, and no conflict about it.
fn wait_holder(it: &Installation, address: &str, node: usize, pod: &str) {
    wait_longer(it, &format!("{address} to be {pod}'s alone"), || {
        let claim = object(it, "ipclaim", address)?;
        ensure!(claim["spec"]["node"] == node_name(it, node), "{claim}");
        ensure!(claim["spec"]["pod"] == pod, "{claim}");
        ensure!(!names(it, "ipconflicts")?.contains(address));
        Ok(())
    });
}

/// Waits until the registry has the addresses of these pods and no others, and each has a route in the kernel of its node, of
/// which these are looked at, with the device that is registered.
fn wait_registered(it: &Installation, nodes: &[usize], pods: &[impl AsRef<str>]) {
    let expected: BTreeSet<&str> = pods.iter().map(AsRef::as_ref).collect();
    wait_longer(it, "the registry to have what the nodes have", || {
        let mut live = BTreeSet::new();
        for node in nodes {
            live.extend(pod_routes(it, *node)?);
        }
        let claims = claims(it)?;
        let registered: BTreeSet<Route> = claims.values().map(|c| c.route.clone()).collect();
        ensure!(
            live == registered,
            "live: {live:?}\nregistered: {registered:?}"
        );
        let named: BTreeSet<&str> = claims.values().map(|c| &*c.pod).collect();
        ensure!(named == expected, "{named:?} instead of {expected:?}");
        Ok(())
    });
}

/// Deletes pods by name. Their addresses are gone long before the objects are, which kubelet cleans up once in a minute.
fn delete_pods(it: &Installation, names: &str) {
    it.kubectl(&format!("delete pod --wait=false {names}"));
}

/// Address, node and device.
type Route = (String, String, String);

/// Where a node's kernel has pods.
fn pod_routes(it: &Installation, node: usize) -> Result<Vec<Route>> {
    let node = &it.cluster.nodes()[node];
    let routes = node.node().exec(&["ip", "-4", "route", "show"])?;
    let routes = routes.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let address = words.next()?;
        let device = words.nth(1).filter(|device| device.starts_with("veth"))?;
        Some((
            address.to_owned(),
            node.name().to_owned(),
            device.to_owned(),
        ))
    });
    Ok(routes.collect())
}

/// What is registered of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Claim {
    route: Route,
    pod: String,
}

/// The claims by the names of their objects.
fn claims(it: &Installation) -> Result<BTreeMap<String, Claim>> {
    let list = it.cluster.kubectl(&["get", "ipclaims", "-o", "json"])?;
    let list: Value = serde_json::from_str(&list)?;
    let items = list["items"].as_array().context("no list")?;
    let claims = items.iter().map(|item| {
        let text = |field: &str| item["spec"][field].as_str().unwrap_or_default().to_owned();
        let name = item["metadata"]["name"].as_str().unwrap_or_default();
        let claim = Claim {
            route: (text("address"), text("node"), text("device")),
            pod: text("pod"),
        };
        (name.to_owned(), claim)
    });
    Ok(claims.collect())
}

/// The names of the objects of a kind, without resolved conflicts.
fn names(it: &Installation, kind: &str) -> Result<BTreeSet<String>> {
    let columns = "custom-columns=NAME:.metadata.name,STATE:.spec.state";
    let list = it
        .cluster
        .kubectl(&["get", kind, "--no-headers", "-o", columns])?;
    let open = list
        .lines()
        .filter(|line| !line.trim_end().ends_with("Resolved"));
    let names = open.filter_map(|line| line.split_whitespace().next());
    Ok(names.map(str::to_owned).collect())
}

/// Kills the agent of a node and returns what identifies the run that was killed.
fn kill_agent(it: &Installation, node: usize) -> f64 {
    let run = metric(it, node, "process_start_time_seconds").unwrap();
    it.cluster.nodes()[node].kill_containers("agent").unwrap();
    run
}

/// Waits until kubelet has started an agent after this run, and it is ready.
fn wait_restarted(it: &Installation, node: usize, killed: f64) {
    wait_longer(it, "the agent to be started again", || {
        let run = metric(it, node, "process_start_time_seconds")?;
        ensure!(run != killed, "it still runs");
        let ready = api(it, node).get("/readyz")?;
        ensure!(ready.status == 200, "{}", ready.body);
        Ok(())
    });
}

fn wait_longer<T>(it: &Installation, what: &str, check: impl FnMut() -> Result<T>) -> T {
    until(LONGER, what, check).unwrap_or_else(|error| panic!("{error:#}\n{}", it.describe()))
}

/// Creates a pod on a node and returns its address.
fn run_pod_on(it: &Installation, name: &str, node: &str) -> String {
    create_pod_on(it, name, node);
    it.kubectl(&format!(
        "wait --for=condition=Ready pod/{name} --timeout=90s"
    ));
    it.kubectl(&format!("get pod {name} -o jsonpath={{.status.podIP}}"))
}

fn create_pod_on(it: &Installation, name: &str, node: &str) {
    it.cluster.apply(&manifest(name, node)).unwrap();
}

/// A pod on a node, as one of several documents.
fn manifest(name: &str, node: &str) -> String {
    format!(
        "---
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  nodeName: {node}
  containers: [{{name: {name}, image: {PAUSE_IMAGE}, imagePullPolicy: Never}}]
"
    )
}

fn object(it: &Installation, kind: &str, name: &str) -> Result<Value> {
    let object = it.cluster.kubectl(&["get", kind, name, "-o", "json"])?;
    Ok(serde_json::from_str(&object)?)
}

fn api<'i>(it: &'i Installation, node: usize) -> TestClient<'i> {
    TestClient::of_agent(it.cluster.nodes()[node].node())
}

/// The open conflicts on a node.
fn conflicts(it: &Installation, node: usize) -> Result<Vec<Value>> {
    let answer = api(it, node)
        .get("/api/v1/conflicts?state=active")?
        .json()?;
    Ok(answer["conflicts"].as_array().context("no list")?.clone())
}

/// The one conflict on a node, which is across nodes.
fn fleet_conflict(it: &Installation, node: usize) -> Result<Value> {
    let open = conflicts(it, node)?;
    ensure!(open.len() == 1 && open[0]["scope"] == "fleet", "{open:?}");
    Ok(open[0].clone())
}

/// How many conflicts across nodes the agent of a node reports.
fn active(it: &Installation, node: usize) -> f64 {
    let series = r#"ipconflict_conflicts_active{kind="duplicate",scope="fleet"}"#;
    metric(it, node, series).unwrap()
}

/// The value of a series of the agent on a node.
fn metric(it: &Installation, node: usize, series: &str) -> Result<f64> {
    api(it, node).metric(series)?.context("no such series")
}
