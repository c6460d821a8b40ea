//! Namespace ids and link indexes that the kernel assigns again while messages about their previous holder are still queued.

use anyhow::ensure;
use detector_testkit::{
    Agent, AgentCommand, Barrier, DEADLINE, Node, PodSpec, conflicts_from_events, until,
};

use super::loss::{pause, resume};
use crate::AGENT;

const ADDRESS: &str = "10.9.6.7";
const TRIES: usize = 6;

/// Where the node sees the pod's end of a device: `(index, namespace id)`, as `ip link` prints them.
fn peer(node: &Node, device: &str) -> (String, String) {
    let line = node.ip(&format!("-o link show dev {device}")).unwrap();
    let index = line
        .split("@if")
        .nth(1)
        .and_then(|rest| rest.split(':').next());
    let nsid = line.split("link-netnsid ").nth(1);
    let nsid = nsid.and_then(|rest| rest.split_whitespace().next());
    (
        index.unwrap_or_default().to_owned(),
        nsid.unwrap_or_default().to_owned(),
    )
}

#[test]
fn a_recycled_namespace_id_does_not_inherit_addresses() {
    let node = Node::new("recycled").unwrap();
    let barrier = Barrier::prepare(&node).unwrap();
    let _holder = node
        .add_pod(&PodSpec::new("vethholder").address(format!("{ADDRESS}/32")))
        .unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let mut successors = Vec::new();
    for attempt in 0..TRIES {
        pause(&agent);
        let dead = format!("vethdead{attempt}");
        let pod = node
            .add_pod(&PodSpec::new(dead.as_str()).address(format!("{ADDRESS}/32")))
            .unwrap();
        let peer_of_dead = peer(&node, &dead);
        // The namespace is deleted with the address still assigned, as when a runtime loses a sandbox.
        drop(pod);
        until(DEADLINE, "the dead pod's device to be removed", || {
            ensure!(node.ip(&format!("link show dev {dead}")).is_err());
            Ok(())
        })
        .unwrap();
        let next = format!("vethnext{attempt}");
        let pod = node
            .add_pod(&PodSpec::new(next.as_str()).address(format!("10.9.7.{attempt}/32")))
            .unwrap();
        assert_eq!(
            peer(&node, &next),
            peer_of_dead,
            "the kernel assigned the namespace id and the index again"
        );
        successors.push(pod);
        resume(&agent);
        let events = barrier.pass(&node, &agent).unwrap();
        for received in &events {
            let conflict = received.event.conflict().unwrap();
            let names = |device: &str| conflict.claimants.iter().any(|c| c.device == device);
            assert!(!names(&next), "{next} never had {ADDRESS}: {received:#?}");
        }
        assert!(
            conflicts_from_events(&events).unwrap().is_empty(),
            "{events:#?}"
        );
    }
}

#[test]
fn a_peer_that_moves_while_down_is_followed() {
    let node = Node::new("moved").unwrap();
    let holder = node
        .add_pod(&PodSpec::new("vethholder").address(format!("{ADDRESS}/32")))
        .unwrap();
    let moving = node.add_pod(&PodSpec::new("vethmoving")).unwrap();
    let target = node.add_pod(&PodSpec::new("vethtarget")).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    // Both ends stay down: no carrier change makes the kernel report the end that stays.
    node.ip("link set vethmoving down").unwrap();
    moving.netns().ip("link set eth0 down").unwrap();
    moving
        .netns()
        .ip(&format!(
            "link set eth0 name eth1 netns {}",
            target.netns().name()
        ))
        .unwrap();
    target
        .netns()
        .ip(&format!("address add {ADDRESS}/32 dev eth1"))
        .unwrap();
    let conflict = agent.wait_raised(ADDRESS).unwrap();
    let mut devices: Vec<_> = conflict
        .claimants
        .iter()
        .map(|c| c.device.as_str())
        .collect();
    devices.sort_unstable();
    assert_eq!(devices, [holder.device(), moving.device()]);
}
