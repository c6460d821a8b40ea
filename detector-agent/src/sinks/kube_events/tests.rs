//! What is posted about conflicts and anomalies, with virtual time.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{sync::Arc, time::Duration};

use detector_engine::{AnomalyId, AnomalyKind, Network};
use detector_event::{
    AnyEvent, Change, ClaimantData, Pod, Role, State, SubjectState, Via, samples,
};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::{
    KubeEvents, SINK,
    ledger::{Ledger, Request, RequestKind},
    pending::MAX_PENDING,
};
use crate::{
    health::Health,
    kube_client::{KubeClient, simulated::SimulatedApi},
    metrics::{Delivery, Metrics},
    pods::IS_THE_NODE,
    sinks::EventSink as _,
};

const SECOND: Duration = Duration::from_secs(1);

fn pod(name: &str) -> Option<Arc<Pod>> {
    let mut pod = Pod::named("shop", name, Via::Cri);
    pod.uid = Some(format!("uid-{name}"));
    Some(Arc::new(pod))
}

fn claimant(device: &str, name: Option<&str>) -> ClaimantData {
    ClaimantData {
        pod: name.and_then(pod),
        ..samples::claimant(device, None)
    }
}

fn conflict(change: Change, id: &str, claimants: &[(&str, Option<&str>)]) -> AnyEvent {
    let mut event = samples::event("1", change, id, "10.244.2.10");
    let claimants = claimants.iter().map(|(device, pod)| claimant(device, *pod));
    event.data.claimants = claimants.collect();
    event.data.traffic_goes_to = Some("vetha".to_owned());
    event.into()
}

fn anomaly(change: Change, kind: AnomalyKind, name: Option<&str>) -> AnyEvent {
    let mut event = samples::drift("10.244.2.10");
    event.data.kind = kind;
    if change == Change::Resolved {
        event.data.state = SubjectState::Resolved;
    }
    event.data.pod = name.and_then(pod);
    if kind == AnomalyKind::IpamLeak {
        event.data.device = None;
    }
    AnyEvent::from(event).with_change(change)
}

/// A ledger whose requests are all granted.
#[derive(Default)]
struct World {
    ledger: Ledger,
    last: Vec<Request>,
}

impl World {
    /// The requests because of an event: what, reason, object.
    fn apply(&mut self, event: &AnyEvent, now: Instant) -> Vec<String> {
        let requests = self.ledger.apply(event, now);
        self.grant(requests, now)
    }

    fn take_due(&mut self, now: Instant) -> Vec<String> {
        let requests = self.ledger.take_due(now);
        self.grant(requests, now)
    }

    fn grant(&mut self, requests: Vec<Request>, now: Instant) -> Vec<String> {
        for request in &requests {
            self.ledger.posted(request, now);
        }
        self.last = requests;
        self.last.iter().map(text).collect()
    }

    fn message(&self, position: usize) -> &str {
        &self.last[position].notice.message
    }
}

fn text(request: &Request) -> String {
    let what = match request.kind {
        RequestKind::Create => "new".to_owned(),
        RequestKind::Repeat(count) => format!("x{count}"),
        RequestKind::Correct => "corrected".to_owned(),
    };
    let object = request.notice.regarding.name.as_deref().unwrap();
    format!("{what} {} on {object}", request.notice.reason)
}

const NONE: [&str; 0] = [];

