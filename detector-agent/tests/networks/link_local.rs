//! Link-local addresses are unique on one link, unless the node routes them to a pod.

use detector_testkit::{Agent, AgentCommand, Barrier, Node, PodSpec};

use crate::AGENT;

/// Amazon's plugin gives pods of an IPv6 cluster an IPv4 address for egress, with a host route to each.
#[test]
fn routed_link_local_address_is_unique_on_the_node() {
    let node = Node::new("egress").unwrap();
    let barrier = Barrier::prepare(&node).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    // 169.254.1.1 is on every link, as a gateway's address is.
    let spec = |device: &str, address: &str| {
        let spec = PodSpec::new(device).address(format!("{address}/22"));
        spec.address("169.254.1.1/32")
    };
    let pods = [spec("eni1", "169.254.172.2"), spec("eni2", "169.254.172.3")];
    let _pods = node.add_pods(&pods).unwrap();
    node.ip_batch([
        "route add 169.254.172.2/32 dev eni1",
        "route add 169.254.172.3/32 dev eni2",
    ])
    .unwrap();
    let events = barrier.pass(&node, &agent).unwrap();
    assert!(events.is_empty(), "{events:#?}");

    let _other = node.add_pod(&spec("eni3", "169.254.172.2")).unwrap();
    let conflict = agent.wait_raised("169.254.172.2").unwrap();
    assert_eq!(conflict.network, "node");
    assert_eq!(conflict.devices(), ["eni1", "eni3"]);
    assert_eq!(conflict.traffic_goes_to.as_deref(), Some("eni1"));
}
