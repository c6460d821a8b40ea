//! What is posted about conflicts and anomalies, with virtual time.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{sync::Arc, time::Duration};

use detector_engine::{AnomalyId, AnomalyKind, Network, diagnosis::Cause};
use detector_event::{
    AnyEvent, Change, ChangedField, ClaimantData, DiagnosisData, Pod, Role, State, SubjectState,
    Via, samples,
};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::{
    GIVE_UP_AFTER, KubeEvents, QUEUE, SINK,
    ledger::{Ledger, Request},
};
use crate::{
    health::Health,
    kube_client::{KubeClient, simulated::SimulatedApi},
    metrics::{Delivery, Metrics},
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

/// The cause was looked for, and is not known.
fn without_cause() -> Option<Arc<DiagnosisData>> {
    Some(Arc::new(samples::diagnosis(Cause::Unknown, 1)))
}

fn conflict(change: Change, id: &str, claimants: &[(&str, Option<&str>)]) -> AnyEvent {
    let mut event = samples::event("1", change, id, "10.244.2.10");
    let claimants = claimants.iter().map(|(device, pod)| claimant(device, *pod));
    event.data.claimants = claimants.collect();
    event.data.traffic_goes_to = Some("vetha".to_owned());
    event.data.diagnosis = without_cause();
    event.into()
}

fn anomaly(change: Change, kind: AnomalyKind, name: Option<&str>) -> AnyEvent {
    let mut event = samples::drift("10.244.2.10");
    event.data.kind = kind;
    if change == Change::Resolved {
        event.data.state = SubjectState::Resolved;
    }
    event.data.pod = name.and_then(pod);
    event.data.diagnosis = without_cause();
    if kind == AnomalyKind::IpamLeak {
        event.data.device = None;
    }
    AnyEvent::from(event).with_change(change)
}

/// A ledger, and what it requested last.
#[derive(Default)]
struct World {
    ledger: Ledger,
    last: Vec<Request>,
}

impl World {
    /// The requests because of an event: reason and object.
    fn apply(&mut self, event: &AnyEvent, now: Instant) -> Vec<String> {
        self.last = self.ledger.apply(event, now);
        self.texts()
    }

    fn take_due(&mut self, now: Instant) -> Vec<String> {
        self.last = self.ledger.take_due(now);
        self.texts()
    }

    fn texts(&self) -> Vec<String> {
        self.last.iter().map(text).collect()
    }

    fn message(&self, position: usize) -> &str {
        &self.last[position].object_event.message
    }
}

fn text(request: &Request) -> String {
    let object = request.object_event.regarding.name.as_deref().unwrap();
    format!("{} on {object}", request.object_event.reason)
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
        ["IPConflict on a", "IPConflict on b"]
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
        let related = world.last[position].object_event.related.as_ref().unwrap();
        assert!(other.contains(related.name.as_deref().unwrap()));
    }
    let updated = conflict(Change::Updated, "c", &both);
    assert_eq!(world.apply(&updated, now), NONE);
    let resolved = conflict(Change::Resolved, "c", &both);
    assert_eq!(
        world.apply(&resolved, now),
        ["IPConflictResolved on a", "IPConflictResolved on b"]
    );
    assert_eq!(world.apply(&resolved, now), NONE);
    assert_eq!(world.ledger.next_due(), None);
}

