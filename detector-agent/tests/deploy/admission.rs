//! The admission policies: which requests of an agent they refuse.
//!
//! The API server of the cluster tests is older than the policies, so another implementation of CEL evaluates them.

use std::{fs, path::Path};

use detector_fleet::objects::node_label;
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
const WITHIN: &str = "a conflict within a node has claimants of that node only";
const CONFLICT_NAME: &str = "the name of a conflict is its address";
const NEW: &str =
    "a new conflict has the holder of the claim and the agent's node, and nothing in it is proven";
const SUBJECT: &str = "what a conflict is about does not change";
const JOINS: &str = "a node that takes part in a conflict for the first time only adds itself";
const PART: &str = "an agent writes only its own node's part of a conflict";
const CONFIRMS: &str = "only the holder of a claim confirms";
const REMOVED: &str =
    "the node of a claimant that is removed exists and has not been started again";
const RESOLVED: &str = "a conflict is resolved once only the holder of the claim is left";
const CAUSE: &str = "an agent writes only the cause that it found itself, of an active conflict in which its node takes part";
const CONFLICT_OWNERS: &str = "the owners of a conflict are the nodes of its claimants";
const CONFLICT_LABELS: &str = "the labels of a conflict are its scope and its nodes";

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

/// By a token that is not of a pod on a node.
fn without_node(mut request: Value) -> Value {
    request["userInfo"]["extra"] = json!({});
    request
}

/// By a person who administers the cluster.
fn of_admin(mut request: Value) -> Value {
    request["userInfo"]["username"] = json!("admin");
    request
}

/// A claim of a node in a boot.
fn claim(node: &str, boot: &str) -> Value {
    json!({"metadata": {"name": "10.244.1.5", "ownerReferences": [{"kind": "Node", "name": node}]},
        "spec": {"address": "10.244.1.5", "node": node, "bootId": boot}})
}

fn named(name: &str, address: &str) -> Value {
    let mut claim = claim("a", "now");
    claim["metadata"]["name"] = json!(name);
    claim["spec"]["address"] = json!(address);
    claim
}

/// Longer than the policies allow.
fn long_annotation() -> Value {
    json!({"a": "x".repeat(257)})
}

#[test]
fn agent_writes_only_claims_of_its_own_node() {
    let create = |claim| request("ipclaims", "CREATE", claim, Value::Null);
    let delete = |claim| request("ipclaims", "DELETE", Value::Null, claim);
    let update = |claim, old| request("ipclaims", "UPDATE", claim, old);
    let metadata = |field: &str, value: Value| {
        let mut claim = claim("a", "now");
        claim["metadata"][field] = value;
        create(claim)
    };
    let owner_b = json!([{"kind": "Node", "name": "b"}]);
    let mut without_extra = create(claim("a", "now"));
    let user = without_extra["userInfo"].as_object_mut().unwrap();
    user.remove("extra");
    let many: serde_json::Map<_, _> = (0..9).map(|n| (n.to_string(), json!(""))).collect();
    let cases: Vec<(Value, &[&str])> = vec![
        (create(claim("a", "now")), &[]),
        (create(claim("b", "now")), &[OWN, OWNER]),
        (
            without_node(create(claim("a", "now"))),
            &[NO_NODE, OWN, OWNER],
        ),
        (without_extra, &[NO_NODE, OWN, OWNER]),
        (of_admin(create(claim("b", "now"))), &[]),
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
        (metadata("ownerReferences", json!([])), &[]),
        (metadata("ownerReferences", owner_b), &[OWNER]),
        (metadata("finalizers", json!(["forever"])), &[FINALIZERS]),
        (metadata("annotations", json!({"a": "short"})), &[]),
        (metadata("annotations", long_annotation()), &[ANNOTATIONS]),
        (metadata("annotations", json!(many)), &[ANNOTATIONS]),
        (metadata("labels", json!(many)), &[LABELS]),
    ];
    assert_refusals(cases);
}

/// A conflict between nodes, each with a pod. The first one holds the claim.
fn conflict(nodes: &[&str]) -> Value {
    let claimants = nodes.iter().map(|node| {
        json!({"node": node, "bootId": "now", "device": format!("veth-{node}"), "namespace": "shop",
            "pod": format!("pod-{node}")})
    });
    json!({"metadata": {"name": "10.244.1.5"}, "spec": {"address": "10.244.1.5", "conflictId": "7", "kind": "duplicate",
        "scope": "fleet", "state": "Suspected", "confidence": "observed",
        "claimants": claimants.collect::<Vec<_>>()}})
}

