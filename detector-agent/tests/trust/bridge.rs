//! Pods behind a bridge (flannel, the bridge plugin): claims belong to the ports, not to the bridge.

use std::{collections::BTreeMap, net::IpAddr};

use detector_testkit::{
    Agent, AgentCommand, Barrier, Cni, CniPod, DEADLINE, Node, Pod, PodSpec, announce,
    conflicts_from_check, conflicts_from_events, event::RAISED, wait_reachable,
};

use crate::AGENT;

const ADDRESS: &str = "10.244.1.10";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A node with a bridge that has the pods' gateway address.
fn bridged_node(prefix: &str) -> Node {
    let node = Node::new(prefix).unwrap();
    node.add_bridge("cni0", &["10.244.1.1/24"]).unwrap();
    node
}

fn port(device: &str) -> PodSpec {
    PodSpec::new(device).master("cni0")
}

/// Adds a static forwarding entry, so that the bridge knows the pod's port without a frame.
fn set_forwarding(node: &Node, pod: &Pod) {
    let mac = pod.mac().to_string();
    let device = pod.device();
    node.exec(&[
        "bridge", "fdb", "replace", &mac, "dev", device, "master", "static",
    ])
    .unwrap();
}

/// A restore wipes /var/lib/cni while pods run, and the addresses are handed out again (scenario `rancher-restore`).
#[test]
fn rancher_restore_raises_every_duplicate_with_its_two_ports() {
    let node = Node::new("rancher").unwrap();
    let cni = Cni::bridge_with_default_data_dir("cbr0", "cni0", "10.42.0.0/24").unwrap();
    assert_eq!(cni.data_dir().to_str(), Some("/var/lib/cni/networks"));
    let barrier = Barrier::prepare(&node).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let fill = |round: &str| -> BTreeMap<String, CniPod> {
        let pods = (0..10).map(|number| cni.add_pod(&node, &format!("{round}-{number}")).unwrap());
        pods.map(|pod| (pod.address().unwrap().to_string(), pod))
            .collect()
    };

    let before = fill("before");
    assert_eq!(before.len(), 10);
    let events = barrier.pass(&node, &agent).unwrap();
    assert!(
        events.is_empty(),
        "nothing is wrong before the wipe: {events:#?}"
    );

    assert_eq!(cni.allocated_addresses().unwrap().len(), 10);
    cni.wipe().unwrap();
    assert!(cni.allocated_addresses().unwrap().is_empty());
    let after = fill("after");
    assert!(
        after.keys().eq(before.keys()),
        "the same ten addresses are handed out again"
    );

    let events = barrier.pass(&node, &agent).unwrap();
    let raised: BTreeMap<_, _> = events
        .iter()
        .filter(|received| received.event.kind == RAISED)
        .map(|received| (received.event.subject.clone(), received))
        .collect();
    assert!(raised.keys().eq(before.keys()), "{:?}", raised.keys());
    for (address, received) in &raised {
        let conflict = received.event.conflict().unwrap();
        let mut ports = [&before, &after].map(|pods| pods[address].device().unwrap());
        ports.sort_unstable();
        assert_eq!(conflict.devices(), ports);
        assert_eq!(conflict.kind, "duplicate");
        assert_eq!(conflict.confidence, "certain");
        for claimant in &conflict.claimants {
            assert_eq!(claimant.master.as_deref(), Some("cni0"));
        }
    }
    // A fresh snapshot shows the same conflicts.
    let fresh = conflicts_from_check(AGENT.as_ref(), &node, DEADLINE).unwrap();
    let named: Vec<_> = raised
        .keys()
        .map(|a| (a.clone(), "duplicate".to_owned()))
        .collect();
    assert!(fresh.keys().eq(&named), "{fresh:?}");
    for ((address, _), devices) in &fresh {
        let conflict = raised[address].event.conflict().unwrap();
        assert_eq!(devices, &conflict.devices());
    }
}

