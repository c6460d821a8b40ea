//! What the Nodes of a cluster explain.

use super::*;

const ADDRESS: &str = "10.244.2.10";
const NODES: &str = "/api/v1/nodes";
const PODS: &str = "/api/v1/pods";
const OTHER_NODE: &str = "worker-8";

fn put_node(node: &TestNode, name: &str, range: &str, manager: &str, at: Timestamp) {
    let at = at.round(jiff::Unit::Second).unwrap().to_string();
    let fields = json!({"f:spec": {"f:podCIDR": {}, "f:podCIDRs": {".": {}}}});
    node.api.apply_object(
        NODES,
        &json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "managedFields": [
                {"manager": manager, "operation": "Update", "apiVersion": "v1", "time": at, "fieldsType": "FieldsV1",
                    "fieldsV1": fields}]},
            "spec": {"podCIDR": range, "podCIDRs": [range]}}),
    );
}

/// Two nodes with one range, and a pod on this one.
fn node() -> TestNode {
    let mut node = TestNode::new(
        &json!({"cniVersion": "0.3.1", "name": "kindnet", "plugins": [{"type": "ptp",
        "ipam": {"type": "host-local", "dataDir": "/nonexistent", "ranges": [[{"subnet": "10.244.2.0/24"}]]}}]}),
    );
    node.add(&TestPod::new("first", ADDRESS, minute(5)));
    put_node(
        &node,
        NODE,
        "10.244.2.0/24",
        "kube-controller-manager",
        minute(-900),
    );
    put_node(
        &node,
        OTHER_NODE,
        "10.244.2.0/24",
        "kubectl-patch",
        minute(-10),
    );
    node
}

fn overlap() -> AnomalyData {
    let anomaly = json!({"anomaly_id": format!("{:016x}", 3), "node": NODE, "kind": "pod_cidr_overlap",
        "cause": "several_nodes", "state": "active", "address": "10.244.2.0", "vlan": null, "device": null,
        "ifindex": null, "pod": null, "pod_unknown_because": null, "network": null, "source": null, "owner": null,
        "range": "10.244.2.0/24", "nodes": [NODE, OTHER_NODE], "detail": "", "raised_at": Timestamp::now().to_string(),
        "resolved_at": null, "latency_us": 1});
    serde_json::from_value(anomaly).unwrap()
}

/// The pod of this node and one of the other node, as the registry of addresses has it.
fn conflict(node: &TestNode) -> ConflictData {
    let mut conflict = serde_json::to_value(node.conflict(ADDRESS)).unwrap();
    let now = Timestamp::now().to_string();
    conflict["scope"] = "fleet".into();
    let other = json!({"node": OTHER_NODE, "device": "vethb", "ifindex": 1, "mac": null, "master": null, "since": now,
        "pod": {"namespace": "shop", "name": "second", "uid": "uid-second", "container_id": "b".repeat(64), "via": "kube"},
        "pod_unknown_because": null, "left": null,
        "evidence": [{"kind": "address", "first_seen": null, "last_seen": now, "mac": null, "detail": null}]});
    conflict["claimants"].as_array_mut().unwrap().push(other);
    serde_json::from_value(conflict).unwrap()
}

fn put_pod(node: &TestNode, address: &str) {
    node.api.apply_object(
        PODS,
        &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "shop", "name": "second", "uid": "uid-second"},
            "status": {"podIP": address, "podIPs": [{"ip": address}]}}),
    );
}

#[test]
fn overlap_names_who_wrote_the_range_and_when() {
    let mut node = node();
    let mut collector = node.collector();
    let diagnosis = explain(&mut collector, Finding::Anomaly(&overlap()));
    assert_cause(&diagnosis, Cause::PodCidrTwice, CauseConfidence::Proven);
    assert!(has_fact(
        &diagnosis,
        "kubectl-patch wrote the podCIDR of node worker-8"
    ));
    let since = diagnosis.since.unwrap().0;
    assert!(since.abs_diff(minute(-10).as_nanosecond() as u64) < 2_000_000_000);
    assert_eq!(diagnosis.not_checked, []);
    // A network plugin that uses an older range than that of its Node.
    put_node(
        &node,
        OTHER_NODE,
        "10.244.3.0/24",
        "kube-controller-manager",
        minute(-900),
    );
    let diagnosis = explain(&mut collector, Finding::Anomaly(&overlap()));
    assert_unknown(&diagnosis);
    assert_eq!(diagnosis.ruled_out, [Cause::PodCidrTwice]);
    node.api.fail_all("/api/v1/nodes/worker-8");
    let diagnosis = explain(&mut collector, Finding::Anomaly(&overlap()));
    assert_unknown(&diagnosis);
    assert_eq!(diagnosis.not_checked.len(), 1, "{diagnosis:#?}");
}

#[test]
fn pods_of_two_nodes_with_one_range_are_explained_by_it() {
    let mut node = node();
    put_pod(&node, ADDRESS);
    let mut collector = node.collector();
    let conflict = conflict(&node);
    let diagnosis = explain(&mut collector, Finding::Conflict(&conflict));
    assert_cause(&diagnosis, Cause::PodCidrTwice, CauseConfidence::Proven);
    // kubelet knows the other pod by another address: it was not given this one.
    put_pod(&node, "10.244.2.11");
    assert_unknown(&explain(&mut collector, Finding::Conflict(&conflict)));
    // Nor is anything known of a pod that cannot be read.
    node.api.fail_all("/api/v1/namespaces/shop/pods");
    assert_unknown(&explain(&mut collector, Finding::Conflict(&conflict)));
}
