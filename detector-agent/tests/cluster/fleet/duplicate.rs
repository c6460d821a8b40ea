//! One address, and one podCIDR, on two nodes.

use anyhow::{Context as _, ensure};
use detector_testkit::cluster::ClusterOptions;
use serde_json::Value;

use super::{active, api, conflicts, fleet_conflict, metric, object, run_pod_on};
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
    let patch = format!(r#"{{"spec":{{"podCIDR":"{RANGE}","podCIDRs":["{RANGE}"]}}}}"#);
    it.kubectl(&format!("patch node {} -p {patch}", nodes[0]));
    it.helm("install", &[]);
    // The other node gets its range when its agent has seen it without one.
    it.kubectl(&format!("patch node {} -p {patch}", nodes[1]));
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
    with_rights(&it, 1, [Some(true), Some(true)]);
    // The first node shows it as well, but only the second one reports it.
    let shown = it.wait("the conflict on the first node", || fleet_conflict(&it, 0));
    assert_eq!(shown["conflict_id"], conflict["conflict_id"]);
    assert_eq!([active(&it, 0), active(&it, 1)], [0.0, 1.0]);
    it.wait_events(&address, ["web", "checkout"]);
    for node in &nodes {
        let selected = it.kubectl(&format!(
            "get ipconflicts -l ipconflict.io/scope=fleet,node.ipconflict.io/{node} -o name"
        ));
        assert!(selected.contains(&address), "{node}: {selected}");
    }
    for (condition, name) in [
        ("CauseKnown", &*RANGE.replace('/', "-")),
        // The nodes' network plugins have another range.
        ("CauseKnown=false", &*address),
    ] {
        it.kubectl(&format!(
            "wait --for=condition={condition} ipconflict/{name} --timeout=30s"
        ));
    }
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
        let over = object(&it, "ipconflict", &address)?;
        ensure!(over["spec"]["state"] == "Resolved", "{over}");
        for node in [0, 1] {
            let open = conflicts(&it, node)?;
            ensure!(open.is_empty(), "{open:?}");
        }
        Ok(())
    });
    pod_that_assigns_itself_the_address_is_not_rightful(&it, &nodes, &address);
    it.kubectl("delete pod checkout squatter --wait=false");
    it.wait("the end of all claims of addresses", || {
        let left = it.kubectl("get ipclaims -o name");
        ensure!(!left.contains(&address), "{left}");
        Ok(())
    });
}

/// The conflict as the agent of a node shows it, once it says of its claimants whether they are rightful.
fn with_rights(it: &Installation, node: usize, rights: [Option<bool>; 2]) -> Value {
    it.wait("who is rightful", || {
        let conflict = fleet_conflict(it, node)?;
        let claimants = conflict["claimants"].as_array().context("no claimants")?;
        let shown: Vec<_> = claimants.iter().map(|c| c["rightful"].as_bool()).collect();
        ensure!(shown == rights, "{conflict:#}");
        Ok(conflict)
    })
}

/// The address is that of the pod `checkout` on the second node.
fn pod_that_assigns_itself_the_address_is_not_rightful(
    it: &Installation,
    nodes: &[String],
    address: &str,
) {
    let own = run_pod_on(it, "squatter", &nodes[0]);
    let add = format!("address add {address}/32 dev eth0");
    it.cluster.nodes()[0].pod_ip_batch(&own, [add]).unwrap();
    for node in [0, 1] {
        let conflict = with_rights(it, node, [Some(true), Some(false)]);
        assert_eq!(conflict["address"], *address);
        let step = conflict["guidance"]["next_step"].as_str().unwrap();
        assert!(step.starts_with("Delete default/squatter"), "{step}");
    }
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
