//! One address, and one podCIDR, on two nodes.

use anyhow::{Context as _, Result, ensure};
use detector_testkit::{
    cluster::{ClusterOptions, PAUSE_IMAGE},
    http::TestClient,
};
use serde_json::Value;

use crate::installation::Installation;

/// The podCIDR that both nodes get.
const RANGE: &str = "10.99.7.0/24";

#[test]
fn address_on_two_nodes_is_one_conflict_that_names_both_pods() {
    let it = Installation::prepare(&ClusterOptions {
        nodes: 2,
        same_pod_subnet: true,
        ..ClusterOptions::default()
    });
    let nodes: Vec<String> = (it.cluster.nodes().iter())
        .map(|node| node.name().to_owned())
        .collect();
    for node in &nodes {
        let patch = format!(r#"{{"spec":{{"podCIDR":"{RANGE}","podCIDRs":["{RANGE}"]}}}}"#);
        it.kubectl(&format!("patch node {node} -p {patch}"));
    }
    it.helm("install", &[]);
    one_agent_reports_the_range(&it, &nodes);

    let address = run_pod_on(&it, "web", &nodes[0]);
    it.wait("the claim of the first pod", || {
        let claim = object(&it, "ipclaim", &address)?;
        ensure!(claim["spec"]["pod"] == "web", "{claim}");
        ensure!(claim["spec"]["node"] == *nodes[0], "{claim}");
        let owner = &claim["metadata"]["ownerReferences"][0];
        ensure!(
            owner["kind"] == "Node" && owner["name"] == *nodes[0],
            "{claim}"
        );
        Ok(())
    });
    assert_eq!(run_pod_on(&it, "checkout", &nodes[1]), address);
    let conflict = it.wait("the conflict on the second node", || fleet_conflict(&it, 1));
    eprintln!("latency: {} µs", conflict["latency_us"]);
    assert_eq!(conflict["address"], *address);
    assert_eq!(conflict["kind"], "duplicate");
    assert_eq!(conflict["confidence"], "certain");
    let claimants: Vec<(&str, &str)> = (conflict["claimants"].as_array().unwrap().iter())
        .filter_map(|c| Some((c["node"].as_str()?, c["pod"]["name"].as_str()?)))
        .collect();
    assert_eq!(claimants, [(&*nodes[0], "web"), (&*nodes[1], "checkout")]);
    // The first node shows it, too, and only the second one reports it.
    let shown = it.wait("the conflict on the first node", || fleet_conflict(&it, 0));
    assert_eq!(shown["conflict_id"], conflict["conflict_id"]);
    assert_eq!([active(&it, 0), active(&it, 1)], [0.0, 1.0]);
    it.wait_events(&address, ["web", "checkout"]);
    let line = it.kubectl(&format!("get ipconflict {address} --no-headers"));
    let columns: Vec<&str> = line.split("  ").filter(|c| !c.is_empty()).collect();
    for (column, expected) in [
        (1, address.clone()),
        (2, "duplicate".to_owned()),
        (3, "Active".to_owned()),
        (4, nodes.join(", ")),
        (5, "default/web, default/checkout".to_owned()),
    ] {
        assert_eq!(columns[column].trim(), expected, "{line}");
    }

    it.kubectl("delete pod web --wait=false");
    it.wait("the claim of the second pod", || {
        let claim = object(&it, "ipclaim", &address)?;
        ensure!(claim["spec"]["pod"] == "checkout", "{claim}");
        let left = it.kubectl("get ipconflicts -o name");
        ensure!(!left.contains(&address), "{left}");
        for node in [0, 1] {
            let open = conflicts(&it, node)?;
            ensure!(open.is_empty(), "{open:?}");
        }
        Ok(())
    });
    it.kubectl("delete pod checkout --wait=false");
    it.wait("the end of all claims of addresses", || {
        let left = it.kubectl("get ipclaims -o name");
        ensure!(!left.contains(&address), "{left}");
        Ok(())
    });
}

/// Before any pod has an address of the range.
fn one_agent_reports_the_range(it: &Installation, nodes: &[String]) {
    it.wait("the podCIDR of both nodes to be reported once", || {
        let mut reported = 0.0;
        for node in 0..nodes.len() {
            let anomalies = api(it, node).get("/api/v1/anomalies")?.json()?;
            let anomalies = anomalies["anomalies"]
                .as_array()
                .context("no list")?
                .clone();
            let overlap = anomalies.iter().find(|a| a["kind"] == "pod_cidr_overlap");
            let overlap = overlap.with_context(|| format!("no overlap: {anomalies:?}"))?;
            ensure!(overlap["range"] == RANGE, "{overlap}");
            let mut named: Vec<&str> = (overlap["nodes"].as_array().into_iter().flatten())
                .filter_map(Value::as_str)
                .collect();
            named.sort_unstable();
            ensure!(named == nodes, "{overlap}");
            let series = r#"ipconflict_anomalies_active{kind="pod_cidr_overlap"}"#;
            reported += metric(it, node, series)?;
        }
        ensure!(reported == 1.0, "{reported} agents report it");
        Ok(())
    });
}

/// Creates a pod on a node and returns its address.
fn run_pod_on(it: &Installation, name: &str, node: &str) -> String {
    it.kubectl(&format!(
        r#"run {name} --image={PAUSE_IMAGE} --image-pull-policy=Never --overrides={{"spec":{{"nodeName":"{node}"}}}}"#
    ));
    it.kubectl(&format!(
        "wait --for=condition=Ready pod/{name} --timeout=60s"
    ));
    it.kubectl(&format!("get pod {name} -o jsonpath={{.status.podIP}}"))
}

fn object(it: &Installation, kind: &str, name: &str) -> Result<Value> {
    let object = it.cluster.kubectl(&["get", kind, name, "-o", "json"])?;
    Ok(serde_json::from_str(&object)?)
}

fn api<'i>(it: &'i Installation, node: usize) -> TestClient<'i> {
    TestClient::new(it.cluster.nodes()[node].node(), "http://127.0.0.1:9842")
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
    let scrape = api(it, node).get("/metrics")?.body;
    let value = scrape.lines().find_map(|line| line.strip_prefix(series));
    Ok(value.context("no such series")?.trim().parse()?)
}
