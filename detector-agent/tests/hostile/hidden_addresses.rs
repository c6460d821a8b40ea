//! Addresses that a tool or an agent may overlook.

use detector_testkit::{Agent, AgentCommand, DEADLINE, Node, Pod, PodSpec};

use crate::AGENT;

const ADDRESS: &str = "10.9.4.1";

#[test]
fn addresses_of_host_scope_are_claims() {
    let node = Node::new("hostscope").unwrap();
    let pods = node
        .add_pods(&["vetha", "vethb"].map(PodSpec::new))
        .unwrap();
    let assign = |pod: &Pod| {
        let line = format!("address add {ADDRESS}/32 dev eth0 scope host");
        pod.netns().ip(&line).unwrap();
    };
    // One is in the first snapshot, the other one is reported live.
    assign(&pods[0]);
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    assign(&pods[1]);
    let conflict = agent.wait_raised(ADDRESS).unwrap();
    assert_eq!(conflict.confidence, "certain");
    pods[1].remove_address(&format!("{ADDRESS}/32")).unwrap();
    agent
        .wait_event(DEADLINE, |event| event.resolves(ADDRESS))
        .unwrap();
}
