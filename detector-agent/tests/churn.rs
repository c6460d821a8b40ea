//! Ordinary pod churn without conflicts raises nothing.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

use std::net::Ipv4Addr;

use detector_testkit::{Agent, AgentCommand, Barrier, Cni, Frame, FrameSender, Node, PodSpec};

const AGENT: &str = env!("CARGO_BIN_EXE_detector-agent");

#[test]
fn churn_of_two_hundred_pods_raises_nothing() {
    let node = Node::new("churn").unwrap();
    let barrier = Barrier::prepare(&node).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    for batch in 0u8..8 {
        let specs: Vec<_> = (0u8..25)
            .map(|number| {
                PodSpec::new(format!("cali{batch:02}{number:09}"))
                    .address(format!("10.244.{batch}.{number}/32"))
                    .address(format!("fd00:{batch}::{number}/128"))
                    .host_route()
                    .default_route()
                    .proxy_arp()
            })
            .collect();
        let pods = node.add_pods(&specs).unwrap();
        for pod in &pods {
            node.wait_attached(pod.device()).unwrap();
            // The first frame of a pod is usually the ARP request for its gateway.
            let frame = Frame::request(
                pod.mac(),
                pod.ipv4().unwrap(),
                Ipv4Addr::new(169, 254, 1, 1),
            );
            FrameSender::open(pod).unwrap().send(&frame).unwrap();
        }
        node.delete_pods(pods).unwrap();
    }
    let events = barrier.pass(&node, &agent).unwrap();
    assert!(events.is_empty(), "{events:#?}");
}

#[test]
fn address_reused_after_its_pod_is_gone_raises_nothing() {
    let node = Node::new("reuse").unwrap();
    let barrier = Barrier::prepare(&node).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    for number in 0..30 {
        let spec = PodSpec::new(format!("vethreuse{number}"))
            .address("10.244.2.10/32")
            .host_route();
        let pod = node.add_pod(&spec).unwrap();
        node.wait_attached(pod.device()).unwrap();
        let frame = Frame::announcement(pod.mac(), pod.ipv4().unwrap());
        FrameSender::open(&pod).unwrap().send(&frame).unwrap();
        pod.delete().unwrap();
    }
    let events = barrier.pass(&node, &agent).unwrap();
    assert!(events.is_empty(), "{events:#?}");
}

#[test]
fn real_ptp_pods_with_their_shared_gateway_raise_nothing() {
    let node = Node::new("ptp").unwrap();
    let cni = Cni::ptp("kindnet", "10.244.2.0/24").unwrap();
    let barrier = Barrier::prepare(&node).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    for round in 0..2 {
        let pods: Vec<_> = (0..10)
            .map(|number| cni.add_pod(&node, &format!("p{round}-{number}")).unwrap())
            .collect();
        for pod in pods {
            cni.remove_pod(&node, pod).unwrap();
        }
    }
    let events = barrier.pass(&node, &agent).unwrap();
    assert!(events.is_empty(), "{events:#?}");
}