#[test]
fn event_waits_two_seconds_for_the_cause() {
    let now = Instant::now();
    let mut raised = samples::drift("10.244.2.10");
    raised.data.pod = pod("a");
    let mut explained = raised.clone();
    explained.data.diagnosis = Some(samples::diagnosis(Cause::IpamStateWiped, 9).into());
    let explained = AnyEvent::from(explained).with_change(Change::Updated);

    let mut world = World::default();
    assert_eq!(world.apply(&raised.clone().into(), now), NONE);
    assert_eq!(world.apply(&explained, now + SECOND), ["IPAMDrift on a"]);
    let message = world.message(0);
    assert!(
        message.contains("; cause: ipam_state_wiped (proven): "),
        "{message}"
    );

    let mut world = World::default();
    assert_eq!(world.apply(&raised.into(), now), NONE);
    assert_eq!(world.take_due(now + 2 * SECOND), ["IPAMDrift on a"]);
    assert!(!world.message(0).contains("cause"), "posted without it");
    assert_eq!(world.apply(&explained, now + 3 * SECOND), NONE);
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
        ["IPConflict on a", "IPConflict on b"]
    );
    assert!(
        world
            .last
            .iter()
            .all(|r| !r.object_event.message.contains("unknown"))
    );

    // The name comes too late.
    assert_eq!(world.apply(&conflict(Change::Raised, "d", &one), now), NONE);
    assert_eq!(world.take_due(now + SECOND), NONE);
    assert_eq!(world.take_due(now + 2 * SECOND), ["IPConflict on a"]);
    assert!(world.message(0).contains("an unknown pod on vethb"));
    assert_eq!(
        world.apply(&conflict(Change::Updated, "d", &both), now + 3 * SECOND),
        ["IPConflict on b"]
    );
    assert!(world.message(0).contains("shop/a on vetha"));
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
        ["IPConflict on a", "IPConflictResolved on a"]
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
    assert_eq!(world.take_due(now + 2 * SECOND), ["IPConflict on node-1"]);
    let node = &world.last[0].object_event;
    assert_eq!(
        (
            node.regarding.namespace.as_deref(),
            node.regarding.uid.as_deref()
        ),
        (None, Some("node-1"))
    );
    assert!(
        node.message
            .contains("an unknown pod on vetha and an unknown pod on vethb"),
        "{node:?}"
    );
    assert_eq!(
        world.apply(&conflict(Change::Updated, "c", &both), now + 3 * SECOND),
        ["IPConflict on a", "IPConflict on b"]
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
        is_node: true,
        ..claimant("eth0", None)
    };
    event.data.claimants = vec![claimant("vetha", Some("a")), host];
    event.data.diagnosis = without_cause();
    assert_eq!(
        world.apply(&event.into(), Instant::now()),
        ["IPConflict on a"]
    );
    assert!(world.message(0).contains("the node (n, eth0)"));
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
        assert_eq!(world.apply(&raised, now), [format!("{reason} on a")]);
        let resolved = anomaly(Change::Resolved, kind, Some("a"));
        assert_eq!(world.apply(&resolved, now), [format!("{ended} on a")]);

        let mut world = World::default();
        assert_eq!(world.apply(&anomaly(Change::Raised, kind, None), now), NONE);
        assert_eq!(
            world.take_due(now + 2 * SECOND),
            [format!("{reason} on node-1")]
        );
        let shown = anomaly(Change::Updated, kind, Some("a"));
        assert_eq!(
            world.apply(&shown, now + 3 * SECOND),
            [format!("{reason} on a")]
        );
    }
    let mut world = World::default();
    let leak = anomaly(Change::Raised, AnomalyKind::IpamLeak, None);
    assert_eq!(world.apply(&leak, now), ["IPAMLeak on node-1"]);
}

#[test]
fn restored_conflict_has_no_second_event_but_an_end() {
    let now = Instant::now();
    let one = [("vetha", Some("a")), ("vethb", None)];
    let both = [("vetha", Some("a")), ("vethb", Some("b"))];
    let ends = ["IPConflictResolved on a", "IPConflictResolved on b"];
    let mut world = World::default();
    assert_eq!(
        world.apply(&conflict(Change::Updated, "c", &both), now),
        NONE
    );
    assert_eq!(
        world.apply(&conflict(Change::Resolved, "c", &both), now),
        ends
    );

    // The names are only being looked up.
    let mut world = World::default();
    world.apply(&conflict(Change::Updated, "c", &one), now);
    assert_eq!(
        world.apply(&conflict(Change::Resolved, "c", &both), now),
        ends
    );
    let mut world = World::default();
    assert_eq!(
        world.apply(&conflict(Change::Updated, "c", &one), now),
        NONE
    );
    assert_eq!(world.ledger.next_due(), Some(now + 30 * SECOND));
    let named = conflict(Change::Updated, "c", &both);
    assert_eq!(world.apply(&named, now + 29 * SECOND), NONE);
    // A claimant that joins later has an Event.
    let three = [
        ("vetha", Some("a")),
        ("vethb", Some("b")),
        ("vethc", Some("c")),
    ];
    assert_eq!(
        world.apply(&conflict(Change::Updated, "c", &three), now),
        ["IPConflict on c"]
    );
    assert_eq!(
        world.apply(&conflict(Change::Resolved, "c", &both), now),
        ends
    );
}

