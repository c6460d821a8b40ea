//! Published incidents, explained with a real containerd and the real network plugins.

use std::fs;

use anyhow::ensure;
use detector_testkit::{Agent, Containerd, DEADLINE, Node, http::TestClient, until};
use serde_json::{Value, json};

use super::diagnosis::{
    agent, agent_with, begin, explained, run, seconds_since_epoch, time, wait_nothing_open,
};

const NETWORKS: &str = "/var/lib/cni/networks";

/// Flannel as RKE configures it, with the default directories of a node.
fn flannel(node: &Node) -> Containerd {
    let plugins = json!([{"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "hairpinMode": true,
        "ipam": {"type": "host-local", "dataDir": NETWORKS, "ranges": [[{"subnet": "10.42.0.0/24"}]]}}]);
    let containerd = Containerd::start(node, plugins).unwrap();
    containerd.mount_opt().unwrap();
    containerd
}

/// What the restore removes, and what the node's agent of the distribution writes again.
fn restore(containerd: &mut Containerd) {
    let net_d = containerd.directory().join("net.d");
    let configuration = net_d.join("10-testkit.conflist");
    let text = fs::read_to_string(&configuration).unwrap();
    containerd.stop_daemon().unwrap();
    containerd
        .run_in(|| {
            for directory in ["/opt/cni", "/var/lib/cni"] {
                fs::remove_dir_all(directory)?;
            }
            fs::remove_dir_all(&net_d)?;
            fs::create_dir(&net_d)?;
            fs::write(&configuration, text)?;
            Ok(fs::create_dir_all("/opt/cni/bin")?)
        })
        .unwrap();
    containerd.start_daemon().unwrap();
}

/// The diagnoses of open conflicts that have one, whatever their cause.
fn diagnoses(client: &TestClient<'_>, count: usize) -> Vec<Value> {
    let mut found = Vec::new();
    until(DEADLINE, "the diagnoses of the conflicts", || {
        let open = client.get("/api/v1/conflicts")?.json()?;
        let open = open["conflicts"].as_array().cloned().unwrap_or_default();
        let diagnoses = open.iter().map(|conflict| conflict["diagnosis"].clone());
        found = diagnoses.filter(Value::is_object).collect();
        ensure!(found.len() == count, "{open:#?}");
        Ok(())
    })
    .unwrap();
    found
}

/// `rancher-restore.json`, with an agent that saw it, one that did not, and the repair.
#[test]
fn restore_of_a_node_is_a_reset_of_it() {
    let node = Node::new("rancher").unwrap();
    let mut containerd = flannel(&node);
    begin(&mut containerd);
    let state = tempfile::tempdir().unwrap();
    let command = agent(&containerd).arg("--state-dir").arg(state.path());
    // It sees when the pods get their addresses: the results of the network plugin, which are older than the reset, go with it.
    let mut first = Agent::start_ready(&node, &command).unwrap();
    let mut old = run(&mut containerd, &["old-1", "old-2", "old-3"]);
    let reset = seconds_since_epoch();
    restore(&mut containerd);
    // `host-local` starts at the first address again, which no pod has any more.
    let mut new = run(&mut containerd, &["new-1", "new-2", "new-3"]);
    let assert_reset = |diagnosis: &Value| {
        assert_eq!(diagnosis["cause"], "node_reset", "{diagnosis:#}");
        assert_eq!(diagnosis["confidence"], "proven", "{diagnosis:#}");
        let since = time(&diagnosis["since"]);
        assert!((since - reset).abs() < 2.0, "{diagnosis:#}");
        assert_eq!(diagnosis["affected"]["pods"], 3, "{diagnosis:#}");
        let evidence = diagnosis["evidence"].to_string();
        for fact in ["/opt/cni", "/var/lib/cni"] {
            assert!(evidence.contains(fact), "{evidence}");
        }
    };
    for conflict in explained(&first, 2) {
        let ports: Vec<_> = conflict.claimants.iter().map(|c| &c.master).collect();
        assert_eq!(ports, [&Some("cni0".to_owned()); 2], "{conflict:#?}");
        assert_reset(&conflict.diagnosis.unwrap());
    }
    first.kill().unwrap();

    // One that has only what is left. Without the runtime, it does not know which pods were there before.
    let without_runtime = agent_with(&containerd, "off");
    let mut blind = Agent::start_ready(&node, &without_runtime).unwrap();
    for diagnosis in diagnoses(&TestClient::of_agent(&node), 2) {
        assert_eq!(diagnosis["cause"], "unknown", "{diagnosis:#}");
        let not_checked = diagnosis["not_checked"].to_string();
        assert!(not_checked.contains("sandbox"), "{diagnosis:#}");
    }
    blind.terminate(DEADLINE).unwrap();
    let _third = Agent::start_ready(&node, &command).unwrap();
    let client = TestClient::of_agent(&node);
    let known = diagnoses(&client, 2);
    known.iter().for_each(assert_reset);

    // "Keep new pods off the node. Delete the newest, then recreate the others": what is recreated comes after all that has no
    // reservation is gone.
    let repair = known[0]["repair"].as_str().unwrap();
    let order = "Delete default/new-2, then recreate default/old-1, or write its reservation to";
    assert!(repair.contains(order), "{repair}");
    for pod in new.drain(1..).chain(old.drain(..)) {
        containerd.remove_pod(&pod).unwrap();
    }
    run(&mut containerd, &["old-1-again", "old-2-again"]);
    wait_nothing_open(&node);
}
