//! A pod with more addresses than are followed: what was refused is read once there is room.

use std::net::Ipv4Addr;

use detector_testkit::{Agent, AgentCommand, Barrier, DEADLINE, Node, Pod, PodSpec};

use crate::AGENT;

const ADDRESSES: u16 = 2_000;
const FLUSHED: u16 = 1_000;

fn nth(n: u16) -> Ipv4Addr {
    let [high, low] = n.to_be_bytes();
    Ipv4Addr::new(10, 20, high, low)
}

fn change(pod: &Pod, verb: &str, which: std::ops::Range<u16>) {
    let lines = which.map(|n| format!("address {verb} {}/32 dev eth0", nth(n)));
    pod.netns().ip_batch(lines).unwrap();
}

/// Half of the pod's addresses are flushed: the other half are claims now.
fn assert_the_rest_is_read(node: &Node, barrier: &Barrier, agent: &Agent, pod: &Pod) {
    agent.wait_log(DEADLINE, "bound reached").unwrap();
    let sample = [FLUSHED + 100, ADDRESSES / 4 * 3, ADDRESSES - 1].map(nth);
    let mut spec = PodSpec::new("vethother");
    for address in sample {
        spec = spec.address(format!("{address}/32"));
    }
    let _other = node.add_pod(&spec).unwrap();
    let events = barrier.pass(node, agent).unwrap();
    assert!(events.is_empty(), "they are beyond the bound: {events:#?}");
    change(pod, "delete", 0..FLUSHED);
    for address in sample {
        agent.wait_raised(&address.to_string()).unwrap();
    }
    let log = agent.log();
    let named = log.lines().filter(|line| line.contains("bound reached"));
    assert_eq!(named.count(), 1, "{log}");
}

#[test]
fn addresses_beyond_the_bound_are_read_once_there_is_room() {
    let node = Node::new("room").unwrap();
    let barrier = Barrier::prepare(&node).unwrap();
    let pod = node.add_pod(&PodSpec::new("vethmany")).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    change(&pod, "add", 0..ADDRESSES);
    assert_the_rest_is_read(&node, &barrier, &agent, &pod);
}

#[test]
fn addresses_beyond_the_bound_of_the_first_snapshot_are_read_too() {
    let node = Node::new("roomfirst").unwrap();
    let barrier = Barrier::prepare(&node).unwrap();
    let pod = node.add_pod(&PodSpec::new("vethmany")).unwrap();
    change(&pod, "add", 0..ADDRESSES);
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    assert_the_rest_is_read(&node, &barrier, &agent, &pod);
}