/// The same with another value in the entry of a claimant.
fn with(conflict: &Value, claimant: usize, field: &str, value: impl Into<Value>) -> Value {
    let mut conflict = conflict.clone();
    conflict["spec"]["claimants"][claimant][field] = value.into();
    conflict
}

/// The same with another value at a path.
fn at(conflict: &Value, pointer: &str, value: impl Into<Value>) -> Value {
    let mut conflict = conflict.clone();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    conflict.pointer_mut(parent).unwrap()[key] = value.into();
    conflict
}

/// A conflict between nodes in which all but these have left.
fn left(conflict: &Value, claimants: &[usize]) -> Value {
    let mut conflict = conflict.clone();
    for n in claimants {
        conflict["spec"]["claimants"][*n]["left"] = json!("expired");
    }
    conflict
}

/// The same at its end.
fn resolved(conflict: &Value) -> Value {
    at(conflict, "/spec/state", "Resolved")
}

fn create(object: Value) -> Value {
    request("ipconflicts", "CREATE", object, Value::Null)
}

fn update(object: Value, old: Value) -> Value {
    request("ipconflicts", "UPDATE", object, old)
}

/// Another value in the entry of a claimant.
fn change(conflict: &Value, claimant: usize, field: &str, value: impl Into<Value>) -> Value {
    update(with(conflict, claimant, field, value), conflict.clone())
}

fn delete(old: Value) -> Value {
    request("ipconflicts", "DELETE", Value::Null, old)
}

#[test]
fn agent_creates_conflicts_between_a_holder_and_its_node() {
    let new = with(&conflict(&["b", "a"]), 1, "asked", 1);
    let named = |name: &str, address: &str| {
        let named = at(&new, "/metadata/name", json!(name));
        create(at(&named, "/spec/address", json!(address)))
    };
    let cases: Vec<(Value, &[&str])> = vec![
        (create(new.clone()), &[]),
        (of_admin(create(conflict(&["b", "c"]))), &[]),
        (
            without_node(create(new.clone())),
            &[NO_NODE, CONFLICTS, NEW],
        ),
        // Between others, with one more, as the holder.
        (create(conflict(&["b", "c"])), &[CONFLICTS, NEW]),
        (create(conflict(&["b", "c", "a"])), &[NEW]),
        (create(conflict(&["b", "a", "c"])), &[NEW]),
        (create(conflict(&["a", "b"])), &[NEW]),
        (create(conflict(&["a", "a"])), &[NEW]),
        (create(conflict(&["a"])), &[NEW]),
        // Proven from the start.
        (create(at(&new, "/spec/state", "Active")), &[NEW]),
        (create(at(&new, "/spec/confidence", "certain")), &[NEW]),
        (create(with(&new, 1, "active", true)), &[NEW]),
        (create(with(&new, 1, "confirmed", 1)), &[NEW]),
        (create(with(&new, 0, "asked", 1)), &[NEW]),
        // About the right of its own pod a node is believed, about that of another it has nothing to say.
        (create(with(&new, 1, "rightful", true)), &[]),
        (create(with(&new, 0, "rightful", false)), &[NEW]),
        (create(with(&new, 0, "left", "expired")), &[NEW]),
        (
            create(with(&new, 0, "unconfirmedBecause", "silent")),
            &[NEW],
        ),
        // Under another name than its address, so that another address cannot have its conflict.
        (named("10.244.1.6", "10.244.1.5"), &[CONFLICT_NAME]),
        (named("10.244.1.5-00000007", "10.244.1.5"), &[CONFLICT_NAME]),
        (named("fd00--0", "fd00::"), &[]),
        (named("10.244.1.0-24", "10.244.1.0/24"), &[]),
    ];
    assert_refusals(cases);
}

