//! IPAM sources read over a connection: Calico's blocks from the Kubernetes API and ipamd's
//! introspection port. Also the delivery of anomalies to webhooks.

use std::{
    collections::BTreeSet,
    fs,
    io::{Read as _, Write as _},
    net::TcpListener,
    path::Path,
    thread,
};

use detector_testkit::{
    Agent, AgentCommand, DEADLINE, KubeApi, Node, Pod, PodSpec, ReceivedEvent, Receiver,
    event::{ANOMALY_RAISED, ANOMALY_RESOLVED, Anomaly},
    http::TestClient,
    kube_api,
};
use serde_json::{Value, json};

use crate::AGENT;

/// The node name that the testkit uses.
pub(super) const NODE: &str = "testkit";

pub(super) fn configure(directory: &Path, config: &Value) {
    fs::write(directory.join("10-net.conflist"), config.to_string()).unwrap();
}

pub(super) fn run(directory: &Path) -> AgentCommand {
    AgentCommand::run(AGENT)
        .arg("--ipam=auto")
        .arg("--cni-conf-dir")
        .arg(directory)
        .arg("--aws-ipam-file")
        .arg(directory.join("no-such-file"))
}

pub(super) fn wait_for(agent: &Agent, event: &str, count: usize) -> Vec<Anomaly> {
    let of_kind = |events: &[ReceivedEvent]| -> Vec<Anomaly> {
        let of_event = events.iter().filter(|r| r.event.kind == event);
        of_event.filter_map(|r| r.event.anomaly()).collect()
    };
    let events = agent
        .wait_until(DEADLINE, |events| of_kind(events).len() >= count)
        .unwrap();
    of_kind(&events)
}

pub(super) fn facts(anomalies: &[Anomaly]) -> BTreeSet<(String, String, String)> {
    anomalies
        .iter()
        .map(|a| (a.address.clone(), a.kind.clone(), a.cause.clone()))
        .collect()
}

pub(super) fn wanted(facts: &[(&str, &str, &str)]) -> BTreeSet<(String, String, String)> {
    let own = |(a, b, c): &(&str, &str, &str)| ((*a).to_owned(), (*b).to_owned(), (*c).to_owned());
    facts.iter().map(own).collect()
}

/// A block of this node, with the handles keyed by the last byte of the address.
fn block(handles: &[(usize, &str)]) -> Value {
    let mut allocations = vec![Value::Null; 64];
    let mut attributes = Vec::new();
    for (ordinal, handle) in handles {
        allocations[*ordinal] = attributes.len().into();
        attributes.push(json!({"handle_id": handle, "secondary": {"node": NODE}}));
    }
    json!({"cidr": "10.244.9.0/26", "affinity": format!("host:{NODE}"), "allocations": allocations,
        "attributes": attributes})
}

/// A node with Calico's IPAM and one block, and an agent on it with its pods.
struct CalicoNode {
    node: Node,
    api: KubeApi,
    directory: tempfile::TempDir,
}

impl CalicoNode {
    fn new(name: &str) -> Self {
        let node = Node::new(name).unwrap();
        // Felix's route for the node's block.
        node.ip("route add blackhole 10.244.9.0/26 proto 80")
            .unwrap();
        let api = KubeApi::start(node.netns()).unwrap();
        api.apply_ip_pool("10.244.0.0/16", 26);
        let directory = tempfile::tempdir().unwrap();
        configure(
            directory.path(),
            &json!({"cniVersion": "0.3.1", "name": "k8s-pod-network", "plugins": [
                {"type": "calico", "ipam": {"type": "calico-ipam"}}]}),
        );
        Self {
            node,
            api,
            directory,
        }
    }

    fn add_pods(&self, addresses: &[&str]) -> Vec<Pod> {
        let specs: Vec<_> = addresses
            .iter()
            .enumerate()
            .map(|(n, address)| PodSpec::new(format!("cali{n}")).address(format!("{address}/32")))
            .collect();
        self.node.add_pods(&specs).unwrap()
    }

