//! What a pod sends in the first milliseconds of its device is seen, or counted as unseen.

use std::net::{Ipv4Addr, Ipv6Addr};

use anyhow::ensure;
use detector_testkit::{
    Agent, AgentCommand, DEADLINE, Frame, FrameSender, MacAddress, NaFlags, Node, Pod, PodSpec,
    announce, http::TestClient, until,
};
use nix::sys::signal::Signal;

use crate::{AGENT, own_stack::Tap};

/// Pairs of new devices in each test.
const TRIES: u8 = 20;

fn node_with_agent(prefix: &str) -> (Node, Agent) {
    let node = Node::new(prefix).unwrap();
    node.add_bridge("cni0", &["10.244.0.1/24"]).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    (node, agent)
}

/// Devices whose frames may have passed unseen.
fn unobserved(node: &Node) -> anyhow::Result<u64> {
    let series = r#"ipconflict_observations_dropped_total{reason="not_attached"}"#;
    let client = TestClient::of_agent(node);
    Ok(client.metric(series)?.unwrap_or(0))
}

fn wait_unobserved(node: &Node, count: u64) {
    until(DEADLINE, "the count of unobserved devices", || {
        let counted = unobserved(node)?;
        ensure!(counted == count, "{counted}");
        Ok(())
    })
    .unwrap();
}

/// Waits until an address is reported, or the agent has counted more devices than `before` whose frames may have passed
/// unseen; `true` if it is reported.
fn is_seen((node, agent): &(Node, Agent), address: &str, before: u64) -> bool {
    let mut is_raised = false;
    until(
        DEADLINE,
        "the conflict, or the count of unseen devices",
        || {
            let counted = unobserved(node)?;
            let events = agent.events();
            is_raised = events.iter().any(|received| received.event.raises(address));
            ensure!(is_raised || counted > before, "neither");
            Ok(())
        },
    )
    .unwrap();
    is_raised
}

/// Two new pods claim an address in their first frames, again and again. On a busy machine the agent may attach later than a
/// frame comes, but never silently.
fn claim_by_new_pairs(
    site: &(Node, Agent),
    spec: impl Fn(&str) -> PodSpec,
    claim: impl Fn(MacAddress, u8) -> (Frame, String),
) {
    let node = &site.0;
    let mut seen = 0;
    for number in 1..=TRIES {
        let before = unobserved(node).unwrap();
        let pods = node.add_pods(&["vetha", "vethb"].map(&spec)).unwrap();
        let mut address = String::new();
        for pod in &pods {
            let (frame, claimed) = claim(pod.mac(), number);
            FrameSender::open(pod).unwrap().send(&frame).unwrap();
            address = claimed;
        }
        seen += usize::from(is_seen(site, &address, before));
        node.delete_pods(pods).unwrap();
    }
    assert_mostly(seen);
}

fn assert_mostly(seen: usize) {
    assert!(seen * 2 > TRIES.into(), "only {seen} of {TRIES} were seen");
}

fn announcement(mac: MacAddress, number: u8) -> (Frame, String) {
    let address = Ipv4Addr::new(10, 9, 8, number);
    (Frame::announcement(mac, address), address.to_string())
}

fn advertisement(mac: MacAddress, number: u8) -> (Frame, String) {
    let address = Ipv6Addr::new(0xfd00, 9, 0, 0, 0, 0, 0, number.into());
    let frame = Frame::advertisement(mac, address, Some(mac), NaFlags::OVERRIDE);
    (frame, address.to_string())
}

#[test]
fn first_announcements_of_two_new_ports_conflict() {
    let site = node_with_agent("newports");
    claim_by_new_pairs(
        &site,
        |name| PodSpec::new(name).master("cni0"),
        announcement,
    );
}

#[test]
fn first_announcements_of_two_new_routed_pods_conflict() {
    let site = node_with_agent("newrouted");
    claim_by_new_pairs(&site, |name| PodSpec::new(name), announcement);
}