#[test]
fn conflict_has_events_only_after_its_sweep() {
    let mut world = World::default();
    let now = Instant::now();
    let both = [("vetha", Some("a")), ("vethb", Some("b"))];
    let of_sweep = |change, sweep| -> AnyEvent {
        let AnyEvent::Conflict(event) = conflict(change, "c", &both) else {
            unreachable!()
        };
        let mut event = Arc::unwrap_or_clone(event);
        event.data.sweep = sweep;
        event.data.changed = vec![ChangedField::Sweep];
        event.into()
    };
    for change in [Change::Raised, Change::Updated, Change::Resolved] {
        let swept = of_sweep(change, Some(AnomalyId(7)));
        assert_eq!(world.apply(&swept, now), NONE);
    }
    assert_eq!(
        world.apply(&of_sweep(Change::Updated, None), now),
        ["IPConflict on a", "IPConflict on b"]
    );
}

#[test]
fn what_was_held_back_has_no_end() {
    let mut ledger = Ledger::default();
    let now = Instant::now();
    let both = [("vetha", Some("a")), ("vethb", Some("b"))];
    for request in ledger.apply(&conflict(Change::Raised, "c", &both), now) {
        ledger.held_back(&request.key());
    }
    let updated = conflict(Change::Updated, "c", &both);
    assert!(ledger.apply(&updated, now).is_empty());
    let resolved = conflict(Change::Resolved, "c", &both);
    assert!(ledger.apply(&resolved, now).is_empty());
}

#[test]
fn messages_keep_the_limits_of_the_api() {
    let mut event = samples::event("1", Change::Raised, "c", "10.244.2.10");
    event.data.network = Network::Vrf("red".to_owned());
    event.data.diagnosis = without_cause();
    let long = "x".repeat(200);
    event.data.claimants = (0..60)
        .map(|n| claimant(&format!("veth\x1b{n}"), Some(&format!("{n}{long}"))))
        .collect();
    let requests = Ledger::default().apply(&event.into(), Instant::now());
    assert_eq!(requests.len(), 60);
    for request in requests {
        let message = &request.object_event.message;
        assert!(message.len() <= 1024 && request.object_event.about.len() <= 128);
        assert!(
            message.starts_with("10.244.2.10 (vrf:red) on veth"),
            "{message}"
        );
        assert!(!message.contains('\x1b'), "{message}");
    }
}

/// The recorder names an Event after its object.
#[test]
fn pod_with_too_long_a_name_is_reported_on_the_node() {
    let mut world = World::default();
    let now = Instant::now();
    let long = "x".repeat(237);
    let both = [("vetha", Some(&*long)), ("vethb", Some("b"))];
    world.apply(&conflict(Change::Raised, "c", &both), now);
    assert_eq!(world.take_due(now + 2 * SECOND), ["IPConflict on b"]);
    assert!(world.message(0).contains(&long));
    let one = anomaly(Change::Raised, AnomalyKind::RogueRouter, Some(&long));
    world.apply(&one, now);
    assert_eq!(world.take_due(now + 2 * SECOND), ["RogueRouter on node-1"]);
}

