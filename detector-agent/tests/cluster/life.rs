//! An installation from its first rollout to its removal.

use std::{env, path::Path};

use anyhow::{Context as _, bail, ensure};
use detector_testkit::{
    cluster::{ClusterOptions, Family},
    daemon::Daemon,
    http::TestClient,
};
use serde_json::{Value, json};

use crate::{
    AGENT,
    installation::{Installation, LONG, PREVIOUS_TAG, RELEASE},
};

#[test]
fn installation_reports_names_keeps_and_resolves_a_conflict_and_leaves_nothing() {
    let it = Installation::prepare(&ClusterOptions::default());
    it.helm("install", &[]);
    let address = it.run_duplicates("web", "checkout");
    let raised = it.wait_conflict(&address, &["checkout", "web"]);
    assert_eq!(raised["kind"], "duplicate");
    assert_eq!(raised["confidence"], "certain");
    it.wait_events(&address, ["web", "checkout"]);
    let object = published(&it, &raised);
    cause_is_known(&it);
    exec_check_names_the_conflict(&it, &address);
    kubectl_plugin_names_the_conflict(&it, &address);
    page_is_reached_by_port_forward(&it, &address);
    metrics_are_on_the_address_of_the_node_and_nothing_else(&it);

    let before = it.agent_pod();
    it.helm("upgrade", &["config.claim-ttl=5m"]);
    let after = it.agent_pod();
    assert_ne!(before, after, "changed configuration replaces the pods");
    conflict_is_kept(&it, &raised);
    let version = it.image_tag();
    it.helm("upgrade", &[&format!("image.tag={PREVIOUS_TAG}")]);
    assert_eq!(it.image_tag(), PREVIOUS_TAG);
    conflict_is_kept(&it, &raised);
    it.cluster
        .helm(&["rollback", RELEASE, "-n", RELEASE])
        .unwrap();
    it.rollout();
    assert_eq!(it.image_tag(), version);
    conflict_is_kept(&it, &raised);
    assert_eq!(published(&it, &raised), object, "not created again");
    cause_is_known(&it);

    let last = it.agent_pod();
    it.kubectl("wait --for=condition=Active=true ipconflict --all --timeout=10s");
    it.kubectl("delete pod checkout --wait=false");
    it.kubectl("wait --for=condition=Active=false ipconflict --all --timeout=60s");
    it.wait_no_conflict();
    it.wait("a resolved conflict in the log and the metrics", || {
        let log = it.kubectl(&format!("-n {RELEASE} logs {last}"));
        ensure!(log.contains("io.ipconflict.conflict.resolved"), "{log}");
        let active = it.metric("ipconflict_conflicts_active")?;
        ensure!(active == 0.0, "{active} active conflicts");
        let listed = it.kubectl("get ipconflicts --no-headers");
        ensure!(listed.contains("Resolved"), "{listed}");
        ensure!(listed.lines().count() == 1, "{listed}");
        Ok(())
    });
    uninstall_leaves_nothing(&it);
}

#[test]
fn nodes_with_only_ipv6_addresses_are_watched() {
    let it = Installation::prepare(&ClusterOptions {
        family: Family::V6,
        ..ClusterOptions::default()
    });
    it.helm("install", &[]);
    let address = it.run_duplicates("web", "checkout");
    assert!(address.contains("::"), "{address}");
    let raised = it.wait_conflict(&address, &["checkout", "web"]);
    it.wait_events(&address, ["web", "checkout"]);
    published(&it, &raised);
    it.wait("the conflict in the metrics", || {
        let active = it.metric("ipconflict_conflicts_active")?;
        ensure!(active == 1.0, "{active} active conflicts");
        Ok(())
    });
}

/// Waits for the IPConflict of a conflict within the node, and returns its uid.
fn published(it: &Installation, raised: &Value) -> String {
    let address = raised["address"].as_str().unwrap();
    it.wait("the IPConflict", || {
        let list: Value = serde_json::from_str(&it.kubectl("get ipconflicts -o json"))?;
        let [object] = &list["items"].as_array().context("no list")?[..] else {
            bail!("not one: {list}");
        };
        let spec = &object["spec"];
        ensure!(spec["conflictId"] == raised["conflict_id"], "{object}");
        ensure!(
            (&spec["scope"], &spec["state"]) == (&json!("node"), &json!("Active")),
            "{object}"
        );
        let table = it.kubectl("get ipconflicts --no-headers");
        for column in [
            address,
            "duplicate",
            it.node().name(),
            "default/web",
            "default/checkout",
        ] {
            ensure!(table.contains(column), "{column}: {table}");
        }
        Ok(object["metadata"]["uid"]
            .as_str()
            .context("no uid")?
            .to_owned())
    })
}

/// The agent adds the cause to the IPConflict, and keeps it.
fn cause_is_known(it: &Installation) {
    it.kubectl("wait --for=condition=CauseKnown ipconflict --all --timeout=30s");
    let reason = "{.items[0].status.conditions[?(@.type=='CauseKnown')].reason}";
    let reason = it.kubectl(&format!("get ipconflicts -o jsonpath={reason}"));
    assert_eq!(reason, "ipam_state_wiped");
}

