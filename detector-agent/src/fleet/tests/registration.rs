//! Agents that register at one simulated server.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use detector_event::State;
use detector_fleet::{LocalClaim, Mode, Report, Subject, objects::Party};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{CLAIMS, CONFLICTS, NODES, settings, wait_for as wait};
use crate::{
    fleet::{
        ClaimUpdate, FleetSettings, Inbox,
        start::{FleetMessage, Surroundings, prepare},
    },
    health::Health,
    kube_client::{
        KubeClient,
        simulated::{Failure, SimulatedApi},
    },
    metrics::{FleetRequest, Metrics},
    persist::store::Store,
    process::clock,
};

/// A server with the custom resources, and nodes with these podCIDRs.
fn server(nodes: &[(&str, &str)]) -> SimulatedApi {
    let api = SimulatedApi::default();
    api.install(CLAIMS);
    api.install(CONFLICTS);
    for (node, cidr) in nodes {
        api.apply(NODES, node, &json!({"podCIDRs": [cidr]}));
    }
    api
}

/// One agent's side of the comparison.
struct Agent {
    inbox: Inbox,
    health: Health,
    metrics: Arc<Metrics>,
    reports: Arc<Mutex<Vec<Report>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Agent {
    fn start(api: &SimulatedApi, node: &str) -> Self {
        Self::with_store(api, node, None)
    }

    fn with_store(api: &SimulatedApi, node: &str, store: Option<Arc<Store>>) -> Self {
        let settings = FleetSettings {
            fleet_exclude: vec!["10.99.0.0/16".parse().unwrap()],
            ..settings()
        };
        let health = Health::default();
        let metrics = Arc::new(Metrics::new());
        let reports = Arc::new(Mutex::new(Vec::new()));
        let around = Surroundings {
            node: node.to_owned(),
            kube: Some(KubeClient::simulated(api)),
            store,
            metrics: Arc::clone(&metrics),
            health: &health,
        };
        let received = Arc::clone(&reports);
        let emit = move |message| match message {
            FleetMessage::Report(report) => received.lock().unwrap().push(*report),
            FleetMessage::Restored(_) => {}
        };
        let (thread, inbox) = prepare(&settings, around, emit).unwrap();
        let task = tokio::spawn(thread.run());
        Self {
            inbox,
            health,
            metrics,
            reports,
            task,
        }
    }

    fn claim(&self, address: &str, pod: &str) {
        let claim = LocalClaim {
            party: Party {
                device: format!("veth-{pod}"),
                namespace: "default".to_owned(),
                pod: pod.to_owned(),
                ..Party::default()
            },
            began: clock::now(),
            terminating: false,
            rightful: None,
            mode: Mode::Register,
        };
        self.send(address, Some(claim));
    }

    fn send(&self, address: &str, claim: Option<LocalClaim>) {
        let subject: Subject = address.parse().unwrap();
        self.inbox.send(ClaimUpdate { subject, claim });
    }

    fn part(&self) -> (State, String) {
        let part = self.health.report().pop().unwrap();
        (part.state, part.detail)
    }

    async fn stop(self) {
        self.inbox.close();
        self.task.await.unwrap();
    }
}

fn holder(api: &SimulatedApi, name: &str) -> Option<String> {
    let claim = api.object(CLAIMS, name)?;
    Some(claim["spec"]["node"].as_str()?.to_owned())
}

fn is_held_by(api: &SimulatedApi, name: &str, node: &str) -> bool {
    holder(api, name).as_deref() == Some(node)
}

#[tokio::test(start_paused = true)]
async fn claims_and_ranges_are_registered_and_released() {
    let api = server(&[("a", "10.244.1.0/24"), ("b", "10.99.2.0/24")]);
    let (a, b) = (Agent::start(&api, "a"), Agent::start(&api, "b"));
    a.claim("10.244.1.5", "web");
    a.inbox.complete();
    b.inbox.complete();
    wait(5, "registration", || {
        is_held_by(&api, "10.244.1.5", "a") && is_held_by(&api, "10.244.1.0-24", "a")
    })
    .await;
    let range = api.object(CLAIMS, "10.244.1.0-24").unwrap();
    assert_eq!(range["spec"]["source"], "podCIDR");
    assert_eq!(holder(&api, "10.99.2.0-24"), None, "it is excluded");
    wait(5, "health", || a.part().0 == State::Works).await;
    assert_eq!(a.part().1, "2 addresses and ranges registered");
    assert_eq!(a.metrics.fleet_claims.get(), 2);
    a.send("10.244.1.5", None);
    wait(5, "release", || holder(&api, "10.244.1.5").is_none()).await;
    // The Node gets another range.
    api.apply(NODES, "a", &json!({"podCIDRs": ["10.244.7.0/24"]}));
    wait(2, "another range", || {
        holder(&api, "10.244.1.0-24").is_none() && is_held_by(&api, "10.244.7.0-24", "a")
    })
    .await;
    assert!(a.reports.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn same_address_on_two_nodes_is_reported_by_one_of_them() {
    let api = server(&[("a", "10.244.1.0/24"), ("b", "10.244.2.0/24")]);
    let (a, b) = (Agent::start(&api, "a"), Agent::start(&api, "b"));
    for (agent, pod) in [(&a, "web"), (&b, "checkout")] {
        agent.claim("10.244.1.5", pod);
        agent.inbox.complete();
    }
    let reporters = |resolved: bool| {
        let is_it = |report: &&Report| report.is_reporter && report.is_resolved == resolved;
        let count = |agent: &Agent| agent.reports.lock().unwrap().iter().filter(is_it).count();
        (count(&a), count(&b))
    };
    wait(10, "report", || reporters(false) != (0, 0)).await;
    sleep(Duration::from_secs(10)).await;
    assert_eq!(reporters(false).0.min(1) + reporters(false).1.min(1), 1);
    b.send("10.244.1.5", None);
    wait(10, "end", || {
        let object = api.object(CONFLICTS, "10.244.1.5").unwrap();
        reporters(true) != (0, 0) && object["spec"]["state"] == "Resolved"
    })
    .await;
    wait(10, "holder", || is_held_by(&api, "10.244.1.5", "a")).await;
}

#[tokio::test(start_paused = true)]
async fn conflict_that_is_over_is_kept_for_an_hour_by_the_agent_that_ended_it() {
    let api = server(&[("a", "10.244.1.0/24"), ("b", "10.244.2.0/24")]);
    let (a, b) = (Agent::start(&api, "a"), Agent::start(&api, "b"));
    a.inbox.complete();
    b.inbox.complete();
    let state = || {
        let object = api.object(CONFLICTS, "10.244.1.5")?;
        Some(object["spec"]["state"].as_str().unwrap().to_owned())
    };
    let is = |wanted: &'static str| move || state().as_deref() == Some(wanted);
    a.claim("10.244.1.5", "web");
    wait(5, "claim", || is_held_by(&api, "10.244.1.5", "a")).await;
    b.claim("10.244.1.5", "cart");
    wait(5, "conflict", is("Active")).await;
    b.send("10.244.1.5", None);
    wait(5, "end", is("Resolved")).await;
    let kept = api.object(CONFLICTS, "10.244.1.5").unwrap();
    let active = &kept["status"]["conditions"][0];
    assert_eq!(
        (&active["type"], &active["status"]),
        (&json!("Active"), &json!("False"))
    );
    let labels = kept["metadata"]["labels"].as_object().unwrap();
    assert!(labels.contains_key("node.ipconflict.io/b"), "{labels:?}");
    assert!(!labels.contains_key("node.ipconflict.io/a"), "{labels:?}");
    let owners = kept["metadata"]["ownerReferences"].as_array().unwrap();
    assert!(owners.len() == 1 && owners[0]["name"] == "b", "{owners:?}");
    // Also by one that is started again meanwhile.
    sleep(Duration::from_secs(1_800)).await;
    b.stop().await;
    let b = Agent::start(&api, "b");
    b.inbox.complete();
    sleep(Duration::from_secs(1_700)).await;
    assert_eq!(state().as_deref(), Some("Resolved"));
    b.claim("10.244.1.5", "cart");
    wait(5, "next conflict", is("Active")).await;
    let raised = b.reports.lock().unwrap().len();
    assert_eq!(raised, 1, "the end of the first one is not repeated");
    b.send("10.244.1.5", None);
    wait(5, "end", is("Resolved")).await;
    wait(3_610, "deletion", || state().is_none()).await;
    a.stop().await;
    b.stop().await;
}

#[tokio::test(start_paused = true)]
async fn server_that_is_away_is_asked_rarely_and_caught_up_with() {
    let api = server(&[("a", "10.244.1.0/24")]);
    let a = Agent::start(&api, "a");
    a.inbox.complete();
    wait(5, "registration", || is_held_by(&api, "10.244.1.0-24", "a")).await;
    api.set_down(true);
    for n in 0..200 {
        a.claim(&format!("10.244.1.{n}"), "web");
    }
    sleep(Duration::from_secs(60)).await;
    assert_eq!(a.part().0, State::Failed);
    let before = api.requests().len();
    sleep(Duration::from_secs(600)).await;
    let requests = api.requests().len() - before;
    assert!(requests < 80, "{requests} requests in ten minutes");
    api.set_down(false);
    wait(120, "all claims", || {
        (0..200).all(|n| is_held_by(&api, &format!("10.244.1.{n}"), "a"))
    })
    .await;
    // The watch may pause for half a minute.
    wait(60, "health", || a.part().0 == State::Works).await;
}

#[tokio::test(start_paused = true)]
async fn pace_holds_also_for_many_claims_at_once() {
    let api = server(&[("a", "10.244.0.0/16")]);
    let a = Agent::start(&api, "a");
    for n in 0..250 {
        a.claim(&format!("10.244.1.{n}"), "web");
    }
    a.inbox.complete();
    let start = Instant::now();
    wait(30, "all claims", || {
        (0..250).all(|n| is_held_by(&api, &format!("10.244.1.{n}"), "a"))
    })
    .await;
    let posts = api.requests();
    let posts = posts.iter().filter(|(_, what)| what.starts_with("POST"));
    let within = |seconds| {
        let until = start + Duration::from_secs(seconds);
        posts.clone().filter(|(at, _)| *at < until).count()
    };
    assert!(
        within(1) <= 120 && within(5) <= 200,
        "{} {}",
        within(1),
        within(5)
    );
}

#[tokio::test(start_paused = true)]
async fn answer_that_was_lost_registers_nothing_twice() {
    let api = server(&[("a", "10.244.1.0/24")]);
    let a = Agent::start(&api, "a");
    a.inbox.complete();
    wait(5, "registration", || is_held_by(&api, "10.244.1.0-24", "a")).await;
    api.fail_next(Failure {
        code: None,
        retry_after: None,
        takes_effect: true,
    });
    a.claim("10.244.1.5", "web");
    wait(10, "registration", || a.metrics.fleet_claims.get() == 2).await;
    assert!(is_held_by(&api, "10.244.1.5", "a"));
    assert_eq!(api.object(CONFLICTS, "10.244.1.5"), None);
}

#[tokio::test(start_paused = true)]
async fn claims_of_the_previous_run_are_released_after_the_first_snapshot() {
    let api = server(&[("a", "10.244.1.0/24")]);
    let store = Arc::new(Store::in_memory());
    let a = Agent::with_store(&api, "a", Some(Arc::clone(&store)));
    a.claim("10.244.1.5", "web");
    a.claim("10.244.1.6", "checkout");
    a.inbox.complete();
    wait(5, "registration", || a.metrics.fleet_claims.get() == 3).await;
    a.stop().await;
    assert!(is_held_by(&api, "10.244.1.5", "a"), "it stays registered");
    let a = Agent::with_store(&api, "a", Some(store));
    a.claim("10.244.1.6", "checkout");
    sleep(Duration::from_secs(60)).await;
    assert!(
        is_held_by(&api, "10.244.1.5", "a"),
        "the pod may still come"
    );
    a.inbox.complete();
    wait(10, "release", || holder(&api, "10.244.1.5").is_none()).await;
    assert!(is_held_by(&api, "10.244.1.6", "a"));
    assert!(is_held_by(&api, "10.244.1.0-24", "a"));
}

#[tokio::test(start_paused = true)]
async fn objects_that_cannot_be_used_stop_nothing_and_are_left_alone() {
    let api = server(&[("a", "10.244.1.0/24")]);
    let claimants = json!([{"node": "a", "bootId": "x"}, {"node": "b", "bootId": "x"}]);
    let conflict = |address: &str, state: &str| {
        json!({
            "address": address,
            "conflictId": "00000000000000000000000000000007",
            "kind": "duplicate",
            "scope": "fleet",
            "state": state,
            "confidence": "certain",
            "claimants": claimants,
        })
    };
    let objects = [
        (CONFLICTS, "10.244.1.7", conflict("10.244.1.7", "Unheard")),
        (CONFLICTS, "10.244.1.8", conflict("10.244.1.5", "Active")),
        (CONFLICTS, "10.244.1.9", conflict("everywhere", "Active")),
        (CONFLICTS, "nonsense", json!({"claimants": "all"})),
        (CONFLICTS, "empty", json!(null)),
        (
            CLAIMS,
            "10.244.1.7",
            json!({"address": "10.244.1.5", "node": "a"}),
        ),
        (CLAIMS, "10.244.1.8", json!({"node": 7})),
    ];
    for (path, name, spec) in &objects {
        api.apply(path, name, spec);
    }
    let before = objects
        .clone()
        .map(|(path, name, _)| api.object(path, name));
    let a = Agent::start(&api, "a");
    for (number, pod) in [(5, "web"), (7, "cart"), (8, "checkout"), (9, "db")] {
        a.claim(&format!("10.244.1.{number}"), pod);
    }
    a.inbox.complete();
    wait(60, "registration", || {
        is_held_by(&api, "10.244.1.5", "a") && is_held_by(&api, "10.244.1.9", "a")
    })
    .await;
    // The same while it watches, and once the pods are gone.
    for (path, name, spec) in &objects[..5] {
        api.apply(path, &format!("{name}-1"), spec);
    }
    for number in [7, 8] {
        a.send(&format!("10.244.1.{number}"), None);
    }
    a.claim("10.244.1.6", "late");
    wait(60, "registration", || is_held_by(&api, "10.244.1.6", "a")).await;
    assert_eq!(
        objects.map(|(path, name, _)| api.object(path, name)),
        before
    );
    assert!(a.reports.lock().unwrap().is_empty());
    a.stop().await;
}

#[tokio::test(start_paused = true)]
async fn range_that_is_assigned_after_the_start_is_registered_at_once() {
    let api = server(&[]);
    api.apply(NODES, "a", &json!({}));
    let a = Agent::start(&api, "a");
    a.claim("10.244.1.5", "web");
    a.inbox.complete();
    wait(5, "registration", || is_held_by(&api, "10.244.1.5", "a")).await;
    api.apply(NODES, "a", &json!({"podCIDRs": ["10.244.1.0/24"]}));
    wait(1, "range", || is_held_by(&api, "10.244.1.0-24", "a")).await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_shown_to_work_before_the_first_list() {
    let api = server(&[("a", "10.244.1.0/24")]);
    let a = Agent::start(&api, "a");
    a.inbox.complete();
    api.fail_all(CONFLICTS);
    wait(5, "registration", || is_held_by(&api, "10.244.1.0-24", "a")).await;
    let (state, detail) = a.part();
    assert_eq!(state, State::Starting, "{detail}");
    wait(60, "failure", || a.part().0 == State::Failed).await;
    let failures = FleetRequest::new("watch", "failed");
    assert!(a.metrics.fleet_requests.get_or_create(&failures).get() > 0);
    let works = FleetRequest::new("watch", "ok");
    assert_eq!(a.metrics.fleet_requests.get_or_create(&works).get(), 0);
}
