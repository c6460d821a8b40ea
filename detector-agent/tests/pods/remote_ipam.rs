//! Causes that are in the records of an IPAM away from the node, with a real containerd and the real `ptp`. A program stands in for
//! the IPAM's own plugin: it asks the test for the address of a pod, and returns once that is recorded.

use std::{collections::BTreeMap, fs, path::Path, thread};

use anyhow::{Context as _, ensure};
use detector_testkit::{
    Agent, AgentCommand, Containerd, DEADLINE, KubeApi, Node, containerd::Sandbox,
    http::TestClient, until, wait_reachable,
};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::diagnosis::{agent, explained, wait_nothing_open};

pub(super) const PREFIX: &str = "10.244.9";
const BLOCK: &str = "10.244.9.0/26";
/// That of an earlier pool with larger blocks.
const LARGER: &str = "10.244.9.0/25";
pub(super) const BLOCKS: &str = "/apis/crd.projectcalico.org/v1/ipamblocks";

/// Passes on the id of the container, and waits for the result.
const PLUGIN: &str = r#"#!/bin/sh
case $CNI_COMMAND in
ADD)
    echo "$CNI_CONTAINERID" > DIR/asked.new
    mv DIR/asked.new DIR/asked
    for _ in $(seq 1000); do
        if [ -e DIR/answer ]; then
            cat DIR/answer
            rm DIR/answer
            exit 0
        fi
        sleep 0.02
    done
    exit 1
    ;;
VERSION) echo '{"cniVersion": "1.0.0", "supportedVersions": ["0.3.1", "1.0.0"]}' ;;
esac
"#;

/// Creates a pod with an address that `record` records for the id of its sandbox.
pub(super) fn run(
    containerd: &mut Containerd,
    name: &str,
    last: usize,
    record: impl FnOnce(&str) + Send,
) -> Sandbox {
    run_in(containerd, name, (PREFIX, last), record)
}

/// The same with an address in another range.
pub(super) fn run_in(
    containerd: &mut Containerd,
    name: &str,
    address: (&str, usize),
    record: impl FnOnce(&str) + Send,
) -> Sandbox {
    let directory = containerd.directory().to_owned();
    thread::scope(|scope| {
        scope.spawn(move || answer(&directory, address, record));
        containerd.run_pods([name]).unwrap().remove(0)
    })
}

fn answer(directory: &Path, (prefix, last): (&str, usize), record: impl FnOnce(&str)) {
    let asked = directory.join("asked");
    let id = until(DEADLINE, "a pod that needs an address", || {
        fs::read_to_string(&asked).context("none was asked for")
    })
    .unwrap();
    fs::remove_file(&asked).unwrap();
    record(id.trim());
    let address = format!("{prefix}.{last}/24");
    let result = json!({"cniVersion": "0.3.1", "ips": [{"version": "4", "address": address,
        "gateway": format!("{prefix}.1")}], "routes": [{"dst": "0.0.0.0/0"}]});
    let new = directory.join("answer.new");
    fs::write(&new, result.to_string()).unwrap();
    fs::rename(new, directory.join("answer")).unwrap();
}

pub(super) fn add_ipam(containerd: &Containerd, name: &str) {
    let directory = containerd.directory().to_str().unwrap();
    let program = PLUGIN.replace("DIR", directory);
    containerd.add_plugin(name, &program).unwrap();
}

/// A block of Calico as it is stored.
struct Block {
    created: Timestamp,
    handles: BTreeMap<usize, String>,
}

/// A node with Calico's IPAM.
struct Calico {
    node: Node,
    api: KubeApi,
    containerd: Containerd,
    blocks: BTreeMap<&'static str, Block>,
}

