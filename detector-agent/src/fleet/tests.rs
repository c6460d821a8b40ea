//! One agent at a simulated server that is not as it should be.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod local_conflicts;
mod registration;

use std::{sync::Arc, time::Duration};

use detector_event::State;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{
    FleetMode, FleetSettings, Inbox,
    start::{Surroundings, prepare},
};
use crate::{
    health::Health,
    kube_client::{KubeClient, simulated::SimulatedApi},
    metrics::Metrics,
};

const CLAIMS: &str = "/apis/ipconflict.io/v1alpha1/ipclaims";
const CONFLICTS: &str = "/apis/ipconflict.io/v1alpha1/ipconflicts";
const NODES: &str = "/api/v1/nodes";

/// A server with the custom resources, and the node `a`.
fn server() -> SimulatedApi {
    let api = SimulatedApi::default();
    api.install(CLAIMS);
    api.install(CONFLICTS);
    api.apply(NODES, "a", &json!({"podCIDRs": ["10.244.1.0/24"]}));
    api
}

fn settings() -> FleetSettings {
    FleetSettings {
        fleet: FleetMode::Kubernetes,
        fleet_handover: Duration::from_secs(15),
        fleet_exclude: Vec::new(),
        fleet_rate: 20,
    }
}

/// One agent's side of the comparison.
struct Agent {
    inbox: Inbox,
    health: Health,
    task: tokio::task::JoinHandle<()>,
}

impl Agent {
    fn start(api: &SimulatedApi) -> Self {
        Self::start_on(api, "a")
    }

    fn start_on(api: &SimulatedApi, node: &str) -> Self {
        let health = Health::default();
        let around = Surroundings {
            node: node.to_owned(),
            kube: Some(KubeClient::simulated(api)),
            store: None,
            metrics: Arc::new(Metrics::new()),
            health: &health,
        };
        let (thread, inbox) = prepare(&settings(), around, |_| {}).unwrap();
        let task = tokio::spawn(thread.run());
        Self {
            inbox,
            health,
            task,
        }
    }

    fn state(&self) -> State {
        self.health.report().pop().unwrap().state
    }

    fn detail(&self) -> String {
        self.health.report().pop().unwrap().detail
    }
}

/// Waits up to this many simulated seconds.
async fn wait(seconds: u64, agent: &Agent, state: State) {
    let until = Instant::now() + Duration::from_secs(seconds);
    while agent.state() != state {
        let found = agent.detail();
        assert!(
            Instant::now() < until,
            "not {state:?} within {seconds} s: {found}"
        );
        sleep(Duration::from_millis(50)).await;
    }
}

/// Waits up to this many simulated seconds.
async fn wait_for(seconds: u64, what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(seconds);
    while !is_so() {
        assert!(Instant::now() < until, "no {what} within {seconds} s");
        sleep(Duration::from_millis(50)).await;
    }
}

/// The requests in this many simulated seconds.
async fn requests(api: &SimulatedApi, seconds: u64) -> usize {
    let before = api.requests().len();
    sleep(Duration::from_secs(seconds)).await;
    api.requests().len() - before
}

#[tokio::test(start_paused = true)]
async fn server_that_is_away_is_asked_rarely_and_found_again() {
    let api = server();
    let agent = Agent::start(&api);
    wait(5, &agent, State::Works).await;
    assert!(requests(&api, 250).await < 5, "it is quiet");
    api.set_down(true);
    wait(60, &agent, State::Failed).await;
    assert!(
        agent.detail().contains("cannot be used"),
        "{}",
        agent.detail()
    );
    let sent = requests(&api, 600).await;
    assert!((1..80).contains(&sent), "{sent} requests in ten minutes");
    api.set_down(false);
    wait(120, &agent, State::Works).await;
    agent.inbox.close();
    agent.task.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn missing_custom_resources_are_shown_and_found_later() {
    let api = server();
    api.uninstall(CLAIMS);
    api.uninstall(CONFLICTS);
    let agent = Agent::start(&api);
    wait(10, &agent, State::Failed).await;
    assert!(
        agent.detail().contains("not installed"),
        "{}",
        agent.detail()
    );
    let sent = requests(&api, 1800).await;
    assert!((5..60).contains(&sent), "{sent} requests in half an hour");
    api.install(CLAIMS);
    api.install(CONFLICTS);
    wait(200, &agent, State::Works).await;
}

#[tokio::test(start_paused = true)]
async fn node_that_does_not_exist_is_shown_and_found_later() {
    let api = server();
    api.uninstall(NODES);
    api.install(NODES);
    let agent = Agent::start(&api);
    wait(10, &agent, State::Failed).await;
    assert!(agent.detail().contains("the Node a"), "{}", agent.detail());
    let sent = requests(&api, 600).await;
    assert!(sent < 10, "{sent} requests in ten minutes");
    api.apply(NODES, "a", &json!({}));
    wait(1, &agent, State::Works).await;
}

#[test]
fn without_the_kubernetes_api_only_health_shows_it() {
    let health = Health::default();
    let around = Surroundings {
        node: "a".to_owned(),
        kube: None,
        store: None,
        metrics: Arc::new(Metrics::new()),
        health: &health,
    };
    let fleet = super::start(&settings(), around, |_| {}).unwrap();
    assert!(fleet.is_none());
    let part = health.report().pop().unwrap();
    assert_eq!(part.state, State::Failed);
    assert!(part.detail.contains("--kube"), "{}", part.detail);
}