#[test]
fn conflict_of_known_pods_is_posted_at_once() {
    let mut world = World::default();
    let now = Instant::now();
    let both = [("vetha", Some("a")), ("vethb", Some("b"))];
    let raised = conflict(Change::Raised, "c", &both);
    assert_eq!(
        world.apply(&raised, now),
        ["new IPConflict on a", "new IPConflict on b"]
    );
    for (position, other, traffic) in [
        (0, "shop/b on vethb", "this pod"),
        (1, "shop/a on vetha", "to vetha"),
    ] {
        let message = world.message(position);
        assert!(
            message.contains(other) && message.contains(traffic),
            "{message}"
        );
        let related = world.last[position].notice.related.as_ref().unwrap();
        assert!(other.contains(related.name.as_deref().unwrap()));
    }
    let updated = conflict(Change::Updated, "c", &both);
    assert_eq!(world.apply(&updated, now), NONE);
    let resolved = conflict(Change::Resolved, "c", &both);
    assert_eq!(
        world.apply(&resolved, now),
        ["new IPConflictResolved on a", "new IPConflictResolved on b"]
    );
    assert_eq!(world.apply(&resolved, now), NONE);
    assert_eq!(world.ledger.next_due(), None);
}

#[test]
fn event_waits_two_seconds_for_names() {
    let mut world = World::default();
    let now = Instant::now();
    let one = [("vetha", Some("a")), ("vethb", None)];
    let both = [("vetha", Some("a")), ("vethb", Some("b"))];
    assert_eq!(world.apply(&conflict(Change::Raised, "c", &one), now), NONE);
    assert_eq!(world.ledger.next_due(), Some(now + 2 * SECOND));
    // The name comes in time.
    assert_eq!(
        world.apply(&conflict(Change::Updated, "c", &both), now + SECOND),
        ["new IPConflict on a", "new IPConflict on b"]
    );
    assert!(
        world
            .last
            .iter()
            .all(|r| !r.notice.message.contains("unknown"))
    );

    // The name comes too late.
    assert_eq!(world.apply(&conflict(Change::Raised, "d", &one), now), NONE);
    assert_eq!(world.take_due(now + SECOND), NONE);
    assert_eq!(world.take_due(now + 2 * SECOND), ["x2 IPConflict on a"]);
    assert!(world.message(0).contains("an unknown pod on vethb"));
    assert_eq!(
        world.apply(&conflict(Change::Updated, "d", &both), now + 3 * SECOND),
        ["corrected IPConflict on a", "x2 IPConflict on b"]
    );
    assert!(world.message(0).contains("shop/b on vethb"));
    assert_eq!(
        world.apply(&conflict(Change::Updated, "d", &one), now + 4 * SECOND),
        NONE
    );
}

#[test]
fn conflict_that_ends_while_it_waits_has_both_events() {
    let mut world = World::default();
    let now = Instant::now();
    let one = [("vetha", Some("a")), ("vethb", None)];
    world.apply(&conflict(Change::Raised, "c", &one), now);
    assert_eq!(
        world.apply(&conflict(Change::Resolved, "c", &one), now),
        ["new IPConflict on a", "new IPConflictResolved on a"]
    );
    assert_eq!(world.take_due(now + 3 * SECOND), NONE);
}

#[test]
fn conflict_between_unknown_pods_is_on_the_node() {
    let mut world = World::default();
    let now = Instant::now();
    let none = [("vetha", None), ("vethb", None)];
    let both = [("vetha", Some("a")), ("vethb", Some("b"))];
    assert_eq!(
        world.apply(&conflict(Change::Raised, "c", &none), now),
        NONE
    );
    assert_eq!(
        world.take_due(now + 2 * SECOND),
        ["new IPConflict on node-1"]
    );
    let node = &world.last[0].notice;
    assert_eq!(
        (node.namespace(), node.regarding.uid.as_deref()),
        ("default", Some("node-1"))
    );
    assert!(
        node.message
            .contains("an unknown pod on vetha and an unknown pod on vethb"),
        "{node:?}"
    );
    assert_eq!(
        world.apply(&conflict(Change::Updated, "c", &both), now + 3 * SECOND),
        [
            "new IPConflict on a",
            "new IPConflict on b",
            "corrected IPConflict on node-1"
        ]
    );
    assert!(
        world
            .message(2)
            .contains("shop/a on vetha and shop/b on vethb")
    );
    assert_eq!(
        world
            .apply(&conflict(Change::Resolved, "c", &both), now)
            .len(),
        3
    );
}

