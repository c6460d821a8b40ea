//! The kernel log: the kernel programs explain what they do not publish, within limits, and only on request.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

use std::{net::Ipv4Addr, thread, time::Duration};

use anyhow::ensure;
use detector_testkit::{
    Agent, AgentCommand, DEADLINE, Frame, FrameSender, MacAddress, Node, Pod, PodSpec, announce,
    http::TestClient, until,
};
use serde_json::Value;

const AGENT: &str = env!("CARGO_BIN_EXE_detector-agent");
const DEVICE: &str = "veth0";
const MAC: MacAddress = MacAddress([0x02, 0, 0, 0, 0, 0x0a]);
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 244, 2, 10);
/// Longer than the agent takes to read the kernel log, twice over.
const SEVERAL_READS: Duration = Duration::from_secs(2);

fn node_with_pod() -> (Node, Pod) {
    let node = Node::new("klog").unwrap();
    let pod = node.add_pod(&PodSpec::new(DEVICE).mac(MAC)).unwrap();
    (node, pod)
}

fn start(node: &Node, command: &AgentCommand) -> Agent {
    Agent::start_ready(node, command).unwrap()
}

/// An ARP frame with an operation that is neither request nor reply.
fn malformed() -> Frame {
    let mut frame = Frame::announcement(MAC, ADDRESS);
    *frame.payload_mut().get_mut(7).unwrap() = 9;
    frame
}

/// The log lines with this text in them.
fn lines(agent: &Agent, text: &str) -> Vec<Value> {
    let log = agent.log();
    let lines = log.lines().filter(|line| line.contains(text));
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn malformed_frame_yields_a_line_with_device_and_reason() {
    let (node, pod) = node_with_pod();
    let agent = start(&node, &AgentCommand::run(AGENT).arg("--kernel-log"));
    let sender = FrameSender::open(&pod).unwrap();
    sender.send(&malformed()).unwrap();
    agent.wait_log(DEADLINE, "frame rejected").unwrap();
    thread::sleep(SEVERAL_READS);
    let lines = lines(&agent, "frame rejected");
    assert_eq!(lines.len(), 1, "{lines:?}");
    for (field, value) in [
        ("device", DEVICE),
        ("reason", "arp_operation"),
        ("ether_source", "02:00:00:00:00:0a"),
        ("address", "10.244.2.10"),
    ] {
        assert_eq!(lines[0][field], value, "{}", lines[0]);
    }
}

#[test]
fn repeated_claims_and_ignored_neighbours_are_explained() {
    let (node, pod) = node_with_pod();
    let agent = start(&node, &AgentCommand::run(AGENT).arg("--kernel-log"));
    // The first claim of an address makes the next one count as new once more.
    until(DEADLINE, "a repeated claim to be explained", || {
        announce(&pod, ADDRESS)?;
        ensure!(agent.log().contains("already_published"));
        Ok(())
    })
    .unwrap();
    // An entry in another network namespace than the agent's.
    pod.netns()
        .ip("neigh add 10.244.2.99 lladdr 02:00:00:00:00:0b dev eth0 nud permanent")
        .unwrap();
    agent.wait_log(DEADLINE, "other_netns").unwrap();
}

#[test]
fn rust_log_enables_the_kernel_log_at_its_level() {
    let (node, pod) = node_with_pod();
    let command = AgentCommand::run(AGENT).env("RUST_LOG", "info,detector_ebpf=info");
    let agent = start(&node, &command);
    announce(&pod, ADDRESS).unwrap();
    announce(&pod, ADDRESS).unwrap();
    let sender = FrameSender::open(&pod).unwrap();
    sender.send(&malformed()).unwrap();
    agent.wait_log(DEADLINE, "frame rejected").unwrap();
    assert!(lines(&agent, "already_published").is_empty());
}

#[test]
fn flood_is_limited_and_suppressed_lines_are_counted() {
    const FRAMES: usize = 5_000;
    let (node, pod) = node_with_pod();
    // Without the events of other network namespaces, which other tests cause.
    let command = AgentCommand::run(AGENT).env("RUST_LOG", "info,detector_ebpf=info");
    let agent = start(&node, &command);
    let sender = FrameSender::open(&pod).unwrap();
    sender
        .send_all(&vec![malformed().to_bytes(); FRAMES])
        .unwrap();
    agent
        .wait_log(DEADLINE, "kernel log records suppressed")
        .unwrap();
    thread::sleep(SEVERAL_READS);
    let written = lines(&agent, "frame rejected").len();
    assert!((1..1_000).contains(&written), "{written} lines");
    let reported: u64 = lines(&agent, "kernel log records suppressed")
        .iter()
        .map(|line| line["suppressed"].as_u64().unwrap())
        .sum();
    assert_eq!(written as u64 + reported, FRAMES as u64);
    let metrics = TestClient::of_agent(&node).get("/metrics").unwrap().body;
    let total = format!("ipconflict_kernel_log_suppressed_total {reported}");
    assert!(
        metrics.contains(&total),
        "{total} is missing from {metrics}"
    );
}

#[test]
fn nothing_is_logged_unless_requested() {
    let (node, pod) = node_with_pod();
    let agent = start(&node, &AgentCommand::run(AGENT));
    let sender = FrameSender::open(&pod).unwrap();
    sender.send(&malformed()).unwrap();
    thread::sleep(SEVERAL_READS);
    let log = agent.log();
    assert!(!log.contains("rejected"), "{log}");
    assert!(!log.contains("kernel log"), "{log}");
}