#[test]
fn conflicts_within_a_node_name_that_node_only() {
    let within = |nodes: &[&str]| {
        let within = at(&conflict(nodes), "/spec/scope", "node");
        let within = at(&within, "/spec/state", "Active");
        at(&within, "/metadata/name", "10.244.1.5-0000002a")
    };
    let own = within(&["a", "a"]);
    let cases: Vec<(Value, &[&str])> = vec![
        (create(own.clone()), &[]),
        (update(within(&["a", "a", "a"]), own.clone()), &[]),
        (delete(own.clone()), &[]),
        (create(within(&["a", "b"])), &[WITHIN]),
        (create(within(&["b", "b"])), &[CONFLICTS, WITHIN]),
        (update(within(&["a", "b"]), own.clone()), &[WITHIN]),
        (update(own.clone(), within(&["b", "b"])), &[WITHIN, REMOVED]),
        (delete(within(&["b", "b"])), &[CONFLICTS, WITHIN, REMOVED]),
        // It would take the name of the conflict between nodes.
        (
            create(at(&own, "/metadata/name", "10.244.1.5")),
            &[CONFLICT_NAME],
        ),
        (
            create(at(&own, "/metadata/name", "10.244.1.6-0000002a")),
            &[CONFLICT_NAME],
        ),
        (
            update(at(&own, "/spec/scope", "fleet"), own.clone()),
            &[SUBJECT],
        ),
    ];
    assert_refusals(cases);
}

#[test]
fn node_that_joins_a_conflict_only_adds_itself() {
    let others = with(&conflict(&["b", "c"]), 1, "active", true);
    let mut joined = others.clone();
    let me = conflict(&["a"])["spec"]["claimants"][0].clone();
    joined["spec"]["claimants"]
        .as_array_mut()
        .unwrap()
        .push(me.clone());
    let joined = with(&joined, 2, "asked", 1);
    let mut first = others.clone();
    first["spec"]["claimants"]
        .as_array_mut()
        .unwrap()
        .insert(0, me);
    let join = |new: Value| update(new, others.clone());
    let cases: Vec<(Value, &[&str])> = vec![
        (join(joined.clone()), &[]),
        (join(first), &[JOINS]),
        (join(others.clone()), &[CONFLICTS, JOINS]),
        (join(conflict(&["b", "d"])), &[CONFLICTS, JOINS]),
        // It adds another, marks others as left, removes one, or is proven at once.
        (join(conflict(&["b", "c", "d"])), &[CONFLICTS, JOINS]),
        (join(left(&joined, &[0])), &[JOINS, REMOVED]),
        (join(left(&joined, &[1])), &[JOINS]),
        (join(conflict(&["b", "a"])), &[JOINS]),
        (join(with(&joined, 0, "pod", "innocent")), &[JOINS]),
        (join(with(&joined, 1, "confirmed", 1)), &[JOINS]),
        (join(with(&joined, 2, "rightful", true)), &[]),
        (join(with(&joined, 0, "rightful", false)), &[JOINS]),
        (join(with(&joined, 2, "active", true)), &[JOINS]),
        (join(with(&joined, 2, "confirmed", 1)), &[JOINS]),
        (join(at(&joined, "/spec/conflictId", "8")), &[SUBJECT]),
    ];
    assert_refusals(cases);
}

