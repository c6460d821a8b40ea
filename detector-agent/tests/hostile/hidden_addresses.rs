//! Addresses that a tool or an agent may overlook.

use std::time::Duration;

use anyhow::ensure;
use detector_testkit::{
    Agent, AgentCommand, DEADLINE, Event, Frame, FrameSender, Node, Pod, PodSpec, until,
};

use crate::{
    AGENT,
    metrics::{claiming_devices, claims, wait_claims, wait_table},
};

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
    agent.wait_resolved(ADDRESS).unwrap();
}

/// Two other pods claim the address before and after, so that the table of claimed addresses stays as it is.
#[test]
fn address_removed_but_claimed_in_frames_rejoins_the_conflict_of_others() {
    const SOON: Duration = Duration::from_secs(10);
    let node = Node::new("rejoin").unwrap();
    let pods = node
        .add_pods(
            &["vetha", "vethb", "vethc"]
                .map(|device| PodSpec::new(device).address(format!("{ADDRESS}/32"))),
        )
        .unwrap();
    pods[1].add_address("10.9.4.2/32").unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    wait_claims(&node, ADDRESS, 3);
    let _last = wait_table(&node, 3);
    let sender = FrameSender::open(&pods[1]).unwrap();
    let frame = Frame::announcement(pods[1].mac(), ADDRESS.parse().unwrap());
    sender.send(&frame).unwrap();
    until(DEADLINE, "the frame to be evidence", || {
        let claims = claims(&node, ADDRESS)?;
        let claim = claims.iter().find(|claim| claim["device"] == "vethb");
        let evidence = claim.and_then(|claim| claim["evidence"].as_array());
        let is_seen = evidence.is_some_and(|all| all.iter().any(|e| e["kind"] == "arp"));
        ensure!(is_seen, "{claim:#?}");
        Ok(())
    })
    .unwrap();
    pods[1].remove_address(&format!("{ADDRESS}/32")).unwrap();
    wait_claims(&node, ADDRESS, 2);
    until(SOON, "the pod to be a claimant again", || {
        sender.send(&frame)?;
        let claiming = claiming_devices(&node, ADDRESS)?;
        ensure!(claiming == ["vetha", "vethb", "vethc"], "{claiming:?}");
        Ok(())
    })
    .unwrap();
    let rejoined = |event: &Event| {
        let conflict = event.conflict();
        let claimant = conflict.as_ref().and_then(|c| c.claimant("vethb"));
        claimant.is_some_and(|c| c.left.is_none() && c.evidence_kinds() == ["arp"])
    };
    agent.wait_event(DEADLINE, rejoined).unwrap();
}

/// The kernel program counts repeated claims only, for up to 30 seconds. A claim that ended with its address is none of those.
#[test]
fn address_removed_but_claimed_in_frames_raises_again() {
    const SOON: Duration = Duration::from_secs(10);
    let node = Node::new("withdrawn").unwrap();
    let pods = node
        .add_pods(&["vetha", "vethb"].map(PodSpec::new))
        .unwrap();
    for pod in &pods {
        let line = format!("address add {ADDRESS}/32 dev eth0");
        pod.netns().ip(&line).unwrap();
    }
    // It keeps an address, so that its namespace shows what it has.
    pods[1]
        .netns()
        .ip("address add 10.9.4.2/32 dev eth0")
        .unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    agent.wait_raised(ADDRESS).unwrap();
    // Writing the whole table, as after the start, has all claims published again.
    let _last = wait_table(&node, 2);
    let sender = FrameSender::open(&pods[1]).unwrap();
    let frame = Frame::announcement(pods[1].mac(), ADDRESS.parse().unwrap());
    sender.send(&frame).unwrap();
    pods[1].remove_address(&format!("{ADDRESS}/32")).unwrap();
    agent.wait_resolved(ADDRESS).unwrap();
    let before = agent.event_count();
    let raised = until(SOON, "the conflict to be raised again", || {
        sender.send(&frame)?;
        let wait = Duration::from_millis(100);
        agent.wait_event_after(before, wait, |event| event.raises(ADDRESS))
    });
    let conflict = raised.unwrap().event.conflict();
    assert_eq!(conflict.unwrap().confidence, "observed");
}