#[test]
fn conflict_with_the_node_waits_for_no_pod_of_it() {
    let mut world = World::default();
    let mut event = samples::event("1", Change::Raised, "c", "10.244.2.10");
    let host = ClaimantData {
        pod_unknown_because: Some(IS_THE_NODE.into()),
        ..claimant("eth0", None)
    };
    event.data.claimants = vec![claimant("vetha", Some("a")), host];
    assert_eq!(
        world.apply(&event.into(), Instant::now()),
        ["new IPConflict on a"]
    );
    assert!(world.message(0).contains("the node itself on eth0"));
}

#[test]
fn anomaly_is_on_its_pod_else_on_the_node() {
    let now = Instant::now();
    for (kind, reason, ended) in [
        (AnomalyKind::IpamDrift, "IPAMDrift", "IPAMDriftResolved"),
        (
            AnomalyKind::GatewayUnresolved,
            "GatewayUnresolved",
            "GatewayUnresolvedEnded",
        ),
        (
            AnomalyKind::RouteAstray,
            "RouteAstray",
            "RouteAstrayResolved",
        ),
        (
            AnomalyKind::AddressUnusable,
            "AddressUnusable",
            "AddressUnusableResolved",
        ),
        (
            AnomalyKind::AddressSweep,
            "AddressSweep",
            "AddressSweepEnded",
        ),
        (AnomalyKind::RogueRouter, "RogueRouter", "RogueRouterEnded"),
    ] {
        let mut world = World::default();
        let raised = anomaly(Change::Raised, kind, Some("a"));
        assert_eq!(world.apply(&raised, now), [format!("new {reason} on a")]);
        let resolved = anomaly(Change::Resolved, kind, Some("a"));
        assert_eq!(world.apply(&resolved, now), [format!("new {ended} on a")]);

        let mut world = World::default();
        assert_eq!(world.apply(&anomaly(Change::Raised, kind, None), now), NONE);
        assert_eq!(
            world.take_due(now + 2 * SECOND),
            [format!("new {reason} on node-1")]
        );
        let shown = anomaly(Change::Updated, kind, Some("a"));
        assert_eq!(
            world.apply(&shown, now + 3 * SECOND),
            [
                format!("new {reason} on a"),
                format!("corrected {reason} on node-1")
            ]
        );
        assert!(world.message(1).contains("shop/a"));
    }
    let mut world = World::default();
    let leak = anomaly(Change::Raised, AnomalyKind::IpamLeak, None);
    assert_eq!(world.apply(&leak, now), ["new IPAMLeak on node-1"]);
}

#[test]
fn restored_conflict_has_the_same_names_and_waits_longer() {
    let now = Instant::now();
    let both = [("vetha", Some("a")), ("vethb", Some("b"))];
    let names = |event: &AnyEvent| -> Vec<_> {
        let requests = Ledger::default().apply(event, now);
        requests.into_iter().map(|r| r.name).collect()
    };
    let before = names(&conflict(Change::Raised, "c", &both));
    assert_eq!(before, names(&conflict(Change::Updated, "c", &both)));
    assert_ne!(before[0], before[1]);
    assert_ne!(before, names(&conflict(Change::Raised, "d", &both)));
    let mut world = World::default();
    let none = [("vetha", None), ("vethb", None)];
    world.apply(&conflict(Change::Updated, "c", &none), now);
    assert_eq!(world.ledger.next_due(), Some(now + 30 * SECOND));
}

#[test]
fn swept_conflict_has_no_events() {
    let mut world = World::default();
    let now = Instant::now();
    let both = [("vetha", Some("a")), ("vethb", Some("b"))];
    for change in [Change::Raised, Change::Updated, Change::Resolved] {
        let AnyEvent::Conflict(event) = conflict(change, "c", &both) else {
            unreachable!()
        };
        let mut event = Arc::unwrap_or_clone(event);
        event.data.sweep = Some(AnomalyId(7));
        assert_eq!(world.apply(&event.into(), now), NONE);
    }
}

