//! Each kind of evidence alone is enough to raise a conflict.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

use std::net::{Ipv4Addr, Ipv6Addr};

use detector_testkit::{
    Agent, AgentCommand, Barrier, DEADLINE, Frame, FrameSender, MacAddress, NaFlags, Node, Pod,
    PodSpec, announce,
    event::{Conflict, RAISED},
};

const AGENT: &str = env!("CARGO_BIN_EXE_detector-agent");
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 244, 2, 10);

/// Two pods without an address, and a running agent.
fn two_silent_pods(prefix: &str) -> (Node, [Pod; 2], Agent) {
    let node = Node::new(prefix).unwrap();
    let pods = node
        .add_pods(&["vetha", "vethb"].map(PodSpec::new))
        .unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    (node, pods.try_into().unwrap(), agent)
}

/// Both pods are claimants, each with only this kind of evidence and with its own MAC.
fn assert_only(conflict: &Conflict, pods: &[Pod; 2], kind: &str) {
    assert_eq!(conflict.devices(), ["vetha", "vethb"]);
    for pod in pods {
        let claimant = conflict.claimant(pod.device()).unwrap();
        assert_eq!(claimant.evidence_kinds(), [kind]);
        assert_eq!(
            claimant.mac.as_deref(),
            Some(pod.mac().to_string().as_str())
        );
    }
}

#[test]
fn address_assigned_in_both_pods_raises() {
    let (_node, pods, agent) = two_silent_pods("address");
    for pod in &pods {
        pod.add_address("10.244.2.10/32").unwrap();
    }
    let conflict = agent.wait_raised("10.244.2.10").unwrap();
    assert_only(&conflict, &pods, "address");
    assert_eq!(conflict.confidence, "certain");
    assert_eq!(conflict.traffic_goes_to, None, "no route goes to either");
}

#[test]
fn ipv6_address_assigned_in_both_pods_raises() {
    let node = Node::new("address6").unwrap();
    let pods = node
        .add_pods(&["vetha", "vethb"].map(|device| PodSpec::new(device).ipv6()))
        .unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    for pod in &pods {
        pod.add_address("fd00::10/64").unwrap();
    }
    let conflict = agent.wait_raised("fd00::10").unwrap();
    assert_eq!(conflict.devices(), ["vetha", "vethb"]);
    assert!(
        conflict
            .claimants
            .iter()
            .all(|claimant| claimant.evidence_kinds().contains(&"address")),
        "{conflict:?}"
    );
}

#[test]
fn arp_announcement_raises() {
    let (_node, pods, agent) = two_silent_pods("announce");
    for pod in &pods {
        announce(pod, ADDRESS).unwrap();
    }
    let conflict = agent.wait_raised("10.244.2.10").unwrap();
    assert_only(&conflict, &pods, "arp");
    assert_eq!(conflict.confidence, "observed");
}

#[test]
fn arp_request_for_another_address_raises() {
    let (_node, pods, agent) = two_silent_pods("request");
    for pod in &pods {
        let frame = Frame::request(pod.mac(), ADDRESS, Ipv4Addr::new(169, 254, 1, 1));
        FrameSender::open(pod).unwrap().send(&frame).unwrap();
    }
    assert_only(&agent.wait_raised("10.244.2.10").unwrap(), &pods, "arp");
}

#[test]
fn gratuitous_arp_reply_raises() {
    let (_node, pods, agent) = two_silent_pods("reply");
    for pod in &pods {
        FrameSender::open(pod)
            .unwrap()
            .send(&Frame::gratuitous_reply(pod.mac(), ADDRESS))
            .unwrap();
    }
    assert_only(&agent.wait_raised("10.244.2.10").unwrap(), &pods, "arp");
}

#[test]
fn neighbour_advertisement_raises_with_or_without_option() {
    let (_node, pods, agent) = two_silent_pods("advert");
    let address: Ipv6Addr = "fd00::10".parse().unwrap();
    let options: [Option<MacAddress>; 2] = [Some(pods[0].mac()), None];
    for (pod, option) in pods.iter().zip(options) {
        let frame = Frame::advertisement(pod.mac(), address, option, NaFlags::OVERRIDE);
        FrameSender::open(pod).unwrap().send(&frame).unwrap();
    }
    assert_only(&agent.wait_raised("fd00::10").unwrap(), &pods, "ndp");
}

