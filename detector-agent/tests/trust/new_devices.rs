//! Devices that appear while the agent runs.

use anyhow::{Context as _, ensure};
use detector_testkit::{
    Agent, AgentCommand, Barrier, DEADLINE, Event, MacAddress, Netns, Node, PodSpec,
    event::Conflict, http::TestClient, until,
};
use serde_json::Value;

use crate::AGENT;

const ADDRESS: &str = "10.9.8.7";

/// Waits until the agent has attached to all devices, and these are so many.
fn wait_devices(node: &Node, count: usize) {
    let client = TestClient::of_agent(node);
    until(DEADLINE, "the state of the devices", || {
        let ready = client.get("/readyz")?.json()?;
        let parts = ready["parts"].as_array().unwrap().clone();
        let programs = parts.iter().find(|part| part["name"] == "kernel programs");
        let detail = programs.unwrap()["detail"].as_str().unwrap().to_owned();
        ensure!(
            detail == format!("attached to all {count} pod devices"),
            "{detail}"
        );
        Ok(())
    })
    .unwrap();
}

#[test]
fn device_deleted_before_the_attach_leaves_nothing_behind() {
    let node = Node::new("shortlived").unwrap();
    let barrier = Barrier::prepare(&node).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    for _ in 0..20 {
        // The same index and namespace id again and again.
        let spec = PodSpec::new("vetha").address(format!("{ADDRESS}/32"));
        node.add_pod(&spec).unwrap().delete().unwrap();
    }
    let stays = node.add_pod(&PodSpec::new("vethb")).unwrap();
    node.wait_attached(stays.device()).unwrap();
    wait_devices(&node, 3);
    let events = barrier.pass(&node, &agent).unwrap();
    assert!(events.is_empty(), "{events:#?}");
    let log = agent.log();
    assert!(!log.contains("attach failed"), "{log}");
    assert!(!log.contains("resync"), "{log}");
    assert!(!log.contains("self-check"), "{log}");
}

/// As the plugins `bridge` and `ptp` do. Until the node's end is set up, nothing reports where the other end is.
#[test]
fn end_of_a_pair_has_the_program_before_it_is_set_up() {
    let node = Node::new("early").unwrap();
    let _agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let pod = Netns::new("early").unwrap();
    let peer = format!("peer name vetha netns {}", node.name());
    pod.ip(&format!("link add eth0 type veth {peer}")).unwrap();
    node.wait_attached("vetha").unwrap();
}

#[test]
fn pair_inside_the_node_is_no_pod_device() {
    let node = Node::new("inside").unwrap();
    let _agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    node.ip("link add inner type veth peer name outer").unwrap();
    let _pods = node
        .add_pods(&["vetha", "vethb"].map(PodSpec::new))
        .unwrap();
    wait_devices(&node, 2);
}

/// As Calico and the plugin of Amazon VPC do: the addresses are there before the device is in the node's namespace, so no
/// notification reports them.
#[test]
fn address_assigned_before_the_device_appears_is_found() {
    let node = Node::new("before").unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let pods = ["a", "b"].map(|name| {
        let pod = Netns::new(name).unwrap();
        pod.ip_batch([
            format!("link add eth0 type veth peer name cali{name}"),
            format!("address add {ADDRESS}/32 dev eth0"),
            "link set eth0 up".to_owned(),
            format!("link set cali{name} netns {}", node.name()),
        ])
        .unwrap();
        node.ip(&format!("link set cali{name} up")).unwrap();
        pod
    });
    let conflict = agent.wait_raised(ADDRESS).unwrap();
    assert_eq!(conflict.devices(), ["calia", "calib"]);
    assert_eq!(conflict.confidence, "certain");
    drop(pods);
}

/// Creates pods without an address, in the order of the network plugins.
fn add_bare_pods(node: &Node, macs: [MacAddress; 2]) -> [Netns; 2] {
    [("vetha", macs[0]), ("vethb", macs[1])].map(|(device, mac)| {
        let pod = Netns::new(device).unwrap();
        let peer = format!("peer name eth0 address {mac} netns {}", pod.name());
        node.ip_batch([
            format!("link add {device} type veth {peer}"),
            format!("link set {device} up"),
        ])
        .unwrap();
        pod
    })
}

/// Nothing names the hardware address when the address is assigned: the interfaces inside the pods are down.
fn assign(pod: &Netns) {
    pod.ip(&format!("address add {ADDRESS}/32 dev eth0"))
        .unwrap();
}

fn macs_of(conflict: &Conflict) -> [Option<String>; 2] {
    ["vetha", "vethb"].map(|device| conflict.claimant(device).and_then(|c| c.mac.clone()))
}

/// Waits until the API shows these hardware addresses of the claimants of the only conflict.
fn wait_shown(node: &Node, macs: [MacAddress; 2]) {
    let client = TestClient::of_agent(node);
    until(DEADLINE, "the hardware addresses in the API", || {
        let answer = client.get("/api/v1/conflicts")?.json()?;
        let claimants = answer["conflicts"][0]["claimants"].as_array();
        let claimants = claimants.context("no conflict")?;
        for (device, mac) in ["vetha", "vethb"].into_iter().zip(macs) {
            let is_shown = |c: &Value| c["device"] == device && c["mac"] == mac.to_string();
            ensure!(claimants.iter().any(is_shown), "{answer}");
        }
        Ok(())
    })
    .unwrap();
}

/// It is read before the plugin assigns an address, and no notification of an address contains it.
#[test]
fn hardware_address_of_a_new_pod_is_in_the_only_event() {
    let node = Node::new("newmac").unwrap();
    let barrier = Barrier::prepare(&node).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let macs = [1, 2].map(MacAddress::local);
    let pods = add_bare_pods(&node, macs);
    wait_devices(&node, 4);
    pods.iter().for_each(assign);
    let conflict = agent.wait_raised(ADDRESS).unwrap();
    assert_eq!(macs_of(&conflict), macs.map(|mac| Some(mac.to_string())));
    let events = barrier.pass(&node, &agent).unwrap();
    assert_eq!(events.len(), 1, "{events:#?}");
}

/// The first read of their namespaces may be complete only after the conflict was raised.
#[test]
fn conflict_of_pods_whose_addresses_follow_at_once_is_one_event() {
    let node = Node::new("quickmac").unwrap();
    let barrier = Barrier::prepare(&node).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let macs = [1, 2].map(MacAddress::local);
    let pods = add_bare_pods(&node, macs);
    pods.iter().for_each(assign);
    wait_shown(&node, macs);
    let events = barrier.pass(&node, &agent).unwrap();
    assert_eq!(events.len(), 1, "{events:#?}");
    assert!(events[0].event.raises(ADDRESS), "{events:#?}");
}

#[test]
fn changed_hardware_address_is_an_update_of_the_conflict() {
    let node = Node::new("othermac").unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let [first, second, changed] = [1, 2, 3].map(MacAddress::local);
    let pods = add_bare_pods(&node, [first, second]);
    pods.iter().for_each(assign);
    wait_shown(&node, [first, second]);
    let link = format!("link set eth0 address {changed}");
    pods[1].ip(&link).unwrap();
    let macs = [first, changed].map(|mac| Some(mac.to_string()));
    let names_both = |event: &Event| event.conflict().is_some_and(|c| macs_of(&c) == macs);
    let event = agent.wait_event(DEADLINE, names_both).unwrap().event;
    assert!(event.updates(ADDRESS), "{event:?}");
    assert_eq!(event.conflict().unwrap().changed, ["evidence"]);
}
