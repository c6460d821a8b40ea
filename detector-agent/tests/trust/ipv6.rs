//! IPv6: each sign of a claim, and which addresses mean something beyond one link.

use std::{collections::BTreeSet, net::Ipv6Addr};

use detector_testkit::{
    Agent, AgentCommand, Barrier, Frame, FrameSender, MacAddress, NaFlags, Node, Pod, PodSpec,
    event::Conflict,
};

use crate::AGENT;

const ADDRESS: &str = "fd00::10";

fn target() -> Ipv6Addr {
    ADDRESS.parse().unwrap()
}

/// Two pods that send nothing by themselves, and an agent that knows them.
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

/// Both pods, each with Neighbour Discovery alone and with its own MAC.
fn assert_heard(conflict: &Conflict, pods: &[Pod]) {
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
fn a_solicitation_against_an_advertisement_raises() {
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
    assert_heard(&agent.wait_raised(ADDRESS).unwrap(), &pods);
}

#[test]
fn unsolicited_advertisements_without_option_are_enough() {
    let (_node, pods, agent) = two_silent_pods("una");
    for pod in &pods {
        send(
            pod,
            &Frame::advertisement(pod.mac(), target(), None, NaFlags::OVERRIDE),
        );
    }
    assert_heard(&agent.wait_raised(ADDRESS).unwrap(), &pods);
}

#[test]
fn detection_of_duplicates_raises_against_a_live_claim() {
    let (_node, pods, agent) = two_silent_pods("dad");
    send(
        &pods[0],
        &Frame::advertisement(pods[0].mac(), target(), None, NaFlags::OVERRIDE),
    );
    send(&pods[1], &Frame::dad(pods[1].mac(), target()));
    let conflict = agent.wait_raised(ADDRESS).unwrap();
    assert_heard(&conflict, &pods);
    let asking = conflict.claimant("vethb").unwrap();
    assert_eq!(asking.evidence[0].detail.as_deref(), Some("probe"));
    assert_eq!(conflict.confidence, "observed");
}

#[test]
fn permanent_neighbour_entries_are_enough() {
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

/// The kernel in the second pod finds the first one's claim and gives the address up: nobody can use it, and it stands
/// there all the same.
#[test]
fn a_duplicate_that_the_pods_own_kernel_finds_is_named() {
    let node = Node::new("dadfail").unwrap();
    node.add_bridge("cni0", &[]).unwrap();
    let spec = |device| PodSpec::new(device).master("cni0").ipv6();
    let pods = node.add_pods(&[spec("vetha"), spec("vethb")]).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    for pod in &pods {
        // Without `nodad`, as an administrator would.
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

#[test]
fn a_pair_of_dual_stack_pods_is_two_conflicts() {
    let node = Node::new("dual").unwrap();
    let barrier = Barrier::prepare(&node).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let specs = ["vetha", "vethb"].map(|device| {
        PodSpec::new(device)
            .address("10.244.2.10/32")
            .address("fd00::10/128")
            .host_route()
    });
    // One after the other: the host's route can be only one's.
    let _first = node.add_pod(&specs[0]).unwrap();
    let second = PodSpec::new("vethb")
        .address("10.244.2.10/32")
        .address("fd00::10/128");
    let _second = node.add_pod(&second).unwrap();
    let said = barrier.pass(&node, &agent).unwrap();
    let conflicts: Vec<_> = said
        .iter()
        .filter(|received| received.event.raises("10.244.2.10") || received.event.raises(ADDRESS))
        .map(|received| received.event.conflict().unwrap())
        .collect();
    let ids: BTreeSet<_> = conflicts.iter().map(|c| c.conflict_id.as_str()).collect();
    assert_eq!((conflicts.len(), ids.len()), (2, 2), "{said:#?}");
    for conflict in &conflicts {
        assert_eq!(conflict.devices(), ["vetha", "vethb"]);
        assert_eq!(conflict.traffic_goes_to.as_deref(), Some("vetha"));
    }
}

/// Each pod of Calico's or AWS's has the same gateway and may have the same link-local address as any other: on links
/// that nothing joins that means nothing.
#[test]
fn link_local_addresses_are_equal_on_links_of_their_own_without_conflict() {
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
    let said = barrier.pass(&node, &agent).unwrap();
    assert!(said.is_empty(), "{said:#?}");
}

#[test]
fn link_local_addresses_are_a_conflict_on_one_bridge() {
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
fn link_local_addresses_are_none_between_two_bridges() {
    let node = Node::new("bridges").unwrap();
    node.add_bridge("br0", &[]).unwrap();
    node.add_bridge("br1", &[]).unwrap();
    let barrier = Barrier::prepare(&node).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let spec = |device, bridge| PodSpec::new(device).master(bridge).address("fe80::a:10/64");
    let _pods = node
        .add_pods(&[spec("vetha", "br0"), spec("vethb", "br1")])
        .unwrap();
    let said = barrier.pass(&node, &agent).unwrap();
    assert!(said.is_empty(), "{said:#?}");
}