impl Calico {
    fn new(prefix: &str) -> Self {
        let node = Node::new(prefix).unwrap();
        // Felix's routes for the node's blocks.
        for range in [BLOCK, LARGER] {
            node.ip(&format!("route add blackhole {range} proto 80"))
                .unwrap();
        }
        let api = KubeApi::start(node.netns()).unwrap();
        api.apply_ip_pool("10.244.0.0/16", 26);
        let plugins = json!([{"type": "ptp", "ipam": {"type": "calico-ipam"}}]);
        let containerd = Containerd::start(&node, plugins).unwrap();
        add_ipam(&containerd, "calico-ipam");
        let created = Timestamp::now() - SignedDuration::from_hours(15);
        let calico = Self {
            node,
            api,
            containerd,
            blocks: [BLOCK, LARGER]
                .map(|range| {
                    let handles = BTreeMap::new();
                    (range, Block { created, handles })
                })
                .into(),
        };
        for (range, block) in &calico.blocks {
            store(&calico.api, range, block);
        }
        calico
    }

    fn agent(&self, state: &Path) -> AgentCommand {
        agent(&self.containerd)
            .arg("--kube=on")
            .arg("--state-dir")
            .arg(state)
            .env("KUBECONFIG", self.api.kubeconfig())
    }

    fn run(&mut self, name: &str, range: &'static str, last: usize) -> Sandbox {
        let (api, block) = (&self.api, self.blocks.get_mut(range).unwrap());
        run(&mut self.containerd, name, last, |id| {
            let handle = format!("k8s-pod-network.{id}");
            block.handles.insert(last, handle);
            store(api, range, block);
        })
    }

    fn release(&mut self, last: usize) {
        for (range, block) in &mut self.blocks {
            if block.handles.remove(&last).is_some() {
                store(&self.api, range, block);
            }
        }
    }

    fn remove(&mut self, pod: &Sandbox) {
        self.containerd.remove_pod(pod).unwrap();
        let of_pod = |block: &Block| {
            let mut all = block.handles.iter();
            all.find_map(|(last, handle)| handle.ends_with(&pod.id).then_some(*last))
        };
        if let Some(last) = self.blocks.values().find_map(of_pod) {
            self.release(last);
        }
    }
}

fn store(api: &KubeApi, range: &str, block: &Block) {
    let mut allocations = vec![Value::Null; 128];
    let mut attributes = Vec::new();
    for (last, handle) in &block.handles {
        allocations[*last] = attributes.len().into();
        attributes.push(json!({"handle_id": handle, "secondary": {"node": "testkit"}}));
    }
    let created = block.created.round(jiff::Unit::Second).unwrap().to_string();
    let metadata = json!({"name": range.replace(['.', '/'], "-"), "creationTimestamp": created});
    api.apply_object(
        BLOCKS,
        json!({"apiVersion": "crd.projectcalico.org/v1", "kind": "IPAMBlock", "metadata": metadata,
            "spec": {"cidr": range, "affinity": "host:testkit", "allocations": allocations, "attributes": attributes}}),
    );
}

/// web-1 loses its allocation by `damage`, and cart-1 gets the address in a block; the conflict is explained and repaired.
fn conflict_and_repair(
    prefix: &str,
    damage: impl FnOnce(&mut Calico),
    range: &'static str,
    cause: &str,
) {
    let mut calico = Calico::new(prefix);
    let state = tempfile::tempdir().unwrap();
    let command = calico.agent(state.path());
    let agent = Agent::start_ready(&calico.node, &command).unwrap();
    wait_version(&calico.api, 1);
    let web = calico.run("web-1", BLOCK, 5);
    damage(&mut calico);
    let cart = calico.run("cart-1", range, 5);
    let diagnosis = explained(&agent, 1).remove(0).diagnosis.unwrap();
    assert_eq!(diagnosis["cause"], cause, "{diagnosis:#}");
    assert_eq!(diagnosis["confidence"], "proven", "{diagnosis:#}");
    repair(&mut calico, &web, &cart);
}