/// When the node talks to a pod, its kernel has one neighbour entry on the bridge, which is evidence
/// for a claim of the pod's port.
#[test]
fn bridge_neighbour_entry_is_evidence_for_the_port() {
    let node = bridged_node("resolve");
    let pods = node
        .add_pods(&[
            port("vetha").address(format!("{ADDRESS}/24")),
            PodSpec::new("vethb"),
        ])
        .unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    wait_reachable(&node, ip(ADDRESS), DEADLINE).unwrap();
    let entries = node.ip(&format!("neigh show {ADDRESS}")).unwrap();
    assert!(
        entries.contains(&format!("dev cni0 lladdr {}", pods[0].mac())),
        "{entries}"
    );
    announce(&pods[1], ADDRESS.parse().unwrap()).unwrap();
    let conflict = agent.wait_raised(ADDRESS).unwrap();
    assert_eq!(conflict.devices(), ["vetha", "vethb"]);
    let behind = conflict.claimant("vetha").unwrap();
    assert_eq!(behind.evidence_kinds(), ["address", "arp", "neighbour"]);
    assert_eq!(behind.master.as_deref(), Some("cni0"));
    assert_eq!(
        behind.mac.as_deref(),
        Some(pods[0].mac().to_string().as_str())
    );
    assert_eq!(conflict.traffic_goes_to.as_deref(), Some("vetha"));
}

#[test]
fn permanent_bridge_entry_is_a_claim_of_the_forwarding_port() {
    let node = bridged_node("permanent");
    let pods = node
        .add_pods(&[port("vetha"), PodSpec::new("vethb")])
        .unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    set_forwarding(&node, &pods[0]);
    node.set_neighbour(ip(ADDRESS), "cni0", pods[0].mac(), "permanent")
        .unwrap();
    announce(&pods[1], ADDRESS.parse().unwrap()).unwrap();
    let conflict = agent.wait_raised(ADDRESS).unwrap();
    assert_eq!(conflict.devices(), ["vetha", "vethb"]);
    assert_eq!(
        conflict.claimant("vetha").unwrap().evidence_kinds(),
        ["neighbour"]
    );
}

#[test]
fn permanent_entry_without_a_port_claims_for_the_bridge() {
    let node = bridged_node("unresolved");
    let pods = node
        .add_pods(&[port("vetha"), PodSpec::new("vethb")])
        .unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let unknown = detector_testkit::MacAddress([0x02, 0xaa, 0, 0, 0, 1]);
    node.set_neighbour(ip(ADDRESS), "cni0", unknown, "permanent")
        .unwrap();
    announce(&pods[1], ADDRESS.parse().unwrap()).unwrap();
    let conflict = agent.wait_raised(ADDRESS).unwrap();
    assert_eq!(conflict.devices(), ["cni0", "vethb"]);
    let behind = conflict.claimant("cni0").unwrap();
    assert_eq!(behind.mac.as_deref(), Some(unknown.to_string().as_str()));
}

/// An overlay announces the pod's address from another node: its plugin writes both entries.
#[test]
fn permanent_entry_behind_a_port_that_is_no_pods_is_a_claim() {
    let node = bridged_node("overlay");
    let spec = port("vetha").address(format!("{ADDRESS}/24"));
    let _pod = node.add_pod(&spec).unwrap();
    let barrier = Barrier::prepare(&node).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    node.ip("link add vxlan7 type vxlan id 7 dstport 4789 local 127.0.0.1")
        .unwrap();
    node.ip("link set vxlan7 master cni0 up").unwrap();
    let remote = detector_testkit::MacAddress([0x02, 0xaa, 0, 0, 0, 1]);
    let mac = remote.to_string();
    node.exec(&[
        "bridge", "fdb", "replace", &mac, "dev", "vxlan7", "master", "static",
    ])
    .unwrap();
    let events = barrier.pass(&node, &agent).unwrap();
    assert!(events.is_empty(), "nothing claims the address: {events:#?}");
    node.set_neighbour(ip(ADDRESS), "cni0", remote, "permanent")
        .unwrap();
    let conflict = agent.wait_raised(ADDRESS).unwrap();
    assert_eq!(conflict.devices(), ["cni0", "vetha"]);
    assert_eq!(conflict.confidence, "certain");
    let claimant = conflict.claimant("cni0").unwrap();
    assert_eq!(claimant.mac.as_deref(), Some(mac.as_str()));
}

