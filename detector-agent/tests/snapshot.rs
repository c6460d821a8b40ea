//! Conflicts that existed before the agent started, found in the kernel's tables alone: no frame is
//! sent.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

use detector_testkit::{Agent, AgentCommand, Barrier, DEADLINE, Node, PodSpec, event::RAISED};

const AGENT: &str = env!("CARGO_BIN_EXE_detector-agent");

#[test]
fn existing_duplicates_raise_without_any_frame() {
    let node = Node::new("snapshot").unwrap();
    let specs: Vec<_> = ["10.244.2.10", "10.244.2.11", "10.244.2.12"]
        .iter()
        .flat_map(|address| {
            let (a, b) = (
                format!("vetha{}", &address[9..]),
                format!("vethb{}", &address[9..]),
            );
            [
                PodSpec::new(a).address(format!("{address}/24")),
                PodSpec::new(b).address(format!("{address}/24")),
            ]
        })
        .chain([PodSpec::new("vethalone").address("10.244.2.99/24")])
        .collect();
    let _pods = node.add_pods(&specs).unwrap();
    let barrier = Barrier::prepare(&node).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let events = barrier.pass(&node, &agent).unwrap();
    let mut raised: Vec<_> = events
        .iter()
        .filter(|received| received.event.kind == RAISED)
        .map(|received| received.event.subject.as_str())
        .collect();
    raised.sort_unstable();
    assert_eq!(raised, ["10.244.2.10", "10.244.2.11", "10.244.2.12"]);
    for received in &events {
        let conflict = received.event.conflict().unwrap();
        assert_eq!(conflict.confidence, "certain");
        for claimant in &conflict.claimants {
            assert_eq!(claimant.evidence_kinds(), ["address"]);
        }
    }
}

#[test]
fn existing_and_new_pod_are_one_conflict() {
    let node = Node::new("mixed").unwrap();
    let _old = node
        .add_pod(
            &PodSpec::new("vethold")
                .address("10.244.2.10/24")
                .host_route(),
        )
        .unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let _new = node
        .add_pod(&PodSpec::new("vethnew").address("10.244.2.10/24"))
        .unwrap();
    let raised = agent
        .wait_event(DEADLINE, |event| event.raises("10.244.2.10"))
        .unwrap();
    let conflict = raised.event.conflict().unwrap();
    assert_eq!(conflict.devices(), ["vethnew", "vethold"]);
    assert_eq!(conflict.traffic_goes_to.as_deref(), Some("vethold"));
}

#[test]
fn no_ebpf_finds_assigned_addresses_and_warns_about_frames() {
    let node = Node::new("noebpf").unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT).arg("--no-ebpf")).unwrap();
    let warned = agent
        .log()
        .lines()
        .any(|line| line.contains("WARN") && line.contains("ARP"));
    assert!(
        warned,
        "no warning that ARP frames are not seen:\n{}",
        agent.log()
    );
    let specs = ["vetha", "vethb"].map(|device| PodSpec::new(device).address("10.244.2.10/24"));
    let _pods = node.add_pods(&specs).unwrap();
    agent.wait_raised("10.244.2.10").unwrap();
}