#[test]
fn neighbour_solicitation_raises_for_its_source() {
    let (_node, pods, agent) = two_silent_pods("solicit");
    let (address, gateway) = ("fd00::10".parse().unwrap(), "fe80::1".parse().unwrap());
    for pod in &pods {
        FrameSender::open(pod)
            .unwrap()
            .send(&Frame::solicitation(pod.mac(), address, gateway))
            .unwrap();
    }
    assert_only(&agent.wait_raised("fd00::10").unwrap(), &pods, "ndp");
}

#[test]
fn permanent_neighbour_entry_raises() {
    let (node, pods, agent) = two_silent_pods("neigh");
    for pod in &pods {
        node.set_neighbour(ADDRESS.into(), pod.device(), pod.mac(), "permanent")
            .unwrap();
    }
    let conflict = agent.wait_raised("10.244.2.10").unwrap();
    assert_only(&conflict, &pods, "neighbour");
    assert_eq!(conflict.confidence, "certain");
    assert!(
        conflict
            .claimants
            .iter()
            .all(|claimant| claimant.evidence[0].detail.as_deref() == Some("PERMANENT"))
    );
}

#[test]
fn different_kinds_of_evidence_form_one_conflict() {
    let (node, pods, agent) = two_silent_pods("meet");
    node.set_neighbour(ADDRESS.into(), pods[0].device(), pods[0].mac(), "permanent")
        .unwrap();
    announce(&pods[1], ADDRESS).unwrap();
    let conflict = agent.wait_raised("10.244.2.10").unwrap();
    assert_eq!(
        conflict.claimant("vetha").unwrap().evidence_kinds(),
        ["neighbour"]
    );
    assert_eq!(
        conflict.claimant("vethb").unwrap().evidence_kinds(),
        ["arp"]
    );
    assert_eq!(conflict.confidence, "observed");
}

/// The addresses are assigned while the agent discovers the devices and attaches to them: none is
/// missed, whichever comes first.
#[test]
fn address_assigned_before_the_attach_is_not_missed() {
    let node = Node::new("gap").unwrap();
    let barrier = Barrier::prepare(&node).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let specs: Vec<_> = (0..60)
        .map(|number| {
            PodSpec::new(format!("vethgap{number:02}"))
                .address(format!("10.244.3.{}/32", number % 30))
        })
        .collect();
    let _pods = node.add_pods(&specs).unwrap();
    let all = agent
        .wait_until(DEADLINE, |events| {
            events
                .iter()
                .filter(|received| received.event.kind == RAISED)
                .count()
                >= 30
        })
        .unwrap();
    let mut named: Vec<_> = all
        .into_iter()
        .map(|received| received.event.subject)
        .collect();
    named.sort_unstable();
    named.dedup();
    assert_eq!(named.len(), 30);
    let events = barrier.pass(&node, &agent).unwrap();
    assert_eq!(
        events
            .iter()
            .filter(|received| received.event.kind == RAISED)
            .count(),
        30
    );
}

/// Frames and addresses that look like a claim but are not.
#[test]
fn frames_that_claim_nothing_raise_nothing() {
    let node = Node::new("noclaim").unwrap();
    let pods = node
        .add_pods(&["vetha", "vethb"].map(PodSpec::new))
        .unwrap();
    let barrier = Barrier::prepare(&node).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    for pod in &pods {
        let sender = FrameSender::open(pod).unwrap();
        // A request without a source address, a probe, DAD, and addresses that no host can own.
        sender
            .send(&Frame::request(pod.mac(), Ipv4Addr::UNSPECIFIED, ADDRESS))
            .unwrap();
        sender.send(&Frame::probe(pod.mac(), ADDRESS)).unwrap();
        sender
            .send(&Frame::dad(pod.mac(), "fd00::10".parse().unwrap()))
            .unwrap();
        for unownable in [[127, 0, 0, 1], [224, 0, 0, 1], [255, 255, 255, 255]] {
            sender
                .send(&Frame::announcement(pod.mac(), unownable.into()))
                .unwrap();
        }
        // A truncated frame.
        sender
            .send_bytes(&Frame::announcement(pod.mac(), ADDRESS).to_bytes()[..30])
            .unwrap();
        // Every pod has loopback addresses.
        pod.netns().ip("address add 127.0.0.2/8 dev lo").unwrap();
    }
    let events = barrier.pass(&node, &agent).unwrap();
    assert!(events.is_empty(), "{events:#?}");
}
