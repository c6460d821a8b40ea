//! Conflicts within a node at a simulated server.

use std::time::Duration;

use detector_engine::ConflictScope;
use detector_fleet::{objects::ConflictSpec, samples::report};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{Agent, CLAIMS, CONFLICTS, NODES, server, wait_for};
use crate::{
    fleet::{ConflictUpdate, MAX_PUBLISHED},
    kube_client::simulated::SimulatedApi,
};

const NAME: &str = "10.244.1.5-0000002a";

/// A conflict within a node; the agent adds its own.
fn spec() -> ConflictSpec {
    let mut spec = report("10.244.1.5").conflict;
    spec.scope = ConflictScope::Node;
    spec.nodes = String::new();
    for claimant in &mut spec.claimants {
        claimant.party.node = String::new();
    }
    spec
}

fn send(agent: &Agent, name: &str, spec: Option<ConflictSpec>) {
    agent.inbox.send_conflict(ConflictUpdate {
        name: name.to_owned(),
        spec: spec.map(Box::new),
    });
}

fn object(api: &SimulatedApi, name: &str) -> Option<Value> {
    api.object(CONFLICTS, name)
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    wait_for(30, what, is_so).await;
}

#[tokio::test(start_paused = true)]
async fn conflict_within_the_node_is_published_in_its_name_and_withdrawn() {
    let api = server();
    let agent = Agent::start(&api);
    agent.inbox.complete();
    send(&agent, NAME, Some(spec()));
    until("object", || object(&api, NAME).is_some()).await;
    let found = object(&api, NAME).unwrap();
    assert_eq!(found["spec"]["nodes"], "a");
    for claimant in found["spec"]["claimants"].as_array().unwrap() {
        assert_eq!(claimant["node"], "a");
        assert_ne!(claimant["bootId"], "");
    }
    let owner = &found["metadata"]["ownerReferences"][0];
    assert_eq!(
        (&owner["kind"], &owner["name"]),
        (&json!("Node"), &json!("a"))
    );
    sleep(Duration::from_secs(600)).await;
    send(&agent, NAME, None);
    until("end", || object(&api, NAME).is_none()).await;
    sleep(Duration::from_secs(600)).await;
    let create = format!("POST {CONFLICTS}");
    let sent = api.requests().into_iter();
    // Without the query.
    let sent = sent.filter_map(|(_, what)| Some(what.split('?').next()?.to_owned()));
    let sent: Vec<_> = sent
        .filter(|what| what.contains(NAME) || *what == create)
        .collect();
    assert_eq!(sent, [create, format!("DELETE {CONFLICTS}/{NAME}")]);
}

#[tokio::test(start_paused = true)]
async fn what_an_earlier_run_left_goes_and_the_conflicts_of_other_nodes_stay() {
    let api = server();
    api.apply(NODES, "b", &json!({}));
    let (a, b) = (Agent::start_on(&api, "a"), Agent::start_on(&api, "b"));
    b.inbox.complete();
    send(&a, NAME, Some(spec()));
    send(&a, "10.244.1.5-left", Some(spec()));
    send(&b, "10.244.1.5-b", Some(spec()));
    let names = ["10.244.1.5-left", "10.244.1.5-b", NAME];
    until("objects", || {
        names.iter().all(|n| object(&api, n).is_some())
    })
    .await;
    a.inbox.close();
    a.task.await.unwrap();
    let a = Agent::start_on(&api, "a");
    send(&a, NAME, Some(spec()));
    sleep(Duration::from_secs(60)).await;
    assert!(
        object(&api, "10.244.1.5-left").is_some(),
        "it may still be found"
    );
    a.inbox.complete();
    until("end", || object(&api, "10.244.1.5-left").is_none()).await;
    assert!(object(&api, NAME).is_some());
    assert!(object(&api, "10.244.1.5-b").is_some());
}

#[tokio::test(start_paused = true)]
async fn conflicts_that_come_and_go_leave_the_requests_to_the_comparison_between_nodes() {
    let api = server();
    let agent = Agent::start(&api);
    agent.inbox.complete();
    until("registration", || {
        api.object(CLAIMS, "10.244.1.0-24").is_some()
    })
    .await;
    let before = api.requests().len();
    for round in 0..600 {
        for n in 0..MAX_PUBLISHED {
            send(
                &agent,
                &format!("10.244.1.{n}-x"),
                (round % 2 == 0).then(spec),
            );
        }
        sleep(Duration::from_secs(1)).await;
    }
    let sent = api.requests().len() - before;
    assert!(sent <= 128 + 300 + 10, "{sent} requests in ten minutes");
}

#[tokio::test(start_paused = true)]
async fn server_that_was_away_gets_the_present_state() {
    let api = server();
    let agent = Agent::start(&api);
    agent.inbox.complete();
    send(&agent, NAME, Some(spec()));
    until("object", || object(&api, NAME).is_some()).await;
    api.set_down(true);
    send(&agent, NAME, None);
    send(&agent, "10.244.1.6-x", Some(spec()));
    sleep(Duration::from_secs(120)).await;
    api.set_down(false);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(object(&api, NAME), None);
    assert!(object(&api, "10.244.1.6-x").is_some());
}
