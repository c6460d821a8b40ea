//! Updates and resolution of a conflict.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

use std::net::Ipv4Addr;

use detector_testkit::{
    Agent, AgentCommand, DEADLINE, Node, Pod, PodSpec, announce, event::Conflict,
};

const AGENT: &str = env!("CARGO_BIN_EXE_detector-agent");
const ADDRESS: &str = "10.244.2.10";

/// Two pods with one address, the route to the first, and the conflict as it was raised.
fn conflict(prefix: &str) -> (Node, Vec<Pod>, Agent, Conflict) {
    let node = Node::new(prefix).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let specs = [
        PodSpec::new("vetha").address("10.244.2.10/32").host_route(),
        PodSpec::new("vethb").address("10.244.2.10/32"),
    ];
    let pods = node.add_pods(&specs).unwrap();
    let raised = agent.wait_raised(ADDRESS).unwrap();
    (node, pods, agent, raised)
}

fn resolved(agent: &Agent) -> Conflict {
    agent
        .wait_resolved(ADDRESS)
        .unwrap()
        .event
        .conflict()
        .unwrap()
}

fn left<'a>(conflict: &'a Conflict, device: &str) -> Option<&'a str> {
    conflict
        .claimant(device)
        .unwrap_or_else(|| panic!("{device} is not listed in {conflict:?}"))
        .left
        .as_deref()
}

#[test]
fn deleting_one_pod_resolves() {
    let (_node, mut pods, agent, raised) = conflict("delete");
    pods.pop().unwrap().delete().unwrap();
    let resolved = resolved(&agent);
    assert_eq!(resolved.conflict_id, raised.conflict_id);
    assert_eq!(resolved.state, "resolved");
    assert_eq!(left(&resolved, "vethb"), Some("device_removed"));
    assert_eq!(left(&resolved, "vetha"), None);
}

#[test]
fn deleting_only_the_netns_resolves() {
    let (_node, mut pods, agent, _) = conflict("netns");
    // As after a crash of the runtime: the kernel removes the veth along with the namespace.
    drop(pods.pop());
    assert_eq!(left(&resolved(&agent), "vethb"), Some("device_removed"));
}

#[test]
fn removing_the_address_resolves() {
    let (_node, pods, agent, raised) = conflict("remove");
    pods[0].remove_address("10.244.2.10/32").unwrap();
    let resolved = resolved(&agent);
    assert_eq!(resolved.conflict_id, raised.conflict_id);
    assert_eq!(left(&resolved, "vetha"), Some("address_removed"));
    assert_eq!(left(&resolved, "vethb"), None);
}

#[test]
fn third_claimant_updates_when_it_joins_and_leaves() {
    let (node, _pods, agent, raised) = conflict("third");
    let third = node
        .add_pod(&PodSpec::new("vethc").address("10.244.2.10/32"))
        .unwrap();
    let joined = agent
        .wait_event(DEADLINE, |event| {
            event.updates(ADDRESS)
                && event
                    .conflict()
                    .is_some_and(|conflict| conflict.claimant("vethc").is_some())
        })
        .unwrap()
        .event
        .conflict()
        .unwrap();
    assert_eq!(joined.conflict_id, raised.conflict_id);
    assert_eq!(joined.devices(), ["vetha", "vethb", "vethc"]);
    let seen = agent.event_count();
    third.delete().unwrap();
    let gone = agent
        .wait_event_after(seen, DEADLINE, |event| {
            event.updates(ADDRESS)
                && event.conflict().is_some_and(|conflict| {
                    conflict
                        .claimants
                        .iter()
                        .filter(|claimant| claimant.left.is_none())
                        .count()
                        == 2
                })
        })
        .unwrap()
        .event
        .conflict()
        .unwrap();
    assert_eq!(gone.state, "active");
    assert!(
        gone.claimant("vethc")
            .is_none_or(|claimant| claimant.left.as_deref() == Some("device_removed"))
    );
}

#[test]
fn moved_route_updates_traffic_goes_to() {
    let (node, _pods, agent, _) = conflict("route");
    let goes_to = |device: &'static str| {
        agent
            .wait_event(DEADLINE, move |event| {
                event
                    .conflict()
                    .is_some_and(|conflict| conflict.traffic_goes_to.as_deref() == Some(device))
            })
            .unwrap()
    };
    goes_to("vetha");
    node.ip("route replace 10.244.2.10/32 dev vethb scope link")
        .unwrap();
    goes_to("vethb");
}

#[test]
fn withdrawn_neighbour_entry_resolves() {
    let node = Node::new("withdraw").unwrap();
    let pods = node
        .add_pods(&["vetha", "vethb"].map(PodSpec::new))
        .unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    for pod in &pods {
        node.set_neighbour(
            ADDRESS.parse().unwrap(),
            pod.device(),
            pod.mac(),
            "permanent",
        )
        .unwrap();
    }
    agent.wait_raised(ADDRESS).unwrap();
    node.ip("neigh delete 10.244.2.10 dev vethb").unwrap();
    assert!(left(&resolved(&agent), "vethb").is_some());
}

#[test]
fn conflict_that_begins_again_at_once_is_the_same() {
    let (_node, pods, agent, raised) = conflict("again");
    pods[1].remove_address("10.244.2.10/32").unwrap();
    resolved(&agent);
    let seen = agent.event_count();
    pods[1].add_address("10.244.2.10/32").unwrap();
    let again = agent
        .wait_event_after(seen, DEADLINE, |event| event.raises(ADDRESS))
        .unwrap();
    assert_eq!(again.event.data["repeats"], 1);
    assert_eq!(
        again.event.conflict().unwrap().conflict_id,
        raised.conflict_id
    );
}

#[test]
fn recreated_device_of_the_same_name_inherits_no_claim() {
    let node = Node::new("rename").unwrap();
    let pods = node
        .add_pods(&["vetha", "vethb"].map(PodSpec::new))
        .unwrap();
    let barrier = detector_testkit::Barrier::prepare(&node).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let address: Ipv4Addr = ADDRESS.parse().unwrap();
    let [first, second] = <[Pod; 2]>::try_from(pods).unwrap();
    announce(&first, address).unwrap();
    assert!(barrier.pass(&node, &agent).unwrap().is_empty());
    first.delete().unwrap();
    let _reborn = node.add_pod(&PodSpec::new("vetha")).unwrap();
    announce(&second, address).unwrap();
    let events = barrier.pass(&node, &agent).unwrap();
    assert!(events.is_empty(), "{events:#?}");
}

/// They wait for locks of the kernel, for which neither signals nor deliveries may wait.
#[test]
fn pod_lookups_run_on_a_thread_of_their_own() {
    let node = Node::new("lookups").unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let threads = std::fs::read_dir(format!("/proc/{}/task", agent.pid())).unwrap();
    let names: Vec<_> = threads
        .map(|thread| std::fs::read_to_string(thread.unwrap().path().join("comm")).unwrap())
        .collect();
    assert!(names.contains(&"pod-lookups\n".to_owned()), "{names:?}");
}
