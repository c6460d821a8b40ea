//! Pod lookup without a runtime: the CNI result cache, faulty sockets, and no source at all.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::net::UnixListener,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use detector_testkit::{Agent, AgentCommand, DEADLINE, Node, Pod, PodSpec, event::Conflict};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::AGENT;

const ADDRESS: &str = "10.244.2.10";

/// `run` with these sources.
fn run(cri: &str, cache: &str) -> AgentCommand {
    AgentCommand::run(AGENT)
        .arg("--cri-endpoint")
        .arg(cri)
        .arg("--cni-cache-dir")
        .arg(cache)
}

fn duplicate(node: &Node) -> Vec<Pod> {
    let specs =
        ["vetha", "vethb"].map(|device| PodSpec::new(device).address(format!("{ADDRESS}/24")));
    node.add_pods(&specs).unwrap()
}

/// A cache entry as containerd writes it.
fn cache_entry(pod: &str, device: &str, netns: &str) -> String {
    json!({"kind": "cniCacheV1", "containerId": format!("cid-{pod}"), "config": "e30=", "ifName": "eth0",
        "networkName": "kindnet", "netns": netns,
        "cniArgs": [["K8S_POD_NAMESPACE", "default"], ["K8S_POD_NAME", pod], ["K8S_POD_UID", format!("uid-{pod}")]],
        "result": {"cniVersion": "0.3.1", "interfaces": [{"name": device, "mac": "22:b3:40:f3:83:85"},
            {"name": "eth0", "sandbox": netns}]}})
    .to_string()
}

fn path(directory: &TempDir) -> &str {
    directory.path().to_str().unwrap()
}

/// The pod of this device in the conflict.
fn pod(conflict: &Conflict, device: &str) -> Option<Value> {
    conflict.claimant(device).unwrap().pod.clone()
}

fn both_named(conflict: &Conflict) -> bool {
    conflict.address == ADDRESS && conflict.claimants.iter().all(|c| c.pod.is_some())
}

fn wait_named(agent: &Agent) -> Conflict {
    let named = |event: &detector_testkit::Event| event.conflict().is_some_and(|c| both_named(&c));
    agent
        .wait_event(DEADLINE, named)
        .unwrap()
        .event
        .conflict()
        .unwrap()
}

/// A socket that accepts connections and handles each.
fn socket(
    directory: &TempDir,
    with: impl Fn(std::os::unix::net::UnixStream) + Send + 'static,
) -> String {
    let path = directory.path().join("runtime.sock");
    let listener = UnixListener::bind(&path).unwrap();
    thread::spawn(move || listener.incoming().flatten().for_each(with));
    path.to_str().unwrap().to_owned()
}

/// Accepts and never answers.
fn hanging(directory: &TempDir) -> String {
    let held = std::sync::Mutex::new(Vec::new());
    socket(directory, move |stream| held.lock().unwrap().push(stream))
}

#[test]
fn cni_cache_names_pods_by_netns_file_or_device_name() {
    let node = Node::new("cache").unwrap();
    let pods = duplicate(&node);
    let cache = TempDir::new().unwrap();
    let netns = pods[0].netns().path().to_str().unwrap();
    fs::write(
        cache.path().join("kindnet-1-eth0"),
        cache_entry("web-0", "veth00000000", netns),
    )
    .unwrap();
    fs::write(
        cache.path().join("kindnet-2-eth0"),
        cache_entry("web-1", "vethb", "/gone"),
    )
    .unwrap();
    let agent = Agent::start_ready(&node, &run("off", path(&cache))).unwrap();
    let conflict = wait_named(&agent);
    for (device, name) in [("vetha", "web-0"), ("vethb", "web-1")] {
        let expected = json!({"namespace": "default", "name": name, "uid": format!("uid-{name}"),
            "container_id": format!("cid-{name}"), "via": "cni-cache"});
        assert_eq!(pod(&conflict, device), Some(expected));
    }
}