    fn start_agent(&self) -> Agent {
        let command = run(self.directory.path())
            .arg("--kube=on")
            .arg("--ipam-leak-after=1s")
            .env("KUBECONFIG", self.api.kubeconfig());
        Agent::start_ready(&self.node, &command).unwrap()
    }
}

fn handle(name: char) -> String {
    format!("k8s-pod-network.{name}{}", "f".repeat(64))
}

#[test]
fn calico_blocks_are_compared_with_live_addresses() {
    let calico = CalicoNode::new("calico");
    // A block of an earlier pool with larger blocks.
    calico
        .node
        .ip("route add blackhole 10.244.9.0/25 proto 80")
        .unwrap();
    calico.api.apply_ipam_block(&block(&[
        (2, &handle('a')),
        (4, &handle('b')),
        (5, "default.web-0"),
        (6, &handle('c')),
        (7, "vxlan-tunnel-addr-testkit"),
    ]));
    let mut larger = block(&[(6, &handle('d'))]);
    larger["cidr"] = "10.244.9.0/25".into();
    calico.api.apply_ipam_block(&larger);
    let pods = calico.add_pods(&["10.244.9.2", "10.244.9.3", "10.244.9.5", "10.244.9.6"]);
    let agent = calico.start_agent();
    let raised = wait_for(&agent, ANOMALY_RAISED, 4);
    assert_eq!(
        facts(&raised),
        wanted(&[
            ("10.244.9.3", "ipam_drift", "not_allocated"),
            ("10.244.9.4", "ipam_leak", "no_live_owner"),
            ("10.244.9.5", "ipam_drift", "shared_owner"),
            ("10.244.9.6", "ipam_drift", "two_owners"),
        ])
    );
    assert!(
        raised
            .iter()
            .all(|a| a.ipam.as_deref() == Some("calico-ipam"))
    );
    let drift = raised.iter().find(|a| a.address == "10.244.9.3").unwrap();
    assert_eq!(drift.device.as_deref(), Some("cali1"));
    // The pods go, and with them every address that could be handed out twice.
    drop(pods);
    let resolved = wait_for(&agent, ANOMALY_RESOLVED, 3);
    let addresses: BTreeSet<_> = resolved.iter().map(|a| a.address.as_str()).collect();
    assert_eq!(
        addresses,
        BTreeSet::from(["10.244.9.3", "10.244.9.5", "10.244.9.6"])
    );
}

/// The pod is known by its device's name and the API; a container runtime is not needed.
#[test]
fn shared_handle_of_a_stateful_set_is_the_cause_of_its_drift() {
    let calico = CalicoNode::new("calicocause");
    calico.api.apply_ipam_block(&block(&[(5, "default.web-0")]));
    let mut pod = kube_api::pod(NODE, "default", "web-0", &["10.244.9.5"]);
    pod["metadata"]["ownerReferences"] = json!([{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web",
        "uid": "uid-web", "controller": true}]);
    calico.api.apply(pod);
    // As Calico names the device of default/web-0.
    let spec = PodSpec::new("cali0d7763386da").address("10.244.9.5/32");
    let pod = calico.node.add_pod(&spec).unwrap();
    let agent = calico.start_agent();
    let cause = |events: &[ReceivedEvent]| {
        let anomalies = events.iter().filter_map(|e| e.event.anomaly());
        let mut diagnoses = anomalies.filter_map(|anomaly| anomaly.diagnosis);
        diagnoses.find(|diagnosis| diagnosis["cause"] == "shared_handle")
    };
    let events = agent
        .wait_until(DEADLINE, |events| cause(events).is_some())
        .unwrap();
    let diagnosis = cause(&events).unwrap();
    assert_eq!(diagnosis["confidence"], "proven", "{diagnosis:#}");
    let evidence = diagnosis["evidence"].to_string();
    for fact in [
        "StatefulSet web",
        "default.web-0",
        "ipamblock 10-244-9-0-26",
    ] {
        assert!(evidence.contains(fact), "{evidence}");
    }
    let repair = diagnosis["repair"].as_str().unwrap();
    let steps = "Upgrade the network plugin, then recreate default/web-0";
    assert!(repair.contains(steps), "{repair}");
    pod.delete().unwrap();
    calico.api.apply_ipam_block(&block(&[(5, &handle('a'))]));
    let _recreated = calico.node.add_pod(&spec).unwrap();
    wait_for(&agent, ANOMALY_RESOLVED, 1);
    let client = TestClient::of_agent(&calico.node);
    let open = client.get("/api/v1/anomalies").unwrap().json().unwrap();
    assert_eq!(open["anomalies"], json!([]), "{open:#}");
}

