//! IPv6: each kind of evidence, and the scope of link-local addresses.

use std::{collections::BTreeSet, net::Ipv6Addr};

use anyhow::ensure;
use detector_testkit::{
    Agent, AgentCommand, Barrier, DEADLINE, Event, Frame, FrameSender, MacAddress, NaFlags, Node,
    Pod, PodSpec, event::Conflict, until,
};

use crate::AGENT;

const ADDRESS: &str = "fd00::10";

fn target() -> Ipv6Addr {
    ADDRESS.parse().unwrap()
}

/// Two pods that send nothing unprompted, and a running agent.
fn two_silent_pods(prefix: &str) -> (Node, Vec<Pod>, Agent) {
    let node = Node::new(prefix).unwrap();
    let pods = node
        .add_pods(&["vetha", "vethb"].map(PodSpec::new))
        .unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    (node, pods, agent)
}

fn send(pod: &Pod, frame: &Frame) {
    FrameSender::open(pod).unwrap().send(frame).unwrap();
}

/// Both pods are claimants, each with only Neighbour Discovery evidence and with its own MAC.
fn assert_ndp_only(conflict: &Conflict, pods: &[Pod]) {
    assert_eq!(conflict.devices(), ["vetha", "vethb"]);
    assert_eq!(
        (conflict.kind.as_str(), conflict.vlan.is_none()),
        ("duplicate", true)
    );
    for pod in pods {
        let claimant = conflict.claimant(pod.device()).unwrap();
        assert_eq!(claimant.evidence_kinds(), ["ndp"]);
        assert_eq!(
            claimant.mac.as_deref(),
            Some(pod.mac().to_string().as_str())
        );
    }
}

#[test]
fn solicitation_against_an_advertisement_raises() {
    let (_node, pods, agent) = two_silent_pods("nsna");
    let gateway = "fe80::1".parse().unwrap();
    send(
        &pods[0],
        &Frame::solicitation(pods[0].mac(), target(), gateway),
    );
    let mac = pods[1].mac();
    let asking = (MacAddress::BROADCAST, gateway);
    send(
        &pods[1],
        &Frame::solicited_advertisement(mac, target(), Some(mac), asking),
    );
    assert_ndp_only(&agent.wait_raised(ADDRESS).unwrap(), &pods);
}

#[test]
fn unsolicited_advertisements_without_option_raise() {
    let (_node, pods, agent) = two_silent_pods("una");
    for pod in &pods {
        send(
            pod,
            &Frame::advertisement(pod.mac(), target(), None, NaFlags::OVERRIDE),
        );
    }
    assert_ndp_only(&agent.wait_raised(ADDRESS).unwrap(), &pods);
}

#[test]
fn dad_probe_against_a_live_claim_raises() {
    let (_node, pods, agent) = two_silent_pods("dad");
    send(
        &pods[0],
        &Frame::advertisement(pods[0].mac(), target(), None, NaFlags::OVERRIDE),
    );
    send(&pods[1], &Frame::dad(pods[1].mac(), target()));
    let conflict = agent.wait_raised(ADDRESS).unwrap();
    assert_ndp_only(&conflict, &pods);
    let asking = conflict.claimant("vethb").unwrap();
    assert_eq!(asking.evidence[0].detail.as_deref(), Some("probe"));
    assert_eq!(conflict.confidence, "observed");
}

#[test]
fn permanent_neighbour_entries_raise() {
    let (node, pods, agent) = two_silent_pods("neigh");
    for pod in &pods {
        node.set_neighbour(target().into(), pod.device(), pod.mac(), "permanent")
            .unwrap();
    }
    let conflict = agent.wait_raised(ADDRESS).unwrap();
    assert_eq!(conflict.devices(), ["vetha", "vethb"]);
    assert_eq!(conflict.confidence, "certain");
    for claimant in &conflict.claimants {
        assert_eq!(claimant.evidence_kinds(), ["neighbour"]);
    }
}

/// The second pod's kernel finds the first one's claim and marks the address as failed DAD: it stays
/// assigned but unusable.
#[test]
fn duplicate_found_by_the_pods_own_kernel_raises() {
    let node = Node::new("dadfail").unwrap();
    node.add_bridge("cni0", &[]).unwrap();
    let spec = |device| PodSpec::new(device).master("cni0").ipv6();
    let pods = node.add_pods(&[spec("vetha"), spec("vethb")]).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    for pod in &pods {
        // Without `nodad`, as an administrator would add it.
        pod.netns().ip("address add fd00::10/64 dev eth0").unwrap();
    }
    let conflict = agent.wait_raised(ADDRESS).unwrap();
    assert_eq!(conflict.devices(), ["vetha", "vethb"]);
    for claimant in &conflict.claimants {
        assert!(
            claimant.evidence_kinds().contains(&"address"),
            "{claimant:?}"
        );
        assert_eq!(claimant.master.as_deref(), Some("cni0"));
    }
}

