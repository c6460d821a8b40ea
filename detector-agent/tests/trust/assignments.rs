//! Unusual assignments: one address several times on a link, with different other ends, is one claim that ends with the last
//! of them.

use detector_testkit::{Agent, AgentCommand, Barrier, Netns, Node, PodSpec};

use crate::AGENT;

const ADDRESS: &str = "10.9.4.1";

fn change(netns: &Netns, verb: &str, other_end: &str, link: &str) {
    netns
        .ip(&format!(
            "address {verb} {ADDRESS} peer {other_end} dev {link}"
        ))
        .unwrap();
}

#[test]
fn pod_address_with_two_other_ends_is_withdrawn_with_the_last() {
    let node = Node::new("twopeers").unwrap();
    let barrier = Barrier::prepare(&node).unwrap();
    let mut pods = node
        .add_pods(&[
            PodSpec::new("vetha"),
            PodSpec::new("vethb").address(format!("{ADDRESS}/32")),
        ])
        .unwrap();
    let _other = pods.pop();
    let pod = pods.pop().unwrap();
    // One is in the first snapshot, the other one is reported live.
    change(pod.netns(), "add", "10.9.4.2/32", "eth0");
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    agent.wait_raised(ADDRESS).unwrap();
    change(pod.netns(), "add", "10.9.4.3/32", "eth0");
    change(pod.netns(), "delete", "10.9.4.2/32", "eth0");
    let events = barrier.pass(&node, &agent).unwrap();
    assert_eq!(events.len(), 1, "{events:#?}");
    change(pod.netns(), "delete", "10.9.4.3/32", "eth0");
    let resolved = agent.wait_resolved(ADDRESS).unwrap();
    let conflict = resolved.event.conflict().unwrap();
    let left = conflict.claimant("vetha").unwrap().left.as_deref();
    assert_eq!(left, Some("address_removed"));
}

#[test]
fn node_address_with_two_other_ends_is_withdrawn_with_the_last() {
    let node = Node::new("twohosts").unwrap();
    node.ip_batch(["link add tun0 type veth peer name tun1", "link set tun0 up"])
        .unwrap();
    change(&node, "add", "10.9.4.2/32", "tun0");
    let barrier = Barrier::prepare(&node).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let _pod = node
        .add_pod(&PodSpec::new("vetha").address(format!("{ADDRESS}/32")))
        .unwrap();
    assert_eq!(agent.wait_raised(ADDRESS).unwrap().kind, "host");
    change(&node, "add", "10.9.4.3/32", "tun0");
    change(&node, "delete", "10.9.4.2/32", "tun0");
    let events = barrier.pass(&node, &agent).unwrap();
    assert_eq!(events.len(), 1, "{events:#?}");
    change(&node, "delete", "10.9.4.3/32", "tun0");
    agent.wait_resolved(ADDRESS).unwrap();
}