/// The time from a change of Calico's IPAM to the event about it is that of a watch, not of a period.
#[test]
fn change_of_a_calico_block_is_seen_by_its_watch() {
    let calico = CalicoNode::new("calicowatch");
    calico.api.apply_ipam_block(&block(&[(2, &handle('a'))]));
    let _pods = calico.add_pods(&["10.244.9.2"]);
    let agent = calico.start_agent();
    let reads = |requests: &[String]| {
        let reads = requests
            .iter()
            .filter(|r| r.contains("projectcalico") && !r.contains("watch=true"));
        reads.count()
    };
    calico
        .api
        .wait_requests(DEADLINE, |requests| {
            requests
                .iter()
                .any(|r| r.contains("ipamblocks") && r.contains("watch=true"))
        })
        .unwrap();
    for round in 1..=3 {
        calico.api.apply_ipam_block(&block(&[]));
        wait_for(&agent, ANOMALY_RAISED, round);
        calico.api.apply_ipam_block(&block(&[(2, &handle('a'))]));
        let resolved = wait_for(&agent, ANOMALY_RESOLVED, round);
        let reason = resolved.last().unwrap().resolved_because.clone();
        assert_eq!(reason.as_deref(), Some("allocated"));
    }
    // The pools, the block at the start, and one read before each drift was raised.
    let requests = calico.api.requests();
    assert!(reads(&requests) <= 2 + 3, "{requests:?}");
    // It ends with its block as well.
    calico.api.delete_ipam_block("10.244.9.0/26");
    wait_for(&agent, ANOMALY_RAISED, 4);
}

/// Of other nodes' blocks, only those are read that a pod of this one has an address of.
#[test]
fn borrowed_address_is_compared_with_its_block_alone() {
    let calico = CalicoNode::new("calicoborrow");
    calico.api.apply_ipam_block(&block(&[]));
    for other in 10..40 {
        let node = if other == 10 { NODE } else { "other" };
        calico.api.apply_ipam_block(
            &json!({"cidr": format!("10.244.{other}.0/26"), "affinity": "host:other",
            "allocations": [null, null, 0], "attributes": [{"handle_id": handle('x'), "secondary": {"node": node}}]}),
        );
    }
    // The first one is allocated, the second one not.
    let _pods = calico.add_pods(&["10.244.10.2", "10.244.11.3"]);
    let agent = calico.start_agent();
    let raised = wait_for(&agent, ANOMALY_RAISED, 1);
    assert_eq!(
        facts(&raised),
        wanted(&[("10.244.11.3", "ipam_drift", "not_allocated")])
    );
    let own = ["10-244-9-0-26", "10-244-10-0-26", "10-244-11-0-26"];
    for request in calico.api.requests() {
        let is_wanted = own.iter().any(|name| request.contains(name));
        assert!(is_wanted || !request.contains("ipamblocks"), "{request}");
    }
}

