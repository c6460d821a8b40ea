//! A pod that takes the MAC address of another one on a bridge, and with it its packets.

use std::net::Ipv4Addr;

use anyhow::ensure;
use detector_testkit::{
    Agent, AgentCommand, Barrier, DEADLINE, Frame, FrameSender, MacAddress, Node, Pod, PodSpec,
    announce, event::ANOMALY_RAISED, until,
};

use crate::AGENT;

const VICTIM: Ipv4Addr = Ipv4Addr::new(10, 244, 1, 10);

/// Two pods on a bridge: the victim, and the attacker.
fn bridged_pods(prefix: &str) -> (Node, [Pod; 2]) {
    let node = Node::new(prefix).unwrap();
    node.add_bridge("cni0", &["10.244.1.1/24"]).unwrap();
    let pods = [("vethvictim", 10), ("vethattacker", 20)].map(|(device, last)| {
        let spec = PodSpec::new(device).master("cni0");
        let pod = node.add_pod(&spec.address(format!("10.244.1.{last}/24")));
        let pod = pod.unwrap();
        announce(&pod, Ipv4Addr::new(10, 244, 1, last)).unwrap();
        pod
    });
    (node, pods)
}

/// The attacker sends a frame that claims nothing, with this source address, until the bridge has it
/// behind the attacker's port.
fn steal(node: &Node, attacker: &Pod, mac: MacAddress) {
    let sender = FrameSender::open(attacker).unwrap();
    let frame = Frame::probe(mac, Ipv4Addr::new(192, 0, 2, 77));
    until(DEADLINE, "the bridge to learn the MAC address", || {
        sender.send(&frame)?;
        let table = node.exec(&["bridge", "fdb", "show", "br", "cni0"])?;
        let learned = format!("{mac} dev {}", attacker.device());
        ensure!(table.contains(&learned), "{table}");
        Ok(())
    })
    .unwrap();
}

/// Waits for the finding; returns its id.
fn wait_moved(agent: &Agent) -> String {
    let event = agent
        .wait_event(DEADLINE, |event| event.kind == ANOMALY_RAISED)
        .unwrap();
    let anomaly = event.event.anomaly().unwrap();
    assert_eq!(anomaly.kind, "mac_moved");
    assert_eq!(event.event.subject, VICTIM.to_string());
    assert_eq!(anomaly.device.as_deref(), Some("vethvictim"));
    assert_eq!(anomaly.also_on, ["vethattacker"]);
    anomaly.anomaly_id
}

#[test]
fn stolen_mac_is_found_with_both_ports() {
    let (node, [victim, attacker]) = bridged_pods("macsteal");
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    steal(&node, &attacker, victim.mac());
    wait_moved(&agent);
    // The attacker made no claim: there is nothing else to report.
    assert_eq!(agent.event_count(), 1, "{:#?}", agent.events());
}

/// Each frame of the victim brings its MAC address back.
#[test]
fn mac_stolen_packet_by_packet_is_found_once() {
    let (node, [victim, attacker]) = bridged_pods("macduel");
    let barrier = Barrier::prepare(&node).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let events = until(DEADLINE, "the finding", || {
        steal(&node, &attacker, victim.mac());
        announce(&victim, VICTIM)?;
        ensure!(agent.event_count() > 0, "nothing yet");
        Ok(())
    });
    events.unwrap();
    wait_moved(&agent);
    let events = barrier.pass(&node, &agent).unwrap();
    assert_eq!(events.len(), 1, "{events:#?}");
}

/// More MAC addresses behind the attacker's port than the agent keeps of one.
#[test]
fn mac_stolen_during_a_flood_of_others_is_found() {
    let (node, [victim, attacker]) = bridged_pods("macflood");
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let mac = |n: u16| {
        let [high, low] = n.to_be_bytes();
        MacAddress([2, 0x0f, 0, 0, high, low])
    };
    let frame = |n| Frame::probe(mac(n), Ipv4Addr::new(192, 0, 2, 77)).to_bytes();
    let frames: Vec<_> = (0..2_000).map(frame).collect();
    FrameSender::open(&attacker)
        .unwrap()
        .send_all(&frames)
        .unwrap();
    let log = agent.wait_log(DEADLINE, "forwarding entries of a port");
    assert!(log.unwrap().contains("vethattacker"));
    steal(&node, &attacker, victim.mac());
    wait_moved(&agent);
}

#[test]
fn mac_stolen_before_the_start_is_found() {
    let (node, [victim, attacker]) = bridged_pods("macearly");
    steal(&node, &attacker, victim.mac());
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    wait_moved(&agent);
}

#[test]
fn stolen_mac_stays_one_finding_over_a_restart() {
    let (node, [victim, attacker]) = bridged_pods("macrestart");
    let state = tempfile::tempdir().unwrap();
    let command = AgentCommand::run(AGENT)
        .arg("--state-dir")
        .arg(state.path());
    let mut agent = Agent::start_ready(&node, &command).unwrap();
    steal(&node, &attacker, victim.mac());
    let raised = wait_moved(&agent);
    agent.terminate(DEADLINE).unwrap();
    let agent = Agent::start_ready(&node, &command).unwrap();
    victim.delete().unwrap();
    let resolved = agent.wait_event(DEADLINE, |event| event.anomaly().is_some());
    let anomaly = resolved.unwrap().event.anomaly().unwrap();
    assert_eq!(anomaly.anomaly_id, raised);
    assert_eq!(anomaly.state, "resolved");
}

/// The interface itself gets the victim's MAC address. Both lose packets; no address is in conflict.
#[test]
fn copied_mac_is_one_finding_and_no_conflict() {
    let (node, [victim, attacker]) = bridged_pods("maccopy");
    let barrier = Barrier::prepare(&node).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let set = format!("link set eth0 address {}", victim.mac());
    attacker.netns().ip(&set).unwrap();
    let sender = FrameSender::open(&attacker).unwrap();
    for _ in 0..10 {
        let own = Ipv4Addr::new(10, 244, 1, 20);
        sender
            .send(&Frame::announcement(victim.mac(), own))
            .unwrap();
        announce(&victim, VICTIM).unwrap();
    }
    let event = agent
        .wait_event(DEADLINE, |event| event.kind == ANOMALY_RAISED)
        .unwrap();
    let anomaly = event.event.anomaly().unwrap();
    assert_eq!(anomaly.kind, "mac_duplicate");
    assert_eq!(anomaly.device.as_deref(), Some("vethvictim"));
    assert_eq!(anomaly.also_on, ["vethattacker"]);
    let events = barrier.pass(&node, &agent).unwrap();
    assert_eq!(events.len(), 1, "{events:#?}");
}