/// Two programs answer for one address, so the node's single entry on the bridge alternates between
/// their hardware addresses. There is no other evidence: their namespaces have no address, and no
/// frame shows which ports answered. So no pod is named.
#[test]
fn bridge_neighbour_entry_alternating_between_macs_raises() {
    let node = bridged_node("flap");
    let pods = node.add_pods(&["vetha", "vethb"].map(port)).unwrap();
    for pod in &pods {
        set_forwarding(&node, pod);
    }
    let barrier = Barrier::prepare(&node).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let turn_to = |pod: &Pod| {
        node.set_neighbour(ip(ADDRESS), "cni0", pod.mac(), "reachable")
            .unwrap();
    };
    turn_to(&pods[0]);
    turn_to(&pods[1]);
    let events = barrier.pass(&node, &agent).unwrap();
    assert!(events.is_empty(), "one move is normal: {events:#?}");
    turn_to(&pods[0]);
    let conflict = agent.wait_raised(ADDRESS).unwrap();
    assert_eq!(conflict.devices(), ["cni0", "cni0"]);
    let macs: Vec<_> = conflict
        .claimants
        .iter()
        .map(|c| c.mac.clone().unwrap())
        .collect();
    assert_eq!(
        macs,
        [pods[1].mac(), pods[0].mac()].map(|mac| mac.to_string())
    );
    for claimant in &conflict.claimants {
        assert_eq!(claimant.evidence_kinds(), ["neighbour"]);
        assert_eq!(claimant.master.as_deref(), Some("cni0"));
    }
    assert_eq!(conflict.traffic_goes_to.as_deref(), Some("cni0"));
}

/// The node's entry on the bridge outlives the pod and maps the address to the old MAC until the next
/// pod answers.
#[test]
fn address_reused_behind_the_bridge_raises_nothing() {
    let node = bridged_node("reuse");
    let barrier = Barrier::prepare(&node).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    for number in 0..15 {
        let spec = port(&format!("vethreuse{number}")).address(format!("{ADDRESS}/24"));
        let pod = node.add_pod(&spec).unwrap();
        node.wait_attached(pod.device()).unwrap();
        announce(&pod, ADDRESS.parse().unwrap()).unwrap();
        if number % 3 == 0 {
            wait_reachable(&node, ip(ADDRESS), DEADLINE).unwrap();
        }
        pod.delete().unwrap();
    }
    let events = barrier.pass(&node, &agent).unwrap();
    assert!(events.is_empty(), "{events:#?}");
}

#[test]
fn address_reused_by_the_bridge_plugin_leaves_no_conflict() {
    let node = Node::new("plugin").unwrap();
    // Room for the gateway and one pod: the second pod gets the address of the first.
    let cni = Cni::bridge("cbr0", "cni0", "10.42.0.0/30").unwrap();
    let barrier = Barrier::prepare(&node).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    for number in 0..10 {
        let pod = cni.add_pod(&node, &format!("p{number}")).unwrap();
        let address = pod.address().unwrap();
        assert_eq!(address, ip("10.42.0.2"));
        if number % 3 == 0 {
            wait_reachable(&node, address, DEADLINE).unwrap();
        }
        cni.remove_pod(&node, pod).unwrap();
    }
    let events = barrier.pass(&node, &agent).unwrap();
    assert!(events.is_empty(), "{events:#?}");
    assert!(conflicts_from_events(&events).unwrap().is_empty());
}
