//! The objects of the fleet in a real API server, installed by the chart. No node is needed for it.

use std::{collections::BTreeSet, fs, process::Command};

use anyhow::{Result, ensure};
use detector_engine::{
    Confidence, ConflictId, ConflictKind, EvidenceKind, LeaveReason, Mac, Network,
};
use detector_event::WallTime;
use detector_fleet::objects::{
    ClaimSpec, ConflictClaimant, ConflictSpec, ConflictState, GROUP, MAX_CLAIMANTS, Party, VERSION,
};
use detector_testkit::{
    cluster::{Cluster, ClusterOptions, copy_chart},
    until,
};
use serde_json::{Value, json};

use crate::installation::{LONG, RELEASE, programs, root};

/// A control plane with the chart.
struct Registry {
    cluster: Cluster,
}

impl Registry {
    /// Installs the chart, first with another schema of claims.
    fn install() -> Self {
        let options = ClusterOptions {
            nodes: 0,
            ..ClusterOptions::default()
        };
        let cluster = Cluster::start(&programs(), &options).unwrap();
        let chart = copy_chart(root(), cluster.directory()).unwrap();
        let path = chart.to_str().unwrap();
        let helm = |arguments: &[&str]| {
            let arguments = [arguments, &[RELEASE, path, "--namespace", RELEASE]].concat();
            cluster.helm(&arguments).unwrap();
        };
        let has_property = |name: &str| {
            let get = ["get", "crd", "ipclaims.ipconflict.io", "-o", "json"];
            let found: Value = serde_json::from_str(&cluster.kubectl(&get).unwrap()).unwrap();
            let schema = &found["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
            let properties = &schema["properties"]["spec"]["properties"];
            properties.as_object().unwrap().contains_key(name)
        };
        let file = chart.join("files/crds/ipclaims.yaml");
        let current = fs::read_to_string(&file).unwrap();
        let (before, _) = current.split_once("                containerId:").unwrap();
        fs::write(&file, before).unwrap();
        helm(&["install", "--create-namespace"]);
        assert!(!has_property("containerId"));
        fs::write(&file, current).unwrap();
        helm(&["upgrade"]);
        assert!(has_property("containerId"), "an upgrade renews the schema");
        let registry = Self { cluster };
        for plural in ["ipclaims", "ipconflicts"] {
            let name = format!("crd/{plural}.{GROUP}");
            registry.kubectl(&["wait", "--for=condition=Established", &name]);
        }
        registry
    }

    fn kubectl(&self, arguments: &[&str]) -> String {
        self.cluster.kubectl(arguments).unwrap()
    }

    /// A command of the agent.
    fn as_agent(&self, arguments: &[&str]) -> Command {
        let mut command = self.cluster.command("kubectl");
        let user = format!("--as=system:serviceaccount:{RELEASE}:{RELEASE}");
        command.arg(user).args(arguments);
        command
    }

    /// Creates an object as the agent.
    fn create(&self, object: &Value) -> Result<String> {
        let file = self.cluster.directory().join("object.json");
        fs::write(&file, object.to_string())?;
        // The server judges, not the client.
        let create = ["create", "--validate=false", "-f", file.to_str().unwrap()];
        self.cluster.run(self.as_agent(&create))
    }

    /// The words of each line that kubectl prints.
    fn table(&self, arguments: &[&str]) -> Vec<Vec<String>> {
        let text = self.kubectl(&[&["get"], arguments].concat());
        let lines = text.lines();
        lines
            .map(|line| line.split_whitespace().map(str::to_owned).collect())
            .collect()
    }
}

fn object(kind: &str, name: &str, spec: impl serde::Serialize) -> Value {
    json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": kind, "metadata": {"name": name}, "spec": spec})
}

/// With every field.
fn party() -> Party {
    Party {
        node: "worker-1".to_owned(),
        boot_id: "3f6f0d3c-9d3c-4f7c-8a53-6a1a8b2f7c11".to_owned(),
        device: "vethab12cd34".to_owned(),
        ifindex: u32::MAX,
        mac: Some(Mac([0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff])),
        namespace: "shop".to_owned(),
        pod: "web-1".to_owned(),
        pod_uid: "0f9a4f0e-7a30-4a34-9a3d-0c7a5f6f2f10".to_owned(),
        container_id: "0123456789abcdef".repeat(4),
        evidence: Some(EvidenceKind::Address),
        source: "podCIDR".to_owned(),
    }
}

fn claim(address: &str) -> Value {
    let spec = ClaimSpec {
        address: address.parse().unwrap(),
        party: party(),
    };
    object("IPClaim", &spec.address.object_name(), &spec)
}

/// With every field.
fn conflict(address: &str, claimants: usize) -> Value {
    let claimant = ConflictClaimant {
        party: party(),
        asked: 2,
        confirmed: 1,
        active: true,
        terminating: true,
        rightful: Some(false),
        unconfirmed_because: Some("its node is not ready".to_owned()),
        left: Some(LeaveReason::Expired),
    };
    let spec = ConflictSpec {
        address: address.parse().unwrap(),
        conflict_id: ConflictId(7),
        kind: ConflictKind::Duplicate,
        scope: serde_json::from_value(json!("fleet")).unwrap(),
        network: Network::Node,
        state: ConflictState::Active,
        confidence: Confidence::Certain,
        raised_at: Some(WallTime::now()),
        resolved_at: None,
        nodes: "worker-1,worker-2".to_owned(),
        pods: "shop/web-1,shop/web-2".to_owned(),
        cause: Some(detector_fleet::samples::cause().into()),
        claimants: vec![claimant; claimants],
    };
    object("IPConflict", &spec.address.object_name(), &spec)
}

#[test]
fn api_server_stores_shows_and_bounds_what_is_registered() {
    let it = Registry::install();
    for object in [
        claim("10.244.1.5"),
        claim("fd00:10:244:1::"),
        claim("10.244.1.0/24"),
        conflict("10.244.1.5", 2),
    ] {
        it.create(&object).unwrap();
        let name = object["metadata"]["name"].as_str().unwrap();
        let stored = it.kubectl(&["get", object["kind"].as_str().unwrap(), name, "-o", "json"]);
        let stored: Value = serde_json::from_str(&stored).unwrap();
        assert_eq!(stored["spec"], object["spec"], "a field was dropped");
    }
    let error = it.create(&claim("10.244.1.5")).unwrap_err();
    assert!(format!("{error:#}").contains("AlreadyExists"), "{error:#}");
    columns_are_those_of_the_contract(&it);
    refuses_what_is_too_large(&it);
    agent_has_only_its_rights(&it);
    requests_have_the_low_priority(&it);
    claims_go_with_their_node(&it);
    let uninstall = ["uninstall", RELEASE, "--namespace", RELEASE];
    it.cluster.helm(&uninstall).unwrap();
    let left = "customresourcedefinitions,flowschemas,prioritylevelconfigurations,clusterroles";
    until(LONG, "nothing of the fleet to be left", || {
        let label = format!("app.kubernetes.io/instance={RELEASE}");
        let left = it
            .cluster
            .kubectl(&["get", left, "-l", &label, "-o", "name"])?;
        ensure!(left.is_empty(), "{left}");
        Ok(())
    })
    .unwrap();
}

fn columns_are_those_of_the_contract(it: &Registry) {
    let shown = it.table(&["ipclaims", "10.244.1.5"]);
    let header = [
        "NAME",
        "ADDRESS",
        "NODE",
        "NAMESPACE",
        "POD",
        "DEVICE",
        "AGE",
    ];
    assert_eq!(shown[0], header);
    let row = [
        "10.244.1.5",
        "10.244.1.5",
        "worker-1",
        "shop",
        "web-1",
        "vethab12cd34",
    ];
    assert_eq!(shown[1][..6], row);
    let shown = it.table(&["ipc", "fd00-10-244-1--0"]);
    assert_eq!(shown[1][..2], ["fd00-10-244-1--0", "fd00:10:244:1::"]);
    let header = ["NAME", "ADDRESS", "KIND", "STATE", "NODES", "PODS", "AGE"];
    let row = [
        "10.244.1.5",
        "10.244.1.5",
        "duplicate",
        "Active",
        "worker-1,worker-2",
    ];
    // The short name; it must not list the claims as well.
    for resource in ["ipconflicts", "ipconflict"] {
        let shown = it.table(&[resource]);
        assert_eq!(shown.len(), 2, "{shown:?}");
        assert_eq!(shown[0], header);
        assert_eq!(shown[1][..5], row);
    }
    let all = it.kubectl(&["get", "ip-conflict-detector", "-o", "name"]);
    let all: BTreeSet<_> = all.lines().collect();
    assert!(
        all.contains("ipconflict.ipconflict.io/10.244.1.5"),
        "{all:?}"
    );
    assert_eq!(all.len(), 4, "{all:?}");
}

fn refuses_what_is_too_large(it: &Registry) {
    for (field, value) in [
        ("pod", json!("p".repeat(254))),
        ("pod", json!("\u{1b}[2J")),
        ("source", json!("s".repeat(65))),
        ("ifindex", json!(u64::from(u32::MAX) + 1)),
        ("evidence", json!("hearsay")),
        ("address", json!("10.244.1.6 or so")),
    ] {
        let mut claim = claim("10.244.1.6");
        claim["spec"][field] = value;
        let error = format!("{:#}", it.create(&claim).unwrap_err());
        assert!(error.contains(&format!("spec.{field}")), "{error}");
    }
    it.create(&conflict("10.244.1.7", MAX_CLAIMANTS)).unwrap();
    let error = it.create(&conflict("10.244.1.8", MAX_CLAIMANTS + 1));
    let error = format!("{:#}", error.unwrap_err());
    assert!(error.contains("spec.claimants"), "{error}");
    let mut unnamed = claim("10.244.1.6");
    unnamed["metadata"]["name"] = json!("anything");
    let error = format!("{:#}", it.create(&unnamed).unwrap_err());
    assert!(error.contains("metadata.name"), "{error}");
    // Dropped.
    let mut extended = claim("10.244.1.6");
    extended["spec"]["more"] = json!("x".repeat(100_000));
    extended["more"] = json!("x".repeat(100_000));
    it.create(&extended).unwrap();
    let stored = it.kubectl(&["get", "ipclaims", "10.244.1.6", "-o", "json"]);
    assert!(stored.len() < 10_000, "{}", stored.len());
}

fn agent_has_only_its_rights(it: &Registry) {
    for (resource, verbs) in [
        ("ipclaims", &["create", "get", "update", "delete"][..]),
        (
            "ipconflicts",
            &[
                "create", "get", "list", "watch", "update", "patch", "delete",
            ],
        ),
        ("nodes", &["get", "list", "watch"]),
    ] {
        for verb in [
            "create",
            "get",
            "list",
            "watch",
            "update",
            "patch",
            "delete",
            "deletecollection",
        ] {
            let command = it.as_agent(&["auth", "can-i", verb, resource]);
            let output = it.cluster.output(command).unwrap();
            let is_allowed = verbs.contains(&verb);
            assert_eq!(
                output.status.success(),
                is_allowed,
                "{verb} {resource}: {output:?}"
            );
        }
    }
}

/// The server names the flow schema of each request in its answer.
fn requests_have_the_low_priority(it: &Registry) {
    let uid = it.kubectl(&[
        "get",
        "flowschema",
        RELEASE,
        "-o",
        "jsonpath={.metadata.uid}",
    ]);
    assert!(!uid.is_empty());
    until(LONG, "the flow schema to be applied", || {
        let get = it.as_agent(&["get", "ipclaims", "10.244.1.5", "-v=8"]);
        let output = it.cluster.output(get)?;
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success() && log.contains(&uid), "{log}");
        Ok(())
    })
    .unwrap();
    let other = it.as_agent(&["get", "nodes/none", "-v=8"]);
    let output = it.cluster.output(other).unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(!log.contains(&uid), "{log}");
}

/// Kubernetes' garbage collector deletes what a deleted Node owns.
fn claims_go_with_their_node(it: &Registry) {
    it.cluster
        .apply("{apiVersion: v1, kind: Node, metadata: {name: worker-9}}")
        .unwrap();
    let uid = it.kubectl(&["get", "node", "worker-9", "-o", "jsonpath={.metadata.uid}"]);
    let mut claim = claim("10.244.9.9");
    claim["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "Node", "name": "worker-9", "uid": uid}]);
    it.create(&claim).unwrap();
    it.kubectl(&["delete", "node", "worker-9"]);
    until(LONG, "the claim to be deleted", || {
        let left = [
            "get",
            "ipclaims",
            "10.244.9.9",
            "--ignore-not-found",
            "-o",
            "name",
        ];
        let left = it.cluster.kubectl(&left)?;
        ensure!(left.is_empty(), "{left}");
        Ok(())
    })
    .unwrap();
    it.kubectl(&["get", "ipclaims", "10.244.1.5"]);
}
