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
    Agent, AgentCommand, DEADLINE, KubeApi, Node, PodSpec, Receiver,
    event::{ANOMALY_RAISED, ANOMALY_RESOLVED, Anomaly},
};
use serde_json::{Value, json};

use crate::AGENT;

/// The node name that the testkit uses.
const NODE: &str = "testkit";

fn configure(directory: &Path, config: &Value) {
    fs::write(directory.join("10-net.conflist"), config.to_string()).unwrap();
}

fn run(directory: &Path) -> AgentCommand {
    AgentCommand::run(AGENT)
        .arg("--ipam=auto")
        .arg("--cni-conf-dir")
        .arg(directory)
        .arg("--aws-ipam-file")
        .arg(directory.join("no-such-file"))
}

fn wait_for(agent: &Agent, event: &str, count: usize) -> Vec<Anomaly> {
    let of_kind = |events: &[detector_testkit::ReceivedEvent]| -> Vec<Anomaly> {
        let of_event = events.iter().filter(|r| r.event.kind == event);
        of_event.filter_map(|r| r.event.anomaly()).collect()
    };
    let events = agent
        .wait_until(DEADLINE, |events| of_kind(events).len() >= count)
        .unwrap();
    of_kind(&events)
}

fn facts(anomalies: &[Anomaly]) -> BTreeSet<(String, String, String)> {
    anomalies
        .iter()
        .map(|a| (a.address.clone(), a.kind.clone(), a.cause.clone()))
        .collect()
}

fn wanted(facts: &[(&str, &str, &str)]) -> BTreeSet<(String, String, String)> {
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

#[test]
fn calico_blocks_are_compared_with_live_addresses() {
    let node = Node::new("calico").unwrap();
    let api = KubeApi::start(node.netns()).unwrap();
    let id = "f".repeat(64);
    let handle = |name: char| format!("k8s-pod-network.{name}{id}");
    api.set_ipam_blocks(&[
        block(&[
            (2, &handle('a')),
            (4, &handle('b')),
            (5, "default.web-0"),
            (6, &handle('c')),
            (7, "vxlan-tunnel-addr-testkit"),
        ]),
        block(&[(6, &handle('d'))]),
        // Another node's block, with no address borrowed by this node.
        json!({"cidr": "10.244.10.0/26", "affinity": "host:other", "allocations": [0],
            "attributes": [{"handle_id": "x.y", "secondary": {"node": "other"}}]}),
    ]);
    let directory = tempfile::tempdir().unwrap();
    configure(
        directory.path(),
        &json!({"cniVersion": "0.3.1", "name": "k8s-pod-network", "plugins": [
            {"type": "calico", "ipam": {"type": "calico-ipam"}}]}),
    );
    let specs: Vec<_> = [2, 3, 5, 6]
        .iter()
        .map(|last| PodSpec::new(format!("cali{last}")).address(format!("10.244.9.{last}/32")))
        .collect();
    let pods = node.add_pods(&specs).unwrap();
    let command = run(directory.path())
        .arg("--kube=on")
        .arg("--ipam-leak-after=1s")
        .env("KUBECONFIG", api.kubeconfig());
    let agent = Agent::start_ready(&node, &command).unwrap();
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
    assert_eq!(drift.device.as_deref(), Some("cali3"));
    // The pods go, and with them every address that could be handed out twice.
    drop(pods);
    let resolved = wait_for(&agent, ANOMALY_RESOLVED, 3);
    let addresses: BTreeSet<_> = resolved.iter().map(|a| a.address.as_str()).collect();
    assert_eq!(
        addresses,
        BTreeSet::from(["10.244.9.3", "10.244.9.5", "10.244.9.6"])
    );
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
        .wait_log(DEADLINE, "cannot read ipamblocks.crd.projectcalico.org")
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