#[test]
fn agent_changes_only_its_own_part_of_a_conflict() {
    let asked = with(&conflict(&["b", "a", "c"]), 1, "asked", 2);
    let of_holder = with(&conflict(&["a", "b"]), 1, "asked", 2);
    let reordered = conflict(&["d", "b", "a"]);
    let over = left(&conflict(&["b", "a"]), &[0]);
    let mut promoted = conflict(&["a", "c"]);
    promoted["spec"]["claimants"][1]["confirmed"] = json!(1);
    let of_pair = |new: Value| update(new, conflict(&["b", "a"]));
    let of_three = |new: Value| update(new, asked.clone());
    let cases: Vec<(Value, &[&str])> = vec![
        // As a contender: it asks, reports, gives a reason, leaves.
        (change(&asked, 1, "asked", 3), &[]),
        (change(&asked, 1, "active", true), &[]),
        (change(&asked, 1, "rightful", true), &[]),
        (change(&asked, 0, "rightful", false), &[PART]),
        (
            update(asked.clone(), with(&asked, 0, "rightful", true)),
            &[PART],
        ),
        (change(&asked, 0, "unconfirmedBecause", "it is silent"), &[]),
        (of_three(conflict(&["b", "c"])), &[]),
        // The claim has another holder.
        (of_three(conflict(&["d", "b", "a", "c"])), &[]),
        (of_pair(with(&reordered, 0, "active", true)), &[PART]),
        (of_pair(with(&reordered, 0, "left", "expired")), &[PART]),
        (of_pair(with(&reordered, 0, "rightful", false)), &[PART]),
        (of_pair(conflict(&["d", "e", "b", "a"])), &[PART]),
        (of_pair(conflict(&["b", "a", "d"])), &[PART]),
        // The holder has left, and comes back with another pod.
        (
            update(with(&conflict(&["b", "a"]), 0, "pod", "next"), over.clone()),
            &[],
        ),
        (change(&conflict(&["b", "a"]), 0, "pod", "next"), &[PART]),
        // As the holder: it confirms, is promoted, and leaves.
        (change(&of_holder, 1, "confirmed", 2), &[]),
        (
            update(promoted, left(&conflict(&["b", "a", "c"]), &[0])),
            &[],
        ),
        (update(left(&of_holder, &[0]), of_holder.clone()), &[]),
        (change(&of_holder, 0, "rightful", true), &[]),
        (change(&of_holder, 1, "rightful", false), &[PART]),
        // It confirms as a contender, or ends the part of another.
        (change(&asked, 1, "confirmed", 2), &[CONFIRMS]),
        (change(&asked, 2, "confirmed", 2), &[CONFIRMS]),
        (of_three(left(&asked, &[0])), &[REMOVED]),
        (update(asked.clone(), left(&asked, &[2])), &[PART]),
        (change(&asked, 2, "active", true), &[PART]),
        (change(&asked, 2, "pod", "innocent"), &[PART]),
        (change(&asked, 0, "terminating", true), &[PART]),
        (change(&asked, 0, "bootId", "before"), &[PART]),
    ];
    assert_refusals(cases);
}

#[test]
fn cause_is_written_by_the_agents_of_claimants_in_their_own_name() {
    let by = |conflict: &Value, node: &str| {
        at(conflict, "/spec/cause", json!({"node": node, "name": "x"}))
    };
    let explained = |conflict: &Value| by(conflict, "a");
    let pair = conflict(&["b", "a"]);
    let active = at(&pair, "/spec/state", "Active");
    let of_others = at(&conflict(&["b", "c"]), "/spec/state", "Active");
    let joined = at(&conflict(&["b", "c", "a"]), "/spec/state", "Active");
    let nameless = at(&active, "/spec/cause", json!({"name": "x"}));
    let has_left = left(&active, &[1]);
    let within = at(&conflict(&["a", "a"]), "/spec/scope", "node");
    let within = at(&within, "/metadata/name", "10.244.1.5-0000002a");
    let cases: Vec<(Value, &[&str])> = vec![
        (update(explained(&active), active.clone()), &[]),
        // A more certain one replaces that of another node.
        (update(explained(&active), by(&active, "b")), &[]),
        (update(by(&active, "b"), active.clone()), &[CAUSE]),
        (update(by(&active, "b"), by(&active, "b")), &[]),
        (update(nameless, active.clone()), &[CAUSE]),
        (update(explained(&pair), pair.clone()), &[CAUSE]),
        (update(explained(&has_left), active.clone()), &[CAUSE]),
        (update(explained(&joined), of_others), &[CAUSE]),
        // The claim of the node that found it has ended.
        (update(active.clone(), by(&active, "b")), &[]),
        (create(explained(&pair)), &[CAUSE]),
        (create(explained(&within)), &[]),
        (update(explained(&within), within.clone()), &[]),
    ];
    assert_refusals(cases);
}

