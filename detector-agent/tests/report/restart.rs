//! What webhooks get after a restart.

use std::{collections::BTreeSet, fs};

use detector_testkit::{
    Agent, AgentCommand, DEADLINE, Node, PodSpec, ReceivedEvent, ReceivedRequest, Receiver,
    cni::cache_result_of, http::TestClient, until,
};
use serde_json::Value;

use crate::AGENT;

const ADDRESSES: u8 = 12;

fn subjects(posted: &[ReceivedRequest]) -> Vec<String> {
    let accepted = posted.iter().filter(|post| post.is_accepted());
    let subject = |post: &ReceivedRequest| Some(post.json().ok()?["subject"].as_str()?.to_owned());
    accepted.filter_map(subject).collect()
}

/// Whether a conflict has both pods, and what the records have about their claims.
fn is_known(conflict: &Value) -> bool {
    let mut claimants = conflict["claimants"].as_array().into_iter().flatten();
    claimants.all(|claimant| claimant["pod"]["name"].is_string() && claimant["rightful"] == true)
}

/// Waits until that is so for every open conflict.
fn wait_known(client: &TestClient<'_>) {
    until(DEADLINE, "all claimants to be known", || {
        let list = client.get("/api/v1/conflicts?limit=100")?.json()?;
        let conflicts = list["conflicts"].as_array().cloned().unwrap_or_default();
        let known = conflicts.iter().filter(|conflict| is_known(conflict));
        anyhow::ensure!(known.count() == usize::from(ADDRESSES), "{list}");
        Ok(())
    })
    .unwrap();
}

/// How many addresses have an event line in which all is known.
fn known_addresses(events: &[ReceivedEvent]) -> usize {
    let events = events.iter().map(|received| &received.event);
    let known = events.filter(|event| is_known(&event.data));
    let known: BTreeSet<_> = known.map(|event| event.subject.as_str()).collect();
    known.len()
}

#[test]
fn restart_sends_no_update_without_a_change() {
    let node = Node::new("quietrestart").unwrap();
    let receiver = node.run_in(Receiver::start).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::create_dir(path("cache")).unwrap();
    let text = format!(
        "state-dir: {}\ncni-cache-dir: {}\nwebhooks: [{{name: hook, url: '{}'}}]\n",
        path("state").display(),
        path("cache").display(),
        receiver.url(),
    );
    fs::write(path("config.yaml"), text).unwrap();
    let command = AgentCommand::run(AGENT)
        .arg("--config")
        .arg(path("config.yaml"));
    let specs = ["vetha", "vethb"].map(|device| {
        (1..=ADDRESSES).fold(PodSpec::new(device), |spec, n| {
            spec.address(format!("10.244.2.{n}/32"))
        })
    });
    let pods = node.add_pods(&specs).unwrap();
    for (name, pod) in ["a", "b"].iter().zip(&pods) {
        cache_result_of(&path("cache"), pod, ("default", name), &pod.addresses()).unwrap();
    }
    let mut agent = Agent::start_ready(&node, &command).unwrap();
    let client = TestClient::of_agent(&node);
    agent
        .wait_until(DEADLINE, |events| {
            known_addresses(events) == usize::from(ADDRESSES)
        })
        .unwrap();
    let idle = r#"ipconflict_outbox_pending{sink="hook"} 0"#;
    let wait_idle = || {
        until(DEADLINE, "everything to be delivered", || {
            let metrics = client.get("/metrics")?.body;
            anyhow::ensure!(metrics.lines().any(|line| line == idle), "{metrics}");
            Ok(())
        })
        .unwrap();
    };
    wait_idle();
    agent.terminate(DEADLINE).unwrap();
    let before = subjects(&receiver.requests()).len();
    assert!(before >= usize::from(ADDRESSES));

    let agent = Agent::start_ready(&node, &command).unwrap();
    wait_known(&client);
    for pod in &pods {
        pod.add_address("10.244.3.1/32").unwrap();
    }
    let is_new = |subjects: &[String]| subjects.iter().any(|subject| subject == "10.244.3.1");
    receiver
        .wait_until(DEADLINE, |posted| is_new(&subjects(posted)))
        .unwrap();
    wait_idle();
    let after = subjects(&receiver.requests()).split_off(before);
    let others: Vec<_> = after.iter().filter(|s| *s != "10.244.3.1").collect();
    assert!(others.is_empty(), "{others:?}");
    drop(agent);
}
