//! `calico-stale-endpoints.json` with a real containerd and the real `ptp`: a block loses the allocations of two pods that run, and keeps
//! that of one that is gone.

use std::collections::BTreeMap;

use anyhow::ensure;
use detector_testkit::{
    Agent, Containerd, DEADLINE, KubeApi, Node, http::TestClient, scenario::CalicoStaleEndpoints,
    until, wait_reachable,
};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{
    diagnosis::{agent_on, wait_nothing_open},
    remote_ipam::{BLOCKS, add_ipam, run_in, wait_version},
};

/// The block is 192.168.106.64/26.
const PREFIX: &str = "192.168.106";
const FIRST: usize = 64;
const NODE: &str = "dev-slave-108";
/// The pods of the block's handles: the incident does not state their addresses.
const PODS: [(&str, usize); 2] = [
    ("kube-system/prometheus-3355405412-iyww3", 70),
    ("kube-system/kubernetes-dashboard-2069275773-iun7h", 71),
];
/// Allocated, without a pod.
const STALE: usize = 67;

fn store(api: &KubeApi, created: Timestamp, spec: &Value) {
    let created = created.round(jiff::Unit::Second).unwrap().to_string();
    let metadata = json!({"name": "192-168-106-64-26", "creationTimestamp": created});
    api.apply_object(
        BLOCKS,
        json!({"apiVersion": "crd.projectcalico.org/v1", "kind": "IPAMBlock", "metadata": metadata, "spec": spec}),
    );
}

/// The open anomalies by address, once there are these, each of its kind, and all drifts have a known cause.
fn anomalies(node: &Node, expected: &[(usize, &str)]) -> BTreeMap<usize, Value> {
    let client = TestClient::of_agent(node);
    let expected: BTreeMap<_, _> = expected.iter().copied().collect();
    until(DEADLINE, "the anomalies", || {
        let open = client.get("/api/v1/anomalies")?.json()?;
        let found = open["anomalies"].as_array().into_iter().flatten();
        let found = found.map(|anomaly| {
            let address = anomaly["address"].as_str().unwrap_or_default();
            let last = address.strip_prefix("192.168.106.").unwrap_or_default();
            (last.parse().unwrap_or_default(), anomaly.clone())
        });
        let found: BTreeMap<usize, Value> = found.collect();
        let kinds = found
            .iter()
            .map(|(last, a)| (*last, a["kind"].as_str().unwrap_or_default()));
        ensure!(kinds.collect::<BTreeMap<_, _>>() == expected, "{open:#}");
        let drifts = found.values().filter(|a| a["kind"] == "ipam_drift");
        for drift in drifts {
            let cause = drift["diagnosis"]["cause"].as_str();
            ensure!(cause.is_some_and(|cause| cause != "unknown"), "{open:#}");
        }
        Ok(found)
    })
    .unwrap()
}

#[test]
fn incident_is_explained_as_a_release_and_over_once_the_pods_are_recreated() {
    let stale = CalicoStaleEndpoints::load().unwrap().block;
    let node = Node::new("stale").unwrap();
    // Felix's route for the node's block.
    node.ip("route add blackhole 192.168.106.64/26 proto 80")
        .unwrap();
    let api = KubeApi::start(node.netns()).unwrap();
    api.apply_ip_pool("192.168.0.0/16", 26);
    let plugins = json!([{"type": "ptp", "ipam": {"type": "calico-ipam"}}]);
    let mut containerd = Containerd::start(&node, plugins).unwrap();
    add_ipam(&containerd, "calico-ipam");
    let created = Timestamp::now() - SignedDuration::from_hours(15);
    let mut spec = stale.clone();
    let stale_allocation = spec["allocations"][STALE - FIRST].take();
    store(&api, created, &spec);
    let state = tempfile::tempdir().unwrap();
    let cri = containerd.socket();
    let command = agent_on(NODE, &containerd, cri.to_str().unwrap())
        .args(["--kube=on", "--ipam-leak-after=1s", "--state-dir"])
        .arg(state.path())
        .env("KUBECONFIG", api.kubeconfig());
    let mut agent = Agent::start_ready(&node, &command).unwrap();
    wait_version(&api, 1);
    let mut old = Vec::new();
    for (attribute, (name, last)) in PODS.into_iter().enumerate() {
        let pod = run_in(&mut containerd, name, (PREFIX, last), |_| {
            spec["allocations"][last - FIRST] = attribute.into();
            store(&api, created, &spec);
        });
        old.push(pod);
    }
    // Once it is reported, the block was read with the allocations of both pods.
    spec["allocations"][STALE - FIRST] = stale_allocation;
    store(&api, created, &spec);
    let leak = anomalies(&node, &[(STALE, "ipam_leak")])
        .remove(&STALE)
        .unwrap();
    assert_eq!(leak["cause"], "no_live_owner", "{leak:#}");

    let released = Timestamp::now();
    store(&api, created, &stale);
    let expected = [(STALE, "ipam_leak"), (70, "ipam_drift"), (71, "ipam_drift")];
    let assert_explained = || {
        let found = anomalies(&node, &expected);
        for (name, last) in PODS {
            let drift = &found[&last];
            assert_eq!(drift["cause"], "not_allocated", "{drift:#}");
            let diagnosis = &drift["diagnosis"];
            assert_eq!(diagnosis["cause"], "released_in_use", "{diagnosis:#}");
            assert_eq!(diagnosis["confidence"], "proven", "{diagnosis:#}");
            let since = diagnosis["since"].as_str().unwrap_or_default();
            let distance = since
                .parse::<Timestamp>()
                .map(|at| at.duration_since(released));
            let is_exact = distance.is_ok_and(|d| d.abs() <= SignedDuration::from_secs(2));
            assert!(is_exact, "{diagnosis:#}");
            let evidence = diagnosis["evidence"].to_string();
            let fact = format!("the allocation of {PREFIX}.{last} to {name} was removed");
            for fact in ["kubernetes:ipamblock 192-168-106-64-26", &fact] {
                assert!(evidence.contains(fact), "{evidence}");
            }
            let repair = diagnosis["repair"].as_str().unwrap();
            let steps = format!(
                "Keep new pods off the node (kubectl cordon {NODE}). Then recreate the pods that have no allocation"
            );
            assert!(repair.contains(&steps), "{repair}");
        }
    };
    assert_explained();
    agent.terminate(DEADLINE).unwrap();
    let _agent = Agent::start_ready(&node, &command).unwrap();
    assert_explained();

    for pod in old {
        containerd.remove_pod(&pod).unwrap();
    }
    let mut spec = stale;
    spec["allocations"][STALE - FIRST] = Value::Null;
    spec["attributes"] = json!([{}, {}]);
    for (attribute, last) in [72, 73].into_iter().enumerate() {
        let name = format!("kube-system/again-{last}");
        run_in(&mut containerd, &name, (PREFIX, last), |id| {
            spec["attributes"][attribute] =
                json!({"handle_id": format!("k8s-pod-network.{id}"), "secondary": {"node": NODE}});
            spec["allocations"][last - FIRST] = attribute.into();
            store(&api, created, &spec);
        });
    }
    wait_nothing_open(&node);
    let address = format!("{PREFIX}.72").parse().unwrap();
    wait_reachable(&node, address, DEADLINE).unwrap();
}