#[test]
fn check_names_pods_too() {
    let node = Node::new("checkpods").unwrap();
    let _pods = duplicate(&node);
    let cache = TempDir::new().unwrap();
    fs::write(
        cache.path().join("kindnet-2-eth0"),
        cache_entry("web-1", "vethb", "/gone"),
    )
    .unwrap();
    let check = |format| {
        let args = [
            "check",
            "--cri-endpoint",
            "off",
            "--cni-cache-dir",
            path(&cache),
            "--format",
            format,
        ];
        AgentCommand::new(AGENT, args)
            .run_to_end(&node, DEADLINE)
            .unwrap()
    };
    let document: Value = serde_json::from_str(&check("json").stdout).unwrap();
    let conflict: Conflict = serde_json::from_value(document["conflicts"][0].clone()).unwrap();
    assert_eq!(pod(&conflict, "vethb").unwrap()["name"], "web-1");
    let because = conflict
        .claimant("vetha")
        .unwrap()
        .pod_unknown_because
        .clone()
        .unwrap();
    assert!(
        because.contains("cri is off") && because.contains(path(&cache)),
        "{because}"
    );
    let text = check("text").stdout;
    assert!(
        text.contains("default/web-1") && text.contains(&because),
        "{text}"
    );
}

#[test]
fn late_cache_entry_names_the_pod_in_an_update() {
    let node = Node::new("cachelate").unwrap();
    let cache = TempDir::new().unwrap();
    let agent = Agent::start_ready(&node, &run("off", path(&cache))).unwrap();
    let _pods = duplicate(&node);
    let raised = agent.wait_raised(ADDRESS).unwrap();
    let reasons: Vec<_> = raised
        .claimants
        .iter()
        .filter_map(|c| c.pod_unknown_because.clone())
        .collect();
    assert_eq!(reasons.len(), 2, "{raised:?}");
    assert!(
        reasons
            .iter()
            .all(|because| because.contains("being looked up")),
        "{reasons:?}"
    );
    for (pod, device) in [("web-0", "vetha"), ("web-1", "vethb")] {
        fs::write(cache.path().join(pod), cache_entry(pod, device, "")).unwrap();
    }
    let named = wait_named(&agent);
    assert_eq!(named.conflict_id, raised.conflict_id);
}

#[test]
fn damaged_cache_files_are_counted_in_the_log() {
    let node = Node::new("cachebad").unwrap();
    let _pods = duplicate(&node);
    let cache = TempDir::new().unwrap();
    let whole = cache_entry("web-0", "vetha", "");
    fs::write(cache.path().join("half"), &whole[..whole.len() / 2]).unwrap();
    fs::write(cache.path().join("empty"), "").unwrap();
    fs::write(cache.path().join("a"), whole).unwrap();
    fs::write(cache.path().join("b"), cache_entry("web-1", "vethb", "")).unwrap();
    let agent = Agent::start_ready(&node, &run("off", path(&cache))).unwrap();
    wait_named(&agent);
    agent.wait_log(DEADLINE, "skipped 2 broken files").unwrap();
}

#[test]
fn with_all_sources_off_the_conflict_has_a_reason() {
    let node = Node::new("alloff").unwrap();
    let agent = Agent::start_ready(&node, &run("off", "off")).unwrap();
    let _pods = duplicate(&node);
    for claimant in agent.wait_raised(ADDRESS).unwrap().claimants {
        let because = claimant.pod_unknown_because.unwrap();
        assert!(
            because.contains("cri is off") && because.contains("cni-cache is off"),
            "{because}"
        );
    }
}

/// The cache names the pods while the runtime hangs; the conflict is raised before either has answered.
#[test]
fn hanging_socket_delays_neither_events_nor_other_sources() {
    let node = Node::new("hanging").unwrap();
    let directory = TempDir::new().unwrap();
    let cache = TempDir::new().unwrap();
    let socket = hanging(&directory);
    let agent = Agent::start_ready(
        &node,
        &run(&socket, path(&cache)).arg("--lookup-timeout").arg("1s"),
    )
    .unwrap();
    for (pod, device) in [("web-0", "vetha"), ("web-1", "vethb")] {
        fs::write(cache.path().join(pod), cache_entry(pod, device, "")).unwrap();
    }
    let _pods = duplicate(&node);
    // The runtime never answers, so this event proves that nothing waited for it.
    agent.wait_raised(ADDRESS).unwrap();
    wait_named(&agent);
    agent.wait_log(DEADLINE, "does not answer").unwrap();
}

