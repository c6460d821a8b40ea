//! A pod with two interfaces is not in conflict with itself.

use detector_testkit::{Agent, AgentCommand, Barrier, Node, PodSpec, ReceivedEvent};

use crate::AGENT;

const ADDRESS: &str = "10.9.5.1";

#[test]
fn address_on_two_interfaces_of_one_pod_raises_nothing() {
    let node = Node::new("ownif").unwrap();
    let barrier = Barrier::prepare(&node).unwrap();
    let pod = node
        .add_pod(&PodSpec::new("vetha").address(format!("{ADDRESS}/32")))
        .unwrap();
    let second = |device: &str, name: &str| {
        node.ip_batch([
            format!(
                "link add {device} type veth peer name {name} netns {}",
                pod.netns().name()
            ),
            format!("link set {device} up"),
        ])
        .unwrap();
        pod.netns()
            .ip_batch([
                format!("address add {ADDRESS}/32 dev {name}"),
                format!("link set {name} up"),
            ])
            .unwrap();
    };
    // One before the first snapshot, one after it.
    second("vetha2", "eth1");
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    second("vetha3", "eth2");
    let events = barrier.pass(&node, &agent).unwrap();
    assert!(events.is_empty(), "{events:#?}");

    let other = node
        .add_pod(&PodSpec::new("vethb").address(format!("{ADDRESS}/32")))
        .unwrap();
    let conflict = agent.wait_raised(ADDRESS).unwrap();
    assert_eq!(
        (conflict.kind.as_str(), conflict.confidence.as_str()),
        ("duplicate", "certain")
    );
    assert_eq!(conflict.devices(), ["vetha", "vetha2", "vetha3", "vethb"]);
    other.delete().unwrap();
    agent.wait_resolved(ADDRESS).unwrap();

    // The kernel removes one device after the other.
    let own = |events: &[ReceivedEvent]| {
        let about = events.iter().filter(|e| e.event.subject == ADDRESS);
        about.count()
    };
    let before = own(&agent.events());
    drop(pod);
    let events = barrier.pass(&node, &agent).unwrap();
    assert_eq!(own(&events), before, "{events:#?}");
}
