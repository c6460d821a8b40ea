//! What keeps new pods off a node with IPAM drift: the rule of the Node Readiness Controller, which is not run, and the
//! script, which kubectl runs against a stand-in for the API server.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
};

use serde_json::{Value, json};

use crate::tools::{deploy, documents, kubernetes_client, python, read, root, stdout};

const SCRIPT: &str = "node-readiness/taint-nodes.sh";

/// The fields are those of `NodeReadinessRuleSpec` in the controller's API, v1alpha1.
#[test]
fn rule_is_a_dry_run_of_a_taint_for_new_pods_only() {
    let rules = documents(&read(deploy("node-readiness/rules.yaml")));
    let [rule] = &rules[..] else {
        panic!("{rules:?}");
    };
    assert_eq!(rule["apiVersion"], "readiness.node.x-k8s.io/v1alpha1");
    let spec = rule["spec"].as_mapping().unwrap();
    let fields = [
        "dryRun",
        "enforcementMode",
        "conditions",
        "taint",
        "nodeSelector",
    ];
    assert!(spec.keys().map(|key| key.as_str().unwrap()).eq(fields));
    assert_eq!(rule["spec"]["dryRun"], true);
    assert_eq!(rule["spec"]["enforcementMode"], "continuous");
    assert_eq!(rule["spec"]["taint"]["effect"], "NoSchedule");
    let key = rule["spec"]["taint"]["key"].as_str().unwrap();
    assert!(key.starts_with("readiness.k8s.io/"), "{key}");
    let condition = &rule["spec"]["conditions"][0];
    assert_eq!(condition["requiredStatus"], "False");
    let monitor = read("deploy/node-problem-detector/ip-conflict-monitor.json");
    let monitor: Value = serde_json::from_str(&monitor).unwrap();
    let mut set = monitor["conditions"].as_array().unwrap().iter();
    assert!(set.any(|set| set["type"] == condition["type"].as_str().unwrap()));
}

#[test]
fn script_taints_only_what_is_known_to_have_drift() {
    let taint = json!([{"key": "ipconflict.io/ipam-drift", "effect": "NoSchedule"}]);
    let patched = |dry_run: &str| {
        let (port, mut server) = start_server(&json!({
            "drift": node("drift", Some("True"), &json!([])),
            "healed": node("healed", Some("False"), &taint),
            "healthy": node("healthy", Some("False"), &json!([])),
            "unknown": node("unknown", Some("Unknown"), &taint),
            "without": node("without", None, &taint),
        }));
        let config = tempfile::NamedTempFile::new().unwrap();
        let cluster =
            json!({"name": "c", "cluster": {"server": format!("http://127.0.0.1:{port}")}});
        let context = json!({"name": "c", "context": {"cluster": "c", "user": "u"}});
        let content = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c", "clusters": [cluster],
            "contexts": [context], "users": [{"name": "u", "user": {}}]});
        fs::write(config.path(), content.to_string()).unwrap();
        let kubectl = kubernetes_client("kubectl");
        let directory = std::path::Path::new(kubectl.get_program())
            .parent()
            .unwrap();
        let path = format!("{}:{}", directory.display(), std::env::var("PATH").unwrap());
        let mut script = Command::new("bash");
        script.arg(deploy(SCRIPT)).env("PATH", path);
        stdout(
            script
                .env("KUBECONFIG", config.path())
                .env("HOME", config.path().parent().unwrap())
                .env("DRY_RUN", dry_run),
        );
        server.kill().unwrap();
        let lines = BufReader::new(server.stdout.take().unwrap()).lines();
        let patches: Vec<(String, Value)> = lines
            .map(|line| serde_json::from_str(&line.unwrap()).unwrap())
            .collect();
        server.wait().unwrap();
        patches
    };
    for (dry_run, parameter) in [("server", "?dryRun=All&"), ("none", "?fieldManager")] {
        let patches = patched(dry_run);
        let [(first, add), (second, remove)] = &patches[..] else {
            panic!("{patches:?}");
        };
        assert!(
            first.starts_with(&format!("/api/v1/nodes/drift{parameter}")),
            "{first}"
        );
        assert_eq!(add["spec"]["taints"], taint);
        assert!(
            second.starts_with(&format!("/api/v1/nodes/healed{parameter}")),
            "{second}"
        );
        assert_eq!(remove["spec"]["taints"], Value::Null);
    }
}

fn node(name: &str, drift: Option<&str>, taints: &Value) -> Value {
    let conditions: Vec<_> = drift
        .map(|status| json!({"type": "IPAMDrift", "status": status}))
        .into_iter()
        .collect();
    json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": name, "resourceVersion": "1"},
        "spec": {"taints": taints}, "status": {"conditions": conditions}})
}

/// An API server with these nodes, and its port. It prints the patches that it gets.
fn start_server(nodes: &Value) -> (u16, Child) {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), nodes.to_string()).unwrap();
    let mut server = python("python3")
        .arg(root().join("detector-agent/tests/deploy/nodes.py"))
        .arg(file.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut port = Vec::new();
    // Byte by byte, so that the patches stay in the pipe.
    let pipe = server.stdout.as_mut().unwrap();
    for byte in std::io::Read::bytes(pipe) {
        match byte.unwrap() {
            b'\n' => break,
            digit => port.push(digit),
        }
    }
    (String::from_utf8(port).unwrap().parse().unwrap(), server)
}
