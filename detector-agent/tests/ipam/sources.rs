//! IPAM sources other than real `host-local` (ipamd's file, unusable files), host routes, and anomalies
//! over a restart, in `check` and in the API.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use detector_testkit::{
    Agent, AgentCommand, Barrier, DEADLINE, Node, PodSpec, ReceivedEvent, announce,
    event::{ANOMALY_RAISED, ANOMALY_RESOLVED, Anomaly, RAISED},
    http::TestClient,
    scenario::AwsLostRuntime,
    until,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::AGENT;

/// A CNI configuration and the directories it names.
struct Places {
    directory: TempDir,
}

impl Places {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("net.d")).unwrap();
        Self { directory }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn config(&self, file: &str, config: &Value) {
        fs::write(self.at("net.d").join(file), config.to_string()).unwrap();
    }

    /// Configures a `host-local` network; returns its directory, with the files the plugin leaves in it.
    fn host_local(&self, subnet: &str) -> PathBuf {
        let data = self.at("data");
        self.config(
            "10-net.conflist",
            &json!({"cniVersion": "0.3.1", "name": "net", "plugins": [{"type": "ptp",
                "ipam": {"type": "host-local", "dataDir": data, "ranges": [[{"subnet": subnet}]]}}]}),
        );
        let network = data.join("net");
        fs::create_dir_all(&network).unwrap();
        fs::write(network.join("lock"), "").unwrap();
        network
    }

    fn args(&self, command: AgentCommand) -> AgentCommand {
        command
            .arg("--ipam=auto")
            .arg("--cni-conf-dir")
            .arg(self.at("net.d"))
            .arg("--aws-ipam-file")
            .arg(self.at("ipam.json"))
    }

    fn run(&self) -> AgentCommand {
        self.args(AgentCommand::run(AGENT))
    }
}

fn reserve(network: &Path, address: &str) {
    fs::write(network.join(address), "0123456789abcdef\r\neth0").unwrap();
}

fn of_kind(events: &[ReceivedEvent], event: &str, kind: &str) -> Vec<Anomaly> {
    let of_event = events.iter().filter(|r| r.event.kind == event);
    of_event
        .filter_map(|r| r.event.anomaly())
        .filter(|a| a.kind == kind)
        .collect()
}

fn wait_for(agent: &Agent, event: &str, kind: &str, count: usize) -> Vec<Anomaly> {
    let events = agent
        .wait_until(DEADLINE, |events| {
            of_kind(events, event, kind).len() >= count
        })
        .unwrap();
    of_kind(&events, event, kind)
}

#[test]
fn azure_endpoints_are_compared_with_live_addresses() {
    let places = Places::new();
    places.config(
        "10-azure.conflist",
        &json!({"cniVersion": "0.3.0", "name": "azure", "plugins": [
            {"type": "azure-vnet", "mode": "transparent", "ipam": {"type": "azure-cns"}}]}),
    );
    let write = |addresses: &[&str]| {
        let endpoint = |(number, address): (usize, &&str)| {
            let addresses = json!([{"IP": address, "Mask": "////AA=="}]);
            let interface = json!({"IPv4": addresses, "NICType": "InfraNIC"});
            let endpoint = json!({"PodName": format!("web-{number}"), "PodNamespace": "shop",
                "IfnameToIPMap": {"eth0": interface}});
            (format!("{number:064x}"), endpoint)
        };
        let endpoints: serde_json::Map<_, _> = addresses.iter().enumerate().map(endpoint).collect();
        let text = json!({"Endpoints": endpoints}).to_string();
        fs::write(places.at("endpoints.tmp"), text).unwrap();
        fs::rename(
            places.at("endpoints.tmp"),
            places.at("azure-endpoints.json"),
        )
        .unwrap();
    };
    write(&["10.241.0.65"]);
    let node = Node::new("azure").unwrap();
    let pods = [65, 66]
        .map(|last| PodSpec::new(format!("azv{last:011x}")).address(format!("10.241.0.{last}/32")));
    let _pods = node.add_pods(&pods).unwrap();
    let command = places
        .run()
        .arg("--azure-endpoints-file")
        .arg(places.at("azure-endpoints.json"));
    let agent = Agent::start_ready(&node, &command).unwrap();
    let raised = wait_for(&agent, ANOMALY_RAISED, "ipam_drift", 1);
    assert_eq!(raised[0].address, "10.241.0.66");
    assert_eq!(raised[0].ipam.as_deref(), Some("azure-cns"));
    write(&["10.241.0.65", "10.241.0.66"]);
    wait_for(&agent, ANOMALY_RESOLVED, "ipam_drift", 1);
    // The same address twice.
    write(&["10.241.0.65", "10.241.0.66", "10.241.0.65"]);
    let raised = wait_for(&agent, ANOMALY_RAISED, "ipam_drift", 2);
    assert_eq!(raised[1].address, "10.241.0.65");
    assert_eq!(raised[1].cause, "two_owners");
}