/// The agent continues the conflict of the agent before it.
fn conflict_is_kept(it: &Installation, raised: &Value) {
    let address = raised["address"].as_str().unwrap();
    let kept = it.wait_conflict(address, &["checkout", "web"]);
    assert_eq!(kept["conflict_id"], raised["conflict_id"]);
    assert_eq!(kept["raised_at"], raised["raised_at"]);
}

fn exec_check_names_the_conflict(it: &Installation, address: &str) {
    let mut check = it.cluster.command("kubectl");
    check
        .args(["-n", RELEASE, "exec", &format!("ds/{RELEASE}"), "--"])
        .args(["/usr/local/bin/detector-agent", "check"]);
    let output = it.cluster.output(check).unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    for word in [address, "default/web", "default/checkout"] {
        assert!(text.contains(word), "{text}");
    }
}

/// kubectl finds the plugin by its name on PATH.
fn kubectl_plugin_names_the_conflict(it: &Installation, address: &str) {
    // The plugin is beside the agent, where `cargo xtask test` builds it.
    let plugin = Path::new(AGENT).with_file_name("kubectl-ipconflict");
    assert!(plugin.exists(), "{} was not built", plugin.display());
    let mut directories = vec![plugin.parent().unwrap().to_owned()];
    for args in [vec![], vec!["who-has", address]] {
        let mut kubectl = it.cluster.command("kubectl");
        let path = kubectl.get_envs().find(|(name, _)| *name == "PATH");
        let path = path.and_then(|(_, path)| path).unwrap().to_owned();
        directories.truncate(1);
        directories.extend(env::split_paths(&path));
        kubectl
            .env("PATH", env::join_paths(&directories).unwrap())
            .arg("ipconflict")
            .args(args);
        let output = it.cluster.output(kubectl).unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        for word in [address, "default/web", "default/checkout"] {
            assert!(text.contains(word), "{text}");
        }
    }
}

fn page_is_reached_by_port_forward(it: &Installation, address: &str) {
    let mut forward = it.cluster.command("kubectl");
    forward.args([
        "-n",
        RELEASE,
        "port-forward",
        &format!("ds/{RELEASE}"),
        "9842",
    ]);
    let netns = it.cluster.netns();
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut forward = netns.run_in(|| Daemon::start(forward, log.path())).unwrap();
    forward
        .wait_line(LONG, "Forwarding from 127.0.0.1")
        .unwrap();
    let client = TestClient::of_agent(it.cluster.netns());
    let page = client.get("/").unwrap();
    assert_eq!(page.status, 200);
    assert!(page.body.contains("<title>"), "{}", page.body);
    let conflicts = client.get("/api/v1/conflicts").unwrap().body;
    assert!(conflicts.contains(address), "{conflicts}");
}

fn metrics_are_on_the_address_of_the_node_and_nothing_else(it: &Installation) {
    it.wait("the conflict in the metrics", || {
        let active = it.metric("ipconflict_conflicts_active")?;
        ensure!(active == 1.0, "{active} active conflicts");
        Ok(())
    });
    let conflicts = it.metrics().get("/api/v1/conflicts").unwrap();
    assert_eq!(conflicts.status, 404, "{conflicts:?}");
}

fn uninstall_leaves_nothing(it: &Installation) {
    let attached = it.filters();
    assert!(!attached.is_empty());
    assert!(
        attached.iter().all(|(_, is_attached)| *is_attached),
        "{attached:?}"
    );
    let kinds = it.kubectl("api-resources --verbs=list -o name");
    // Those of the fleet go with their definitions, which are objects of the installation.
    let kinds = kinds
        .lines()
        .filter(|kind| !kind.ends_with(".ipconflict.io"));
    let kinds: Vec<&str> = kinds.collect();
    let objects = || {
        let selector = format!("app.kubernetes.io/instance={RELEASE}");
        let kinds = kinds.join(",");
        it.kubectl(&format!("get {kinds} -A -l {selector} -o name"))
    };
    assert!(objects().contains("daemonset"), "{}", objects());
    let mut helm = it.cluster.command("helm");
    helm.args(["uninstall", RELEASE, "-n", RELEASE, "--wait"]);
    it.cluster.run(helm).unwrap();
    it.wait("all objects to be deleted", || {
        let left = objects();
        ensure!(left.is_empty(), "{left}");
        Ok(())
    });
    let left = it.filters();
    assert_eq!(left.len(), attached.len());
    assert!(left.iter().all(|(_, is_attached)| !is_attached), "{left:?}");
    let pins = it
        .node()
        .run_in(|| {
            let pinned = std::fs::read_dir("/sys/fs/bpf").into_iter().flatten();
            Ok(pinned
                .flatten()
                .map(|entry| entry.path())
                .filter(|path| path.display().to_string().contains("conflict"))
                .collect::<Vec<_>>())
        })
        .unwrap();
    assert!(pins.is_empty(), "{pins:?}");
}