fn repair(calico: &mut Calico, web: &Sandbox, cart: &Sandbox) {
    let steps = "Keep new pods off the node (kubectl cordon testkit). Delete default/cart-1, then recreate default/web-1";
    // Which pod came last may become known after the cause.
    let client = TestClient::of_agent(&calico.node);
    until(DEADLINE, "the repair", || {
        let open = client.get("/api/v1/conflicts")?.json()?;
        let repair = open["conflicts"][0]["diagnosis"]["repair"].as_str();
        ensure!(repair.is_some_and(|r| r.contains(steps)), "{open:#}");
        Ok(())
    })
    .unwrap();
    calico.remove(cart);
    calico.remove(web);
    calico.run("web-1-again", BLOCK, 6);
    wait_nothing_open(&calico.node);
    let address = format!("{PREFIX}.6").parse().unwrap();
    wait_reachable(&calico.node, address, DEADLINE).unwrap();
}

/// Waits until resource versions were read this often: what is known from before a pod.
pub(super) fn wait_version(api: &KubeApi, count: usize) {
    let is_version =
        |request: &&String| request.contains("/api/v1/pods?") && request.ends_with("limit=1");
    api.wait_requests(DEADLINE, |all| {
        all.iter().filter(is_version).count() >= count
    })
    .unwrap();
}

#[test]
fn allocation_that_calico_releases_under_a_pod_is_named() {
    let release = |calico: &mut Calico| calico.release(5);
    conflict_and_repair("calreleased", release, BLOCK, "released_in_use");
}

/// While no agent runs: the first one has seen that the datastore was not replaced since before the pod.
#[test]
fn release_between_two_runs_of_the_agent_is_named() {
    let mut calico = Calico::new("calbetween");
    let state = tempfile::tempdir().unwrap();
    let command = calico.agent(state.path());
    let mut first = Agent::start_ready(&calico.node, &command).unwrap();
    wait_version(&calico.api, 1);
    let web = calico.run("web-1", BLOCK, 5);
    first.terminate(DEADLINE).unwrap();
    calico.release(5);
    let cart = calico.run("cart-1", BLOCK, 5);
    let second = Agent::start_ready(&calico.node, &command).unwrap();
    let diagnosis = explained(&second, 1).remove(0).diagnosis.unwrap();
    assert_eq!(diagnosis["cause"], "released_in_use", "{diagnosis:#}");
    assert_eq!(diagnosis["confidence"], "proven", "{diagnosis:#}");
    repair(&mut calico, &web, &cart);
}

/// The pod is older than the first agent, which has seen its allocation. That goes while an agent runs, or between two runs.
fn release_from_an_older_pod(prefix: &str, is_watched: bool) {
    let mut calico = Calico::new(prefix);
    let state = tempfile::tempdir().unwrap();
    let command = calico.agent(state.path());
    let web = calico.run("web-1", BLOCK, 5);
    let mut agent = Agent::start_ready(&calico.node, &command).unwrap();
    wait_version(&calico.api, 1);
    // The block is read again, after the first resource version.
    calico.run("web-2", BLOCK, 7);
    wait_nothing_open(&calico.node);
    if !is_watched {
        agent.terminate(DEADLINE).unwrap();
    }
    let released = Timestamp::now();
    calico.release(5);
    let cart = calico.run("cart-1", BLOCK, 5);
    if !is_watched {
        agent = Agent::start_ready(&calico.node, &command).unwrap();
    }
    let diagnosis = explained(&agent, 1).remove(0).diagnosis.unwrap();
    assert_eq!(diagnosis["cause"], "released_in_use", "{diagnosis:#}");
    assert_eq!(diagnosis["confidence"], "proven", "{diagnosis:#}");
    let since = diagnosis["since"].as_str();
    let since: Option<Timestamp> = since.map(|since| since.parse().unwrap());
    match is_watched {
        true => {
            let distance = since.unwrap().duration_since(released).abs();
            assert!(distance <= SignedDuration::from_secs(2), "{diagnosis:#}");
        }
        false => assert_eq!(since, None, "{diagnosis:#}"),
    }
    repair(&mut calico, &web, &cart);
}

#[test]
fn release_from_a_pod_that_is_older_than_the_agent_is_named() {
    release_from_an_older_pod("calolder", true);
}

#[test]
fn release_from_an_older_pod_between_two_runs_is_named() {
    release_from_an_older_pod("calolderdown", false);
}