#[test]
fn cilium_endpoint_without_a_pod_is_a_leak() {
    let places = Places::new();
    places.config(
        "05-cilium.conflist",
        &json!({"cniVersion": "0.3.1", "name": "cilium", "plugins": [
            {"type": "cilium-cni", "enable-debug": false, "log-file": "/var/run/cilium/cilium-cni.log"}]}),
    );
    let write = |id: &str, address: &str, pod: &str| {
        let directory = places.at("state").join(id);
        fs::create_dir_all(places.at("state").join(format!("{id}_next"))).unwrap();
        let state = json!({"ID": id.parse::<u16>().unwrap(), "dockerID": format!("{id:0>64}"),
            "IfName": format!("lxc{id}"), "IPv4": address, "IPv6": "", "K8sPodName": pod, "K8sNamespace": "shop"});
        let next = places.at("state").join(format!("{id}_next"));
        fs::write(next.join("ep_config.json"), state.to_string()).unwrap();
        fs::rename(next, directory).unwrap();
    };
    write("7", "10.0.1.7", "web-1");
    write("8", "10.0.1.8", "web-2");
    write("9", "10.0.1.9", "");
    let node = Node::new("cilium").unwrap();
    let _pod = node
        .add_pod(&PodSpec::new("lxc7").address("10.0.1.7/32"))
        .unwrap();
    let command = places
        .run()
        .arg("--cilium-state-dir")
        .arg(places.at("state"))
        .arg("--ipam-leak-after=1s");
    let agent = Agent::start_ready(&node, &command).unwrap();
    let raised = wait_for(&agent, ANOMALY_RAISED, "ipam_leak", 1);
    assert_eq!(raised[0].address, "10.0.1.8");
    assert_eq!(raised[0].ipam.as_deref(), Some("cilium"));
    // cilium-agent finds out that the pod is gone.
    fs::remove_dir_all(places.at("state").join("8")).unwrap();
    wait_for(&agent, ANOMALY_RESOLVED, "ipam_leak", 1);
    let events = agent.events();
    assert!(of_kind(&events, ANOMALY_RAISED, "ipam_drift").is_empty());
    assert_eq!(of_kind(&events, ANOMALY_RAISED, "ipam_leak").len(), 1);
}

