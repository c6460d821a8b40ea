//! Objects that agents wrote before IPConflicts had `Resolved`, conditions and a cause: through an upgrade, and back.

use std::{env, fs};

use anyhow::ensure;
use detector_testkit::until;
use serde_json::{Value, json};

use super::{delete_pods, fleet_conflict, names, node_name, object, run_pod_with, two_nodes};
use crate::installation::{Installation, LONG, PREVIOUS_TAG, RELEASE, root};

/// Both nodes have it, and agents have reported that.
const DUPLICATE: &str = "10.244.1.77";
/// A node that is gone had it as well, as agents have reported; no node has it now.
const OVER: &str = "10.244.1.78";
/// Within the first node, over as well.
const WITHIN: &str = "10.244.1.79-0000002a";

#[test]
fn objects_of_an_earlier_version_are_completed_or_deleted_and_hinder_no_rollback() {
    let it = two_nodes();
    let schema = fs::read_to_string(root().join("deploy/crds/ipconflicts.yaml")).unwrap();
    it.set_conflict_schema(&earlier_schema(&schema));
    // Nothing but the objects is left of the earlier agents.
    it.helm("install", &["nodeSelector.none=none"]);
    for (node, pod) in ["web", "checkout"].into_iter().enumerate() {
        run_pod_with(&it, pod, node, DUPLICATE);
    }
    for object in earlier_objects(&it) {
        it.cluster.apply(&object.to_string()).unwrap();
    }
    let written = [
        ("ipclaim", DUPLICATE),
        ("ipconflict", DUPLICATE),
        ("ipconflict", OVER),
    ];
    let uids = written.map(|(kind, name)| uid(&it, kind, name));

    it.set_conflict_schema(&schema);
    it.helm("upgrade", &["config.claim-ttl=5m"]);
    it.wait("what is over to be deleted", || {
        let conflicts = names(&it, "ipconflicts")?;
        ensure!(!conflicts.contains(WITHIN), "{conflicts:?}");
        Ok(())
    });
    // The conflict keeps its id once the new agents have proven it.
    let conflict = it.wait("the conflict", || fleet_conflict(&it, 1));
    assert_eq!(conflict["conflict_id"], "2a".repeat(16));
    for wait in [
        format!("condition=Active ipconflict/{DUPLICATE}"),
        format!("condition=Confirmed ipconflict/{DUPLICATE}"),
        format!("condition=Active=false ipconflict/{OVER}"),
    ] {
        it.kubectl(&format!("wait --timeout=60s --for={wait}"));
    }
    let kept = written.map(|(kind, name)| uid(&it, kind, name));
    assert_eq!(kept, uids, "none was created again");

    back_to_the_earlier_version(&it);
}

/// docs/fleet.md has the command.
fn back_to_the_earlier_version(it: &Installation) {
    it.kubectl("delete ipconflicts --all --timeout=30s");
    it.cluster
        .helm(&["rollback", RELEASE, "1", "-n", RELEASE])
        .unwrap();
    it.rollout();
    // The agents that were replaced may have written some again, in the newer form.
    until(LONG, "the agents to be gone", || {
        let left = it.kubectl(&format!("-n {RELEASE} get pods -o name"));
        ensure!(left.is_empty(), "{left}");
        Ok(())
    })
    .unwrap();
    for name in names(it, "ipconflicts").unwrap() {
        let mut conflict = object(it, "ipconflict", &name).unwrap();
        // As an agent writes it that does not know the newer fields.
        conflict.as_object_mut().unwrap().remove("status");
        conflict["spec"].as_object_mut().unwrap().remove("cause");
        let file = it.cluster.directory().join("conflict.json");
        fs::write(&file, conflict.to_string()).unwrap();
        it.kubectl(&format!("replace -f {}", file.display()));
    }
    if env::var_os("CLUSTER_PREVIOUS_IMAGE").is_some() {
        let schema = fs::read_to_string(root().join("deploy/crds/ipconflicts.yaml")).unwrap();
        it.set_conflict_schema(&earlier_schema(&schema));
        it.helm("upgrade", &[&format!("image.tag={PREVIOUS_TAG}")]);
        let conflict = it.wait("the conflict", || fleet_conflict(it, 1));
        assert_eq!(conflict["address"], DUPLICATE);
    }
    delete_pods(it, "web checkout");
    it.kubectl("delete ipconflicts,ipclaims --all --timeout=30s");
    let uninstall = ["uninstall", RELEASE, "-n", RELEASE, "--wait"];
    it.cluster.helm(&uninstall).unwrap();
}