/// Starts an agent on this socket; returns the reason why it names no pod.
fn reason_with(prefix: &str, socket: &str, logged: &str) -> String {
    let node = Node::new(prefix).unwrap();
    let agent =
        Agent::start_ready(&node, &run(socket, "off").arg("--lookup-timeout").arg("1s")).unwrap();
    agent.wait_log(DEADLINE, logged).unwrap();
    let _pods = duplicate(&node);
    let raised = agent.wait_raised(ADDRESS).unwrap();
    raised
        .claimant("vetha")
        .unwrap()
        .pod_unknown_because
        .clone()
        .unwrap()
}

#[test]
fn reason_names_a_hanging_socket() {
    let directory = TempDir::new().unwrap();
    let socket = hanging(&directory);
    let because = reason_with("hangreason", &socket, "does not answer");
    assert!(
        because.contains(&socket) && because.contains("does not answer"),
        "{because}"
    );
}

#[test]
fn reason_names_a_socket_that_is_no_cri() {
    let directory = TempDir::new().unwrap();
    let socket = socket(&directory, |mut stream| {
        // HTTP/1.1, as Docker's socket.
        let mut request = [0; 1024];
        let _ = stream.read(&mut request);
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
    });
    let because = reason_with("foreign", &socket, "is not a container runtime socket");
    assert!(because.contains(&socket), "{because}");
}

#[test]
fn reason_names_a_socket_without_a_listener() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("runtime.sock");
    drop(UnixListener::bind(&path).unwrap());
    let because = reason_with("refused", path.to_str().unwrap(), "refused the connection");
    assert!(because.contains("refused the connection"), "{because}");
}

#[test]
fn reason_names_a_missing_socket() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("runtime.sock");
    let because = reason_with("missing", path.to_str().unwrap(), "does not exist");
    assert!(because.contains("does not exist"), "{because}");
}

#[test]
fn check_prints_its_result_after_the_pod_lookup_timeout() {
    let node = Node::new("checkhang").unwrap();
    let _pods = duplicate(&node);
    let directory = TempDir::new().unwrap();
    let cache = TempDir::new().unwrap();
    fs::write(cache.path().join("b"), cache_entry("web-1", "vethb", "")).unwrap();
    let socket = hanging(&directory);
    let begun = Instant::now();
    let args = [
        "check",
        "--format",
        "json",
        "--lookup-timeout",
        "500ms",
        "--cri-endpoint",
        &socket,
        "--cni-cache-dir",
        path(&cache),
    ];
    let outcome = AgentCommand::new(AGENT, args)
        .run_to_end(&node, DEADLINE)
        .unwrap();
    let took = begun.elapsed();
    assert_eq!(outcome.code().unwrap(), 1, "{outcome:?}");
    assert!(took < Duration::from_secs(10), "{took:?}");
    let document: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let conflict: Conflict = serde_json::from_value(document["conflicts"][0].clone()).unwrap();
    assert_eq!(pod(&conflict, "vethb").unwrap()["name"], "web-1");
    let because = conflict
        .claimant("vetha")
        .unwrap()
        .pod_unknown_because
        .clone()
        .unwrap();
    assert!(
        because.contains(Path::new(&socket).to_str().unwrap()),
        "{because}"
    );
}

#[test]
fn calico_device_name_or_kindnet_alias_names_the_pod() {
    let node = Node::new("names").unwrap();
    let cache = TempDir::new().unwrap();
    // A candidate for the device name, on an unknown network.
    fs::write(
        cache.path().join("k8s-1-eth0"),
        cache_entry("web-0", "unknown0", "/gone"),
    )
    .unwrap();
    let specs = ["cali0d7763386da", "knet0a1b2c3d"]
        .map(|device| PodSpec::new(device).address(format!("{ADDRESS}/24")));
    let _pods = node.add_pods(&specs).unwrap();
    let agent = Agent::start_ready(&node, &run("off", path(&cache))).unwrap();
    // As kindnet does: set after the device was created.
    node.ip_batch(["link set knet0a1b2c3d alias \"link-pod kube-system/dns-1\""])
        .unwrap();
    let conflict = wait_named(&agent);
    let hashed = pod(&conflict, "cali0d7763386da").unwrap();
    assert_eq!(
        (&hashed["name"], &hashed["via"]),
        (&json!("web-0"), &json!("name-hash"))
    );
    let spelled = pod(&conflict, "knet0a1b2c3d").unwrap();
    assert_eq!(
        (&spelled["namespace"], &spelled["name"]),
        (&json!("kube-system"), &json!("dns-1"))
    );
}