#[test]
fn aws_lost_runtime_is_thirteen_drifts_and_four_conflicts() {
    let facts = AwsLostRuntime::load().unwrap();
    let places = Places::new();
    places.config(
        "10-aws.conflist",
        &json!({"cniVersion": "0.4.0", "name": "aws-cni", "plugins": [
            {"name": "aws-cni", "type": "aws-cni", "vethPrefix": "eni", "mtu": "9001"}]}),
    );
    let write_allocations = |addresses: &[String]| {
        let allocations: Vec<_> = addresses
            .iter()
            .map(|a| json!({"networkName": "aws-cni", "containerID": "0abc", "ifName": "eth0", "ipv4": a}))
            .collect();
        let text = json!({"version": "vpc-cni-ipam/1", "allocations": allocations}).to_string();
        // Replaced atomically by a rename, as ipamd does.
        fs::write(places.at("ipam.json.tmp"), text).unwrap();
        fs::rename(places.at("ipam.json.tmp"), places.at("ipam.json")).unwrap();
    };
    write_allocations(&[]);
    let node = Node::new("aws").unwrap();
    let specs: Vec<_> = facts
        .pods
        .iter()
        .enumerate()
        .map(|(number, pod)| {
            PodSpec::new(format!("eni{number:011x}")).address(format!("{}/32", pod.address))
        })
        .collect();
    let _pods = node.add_pods(&specs).unwrap();
    let agent = Agent::start_ready(&node, &places.run()).unwrap();
    let raised = wait_for(
        &agent,
        ANOMALY_RAISED,
        "ipam_drift",
        facts.expect.drift.len(),
    );
    let addresses: BTreeSet<_> = raised.iter().map(|a| a.address.clone()).collect();
    let wanted: BTreeSet<_> = facts.expect.drift.iter().map(ToString::to_string).collect();
    assert_eq!(addresses, wanted);
    assert_eq!(raised.len(), wanted.len());
    assert!(
        raised
            .iter()
            .all(|a| a.ipam.as_deref() == Some("aws-ipamd"))
    );
    let events = agent.events();
    let conflicts: BTreeSet<_> = events
        .iter()
        .filter(|r| r.event.kind == RAISED)
        .map(|r| r.event.subject.clone())
        .collect();
    let wanted_conflicts = facts.expect.conflicts.iter().map(ToString::to_string);
    assert_eq!(conflicts, wanted_conflicts.collect());

    write_allocations(&wanted.iter().cloned().collect::<Vec<_>>());
    let resolved = wait_for(&agent, ANOMALY_RESOLVED, "ipam_drift", wanted.len());
    assert!(
        resolved
            .iter()
            .all(|a| a.resolved_because.as_deref() == Some("allocated"))
    );
}