#[test]
fn what_was_held_back_has_no_end() {
    let mut ledger = Ledger::default();
    let now = Instant::now();
    let both = [("vetha", Some("a")), ("vethb", Some("b"))];
    for request in ledger.apply(&conflict(Change::Raised, "c", &both), now) {
        ledger.held_back(&request);
    }
    let updated = conflict(Change::Updated, "c", &both);
    assert!(ledger.apply(&updated, now).is_empty());
    let resolved = conflict(Change::Resolved, "c", &both);
    assert!(ledger.apply(&resolved, now).is_empty());
}

#[test]
fn failed_event_is_posted_with_the_next_update() {
    let mut ledger = Ledger::default();
    let now = Instant::now();
    let both = [("vetha", Some("a")), ("vethb", Some("b"))];
    let raised = ledger.apply(&conflict(Change::Raised, "c", &both), now);
    let again = ledger.apply(&conflict(Change::Updated, "c", &both), now);
    let names = |requests: &[Request]| Vec::from_iter(requests.iter().map(|r| r.name.clone()));
    assert_eq!(names(&raised), names(&again));
}

#[test]
fn repetition_after_six_minutes_is_a_new_event() {
    let mut world = World::default();
    let both = [("vetha", Some("a")), ("vethb", Some("b"))];
    let mut now = Instant::now();
    for (id, wanted) in [("c", "new"), ("d", "x2"), ("e", "x3")] {
        let raised = world.apply(&conflict(Change::Raised, id, &both), now);
        assert_eq!(raised[0], format!("{wanted} IPConflict on a"));
        now += 359 * SECOND;
    }
    now += SECOND;
    let raised = world.apply(&conflict(Change::Raised, "f", &both), now);
    assert_eq!(raised[0], "new IPConflict on a");
}

#[test]
fn messages_and_names_keep_the_limits_of_the_api() {
    let mut event = samples::event("1", Change::Raised, "c", "10.244.2.10");
    event.data.network = Network::Vrf("red".to_owned());
    let long = "ü".repeat(200);
    event.data.claimants = (0..60)
        .map(|n| claimant(&format!("veth\x1b{n}"), Some(&format!("{n}{long}"))))
        .collect();
    let requests = Ledger::default().apply(&event.into(), Instant::now());
    assert_eq!(requests.len(), 60);
    for request in requests {
        let message = &request.notice.message;
        assert!(message.len() <= 1024 && request.name.len() <= 253);
        assert!(
            message.starts_with("10.244.2.10 (vrf:red) on veth"),
            "{message}"
        );
        assert!(!message.contains('\x1b'), "{message}");
    }
}

#[test]
fn memory_is_bounded() {
    let mut ledger = Ledger::default();
    let now = Instant::now();
    let none = [("vetha", None), ("vethb", None)];
    let mut posted = 0;
    for id in 0..6000 {
        let raised = conflict(Change::Raised, &id.to_string(), &none);
        for request in ledger.apply(&raised, now) {
            ledger.posted(&request, now);
            posted += 1;
        }
    }
    // The others wait.
    assert_eq!(posted, 6000 - 512);
    assert!(ledger.remembered() <= 4096);
}

/// The sink with a server.
struct Sink {
    api: SimulatedApi,
    sink: KubeEvents,
    metrics: Arc<Metrics>,
    health: Health,
}

const SHOP: &str = "/api/v1/namespaces/shop/events";
const NODE: &str = "/api/v1/namespaces/default/events";

