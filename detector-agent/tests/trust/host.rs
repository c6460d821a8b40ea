//! Addresses of the node: a pod that claims one is in conflict with the node.

use detector_testkit::{
    Agent, AgentCommand, Barrier, Cni, DEADLINE, Frame, FrameSender, Node, PodSpec, announce,
    event::Conflict,
};

use crate::AGENT;

/// The claimants are the node, with the address on `link`, and the pod.
fn assert_host(conflict: &Conflict, link: &str, pod: &str) {
    assert_eq!(conflict.kind, "host");
    let mut devices = [link, pod];
    devices.sort_unstable();
    assert_eq!(conflict.devices(), devices);
    let node = conflict.claimant(link).unwrap();
    assert_eq!(node.evidence_kinds(), ["address"]);
    assert_eq!(node.evidence[0].detail.as_deref(), Some("on the node"));
    // The node does not forward traffic for its own address.
    assert_eq!(conflict.traffic_goes_to.as_deref(), Some(link));
}

#[test]
fn pod_with_a_node_address_conflicts_with_the_node() {
    let node = Node::new("nodeaddr").unwrap();
    // A pair with both ends in the node: no pod device.
    node.ip_batch([
        "link add uplink type veth peer name far",
        "address add 192.0.2.7/24 dev uplink",
        "address add 2001:db8::7/64 dev uplink nodad",
        "link set uplink up",
    ])
    .unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let pod = node
        .add_pod(&PodSpec::new("vetha").address("2001:db8::7/128"))
        .unwrap();
    assert_host(
        &agent.wait_raised("2001:db8::7").unwrap(),
        "uplink",
        "vetha",
    );
    node.wait_attached("vetha").unwrap();
    announce(&pod, "192.0.2.7".parse().unwrap()).unwrap();
    let conflict = agent.wait_raised("192.0.2.7").unwrap();
    assert_host(&conflict, "uplink", "vetha");
    assert_eq!(
        conflict.claimant("vetha").unwrap().evidence_kinds(),
        ["arp"]
    );
    assert_eq!(conflict.confidence, "observed");
}

#[test]
fn pod_with_its_bridge_gateway_conflicts_with_the_node() {
    let node = Node::new("bridgegw").unwrap();
    node.add_bridge("cni0", &["10.244.1.1/24"]).unwrap();
    let pod = node.add_pod(&PodSpec::new("vetha").master("cni0")).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    announce(&pod, "10.244.1.1".parse().unwrap()).unwrap();
    assert_host(&agent.wait_raised("10.244.1.1").unwrap(), "cni0", "vetha");
}

/// ptp assigns the gateway's address to the host end of every veth: all belong to the node, which is
/// one claimant.
#[test]
fn ptp_gateway_raises_only_when_a_pod_claims_it() {
    let node = Node::new("ptpgw").unwrap();
    let cni = Cni::ptp("kindnet", "10.244.2.0/24").unwrap();
    let barrier = Barrier::prepare(&node).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let pods: Vec<_> = (0..5)
        .map(|number| cni.add_pod(&node, &format!("p{number}")).unwrap())
        .collect();
    for pod in &pods {
        let shown = node
            .ip(&format!("address show {}", pod.device().unwrap()))
            .unwrap();
        assert!(shown.contains("10.244.2.1/32"), "{shown}");
    }
    let events = barrier.pass(&node, &agent).unwrap();
    assert!(events.is_empty(), "{events:#?}");

    let thief = pods[3].device().unwrap();
    node.wait_attached(thief).unwrap();
    let sender = FrameSender::open_on(pods[3].netns(), "eth0").unwrap();
    let mac = detector_testkit::MacAddress([0x02, 0xaa, 0, 0, 0, 3]);
    sender
        .send(&Frame::announcement(mac, [10, 244, 2, 1].into()))
        .unwrap();
    let conflict = agent.wait_raised("10.244.2.1").unwrap();
    assert_eq!(conflict.kind, "host");
    assert_eq!(conflict.claimants.len(), 2, "{conflict:#?}");
    let claims = |evidence: &str| {
        conflict
            .claimants
            .iter()
            .find(|claimant| claimant.evidence_kinds() == [evidence])
            .unwrap()
    };
    assert_eq!(claims("arp").device, thief);
    assert_eq!(
        claims("address").evidence[0].detail.as_deref(),
        Some("on the node")
    );
}

/// As with Calico's vxlan.calico or flannel's flannel.1, whose address is taken from the pod range.
#[test]
fn pod_with_the_tunnel_address_conflicts_in_either_order() {
    let node = Node::new("tunnel").unwrap();
    node.ip_batch([
        "link add flannel.1 type vxlan id 1 dstport 8472",
        "address add 10.244.2.0/32 dev flannel.1",
        "link set flannel.1 up",
    ])
    .unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let _pods = node
        .add_pods(&[
            PodSpec::new("vetha").address("10.244.2.0/32"),
            PodSpec::new("vethb").address("10.244.2.8/32"),
        ])
        .unwrap();
    let conflict = agent.wait_raised("10.244.2.0").unwrap();
    assert_host(&conflict, "flannel.1", "vetha");
    assert_eq!(conflict.confidence, "certain");

    // The pod first, then the tunnel: after an upgrade, or if the node gets its block late.
    node.ip("address add 10.244.2.8/32 dev flannel.1").unwrap();
    assert_host(
        &agent.wait_raised("10.244.2.8").unwrap(),
        "flannel.1",
        "vethb",
    );
    node.ip("address delete 10.244.2.8/32 dev flannel.1")
        .unwrap();
    let resolved = agent.wait_resolved("10.244.2.8").unwrap();
    let conflict = resolved.event.conflict().unwrap();
    assert_eq!(
        conflict.claimant("flannel.1").unwrap().left.as_deref(),
        Some("address_removed")
    );
}

#[test]
fn two_pods_with_a_node_address_are_one_host_conflict() {
    let node = Node::new("three").unwrap();
    node.ip("address add 192.0.2.7/32 dev lo").unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let specs = ["vetha", "vethb"].map(|device| PodSpec::new(device).address("192.0.2.7/32"));
    let _pods = node.add_pods(&specs).unwrap();
    let all = agent
        .wait_event(DEADLINE, |event| {
            event
                .conflict()
                .is_some_and(|conflict| conflict.claimants.len() == 3)
        })
        .unwrap();
    let conflict = all.event.conflict().unwrap();
    assert_eq!(conflict.kind, "host");
    assert_eq!(conflict.devices(), ["lo", "vetha", "vethb"]);
}

/// The node has the address with two prefix lengths; removing one leaves the other, and the conflict.
#[test]
fn node_address_is_withdrawn_with_its_last_prefix_length() {
    let node = Node::new("prefixes").unwrap();
    node.ip_batch([
        "address add 192.0.2.7/24 dev lo",
        "address add 192.0.2.7/32 dev lo",
    ])
    .unwrap();
    let barrier = Barrier::prepare(&node).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let _pod = node
        .add_pod(&PodSpec::new("vetha").address("192.0.2.7/32"))
        .unwrap();
    assert_host(&agent.wait_raised("192.0.2.7").unwrap(), "lo", "vetha");
    node.ip("address delete 192.0.2.7/32 dev lo").unwrap();
    let events = barrier.pass(&node, &agent).unwrap();
    assert_eq!(events.len(), 1, "{events:#?}");
    node.ip("address delete 192.0.2.7/24 dev lo").unwrap();
    agent.wait_resolved("192.0.2.7").unwrap();
}