/// The pod that got the address second stays without it although the first one is gone: Linux does not try again.
#[test]
fn address_that_failed_detection_is_a_finding_afterwards() {
    let node = Node::new("dadstays").unwrap();
    node.add_bridge("cni0", &[]).unwrap();
    let pod = |device| node.add_pod(&PodSpec::new(device).master("cni0").ipv6());
    let [first, second] = ["vetha", "vethb"].map(|device| pod(device).unwrap());
    let add = format!("address add {ADDRESS}/64 dev eth0");
    first.netns().ip(&format!("{add} nodad")).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    second.netns().ip(&add).unwrap();
    agent.wait_raised(ADDRESS).unwrap();
    until(DEADLINE, "detection to fail", || {
        let shown = second.netns().ip("address show dev eth0")?;
        ensure!(shown.contains("dadfailed"), "{shown}");
        Ok(())
    })
    .unwrap();
    first.delete().unwrap();
    agent.wait_resolved(ADDRESS).unwrap();
    let is_unusable = |state: &'static str| {
        move |event: &Event| {
            let anomaly = event.anomaly();
            anomaly.is_some_and(|a| a.kind == "address_unusable" && a.state == state)
        }
    };
    let raised = agent.wait_event(DEADLINE, is_unusable("active")).unwrap();
    let anomaly = raised.event.anomaly().unwrap();
    assert_eq!(anomaly.device.as_deref(), Some("vethb"));
    assert_eq!(anomaly.address, ADDRESS);
    let check = AgentCommand::new(AGENT, ["check"]);
    let outcome = check.run_to_end(&node, DEADLINE).unwrap();
    assert!(
        outcome
            .stdout
            .contains("1 anomaly: pods may lose traffic\n"),
        "{outcome:?}"
    );
    second
        .netns()
        .ip(&format!("address del {ADDRESS}/64 dev eth0"))
        .unwrap();
    second.netns().ip(&add).unwrap();
    agent.wait_event(DEADLINE, is_unusable("resolved")).unwrap();
}

#[test]
fn pair_of_dual_stack_pods_is_two_conflicts() {
    let node = Node::new("dual").unwrap();
    let barrier = Barrier::prepare(&node).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let specs = ["vetha", "vethb"].map(|device| {
        PodSpec::new(device)
            .address("10.244.2.10/32")
            .address("fd00::10/128")
            .host_route()
    });
    // One after the other, because the host route can lead to only one of them.
    let _first = node.add_pod(&specs[0]).unwrap();
    let second = PodSpec::new("vethb")
        .address("10.244.2.10/32")
        .address("fd00::10/128");
    let _second = node.add_pod(&second).unwrap();
    let events = barrier.pass(&node, &agent).unwrap();
    let conflicts: Vec<_> = events
        .iter()
        .filter(|received| received.event.raises("10.244.2.10") || received.event.raises(ADDRESS))
        .map(|received| received.event.conflict().unwrap())
        .collect();
    let ids: BTreeSet<_> = conflicts.iter().map(|c| c.conflict_id.as_str()).collect();
    assert_eq!((conflicts.len(), ids.len()), (2, 2), "{events:#?}");
    for conflict in &conflicts {
        assert_eq!(conflict.devices(), ["vetha", "vethb"]);
        assert_eq!(conflict.traffic_goes_to.as_deref(), Some("vetha"));
    }
}

/// With Calico or AWS, pods may have equal link-local addresses: on separate links that is no
/// conflict.
#[test]
fn equal_link_local_addresses_on_separate_links_raise_nothing() {
    let node = Node::new("local").unwrap();
    let pods = node
        .add_pods(&["vetha", "vethb"].map(|device| {
            PodSpec::new(device)
                .address("fe80::a:10/64")
                .address("169.254.7.7/16")
        }))
        .unwrap();
    let barrier = Barrier::prepare(&node).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let address = "fe80::a:10".parse().unwrap();
    for pod in &pods {
        send(
            pod,
            &Frame::advertisement(pod.mac(), address, None, NaFlags::OVERRIDE),
        );
        send(
            pod,
            &Frame::announcement(pod.mac(), [169, 254, 7, 7].into()),
        );
        node.set_neighbour(address.into(), pod.device(), pod.mac(), "permanent")
            .unwrap();
    }
    let events = barrier.pass(&node, &agent).unwrap();
    assert!(events.is_empty(), "{events:#?}");
}

#[test]
fn equal_link_local_addresses_on_one_bridge_raise() {
    let node = Node::new("domain").unwrap();
    node.add_bridge("cni0", &[]).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let _pods = node
        .add_pods(&["vetha", "vethb"].map(|device| {
            PodSpec::new(device)
                .master("cni0")
                .address("fe80::a:10/64")
                .address("169.254.7.7/16")
        }))
        .unwrap();
    for address in ["fe80::a:10", "169.254.7.7"] {
        assert_eq!(
            agent.wait_raised(address).unwrap().devices(),
            ["vetha", "vethb"]
        );
    }
}

#[test]
fn equal_link_local_addresses_on_two_bridges_raise_nothing() {
    let node = Node::new("bridges").unwrap();
    node.add_bridge("br0", &[]).unwrap();
    node.add_bridge("br1", &[]).unwrap();
    let barrier = Barrier::prepare(&node).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let spec = |device, bridge| PodSpec::new(device).master(bridge).address("fe80::a:10/64");
    let _pods = node
        .add_pods(&[spec("vetha", "br0"), spec("vethb", "br1")])
        .unwrap();
    let events = barrier.pass(&node, &agent).unwrap();
    assert!(events.is_empty(), "{events:#?}");
}
