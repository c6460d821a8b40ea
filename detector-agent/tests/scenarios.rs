//! Incidents from the field, reproduced on real devices.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

use std::collections::BTreeSet;

use detector_testkit::{
    Agent, AgentCommand, Barrier, Cni, CniPod, DEADLINE, MacAddress, Node, Pod, PodSpec,
    event::{Conflict, RAISED},
    scenario::{CalicoElevenDevices, KindnetStateWiped},
};

const AGENT: &str = env!("CARGO_BIN_EXE_detector-agent");

fn calico_devices(node: &Node, facts: &CalicoElevenDevices) -> Vec<Pod> {
    let specs: Vec<_> = facts
        .neighbours
        .iter()
        .map(|neighbour| {
            PodSpec::new(&neighbour.device)
                .mac(neighbour.mac.parse().unwrap())
                .host_mac(MacAddress([0xee; 6]))
                .proxy_arp()
        })
        .collect();
    node.add_pods(&specs).unwrap()
}

/// The route comes first, so that every event has `traffic_goes_to`.
fn calico_state(node: &Node, facts: &CalicoElevenDevices) {
    node.ip(&format!(
        "route add {} dev {} scope link",
        facts.route.destination, facts.route.device
    ))
    .unwrap();
    for neighbour in &facts.neighbours {
        let state = neighbour.state.to_lowercase();
        node.set_neighbour(
            facts.address.into(),
            &neighbour.device,
            neighbour.mac.parse().unwrap(),
            &state,
        )
        .unwrap();
    }
}

fn assert_calico(conflict: &Conflict, facts: &CalicoElevenDevices) {
    let wanted: BTreeSet<_> = facts
        .neighbours
        .iter()
        .map(|neighbour| neighbour.device.as_str())
        .collect();
    assert_eq!(
        conflict.devices().into_iter().collect::<BTreeSet<_>>(),
        wanted
    );
    assert_eq!(conflict.claimants.len(), facts.expect.claimants);
    assert_eq!(
        conflict.traffic_goes_to.as_deref(),
        Some(facts.expect.traffic_goes_to.as_str())
    );
    assert_eq!(conflict.confidence, "certain");
    assert_eq!(conflict.kind, "duplicate");
    for neighbour in &facts.neighbours {
        let claimant = conflict.claimant(&neighbour.device).unwrap();
        assert_eq!(claimant.mac.as_deref(), Some(neighbour.mac.as_str()));
        assert_eq!(claimant.evidence_kinds(), ["neighbour"]);
        if neighbour.state == "PERMANENT" {
            assert_eq!(
                claimant.evidence[0].detail.as_deref(),
                Some("PERMANENT"),
                "{}",
                neighbour.device
            );
        }
    }
}

#[test]
fn calico_eleven_devices_existing_before_start_are_one_conflict() {
    let facts = CalicoElevenDevices::load().unwrap();
    let node = Node::new("calico").unwrap();
    let _pods = calico_devices(&node, &facts);
    calico_state(&node, &facts);
    let barrier = Barrier::prepare(&node).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    let events = barrier.pass(&node, &agent).unwrap();
    let raised: Vec<_> = events
        .iter()
        .filter(|received| received.event.kind == RAISED)
        .collect();
    assert_eq!(raised.len(), facts.expect.conflicts);
    // All claimants are in the first snapshot, so the first event is complete.
    assert_calico(&raised[0].event.conflict().unwrap(), &facts);
}

#[test]
fn calico_eleven_devices_added_at_runtime_are_one_conflict() {
    let facts = CalicoElevenDevices::load().unwrap();
    let node = Node::new("calico").unwrap();
    let _pods = calico_devices(&node, &facts);
    let barrier = Barrier::prepare(&node).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();
    calico_state(&node, &facts);
    let full = agent
        .wait_event(DEADLINE, |event| {
            event
                .conflict()
                .is_some_and(|conflict| conflict.claimants.len() == facts.expect.claimants)
        })
        .unwrap();
    assert_calico(&full.event.conflict().unwrap(), &facts);
    let events = barrier.pass(&node, &agent).unwrap();
    let raised: Vec<_> = events
        .iter()
        .filter(|received| received.event.kind == RAISED)
        .collect();
    assert_eq!(raised.len(), facts.expect.conflicts, "{raised:#?}");
    let ids: BTreeSet<_> = events
        .iter()
        .map(|received| received.event.conflict().unwrap().conflict_id)
        .collect();
    assert_eq!(ids.len(), 1, "each update is of the one conflict");
}

#[test]
fn kindnet_state_wiped_raises_exactly_the_duplicates() {
    let facts = KindnetStateWiped::load().unwrap();
    let node = Node::new("kindnet").unwrap();
    let cni = Cni::new(facts.ptp_config().unwrap()).unwrap();
    let barrier = Barrier::prepare(&node).unwrap();
    let agent = Agent::start_ready(&node, &AgentCommand::run(AGENT)).unwrap();

    let before: Vec<CniPod> = facts
        .before
        .iter()
        .map(|pod| cni.add_pod(&node, &pod.pod).unwrap())
        .collect();
    for (pod, wanted) in before.iter().zip(&facts.before) {
        assert_eq!(pod.address().unwrap(), wanted.address);
    }
    assert!(
        barrier.pass(&node, &agent).unwrap().is_empty(),
        "nothing is wrong before the wipe"
    );

    cni.wipe().unwrap();
    let after: Vec<CniPod> = facts
        .after
        .iter()
        .map(|pod| cni.add_pod(&node, &pod.pod).unwrap())
        .collect();
    for (pod, wanted) in after.iter().zip(&facts.after) {
        assert_eq!(pod.address().unwrap(), wanted.address);
    }
    let events = barrier.pass(&node, &agent).unwrap();
    let mut raised: Vec<_> = events
        .iter()
        .filter(|received| received.event.kind == RAISED)
        .map(|received| received.event.conflict().unwrap())
        .collect();
    raised.sort_by_key(|conflict| conflict.address.parse::<std::net::Ipv4Addr>().unwrap());
    let addresses: Vec<_> = raised
        .iter()
        .map(|conflict| conflict.address.clone())
        .collect();
    let wanted: Vec<_> = facts
        .expect
        .conflicts
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(addresses, wanted);
    for (index, conflict) in raised.iter().enumerate() {
        let mut devices = [
            before[index].device().unwrap(),
            after[index].device().unwrap(),
        ];
        devices.sort_unstable();
        assert_eq!(conflict.devices(), devices);
        // ptp keeps the old route in place, so the old pod keeps receiving the traffic.
        assert_eq!(
            conflict.traffic_goes_to.as_deref(),
            Some(before[index].device().unwrap())
        );
        assert_eq!(conflict.confidence, "certain");
    }
}