impl Sink {
    fn start() -> Self {
        let api = SimulatedApi::default();
        api.install(SHOP);
        api.install(NODE);
        let (metrics, health) = (Arc::new(Metrics::new()), Health::default());
        let (sink, posting) = KubeEvents::new(
            KubeClient::simulated(&api),
            "node-1".to_owned(),
            Arc::clone(&metrics),
            health.part(Role::Sink, "kubernetes"),
        );
        tokio::spawn(posting);
        Self {
            api,
            sink,
            metrics,
            health,
        }
    }

    fn count(&self, outcome: &'static str) -> u64 {
        let labels = Delivery::new(SINK, outcome);
        self.metrics.deliveries.get_or_create(&labels).get()
    }

    /// The reasons of the Events in a namespace, in the order of their creation.
    fn reasons(&self, path: &str) -> Vec<String> {
        let mut events = self.api.objects(path);
        events.sort_by_key(|event| {
            let version = event["metadata"]["resourceVersion"].as_str().unwrap();
            version.parse::<u64>().unwrap()
        });
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        events.iter().map(|event| text(&event["reason"])).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn events_of_an_outage_are_posted_after_it() {
    let mut it = Sink::start();
    let both = [("vetha", Some("a")), ("vethb", Some("b"))];
    it.api.set_down(true);
    it.sink.offer(&conflict(Change::Raised, "c", &both));
    sleep(600 * SECOND).await;
    it.sink.offer(&conflict(Change::Resolved, "c", &both));
    it.sink.offer(&conflict(Change::Raised, "d", &both[..1]));
    sleep(600 * SECOND).await;
    assert_eq!(it.count("delivered"), 0);
    let part = it.health.report().pop().unwrap();
    assert_eq!(part.state, State::Failed);
    assert!(part.detail.ends_with("5 events wait"), "{}", part.detail);
    it.api.set_down(false);
    sleep(12 * SECOND).await;
    let reasons = it.reasons(SHOP);
    let of = |reason: &str| reasons.iter().filter(|r| *r == reason).count();
    assert_eq!((of("IPConflict"), of("IPConflictResolved")), (3, 2));
    assert_eq!(it.count("delivered"), 5);
    assert_eq!(it.health.report().pop().unwrap().state, State::Works);
}

#[tokio::test(start_paused = true)]
async fn event_that_cannot_be_posted_delays_no_others() {
    let mut it = Sink::start();
    it.api.fail_all(SHOP);
    let pods = [("vetha", Some("a")), ("vethb", Some("b"))];
    it.sink.offer(&conflict(Change::Raised, "c", &pods));
    sleep(60 * SECOND).await;
    // On the Node; each is an object of its own.
    for id in 0..20 {
        let mut leak = samples::drift(&format!("10.244.9.{id}"));
        leak.data.kind = AnomalyKind::IpamLeak;
        leak.data.anomaly_id = AnomalyId(id + 1);
        (leak.data.device, leak.data.pod) = (None, None);
        let leak = AnyEvent::from(leak).with_change(Change::Raised);
        it.sink.offer(&leak);
        sleep(SECOND).await;
        assert_eq!(it.reasons(NODE).len(), usize::try_from(id).unwrap() + 1);
    }
    // What fails while others are posted is given up, and counted.
    sleep(120 * SECOND).await;
    assert_eq!(it.count("given_up"), 2);
    assert_eq!(it.count("delivered"), 20);
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_the_server_is_bounded_and_counted() {
    let mut it = Sink::start();
    it.api.set_down(true);
    for id in 0..MAX_PENDING + 100 {
        let name = format!("p{id}");
        let one = [("vetha", Some(&*name))];
        it.sink
            .offer(&conflict(Change::Raised, &id.to_string(), &one));
        tokio::task::yield_now().await;
    }
    sleep(60 * SECOND).await;
    assert_eq!(it.count("dropped"), 100);
    it.api.set_down(false);
    sleep(60 * SECOND).await;
    assert_eq!(it.count("delivered"), MAX_PENDING as u64);
}