/// The schema before these fields.
fn earlier_schema(schema: &str) -> String {
    let mut definition: Value = serde_yaml_ng::from_str(schema).unwrap();
    let pointer = "/spec/versions/0/schema/openAPIV3Schema/properties";
    let properties = definition.pointer_mut(pointer).unwrap();
    properties.as_object_mut().unwrap().remove("status");
    let spec = &mut properties["spec"]["properties"];
    for field in ["resolvedAt", "cause"] {
        spec.as_object_mut().unwrap().remove(field);
    }
    spec["state"]["enum"] = json!(["Suspected", "Active"]);
    definition.to_string()
}

/// What agents of that version wrote.
fn earlier_objects(it: &Installation) -> Vec<Value> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let [first, second] = [0, 1].map(|node| node_name(it, node));
    let owner = |node: &str| {
        let uid = it.kubectl(&format!("get node {node} -o jsonpath={{.metadata.uid}}"));
        json!({"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid})
    };
    let [of_first, of_second] = [first, second].map(owner);
    let party = |node: &str, pod: &str| {
        json!({"node": node, "bootId": boot.trim(), "device": format!("veth-{pod}"), "ifindex": 7,
            "mac": "02:00:00:00:00:07", "namespace": "default", "pod": pod, "podUid": "of-before",
            "containerId": "of-before", "evidence": "address"})
    };
    let mut claim = party(first, "web");
    claim["address"] = json!(DUPLICATE);
    let claim = json!({"apiVersion": "ipconflict.io/v1alpha1", "kind": "IPClaim",
        "metadata": {"name": DUPLICATE, "ownerReferences": [of_first.clone()]}, "spec": claim});
    let conflict = |name: &str, scope: &str, owners: &[&Value], claimants: [(&str, Value); 2]| {
        let nodes = claimants.each_ref().map(|(node, _)| *node);
        let mut labels = json!({"ipconflict.io/scope": scope});
        for node in nodes {
            labels[format!("node.ipconflict.io/{node}")] = json!("");
        }
        let claimants = claimants.map(|(_, claimant)| claimant);
        let pods = claimants
            .each_ref()
            .map(|c| format!("default/{}", c["pod"].as_str().unwrap()));
        json!({"apiVersion": "ipconflict.io/v1alpha1", "kind": "IPConflict",
            "metadata": {"name": name, "labels": labels, "ownerReferences": owners},
            "spec": {"address": name.split('-').next(), "conflictId": "2a".repeat(16), "kind": "duplicate", "scope": scope,
                "network": "node", "state": "Active", "confidence": "certain", "raisedAt": "2026-11-25T01:02:03.000004Z",
                "nodes": nodes.join(", "), "pods": pods.join(", "), "claimants": claimants}})
    };
    let reports = |node: &str, pod: &str| {
        let mut contender = party(node, pod);
        for (field, value) in [
            ("asked", json!(1)),
            ("confirmed", json!(1)),
            ("active", json!(true)),
        ] {
            contender[field] = value;
        }
        contender
    };
    vec![
        claim,
        conflict(
            DUPLICATE,
            "fleet",
            &[&of_first, &of_second],
            [
                (first, party(first, "web")),
                (second, reports(second, "checkout")),
            ],
        ),
        conflict(
            OVER,
            "fleet",
            &[&of_first],
            [
                ("worker-of-before", party("worker-of-before", "gone")),
                (first, reports(first, "gone-too")),
            ],
        ),
        conflict(
            WITHIN,
            "node",
            &[&of_first],
            [
                (first, party(first, "gone")),
                (first, party(first, "gone-too")),
            ],
        ),
    ]
}

fn uid(it: &Installation, kind: &str, name: &str) -> Value {
    object(it, kind, name).unwrap()["metadata"]["uid"].clone()
}