#[test]
fn memory_is_bounded() {
    let mut ledger = Ledger::default();
    let now = Instant::now();
    let none = [("vetha", None), ("vethb", None)];
    let mut posted = 0;
    for id in 0..6000 {
        let raised = conflict(Change::Raised, &id.to_string(), &none);
        posted += ledger.apply(&raised, now).len();
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

const SHOP: &str = "/apis/events.k8s.io/v1/namespaces/shop/events";
const NODE: &str = "/apis/events.k8s.io/v1/namespaces/default/events";

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
    it.sink.on_event(&conflict(Change::Raised, "c", &both));
    sleep(600 * SECOND).await;
    it.sink.on_event(&conflict(Change::Resolved, "c", &both));
    it.sink.on_event(&conflict(Change::Raised, "d", &both[..1]));
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

/// On the Node.
fn leak(id: usize) -> AnyEvent {
    let mut leak = samples::drift(&format!("10.244.9.{id}"));
    leak.data.kind = AnomalyKind::IpamLeak;
    leak.data.anomaly_id = AnomalyId(id as u128 + 1);
    (leak.data.device, leak.data.pod) = (None, None);
    AnyEvent::from(leak).with_change(Change::Raised)
}

/// Sends these one after another; each is posted at once.
async fn post_leaks(it: &mut Sink, count: usize) {
    for id in 0..count {
        it.sink.on_event(&leak(id));
        sleep(SECOND).await;
        assert_eq!(it.reasons(NODE).len(), id + 1);
    }
}

#[tokio::test(start_paused = true)]
async fn event_that_cannot_be_posted_delays_no_others() {
    let mut it = Sink::start();
    it.api.fail_all(SHOP);
    let pods = [("vetha", Some("a")), ("vethb", Some("b"))];
    it.sink.on_event(&conflict(Change::Raised, "c", &pods));
    sleep(60 * SECOND).await;
    post_leaks(&mut it, 20).await;
    // What fails while others are posted is given up after an hour, and counted.
    assert_eq!(it.count("given_up"), 0);
    sleep(GIVE_UP_AFTER).await;
    assert_eq!(it.count("given_up"), 2);
    assert_eq!(it.count("delivered"), 20);
}

#[tokio::test(start_paused = true)]
async fn event_that_is_not_answered_delays_no_others() {
    let mut it = Sink::start();
    it.api.hang_all(SHOP);
    let names: Vec<_> = (0..10)
        .map(|n| (format!("veth{n}"), format!("p{n}")))
        .collect();
    let pods: Vec<_> = names
        .iter()
        .map(|(device, name)| (&**device, Some(&**name)))
        .collect();
    it.sink.on_event(&conflict(Change::Raised, "c", &pods));
    post_leaks(&mut it, 20).await;
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_the_server_is_bounded_and_counted() {
    let mut it = Sink::start();
    it.api.set_down(true);
    for id in 0..QUEUE + 100 {
        let name = format!("p{id}");
        let one = [("vetha", Some(&*name))];
        it.sink
            .on_event(&conflict(Change::Raised, &id.to_string(), &one));
        tokio::task::yield_now().await;
    }
    sleep(60 * SECOND).await;
    assert_eq!(it.count("dropped"), 100);
    it.api.set_down(false);
    sleep(60 * SECOND).await;
    assert_eq!(it.count("delivered"), QUEUE as u64);
}

#[tokio::test(start_paused = true)]
async fn repetition_within_six_minutes_is_counted_in_the_event() {
    let mut it = Sink::start();
    let both = [("vetha", Some("a")), ("vethb", Some("b"))];
    let flap = async |it: &mut Sink, id, claimants: &[_]| {
        for change in [Change::Raised, Change::Resolved] {
            it.sink.on_event(&conflict(change, id, claimants));
            sleep(SECOND).await;
        }
        it.api.objects(SHOP).len()
    };
    assert_eq!(flap(&mut it, "c", &both).await, 4);
    assert_eq!(flap(&mut it, "d", &both).await, 4);
    let counts = it.api.objects(SHOP);
    assert!(counts.iter().all(|event| event["series"]["count"] == 2));
    // Not one about another address, or with another pod.
    let AnyEvent::Conflict(other) = conflict(Change::Raised, "e", &both) else {
        unreachable!()
    };
    let mut other = Arc::unwrap_or_clone(other);
    other.data.address = "10.244.2.11".parse().unwrap();
    it.sink.on_event(&other.into());
    sleep(SECOND).await;
    assert_eq!(it.api.objects(SHOP).len(), 6);
    let third = [("vetha", Some("a")), ("vethb", Some("c"))];
    assert_eq!(flap(&mut it, "f", &third).await, 10);
    // Nor one whose Event was deleted.
    it.api.uninstall(SHOP);
    it.api.install(SHOP);
    assert_eq!(flap(&mut it, "g", &both).await, 4);
}

#[tokio::test(start_paused = true)]
async fn events_on_one_object_about_one_subject_stay_in_order() {
    let mut it = Sink::start();
    let one = [("vetha", Some("a"))];
    it.api.set_down(true);
    for _ in 0..3 {
        for change in [Change::Raised, Change::Resolved] {
            it.sink.on_event(&conflict(change, "c", &one));
            sleep(3 * SECOND).await;
        }
    }
    it.api.set_down(false);
    sleep(60 * SECOND).await;
    let posts = it.api.requests().into_iter();
    let posts = posts.filter(|(at, _)| *at > Instant::now() - 60 * SECOND);
    let methods: Vec<_> = posts
        .map(|(_, request)| request.split(' ').next().unwrap().to_owned())
        .collect();
    // Each repetition after the first one of its kind.
    assert_eq!(
        methods,
        ["POST", "POST", "PATCH", "PATCH", "PATCH", "PATCH"]
    );
    assert_eq!(it.reasons(SHOP), ["IPConflict", "IPConflictResolved"]);
}
