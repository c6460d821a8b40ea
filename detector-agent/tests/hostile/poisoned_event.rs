//! An event that its receiver never accepts, because of something a pod chose: it costs the other pods' events nothing.

use std::{fs, path::Path};

use anyhow::ensure;
use detector_testkit::{
    Agent, AgentCommand, Behaviour, DEADLINE, Node, Pod, PodSpec, ReceivedRequest, Receiver,
    http::TestClient, until,
};

use crate::AGENT;

const POISONED: [&str; 4] = ["10.244.2.1", "10.244.2.2", "10.244.2.3", "10.244.2.4"];

fn subject(request: &ReceivedRequest) -> String {
    request.json().unwrap()["subject"]
        .as_str()
        .unwrap()
        .to_owned()
}

fn has_accepted(posted: &[ReceivedRequest], address: &str) -> bool {
    let mut accepted = posted.iter().filter(|request| request.is_accepted());
    accepted.any(|request| subject(request) == address)
}

fn start(node: &Node, config: &Path) -> Agent {
    let command = AgentCommand::run(AGENT).arg("--config").arg(config);
    Agent::start_ready(node, &command).unwrap()
}

fn add_conflict(pods: &[Pod], address: &str) {
    for pod in pods {
        pod.add_address(&format!("{address}/32")).unwrap();
    }
}

#[test]
fn rejected_events_delay_no_others_and_survive_a_restart() {
    let node = Node::new("poison").unwrap();
    let receiver = node.run_in(Receiver::start).unwrap();
    receiver.set_handler(|request| {
        let is_poisoned = POISONED.contains(&subject(request).as_str());
        Behaviour::status(if is_poisoned { 422 } else { 204 })
    });
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("config.yaml");
    // A receiver that counts as failing would get nothing for half an hour.
    let text = format!(
        "state-dir: {}\nwebhooks:\n- {{name: hook, url: '{}', retry: {{first: 1h, longest: 1h}}}}\n",
        directory.path().display(),
        receiver.url()
    );
    fs::write(&config, text).unwrap();
    let pods = node
        .add_pods(&["vetha", "vethb"].map(PodSpec::new))
        .unwrap();
    let mut agent = start(&node, &config);
    for address in POISONED {
        add_conflict(&pods, address);
    }
    let posted = receiver.wait_until(DEADLINE, |posted| posted.len() == POISONED.len());
    let poisoned = posted.unwrap().swap_remove(0);
    let id = poisoned.header("webhook-id");
    let logged = agent.wait_log(DEADLINE, id).unwrap();
    assert!(
        logged.contains("422") && logged.contains("hook"),
        "{logged}"
    );

    add_conflict(&pods, "10.244.2.10");
    receiver
        .wait_until(DEADLINE, |posted| has_accepted(posted, "10.244.2.10"))
        .unwrap();
    let client = TestClient::of_agent(&node);
    until(DEADLINE, "the parked events to be shown", || {
        let metrics = client.get("/metrics")?.body;
        let count = POISONED.len();
        let parked = format!("ipconflict_outbox_parked{{sink=\"hook\"}} {count}\n");
        let pending = "ipconflict_outbox_pending{sink=\"hook\"} 0\n";
        ensure!(
            metrics.contains(&parked) && metrics.contains(pending),
            "{metrics}"
        );
        let ready = client.get("/readyz")?.body;
        ensure!(ready.contains("4 events not accepted"), "{ready}");
        Ok(())
    })
    .unwrap();

    agent.terminate(DEADLINE).unwrap();
    receiver.set_behaviour(Behaviour::status(204));
    let _agent = start(&node, &config);
    let posted = receiver
        .wait_until(DEADLINE, |posted| {
            POISONED.iter().all(|address| has_accepted(posted, address))
        })
        .unwrap();
    let accepted = posted.iter().filter(|request| request.is_accepted());
    let ids: Vec<_> = accepted
        .map(|request| request.header("webhook-id"))
        .collect();
    assert!(ids.contains(&id), "the same event: {ids:?}");
}
