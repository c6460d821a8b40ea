//! The admission policies: which requests of an agent they refuse.
//!
//! The API server of the cluster tests is older than the policies, so another implementation of CEL evaluates them.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::tools::{NAME, documents, output, python, render};

const OWN: &str = "an agent may write only the claims of its own node";
const NO_NODE: &str = "the token is not that of a pod on a node";
const NAMED: &str = "the name of a claim is its address";
const OWNER: &str = "the owner of a claim is its node";
const FINALIZERS: &str = "finalizers are not allowed";
const ANNOTATIONS: &str = "too many or too long annotations";
const LABELS: &str = "too many labels";
const ALIVE: &str = "the node of the claim exists and has not been started again";
const CONFLICTS: &str = "an agent may write only the conflicts of its own node";

/// The messages with which requests are refused.
fn refusals(requests: &[Value]) -> Vec<Vec<String>> {
    let mut policies = documents(&render("").unwrap()["admissionpolicy.yaml"]);
    policies.retain(|document| document["kind"] == "ValidatingAdmissionPolicy");
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, content: Value| {
        let path = folder.path().join(name);
        fs::write(&path, content.to_string()).unwrap();
        path
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/deploy/admission.py");
    let result = output(
        python("python3")
            .arg(script)
            .arg(file("policies", json!(policies)))
            .arg(file("requests", json!(requests))),
    );
    assert!(result.status.success(), "{result:?}");
    serde_json::from_slice(&result.stdout).unwrap()
}

/// Of the agent on node `a`. The nodes `a` and `b` exist.
fn request(resource: &str, operation: &str, object: Value, old: Value) -> Value {
    let node =
        |name: &str| json!({"metadata": {"name": name}, "status": {"nodeInfo": {"bootID": "now"}}});
    json!({"resource": resource, "operation": operation, "object": object, "oldObject": old,
        "userInfo": {"username": format!("system:serviceaccount:{NAME}:{NAME}"),
            "extra": {"authentication.kubernetes.io/node-name": ["a"]}},
        "nodes": [node("a"), node("b")]})
}

/// A claim of a node in a boot.
fn claim(node: &str, boot: &str) -> Value {
    json!({"metadata": {"name": "10.244.1.5", "ownerReferences": [{"kind": "Node", "name": node}]},
        "spec": {"address": "10.244.1.5", "node": node, "bootId": boot}})
}

/// A claim of node `a` with another value at a path.
fn changed(path: &str, value: Value) -> Value {
    let mut claim = claim("a", "now");
    let (outer, inner) = path.split_once('.').unwrap();
    claim[outer][inner] = value;
    claim
}

fn named(name: &str, address: &str) -> Value {
    let mut claim = changed("metadata.name", json!(name));
    claim["spec"]["address"] = json!(address);
    claim
}

#[test]
fn agent_writes_only_claims_of_its_own_node() {
    let create = |claim| request("ipclaims", "CREATE", claim, Value::Null);
    let delete = |claim| request("ipclaims", "DELETE", Value::Null, claim);
    let update = |claim, old| request("ipclaims", "UPDATE", claim, old);
    let mut without_node = create(claim("a", "now"));
    without_node["userInfo"]["extra"] = json!({});
    let mut without_extra = without_node.clone();
    without_extra["userInfo"] = json!({"username": without_node["userInfo"]["username"]});
    let mut of_admin = create(claim("b", "now"));
    of_admin["userInfo"]["username"] = json!("admin");
    let many: serde_json::Map<_, _> = (0..9).map(|n| (n.to_string(), json!(""))).collect();
    let cases: Vec<(Value, &[&str])> = vec![
        (create(claim("a", "now")), &[]),
        (create(claim("b", "now")), &[OWN, OWNER]),
        (without_node, &[NO_NODE, OWN, OWNER]),
        (without_extra, &[NO_NODE, OWN, OWNER]),
        (of_admin, &[]),
        (delete(claim("a", "now")), &[]),
        (delete(claim("b", "now")), &[OWN]),
        (update(claim("a", "now"), claim("a", "before")), &[]),
        (update(claim("b", "now"), claim("b", "now")), &[OWN, OWNER]),
        // Takeovers: of a node that is there, that was started again, that is gone.
        (update(claim("a", "now"), claim("b", "now")), &[ALIVE]),
        (update(claim("a", "now"), claim("b", "before")), &[]),
        (update(claim("a", "now"), claim("c", "now")), &[]),
        (create(named("10.244.1.0-24", "10.244.1.0/24")), &[]),
        (create(named("fd00-1--5", "fd00:1::5")), &[]),
        (create(named("0--1", "::1")), &[]),
        (create(named("fd00--0", "fd00::")), &[]),
        (create(named("0---0", "::/0")), &[]),
        (create(named("10.244.1.6", "10.244.1.5")), &[NAMED]),
        (
            update(named("10.244.1.5", "10.244.1.6"), claim("a", "now")),
            &[NAMED],
        ),
        (create(changed("metadata.ownerReferences", json!([]))), &[]),
        (
            create(changed(
                "metadata.ownerReferences",
                json!([{"kind": "Node", "name": "b"}]),
            )),
            &[OWNER],
        ),
        (
            create(changed("metadata.finalizers", json!(["forever"]))),
            &[FINALIZERS],
        ),
        (
            create(changed("metadata.annotations", json!({"a": "short"}))),
            &[],
        ),
        (
            create(changed(
                "metadata.annotations",
                json!({"a": "x".repeat(257)}),
            )),
            &[ANNOTATIONS],
        ),
        (
            create(changed("metadata.annotations", json!(many))),
            &[ANNOTATIONS],
        ),
        (create(changed("metadata.labels", json!(many))), &[LABELS]),
    ];
    assert_refusals(cases);
}

#[test]
fn agent_writes_only_conflicts_of_its_own_node() {
    let conflict = |nodes: &[&str]| {
        let claimants = nodes.iter().map(|node| json!({"node": node}));
        json!({"metadata": {"name": "10.244.1.5"}, "spec": {"claimants": claimants.collect::<Vec<_>>()}})
    };
    let mut over = conflict(&["b", "c"]);
    for n in 0..2 {
        over["spec"]["claimants"][n]["left"] = json!("expired");
    }
    let mut half = over.clone();
    half["spec"]["claimants"][0] = json!({"node": "b"});
    let create = |object| request("ipconflicts", "CREATE", object, Value::Null);
    let update = |object, old| request("ipconflicts", "UPDATE", object, old);
    let delete = |old| request("ipconflicts", "DELETE", Value::Null, old);
    let mut without_node = create(conflict(&["b", "a"]));
    without_node["userInfo"]["extra"] = json!({});
    let cases: Vec<(Value, &[&str])> = vec![
        (create(conflict(&["b", "a"])), &[]),
        (create(conflict(&["b", "c"])), &[CONFLICTS]),
        (without_node, &[NO_NODE, CONFLICTS]),
        // It joins, stays, and leaves.
        (
            update(conflict(&["b", "c", "a"]), conflict(&["b", "c"])),
            &[],
        ),
        (update(conflict(&["a", "c"]), conflict(&["a", "c"])), &[]),
        (
            update(conflict(&["b", "c"]), conflict(&["b", "c", "a"])),
            &[],
        ),
        (
            update(conflict(&["b", "d"]), conflict(&["b", "c"])),
            &[CONFLICTS],
        ),
        (delete(conflict(&["b", "a"])), &[]),
        (delete(conflict(&["b", "c"])), &[CONFLICTS]),
        (delete(over), &[]),
        (delete(half), &[CONFLICTS]),
    ];
    assert_refusals(cases);
}

fn assert_refusals(cases: Vec<(Value, &[&str])>) {
    let (requests, expected): (Vec<_>, Vec<_>) = cases.into_iter().unzip();
    for ((request, found), expected) in requests.iter().zip(refusals(&requests)).zip(expected) {
        assert_eq!(found, expected, "{request:#}");
    }
}
