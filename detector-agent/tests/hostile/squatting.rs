//! A pod assigns itself addresses that IPAM will give to others.

use detector_testkit::{
    Agent, AgentCommand, Cni, DEADLINE, Event, Node,
    event::{ANOMALY_RESOLVED, Anomaly, Conflict},
    http::TestClient,
    until,
};

use crate::AGENT;

/// A pod that has an address of the pool before IPAM gives it to another pod.
fn squat(cni: &Cni, prefix: &str, squatted: &str) {
    let node = Node::new(prefix).unwrap();
    let (conf, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    cni.write_config(conf.path()).unwrap();
    let command = AgentCommand::run(AGENT)
        .arg("--ipam=auto")
        .arg("--cni-conf-dir")
        .arg(conf.path())
        .arg("--cni-cache-dir")
        .arg(cache.path());
    let add = |name: &str| {
        let pod = cni.add_pod(&node, name).unwrap();
        cni.cache_result(cache.path(), &pod).unwrap();
        pod
    };
    let squatter = add("squatter");
    let agent = Agent::start_ready(&node, &command).unwrap();
    let assign = format!("address add {squatted}/32 dev eth0 nodad");
    squatter.netns().ip(&assign).unwrap();
    let drift = |event: &Event| -> Option<Anomaly> {
        let anomaly = event.anomaly()?;
        (anomaly.kind == "ipam_drift" && anomaly.address == squatted).then_some(anomaly)
    };
    agent
        .wait_event(DEADLINE, |event| drift(event).is_some())
        .unwrap();

    let legit = add("legit");
    assert_eq!(legit.address().unwrap().to_string(), squatted);
    let rights = |conflict: &Conflict| {
        let of = |pod: &detector_testkit::CniPod| {
            let device = pod.device().unwrap();
            conflict.claimant(device).and_then(|c| c.rightful)
        };
        (of(&squatter), of(&legit))
    };
    let is_known = |event: &Event| {
        let conflict = event.conflict();
        conflict.is_some_and(|c| rights(&c) == (Some(false), Some(true)))
    };
    let conflict = agent.wait_event(DEADLINE, is_known).unwrap();
    let conflict = conflict.event.conflict().unwrap();
    assert!(conflict.claimant(legit.device().unwrap()).unwrap().newest);
    let step = conflict.guidance.unwrap().next_step;
    assert!(step.starts_with("Delete default/squatter ("), "{step}");

    let is_owned = |event: &Event| {
        let drift = drift(event).filter(|drift| drift.cause == "owned_by_another");
        drift.is_some_and(|drift| {
            drift.device.as_deref() == Some(squatter.device().unwrap())
                && drift.owner.as_deref() == Some(legit.container_id())
        })
    };
    agent.wait_event(DEADLINE, is_owned).unwrap();
    // The name of the owner is known later than the allocation.
    let client = TestClient::of_agent(&node);
    until(DEADLINE, "the owner to be named", || {
        let list = client.get("/api/v1/anomalies")?.json()?;
        let detail = list["anomalies"][0]["detail"].as_str().unwrap_or_default();
        anyhow::ensure!(detail.ends_with("default/legit"), "{list}");
        Ok(())
    })
    .unwrap();
    // At no time was anybody advised against the pod that got the address.
    for received in agent.events() {
        let event = received.event;
        let is_end = event.kind == ANOMALY_RESOLVED;
        assert!(!(is_end && drift(&event).is_some()), "{event:?}");
        let step = event.conflict().and_then(|conflict| conflict.guidance);
        let step = step.map(|guidance| guidance.next_step).unwrap_or_default();
        let device = legit.device().unwrap();
        for advice in [
            "Delete default/legit",
            &format!("Delete the pod of {device}"),
        ] {
            assert!(!step.contains(advice), "{step}");
        }
    }

    cni.remove_pod(&node, squatter).unwrap();
    let is_over = |event: &Event| event.resolves(squatted);
    agent.wait_event(DEADLINE, is_over).unwrap();
    let is_drift_over = |event: &Event| event.kind == ANOMALY_RESOLVED && drift(event).is_some();
    agent.wait_event(DEADLINE, is_drift_over).unwrap();
}

#[test]
fn pod_that_gets_a_squatted_address_is_rightful_with_ptp() {
    let cni = Cni::ptp("kindnet", "10.244.2.0/24").unwrap();
    squat(&cni, "squatptp", "10.244.2.3");
}

#[test]
fn pod_that_gets_a_squatted_address_is_rightful_on_a_bridge() {
    let cni = Cni::bridge("cbr0", "cni0", "10.244.3.0/24").unwrap();
    squat(&cni, "squatbr", "10.244.3.3");
}

#[test]
fn pod_that_gets_a_squatted_ipv6_address_is_rightful() {
    let cni = Cni::ptp("kindnet6", "fd00:10:244::/64").unwrap();
    squat(&cni, "squatv6", "fd00:10:244::3");
}