/// A cluster in which the agent has no permission, or no way, to read blocks.
#[test]
fn unreadable_blocks_are_reported_and_raise_nothing() {
    let node = Node::new("noblocks").unwrap();
    let api = KubeApi::start(node.netns()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    configure(
        directory.path(),
        &json!({"name": "k8s-pod-network", "plugins": [{"type": "calico", "ipam": {"type": "calico-ipam"}}]}),
    );
    let _pod = node
        .add_pod(&PodSpec::new("cali3").address("10.244.9.3/32"))
        .unwrap();
    let command = run(directory.path())
        .arg("--kube=on")
        .env("KUBECONFIG", api.kubeconfig());
    let agent = Agent::start_ready(&node, &command).unwrap();
    agent
        .wait_log(DEADLINE, "cannot read ippools.crd.projectcalico.org")
        .unwrap();
    assert!(
        agent
            .events()
            .iter()
            .all(|r| r.event.kind != ANOMALY_RAISED),
        "{:?}",
        agent.events()
    );
}

const OVN_IPS: &str = "/apis/kubeovn.io/v1/ips";

/// An `IP` object of this node, as Kube-OVN's controller creates it.
fn ovn_ip(name: &str, namespace: &str, address: &str) -> Value {
    json!({"apiVersion": "kubeovn.io/v1", "kind": "IP",
        "metadata": {"name": name, "labels": {"ovn.kubernetes.io/node-name": NODE}},
        "spec": {"podName": name.split('.').next(), "namespace": namespace, "subnet": "ovn-default",
            "nodeName": NODE, "ipAddress": address, "v4IpAddress": address, "v6IpAddress": "",
            "attachIps": [], "attachMacs": [], "attachSubnets": [], "containerID": "", "podType": ""}})
}

/// Kube-OVN releases an address in use, and gives it back.
#[test]
fn released_kube_ovn_address_is_drift_until_allocated_again() {
    let node = Node::new("kubeovn").unwrap();
    let api = KubeApi::start(node.netns()).unwrap();
    let own = ovn_ip(&format!("node-{NODE}"), "", "100.64.0.3");
    api.apply_object(OVN_IPS, own);
    let pod_name = "web-1.shop";
    api.apply_object(OVN_IPS, ovn_ip(pod_name, "shop", "10.16.0.3"));
    let directory = tempfile::tempdir().unwrap();
    configure(
        directory.path(),
        &json!({"name": "kube-ovn", "cniVersion": "0.3.1", "plugins": [
            {"type": "kube-ovn", "server_socket": "/run/openvswitch/kube-ovn-daemon.sock"},
            {"type": "portmap", "capabilities": {"portMappings": true}}]}),
    );
    // The second one was never allocated while the agent ran.
    let pods = [
        ("0a4917617e15_h", "10.16.0.3"),
        ("bc526fae4ba0_h", "10.16.0.4"),
    ];
    let pods = pods.map(|(name, ip)| PodSpec::new(name).address(format!("{ip}/16")));
    let _pods = node.add_pods(&pods).unwrap();
    let command = run(directory.path())
        .arg("--kube=on")
        .env("KUBECONFIG", api.kubeconfig());
    let agent = Agent::start_ready(&node, &command).unwrap();
    agent
        .wait_log(DEADLINE, "2 allocations in ips.kubeovn.io")
        .unwrap();
    for round in 1..=2 {
        api.delete_object(OVN_IPS, pod_name);
        let raised = wait_for(&agent, ANOMALY_RAISED, round);
        assert_eq!(
            facts(&raised),
            wanted(&[("10.16.0.3", "ipam_drift", "not_allocated")])
        );
        assert_eq!(raised[0].ipam.as_deref(), Some("kube-ovn"));
        api.apply_object(OVN_IPS, ovn_ip(pod_name, "shop", "10.16.0.3"));
        let resolved = wait_for(&agent, ANOMALY_RESOLVED, round);
        let reason = resolved.last().unwrap().resolved_because.clone();
        assert_eq!(reason.as_deref(), Some("allocated"));
    }
    for request in api.requests() {
        let is_restricted = request.contains("labelSelector=") || request.contains("limit=1");
        assert!(is_restricted || !request.contains(OVN_IPS), "{request}");
    }
}

/// Old ipamd versions have no file, only a port.
#[test]
fn introspection_port_is_read_if_there_is_no_file() {
    let node = Node::new("awsport").unwrap();
    let listener = node
        .run_in(|| Ok(TcpListener::bind("127.0.0.1:61679")?))
        .unwrap();
    // The thread ends with the test process.
    thread::spawn(move || {
        let allocations = json!({"ENIIPPools": {"eni-1": {"IPv4Addresses": {
            "10.0.10.2": {"Address": "10.0.10.2", "Assigned": true},
            "10.0.10.3": {"Address": "10.0.10.3", "Assigned": false}}}}})
        .to_string();
        for mut stream in listener.incoming().flatten() {
            let mut request = [0; 512];
            let read = stream.read(&mut request).unwrap_or(0);
            let is_enis = request[..read].starts_with(b"GET /v1/enis ");
            let status = if is_enis { "200 OK" } else { "404 Not Found" };
            // The client may have disconnected.
            let _ = write!(
                stream,
                "HTTP/1.0 {status}\r\nContent-Length: {}\r\n\r\n{allocations}",
                allocations.len()
            );
        }
    });
    let directory = tempfile::tempdir().unwrap();
    configure(
        directory.path(),
        &json!({"name": "aws-cni", "plugins": [{"name": "aws-cni", "type": "aws-cni", "vethPrefix": "eni"}]}),
    );
    let specs: Vec<_> = [2, 3]
        .iter()
        .map(|last| PodSpec::new(format!("eni{last:011x}")).address(format!("10.0.10.{last}/32")))
        .collect();
    let _pods = node.add_pods(&specs).unwrap();
    let agent = Agent::start_ready(&node, &run(directory.path())).unwrap();
    let raised = wait_for(&agent, ANOMALY_RAISED, 1);
    assert_eq!(
        facts(&raised),
        wanted(&[("10.0.10.3", "ipam_drift", "not_allocated")])
    );
    assert_eq!(
        raised[0].source.as_deref(),
        Some("http://127.0.0.1:61679/v1/enis")
    );
}

#[test]
fn webhook_gets_anomalies_but_leaks_only_if_configured() {
    let node = Node::new("anomhook").unwrap();
    let hook = node.run_in(Receiver::start).unwrap();
    let leaks = node.run_in(Receiver::start).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::create_dir_all(path("net.d")).unwrap();
    configure(
        &path("net.d"),
        &json!({"name": "net", "plugins": [{"type": "ptp", "ipam": {"type": "host-local",
            "dataDir": path("data"), "ranges": [[{"subnet": "10.75.0.0/24"}]]}}]}),
    );
    let network = path("data").join("net");
    fs::create_dir_all(&network).unwrap();
    fs::write(network.join("lock"), "").unwrap();
    fs::write(network.join("10.75.0.9"), "0123456789abcdef\r\neth0").unwrap();
    fs::write(
        path("config.yaml"),
        format!(
            "webhooks:\n- {{name: hook, url: '{}'}}\n- {{name: leaks, url: '{}', only: {{kinds: [ipam_leak]}}}}\n",
            hook.url(),
            leaks.url()
        ),
    )
    .unwrap();
    let pod = node
        .add_pod(&PodSpec::new("vethdrift").address("10.75.0.2/32"))
        .unwrap();
    let command = run(&path("net.d"))
        .arg("--ipam-leak-after=1s")
        .arg("--config")
        .arg(path("config.yaml"));
    let agent = Agent::start_ready(&node, &command).unwrap();
    let count = |posted: &[detector_testkit::ReceivedRequest], change: &str, kind: &str| {
        let events = posted.iter().filter_map(|p| p.json().ok());
        let wanted = format!("io.ipconflict.anomaly.{change}");
        events
            .filter(|e| e["type"] == wanted.as_str() && e["data"]["kind"] == kind)
            .count()
    };
    hook.wait_until(DEADLINE, |posted| {
        count(posted, "raised", "ipam_drift") == 1
    })
    .unwrap();
    leaks
        .wait_until(DEADLINE, |posted| count(posted, "raised", "ipam_leak") == 1)
        .unwrap();
    drop(pod);
    hook.wait_until(DEADLINE, |posted| {
        count(posted, "resolved", "ipam_drift") == 1
    })
    .unwrap();
    assert_eq!(count(&hook.requests(), "raised", "ipam_leak"), 0);
    assert_eq!(count(&leaks.requests(), "raised", "ipam_drift"), 0);
    drop(agent);
}