#[test]
fn first_advertisements_of_two_new_ports_conflict() {
    let site = node_with_agent("newna");
    let spec = |name: &str| PodSpec::new(name).master("cni0");
    claim_by_new_pairs(&site, spec, advertisement);
}

#[test]
fn first_announcements_of_two_new_taps_conflict() {
    let site = node_with_agent("newtaps");
    let mut seen = 0;
    for number in 1..=TRIES {
        let before = unobserved(&site.0).unwrap();
        let (frame, address) = announcement(MacAddress::local(number.into()), number);
        let taps = ["tapa", "tapb"].map(|name| {
            let mut tap = Tap::new(&site.0, &format!("{name}{number}"));
            tap.send(&frame);
            tap
        });
        seen += usize::from(is_seen(&site, &address, before));
        drop(taps);
    }
    assert_mostly(seen);
}

/// A probe counts against the claim of another pod.
#[test]
fn first_probe_of_a_new_port_conflicts() {
    let site = node_with_agent("newprobe");
    let node = &site.0;
    let port = |name| PodSpec::new(name).master("cni0");
    let mut seen = 0;
    for number in 1..=TRIES {
        let address = Ipv4Addr::new(10, 244, 0, 10 + number);
        let holder = port("vetha").address(format!("{address}/24"));
        let holder = node.add_pod(&holder).unwrap();
        let before = unobserved(node).unwrap();
        let pod = node.add_pod(&port("vethb")).unwrap();
        let probe = Frame::probe(pod.mac(), address);
        FrameSender::open(&pod).unwrap().send(&probe).unwrap();
        seen += usize::from(is_seen(&site, &address.to_string(), before));
        node.delete_pods(vec![holder, pod]).unwrap();
    }
    assert_mostly(seen);
}

/// The agent is stopped, so that nothing of it can see what the pod does.
fn while_stopped<T>(agent: &Agent, body: impl FnOnce() -> T) -> T {
    agent.signal(Signal::SIGSTOP).unwrap();
    let outcome = body();
    agent.signal(Signal::SIGCONT).unwrap();
    outcome
}

fn new_pod_announces(node: &Node, name: &str) -> Pod {
    let pod = node.add_pod(&PodSpec::new(name).master("cni0")).unwrap();
    announce(&pod, Ipv4Addr::new(10, 9, 8, 7)).unwrap();
    pod
}

#[test]
fn frames_before_the_attach_are_counted() {
    let (node, agent) = node_with_agent("toolate");
    let _pod = while_stopped(&agent, || new_pod_announces(&node, "vetha"));
    wait_unobserved(&node, 1);
    // A device on which nothing came in has lost nothing.
    let _silent = node.add_pod(&PodSpec::new("vethb")).unwrap();
    node.wait_attached("vethb").unwrap();
    assert_eq!(unobserved(&node).unwrap(), 1);
}

#[test]
fn device_that_was_up_and_never_attached_to_is_counted() {
    let (node, agent) = node_with_agent("gone");
    while_stopped(&agent, || {
        let pod = new_pod_announces(&node, "vetha");
        pod.delete().unwrap();
        // Without having been up, no frame can have come in.
        node.ip_batch([
            "link add vethb type veth peer name vethc",
            "link delete vethb",
        ])
        .unwrap();
    });
    wait_unobserved(&node, 1);
}

/// Its first act is an announcement, and its second its end.
#[test]
fn announcement_of_a_pod_that_ends_is_seen_or_counted() {
    let site = node_with_agent("shortest");
    let node = &site.0;
    for number in 1..=TRIES {
        let (_, address) = announcement(MacAddress::local(1), number);
        let holder = PodSpec::new("vetha").address(format!("{address}/32"));
        let holder = node.add_pod(&holder).unwrap();
        let before = unobserved(node).unwrap();
        let pod = node.add_pod(&PodSpec::new("vethb")).unwrap();
        announce(&pod, address.parse().unwrap()).unwrap();
        pod.delete().unwrap();
        is_seen(&site, &address, before);
        holder.delete().unwrap();
    }
}