#[test]
fn block_that_is_deleted_under_a_pod_is_named() {
    let delete = |calico: &mut Calico| {
        calico.api.delete_ipam_block(BLOCK);
        // Times of creation have no fraction of a second.
        thread::sleep(std::time::Duration::from_millis(1_600));
        let created = Timestamp::now();
        let handles = BTreeMap::new();
        calico.blocks.insert(BLOCK, Block { created, handles });
    };
    conflict_and_repair("calrecreated", delete, BLOCK, "block_recreated");
}

#[test]
fn address_in_two_blocks_has_two_owners() {
    conflict_and_repair("caltwice", |_| {}, LARGER, "allocated_twice");
}

#[test]
fn datastore_that_went_back_is_named() {
    let restore = |calico: &mut Calico| {
        calico.release(5);
        calico.api.continue_from(100);
    };
    conflict_and_repair("calrestored", restore, BLOCK, "datastore_restored");
}

/// ipamd's file has what it allocated since its last start.
#[test]
fn daemon_that_forgets_a_pod_is_named() {
    let node = Node::new("awsforgot").unwrap();
    let mut containerd = Containerd::start(&node, json!([{"type": "aws-cni"}])).unwrap();
    add_ipam(&containerd, "test-ipam");
    let directory = containerd.directory().to_owned();
    // The plugin's part besides IPAM.
    let plugin = format!(
        r#"#!/bin/sh
sed 's/"type": *"aws-cni"/"type": "ptp", "ipam": {{"type": "test-ipam"}}/' | exec {}/plugins/ptp
"#,
        directory.display()
    );
    containerd.add_plugin("aws-cni", &plugin).unwrap();
    let [file, log] = ["ipam.json", "ipamd.log"].map(|name| directory.join(name));
    let start = |at: Timestamp| {
        let line =
            json!({"level": "info", "ts": at.to_string(), "msg": "Starting L-IPAMD v1.19.0  ..."});
        fs::write(&log, format!("{line}\n")).unwrap();
    };
    let record = |owners: &[(usize, &str)]| {
        let allocations = owners.iter().map(|(last, id)| {
            json!({"networkName": "testkit", "containerID": id, "ifName": "eth0", "ipv4": format!("{PREFIX}.{last}"),
                "allocationTimestamp": u64::try_from(Timestamp::now().as_nanosecond()).unwrap()})
        });
        let allocations: Vec<_> = allocations.collect();
        let text = json!({"version": "vpc-cni-ipam/1", "allocations": allocations});
        let new = directory.join("ipam.new");
        fs::write(&new, text.to_string()).unwrap();
        fs::rename(new, &file).unwrap();
    };
    start(Timestamp::now() - SignedDuration::from_hours(15));
    let command = agent(&containerd)
        .arg("--aws-ipam-file")
        .arg(&file)
        .arg("--aws-log-file")
        .arg(&log);
    let web = run(&mut containerd, "web-1", 5, |id| record(&[(5, id)]));
    let agent = Agent::start_ready(&node, &command).unwrap();
    start(Timestamp::now());
    let cart = run(&mut containerd, "cart-1", 5, |id| record(&[(5, id)]));
    let diagnosis = explained(&agent, 1).remove(0).diagnosis.unwrap();
    assert_eq!(diagnosis["cause"], "ipam_daemon_forgot", "{diagnosis:#}");
    assert_eq!(diagnosis["confidence"], "proven", "{diagnosis:#}");
    let repair = diagnosis["repair"].as_str().unwrap();
    let steps = "Delete default/cart-1, then recreate default/web-1";
    assert!(repair.contains(steps), "{repair}");
    for pod in [cart, web] {
        containerd.remove_pod(&pod).unwrap();
        record(&[]);
    }
    run(&mut containerd, "web-1-again", 6, |id| record(&[(6, id)]));
    wait_nothing_open(&node);
    let address = format!("{PREFIX}.6").parse().unwrap();
    wait_reachable(&node, address, DEADLINE).unwrap();
}