#[test]
fn unusable_files_are_logged_and_raise_nothing() {
    let places = Places::new();
    let network = places.host_local("10.70.0.0/24");
    let conf = places.at("net.d");
    fs::write(conf.join("20-truncated.conf"), "{\"name\": \"x\", \"ty").unwrap();
    fs::write(conf.join("21-huge.json"), vec![b' '; 50 << 20]).unwrap();
    symlink("/nowhere/to/be/found", conf.join("22-dangling.conf")).unwrap();
    fs::create_dir(conf.join("23-directory.conflist")).unwrap();
    nix::unistd::mkfifo(&conf.join("24-pipe.conf"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    // A second network whose directory is a dangling link.
    places.config(
        "30-elsewhere.conf",
        &json!({"name": "elsewhere", "type": "ptp", "ipam": {"type": "host-local",
            "dataDir": places.at("far"), "subnet": "10.71.0.0/24"}}),
    );
    fs::create_dir(places.at("far")).unwrap();
    symlink("/nowhere/to/be/found", places.at("far").join("elsewhere")).unwrap();
    // Files among the reservations that are none, or that cannot be read.
    reserve(&network, "10.70.0.2");
    fs::write(network.join("10.70.0.3"), "").unwrap();
    fs::write(network.join("10.70.0.4"), vec![b'x'; 50 << 20]).unwrap();
    symlink("/nowhere", network.join("10.70.0.5")).unwrap();
    fs::create_dir(network.join("10.70.0.6")).unwrap();
    nix::unistd::mkfifo(&network.join("10.70.0.7"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    fs::write(network.join("fd00:70::2"), "0123\r\neth0").unwrap();
    fs::write(network.join("notes.txt"), "not an address").unwrap();
    fs::write(places.at("ipam.json"), "{").unwrap();

    let node = Node::new("badfiles").unwrap();
    let specs: Vec<_> = (2..=7)
        .map(|last| PodSpec::new(format!("veth{last}")).address(format!("10.70.0.{last}/32")))
        .chain([PodSpec::new("veth71").address("10.71.0.9/32")])
        .collect();
    let _pods = node.add_pods(&specs).unwrap();
    let barrier = Barrier::prepare(&node).unwrap();
    let agent = Agent::start_ready(&node, &places.run()).unwrap();
    for name in [
        "20-truncated.conf is not valid JSON",
        "21-huge.json is larger than",
        "22-dangling.conf is a symbolic link to /nowhere",
        "23-directory.conflist is not a regular file",
        "24-pipe.conf is not a regular file",
        "elsewhere: it is a symbolic link",
    ] {
        agent.wait_log(DEADLINE, name).unwrap();
    }
    // Files that are replaced while they are read raise nothing either.
    for _ in 0..200 {
        fs::write(places.at("new"), "another-id\r\neth0").unwrap();
        fs::rename(places.at("new"), network.join("10.70.0.2")).unwrap();
    }
    let events = barrier.pass(&node, &agent).unwrap();
    assert!(events.is_empty(), "{events:#?}");
    // The valid network is still compared.
    fs::remove_file(network.join("10.70.0.2")).unwrap();
    let raised = wait_for(&agent, ANOMALY_RAISED, "ipam_drift", 1);
    assert_eq!(raised[0].address, "10.70.0.2");
}

#[test]
fn anomaly_keeps_its_id_over_a_restart_and_is_in_check_and_api() {
    let places = Places::new();
    let network = places.host_local("10.72.0.0/24");
    let node = Node::new("again").unwrap();
    let _pod = node
        .add_pod(&PodSpec::new("vethagain").address("10.72.0.2/32"))
        .unwrap();
    let command = places
        .run()
        .arg("--state-dir")
        .arg(places.at("state"))
        .arg("--ipam-leak-after=1s");
    let mut agent = Agent::start_ready(&node, &command).unwrap();
    let raised = wait_for(&agent, ANOMALY_RAISED, "ipam_drift", 1);
    let (status, _) = agent.terminate(DEADLINE).unwrap();
    assert!(status.success());

    let check = |more: &[&str]| {
        let command = AgentCommand::new(AGENT, ["check"]);
        let command = more.iter().fold(places.args(command), |c, arg| c.arg(*arg));
        command.run_to_end(&node, DEADLINE).unwrap()
    };
    let text = check(&[]);
    assert_eq!(text.code().unwrap(), 0, "an anomaly is no conflict");
    assert!(text.stdout.contains("10.72.0.2"), "{}", text.stdout);
    assert!(text.stdout.contains("ipam: found in "), "{}", text.stdout);
    let strict = check(&["--strict", "--format", "json"]);
    assert_eq!(strict.code().unwrap(), 1);
    let document: Value = serde_json::from_str(&strict.stdout).unwrap();
    assert_eq!(document["anomalies"][0]["kind"], "ipam_drift");
    assert_eq!(document["anomalies"][0]["device"], "vethagain");

    let agent = Agent::start_ready(&node, &command).unwrap();
    let client = TestClient::of_agent(&node);
    let listed = client.get("/api/v1/anomalies").unwrap().json().unwrap();
    assert_eq!(
        listed["anomalies"][0]["anomaly_id"],
        raised[0].anomaly_id.as_str()
    );
    let ready = client.get("/readyz").unwrap().json().unwrap();
    let parts = ready["parts"].as_array().unwrap();
    let names: Vec<_> = parts
        .iter()
        .filter(|part| part["role"] == "ipam")
        .map(|part| part["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["CNI configuration", "host-local: net"]);
    until(DEADLINE, "one active anomaly", || {
        let metrics = client.get("/metrics")?.body;
        let line = "ipconflict_anomalies_active{kind=\"ipam_drift\"} 1";
        anyhow::ensure!(metrics.contains(line), "{metrics}");
        Ok(())
    })
    .unwrap();
    reserve(&network, "10.72.0.2");
    let resolved = wait_for(&agent, ANOMALY_RESOLVED, "ipam_drift", 1);
    assert_eq!(resolved[0].anomaly_id, raised[0].anomaly_id);
    assert!(of_kind(&agent.events(), ANOMALY_RAISED, "ipam_drift").is_empty());

    // An allocation without a live owner.
    reserve(&network, "10.72.0.9");
    let leak = wait_for(&agent, ANOMALY_RAISED, "ipam_leak", 1);
    assert_eq!(leak[0].address, "10.72.0.9");
    assert_eq!(leak[0].owner.as_deref(), Some("0123456789abcdef"));
    fs::remove_file(network.join("10.72.0.9")).unwrap();
    let resolved = wait_for(&agent, ANOMALY_RESOLVED, "ipam_leak", 1);
    assert_eq!(resolved[0].resolved_because.as_deref(), Some("released"));
}

#[test]
fn address_that_a_program_took_over_is_no_leak_but_may_be_drift() {
    let places = Places::new();
    let network = places.host_local("10.74.0.0/24");
    let node = Node::new("program").unwrap();
    let pods = node
        .add_pods(&[
            PodSpec::new("vethprogram").address("10.74.0.2/32"),
            PodSpec::new("vethkernel").address("10.74.0.3/32"),
        ])
        .unwrap();
    let [program, kernel]: [_; 2] = pods.try_into().unwrap();
    for address in ["10.74.0.2", "10.74.0.3"] {
        reserve(&network, address);
    }
    let command = places.run().arg("--claim-ttl=2s");
    let command = command.arg("--ipam-leak-after=1s");
    let agent = Agent::start_ready(&node, &command).unwrap();
    program.remove_address("10.74.0.2/32").unwrap();
    let _duplicate = node
        .add_pod(&PodSpec::new("vethsecond").address("10.74.0.4/32"))
        .unwrap();
    let drift = wait_for(&agent, ANOMALY_RAISED, "ipam_drift", 1);
    assert_eq!(drift[0].address, "10.74.0.4");

    // The program answers for its own address, and for one without an allocation.
    for address in ["10.74.0.2", "10.74.0.5"] {
        announce(&program, address.parse().unwrap()).unwrap();
    }
    let drift = wait_for(&agent, ANOMALY_RAISED, "ipam_drift", 2);
    assert_eq!(drift[1].address, "10.74.0.5");
    assert_eq!(drift[1].device.as_deref(), Some("vethprogram"));
    // A frame that is sent later, by a pod that has another address, is over.
    announce(&kernel, "10.74.0.5".parse().unwrap()).unwrap();
    agent.wait_raised("10.74.0.5").unwrap();
    let resolved = agent.wait_resolved("10.74.0.5").unwrap();
    let conflict = resolved.event.conflict().unwrap();
    let left = |device| conflict.claimant(device).unwrap().left.clone();
    assert_eq!(left("vethkernel").as_deref(), Some("expired"));
    assert_eq!(left("vethprogram"), None);
    let events = agent.events();
    assert!(of_kind(&events, ANOMALY_RAISED, "ipam_leak").is_empty());
    assert!(of_kind(&events, ANOMALY_RESOLVED, "ipam_drift").is_empty());

    program.delete().unwrap();
    let leak = wait_for(&agent, ANOMALY_RAISED, "ipam_leak", 1);
    assert_eq!(leak[0].address, "10.74.0.2");
}

#[test]
fn wrong_host_route_is_route_astray_until_corrected() {
    let node = Node::new("astray").unwrap();
    let _pods = node
        .add_pods(&[
            PodSpec::new("vethhas").address("10.73.0.2/32").host_route(),
            PodSpec::new("vethhasnot")
                .address("10.73.0.3/32")
                .host_route(),
        ])
        .unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    node.ip("route replace 10.73.0.2/32 dev vethhasnot scope link")
        .unwrap();
    node.ip("route delete 10.73.0.3/32 dev vethhasnot").unwrap();
    let raised = wait_for(&agent, ANOMALY_RAISED, "route_astray", 2);
    let causes: BTreeSet<_> = raised
        .iter()
        .map(|a| {
            (
                a.address.as_str(),
                a.device.as_deref().unwrap(),
                a.cause.as_str(),
            )
        })
        .collect();
    let wanted = [
        ("10.73.0.2", "vethhas", "other_device"),
        ("10.73.0.3", "vethhasnot", "route_gone"),
    ];
    assert_eq!(causes, wanted.into_iter().collect());
    node.ip("route replace 10.73.0.2/32 dev vethhas scope link")
        .unwrap();
    node.ip("route add 10.73.0.3/32 dev vethhasnot scope link")
        .unwrap();
    let resolved = wait_for(&agent, ANOMALY_RESOLVED, "route_astray", 2);
    assert!(
        resolved
            .iter()
            .all(|a| a.resolved_because.as_deref() == Some("route_right"))
    );
}