#[test]
fn claimants_are_removed_once_they_have_left_or_their_node_is_gone() {
    let three = conflict(&["b", "a", "c"]);
    let rebooted = with(&three, 0, "bootId", "before");
    let cases: Vec<(Value, &[&str])> = vec![
        (update(conflict(&["b", "a"]), left(&three, &[2])), &[]),
        (update(conflict(&["a", "c"]), rebooted.clone()), &[]),
        // Node `c` does not exist, `b` does and was not started again.
        (update(conflict(&["b", "a"]), three.clone()), &[]),
        (update(conflict(&["a", "c"]), three.clone()), &[REMOVED]),
        (delete(conflict(&["a"])), &[]),
        (delete(left(&conflict(&["b", "a"]), &[0])), &[]),
        (
            delete(with(&conflict(&["b", "a"]), 0, "bootId", "before")),
            &[],
        ),
        (delete(conflict(&["c", "a"])), &[]),
        // The same as removed: marked as left.
        (update(left(&three, &[2]), three.clone()), &[]),
        (update(left(&rebooted, &[0]), rebooted.clone()), &[]),
        (update(left(&three, &[0]), three.clone()), &[REMOVED]),
        // The last contender ends the conflict with the holder; the holder does not.
        (delete(conflict(&["b", "a"])), &[]),
        (delete(left(&three, &[2])), &[]),
        (delete(three.clone()), &[REMOVED]),
        (delete(conflict(&["a", "b"])), &[REMOVED]),
        (delete(conflict(&["b", "c"])), &[CONFLICTS, REMOVED]),
        (delete(left(&conflict(&["b", "c"]), &[0, 1])), &[]),
        (delete(left(&conflict(&["b", "c"]), &[0])), &[CONFLICTS]),
    ];
    assert_refusals(cases);
}

#[test]
fn conflict_is_resolved_by_those_that_leave_it_and_deleted_by_anyone_later() {
    let (pair, of_holder) = (conflict(&["b", "a"]), conflict(&["a", "b"]));
    let end = |left: &Value, old: &Value| update(resolved(left), old.clone());
    let cases: Vec<(Value, &[&str])> = vec![
        // The contender leaves, or becomes the holder.
        (end(&left(&pair, &[1]), &pair), &[]),
        (end(&left(&of_holder, &[1]), &left(&pair, &[0])), &[]),
        // The node of the contender does not exist, or exists.
        (
            end(&left(&conflict(&["a", "c"]), &[1]), &conflict(&["a", "c"])),
            &[],
        ),
        (end(&left(&of_holder, &[1]), &of_holder), &[REMOVED]),
        // The conflict goes on.
        (end(&pair, &pair), &[RESOLVED]),
        (end(&of_holder, &of_holder), &[RESOLVED]),
        (end(&left(&of_holder, &[0]), &of_holder), &[RESOLVED]),
        (create(resolved(&pair)), &[NEW]),
        (delete(resolved(&left(&conflict(&["b", "c"]), &[1]))), &[]),
        (
            delete(resolved(&at(&conflict(&["b", "b"]), "/spec/scope", "node"))),
            &[WITHIN],
        ),
    ];
    assert_refusals(cases);
}

#[test]
fn conflicts_have_no_metadata_but_their_nodes() {
    let new = conflict(&["b", "a"]);
    let with = |field: &str, value: Value| create(at(&new, &format!("/metadata/{field}"), value));
    let owned_by = |kind: &str, name: &str| json!([{"kind": kind, "name": name}]);
    let own_labels = json!({"ipconflict.io/scope": "fleet", "node.ipconflict.io/b": "", "node.ipconflict.io/a": ""});
    let owners = json!([{"kind": "Node", "name": "a"}, {"kind": "Node", "name": "b"}]);
    let long = "n".repeat(70);
    let of_long = json!({node_label(&long): ""});
    let of_long = create(at(&conflict(&[&long, "a"]), "/metadata/labels", of_long));
    // Node `c` would get what does not concern it.
    let of_other = json!({"node.ipconflict.io/c": ""});
    let cases: Vec<(Value, &[&str])> = vec![
        (with("labels", json!({})), &[]),
        (with("labels", own_labels), &[]),
        (with("labels", of_other), &[CONFLICT_LABELS]),
        (with("labels", json!({"x": ""})), &[CONFLICT_LABELS]),
        (of_long, &[]),
        (with("ownerReferences", owners), &[]),
        (
            with("ownerReferences", owned_by("Node", "c")),
            &[CONFLICT_OWNERS],
        ),
        (
            with("ownerReferences", owned_by("Pod", "a")),
            &[CONFLICT_OWNERS],
        ),
        (with("finalizers", json!(["forever"])), &[FINALIZERS]),
        (with("annotations", long_annotation()), &[ANNOTATIONS]),
    ];
    assert_refusals(cases);
}

fn assert_refusals(cases: Vec<(Value, &[&str])>) {
    let (requests, expected): (Vec<_>, Vec<_>) = cases.into_iter().unzip();
    for ((request, found), expected) in requests.iter().zip(refusals(&requests)).zip(expected) {
        assert_eq!(found, expected, "{request:#}");
    }
}
