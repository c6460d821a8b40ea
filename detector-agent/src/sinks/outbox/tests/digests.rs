//! Digests: conflicts with the same claimants are one message, and so is what a storm has beyond the first few of them.

use std::{sync::Arc, time::Duration};

use detector_engine::{AnomalyKind, Confidence, ResolveReason};
use detector_event::{
    AnomalyEvent, AnyEvent, Change, Event, EventType, ResolvedBecause, SubjectState, WallTime,
    samples,
};
use tokio::time::Instant;

use super::{
    super::{Outbox, OutboxBounds, SinkSpec, worker::OutboxWorker},
    world,
};
use crate::{
    metrics::Metrics,
    persist::store::Store,
    sinks::{
        EventSink as _,
        digest::{DigestRules, Group},
        filter::Filter,
        message::Message,
        outbox::SinkQueue,
    },
};

const EACH: usize = 0;
const PEOPLE: usize = 1;

/// A sink that gets each event, and one that gets digests at once.
fn sinks() -> Vec<SinkSpec> {
    let at_once = DigestRules {
        every: Duration::ZERO,
        ..DigestRules::FOR_PEOPLE
    };
    let sink = |name: &str, digest| SinkSpec {
        name: name.to_owned(),
        filter: Filter::default(),
        digest,
    };
    vec![sink("each", None), sink("people", Some(at_once))]
}

struct Storm {
    store: Arc<Store>,
    outbox: Outbox,
    worker: OutboxWorker,
    serial: usize,
}

impl Storm {
    fn new() -> Self {
        Self::on(Arc::new(Store::in_memory()), sinks())
    }

    fn on(store: Arc<Store>, sinks: Vec<SinkSpec>) -> Self {
        let metrics = Arc::new(Metrics::new());
        let bounds = OutboxBounds::default();
        let (outbox, worker) = Outbox::assemble(&store, sinks, bounds, &metrics, world::health());
        Self {
            store,
            outbox,
            worker,
            serial: 0,
        }
    }

    fn offer(&mut self, change: Change, conflicts: impl IntoIterator<Item = usize>) {
        for conflict in conflicts {
            let event = event(self.next(), change, conflict);
            self.outbox.sink().offer(&event);
        }
        self.worker.turn(Some(Duration::ZERO));
    }

    fn next(&mut self) -> usize {
        self.serial += 1;
        self.serial
    }

    /// Digests are due.
    fn turn(&mut self) {
        self.worker.turn(Some(Duration::ZERO));
    }

    /// The agent is restarted with these sinks.
    fn restart(self, sinks: Vec<SinkSpec>) -> Self {
        let Self { store, .. } = self;
        Self::on(store, sinks)
    }

    /// Delivers everything that waits for a sink.
    fn delivered(&mut self, sink: usize) -> Vec<String> {
        let mut delivered = Vec::new();
        let queue: Arc<SinkQueue> = Arc::clone(&self.outbox.sink_queues()[sink]);
        while let Ok(job) = queue.take(Instant::now()) {
            let message = job.event.or_else(|| queue.read(job.seq).unwrap()).unwrap();
            delivered.push(text(&message));
            queue.delivered(job.seq);
            self.turn();
        }
        delivered
    }
}

/// A conflict of two pods that have no other.
fn event(serial: usize, change: Change, conflict: usize) -> AnyEvent {
    let mut event = shared(serial, change, conflict);
    for claimant in &mut event.data.claimants {
        claimant.device += &format!("-{conflict}");
    }
    event.into()
}

/// A conflict of the same two pods as all others.
fn shared(serial: usize, change: Change, conflict: usize) -> Event {
    let address = format!("10.0.0.{conflict}");
    samples::event(&format!("e{serial}"), change, &address, &address)
}

/// `raised 10.0.0.1`, `group raised: 3 from 10.0.0.1`, `digest updated: 2 new, 9 of 9 from 10.0.0.11`.
fn text(message: &Message) -> String {
    match message {
        Message::Event(AnyEvent::Conflict(event)) => {
            format!("{} {}", event.event_type.change.name(), event.subject)
        }
        Message::Event(AnyEvent::Anomaly(event)) => {
            format!(
                "{} {}",
                event.event_type.change.name(),
                event.data.kind.name()
            )
        }
        Message::Digest(digest) if digest.group.is_some() => {
            let group = digest.group.as_ref().unwrap();
            let count = match digest.change {
                Change::Resolved => digest.total,
                Change::Raised | Change::Updated => digest.active,
            };
            let name = match group {
                Group::Conflicts(_) => "group",
                Group::Anomalies(group) => group.shown.kind.name(),
            };
            let (change, first) = (digest.change.name(), group.first_address().unwrap());
            let mut text = format!("{name} {change}: {count} from {first}");
            if !digest.changed.is_empty() {
                text += &format!(", {}", digest.changed.join(", "));
            }
            text
        }
        Message::Digest(digest) => {
            let first = digest.entries.first().map(|entry| entry.address.as_str());
            format!(
                "digest {}: {} new, {} of {} from {}",
                digest.change.name(),
                digest.joined,
                digest.active,
                digest.total,
                first.unwrap_or("none")
            )
        }
    }
}

fn own(change: &str, conflicts: std::ops::RangeInclusive<usize>) -> Vec<String> {
    conflicts.map(|n| format!("{change} 10.0.0.{n}")).collect()
}

fn groups(change: &str, conflicts: std::ops::RangeInclusive<usize>) -> Vec<String> {
    conflicts
        .map(|n| format!("group {change}: 1 from 10.0.0.{n}"))
        .collect()
}

#[test]
fn addresses_of_the_same_pods_are_one_message() {
    let mut storm = Storm::new();
    let offer = |storm: &mut Storm, change, conflicts: std::ops::RangeInclusive<usize>| {
        for conflict in conflicts {
            let event = shared(storm.next(), change, conflict);
            storm.outbox.sink().offer(&event.into());
        }
        storm.turn();
        storm.turn();
        storm.delivered(PEOPLE)
    };
    let raised = offer(&mut storm, Change::Raised, 1..=200);
    assert_eq!(raised, ["group raised: 200 from 10.0.0.1"]);
    let more = offer(&mut storm, Change::Raised, 201..=203);
    let expected = "group updated: 203 from 10.0.0.1, 3 more addresses";
    assert_eq!(more, [expected]);
    assert_eq!(offer(&mut storm, Change::Resolved, 1..=202), [""; 0]);
    let end = offer(&mut storm, Change::Resolved, 203..=203);
    assert_eq!(end, ["group resolved: 203 from 10.0.0.1"]);
    assert_eq!(storm.delivered(EACH).len(), 406);
    // They are a new finding when they come back.
    let again = offer(&mut storm, Change::Raised, 1..=2);
    assert_eq!(again, ["group raised: 2 from 10.0.0.1"]);
}

#[test]
fn an_update_says_what_changed_and_is_not_sent_if_nothing_did() {
    let mut storm = Storm::new();
    let offer = |storm: &mut Storm, event: Event| {
        storm.outbox.sink().offer(&event.into());
        storm.turn();
        storm.turn();
        storm.delivered(PEOPLE)
    };
    let raised = shared(storm.next(), Change::Raised, 1);
    offer(&mut storm, raised);
    // Only times.
    let mut update = shared(storm.next(), Change::Updated, 1);
    update.data.claimants[0].evidence[0].last_seen = WallTime::now();
    assert_eq!(offer(&mut storm, update.clone()), [""; 0]);
    // Right after a restart, pods are unknown.
    let mut storm = storm.restart(sinks());
    update.id = "after the restart".to_owned();
    for claimant in &mut update.data.claimants {
        claimant.pod = None;
    }
    storm.outbox.sink().catch_up(&[update.clone().into()]);
    assert_eq!(offer(&mut storm, update.clone()), [""; 0]);
    // What came and went between two messages.
    for (id, receiver) in [("away", "veth-b"), ("and back", "veth-a")] {
        update.id = id.to_owned();
        update.data.traffic_goes_to = Some(receiver.to_owned());
        storm.outbox.sink().offer(&update.clone().into());
    }
    storm.turn();
    storm.turn();
    assert_eq!(storm.delivered(PEOPLE), [""; 0]);

    update.id = "moved".to_owned();
    update.data.traffic_goes_to = Some("veth-b".to_owned());
    assert_eq!(
        offer(&mut storm, update),
        ["group updated: 1 from 10.0.0.1, traffic goes to default/b (veth-b) now"]
    );
}

#[test]
fn repeated_state_is_sent_only_to_sinks_that_know_less() {
    let mut storm = Storm::new();
    let mut raised = shared(storm.next(), Change::Raised, 1);
    let pod = raised.data.claimants[0].pod.as_mut().unwrap();
    Arc::make_mut(pod).uid = Some("uid".to_owned());
    storm.outbox.sink().offer(&raised.clone().into());
    storm.turn();
    assert_eq!(storm.delivered(EACH).len(), 1);
    let mut storm = storm.restart(sinks());
    let repeat = |storm: &mut Storm, event: Event| {
        storm.outbox.sink().repeat(&event.into());
        storm.turn();
        storm.delivered(EACH)
    };
    // The sources answer one after the other.
    let mut state = shared(100, Change::Updated, 1);
    state.data.claimants[1].pod = None;
    assert_eq!(repeat(&mut storm, state), [""; 0]);
    let mut state = raised;
    state.event_type = EventType::conflict(Change::Updated);
    state.id = "all are known".to_owned();
    assert_eq!(repeat(&mut storm, state), [""; 0]);
    // An event that the crash took.
    let state = shared(101, Change::Updated, 2);
    assert_eq!(repeat(&mut storm, state), ["raised 10.0.0.2"]);
}

#[test]
fn three_groups_have_digests_of_their_own_and_the_others_one() {
    let mut storm = Storm::new();
    storm.offer(Change::Raised, 1..=40);
    storm.turn();
    let mut expected = groups("raised", 1..=3);
    expected.push("digest raised: 37 new, 37 of 37 from 10.0.0.4".to_owned());
    assert_eq!(storm.delivered(PEOPLE), expected);
    assert_eq!(storm.delivered(EACH), own("raised", 1..=40));

    storm.offer(Change::Updated, 1..=40);
    storm.turn();
    assert_eq!(storm.delivered(PEOPLE), [""; 0], "nothing changed");
    storm.offer(Change::Raised, 41..=42);
    storm.turn();
    let update = "digest updated: 2 new, 39 of 39 from 10.0.0.41";
    assert_eq!(storm.delivered(PEOPLE), [update]);

    storm.offer(Change::Resolved, 1..=41);
    storm.turn();
    assert_eq!(storm.delivered(PEOPLE), groups("resolved", 1..=3));
    storm.offer(Change::Resolved, [42]);
    let end = "digest resolved: 0 new, 0 of 39 from none";
    assert_eq!(storm.delivered(PEOPLE), [end]);
    storm.turn();
    assert_eq!(storm.delivered(PEOPLE), [""; 0]);
    let each = storm.delivered(EACH);
    let count = |change: &str| each.iter().filter(|text| text.starts_with(change)).count();
    let counts = ["raised", "updated", "resolved"].map(count);
    assert_eq!(counts, [2, 40, 42]);
}

#[test]
fn flood_of_one_pair_leaves_others_named() {
    let mut storm = Storm::new();
    // The pair has used up the digests of their own.
    for round in 1..=3 {
        for change in [Change::Raised, Change::Resolved] {
            let event = shared(storm.next(), change, round);
            storm.outbox.sink().offer(&event.into());
        }
        storm.turn();
        storm.turn();
    }
    storm.delivered(PEOPLE);
    for conflict in 10..=40 {
        let event = shared(storm.next(), Change::Raised, conflict);
        storm.outbox.sink().offer(&event.into());
    }
    let other = event(storm.next(), Change::Raised, 99);
    storm.outbox.sink().offer(&other);
    storm.turn();
    storm.turn();
    let queue = Arc::clone(&storm.outbox.sink_queues()[PEOPLE]);
    let mut named = Vec::new();
    while let Ok(job) = queue.take(Instant::now()) {
        let message = job.event.or_else(|| queue.read(job.seq).unwrap()).unwrap();
        if let Message::Digest(digest) = &message {
            named.extend(digest.entries.iter().map(|entry| entry.address.clone()));
        }
        queue.delivered(job.seq);
        storm.turn();
    }
    assert!(named.contains(&"10.0.0.99".to_owned()), "{named:?}");
}

#[test]
fn a_storm_that_is_over_at_once_is_reported_with_its_end() {
    let mut storm = Storm::new();
    storm.offer(Change::Raised, 1..=5);
    storm.offer(Change::Resolved, 1..=5);
    storm.turn();
    let delivered = storm.delivered(PEOPLE);
    let digests: Vec<_> = delivered
        .iter()
        .filter(|text| text.starts_with("digest"))
        .collect();
    let expected = [
        "digest raised: 2 new, 0 of 2 from 10.0.0.4",
        "digest resolved: 0 new, 0 of 2 from none",
    ];
    assert_eq!(digests, expected, "{delivered:?}");
    let ends = groups("resolved", 1..=3);
    assert!(
        ends.iter().all(|end| delivered.contains(end)),
        "{delivered:?}"
    );
}

#[test]
fn a_digest_survives_a_restart() {
    let mut storm = Storm::new();
    storm.offer(Change::Raised, 1..=6);
    // Before its first message.
    let mut storm = storm.restart(sinks());
    storm.turn();
    storm.turn();
    let mut expected = groups("raised", 1..=3);
    expected.push("digest raised: 3 new, 3 of 3 from 10.0.0.4".to_owned());
    let mut delivered = storm.delivered(PEOPLE);
    delivered.sort();
    expected.sort();
    assert_eq!(delivered, expected);
    let mut storm = storm.restart(sinks());
    let active: Vec<_> = (1..=5)
        .map(|n| event(100 + n, Change::Updated, n))
        .collect();
    storm.outbox.sink().catch_up(&active);
    storm.turn();
    storm.turn();
    assert_eq!(storm.delivered(PEOPLE), [""; 0], "nothing changed");
    // All conflicts ended while the agent was down.
    let mut storm = storm.restart(sinks());
    storm.outbox.sink().catch_up(&[]);
    storm.turn();
    let mut ends = storm.delivered(PEOPLE);
    ends.sort();
    let mut expected = groups("resolved", 1..=3);
    expected.insert(0, "digest resolved: 0 new, 0 of 3 from none".to_owned());
    assert_eq!(ends, expected);
}

#[test]
fn a_sink_that_gets_each_event_now_gets_the_conflicts_of_its_digest() {
    let mut storm = Storm::new();
    storm.offer(Change::Raised, 1..=5);
    storm.turn();
    storm.delivered(PEOPLE);
    let mut sinks = sinks();
    sinks[PEOPLE].digest = None;
    let mut storm = storm.restart(sinks);
    let active: Vec<_> = (1..=5).map(|n| event(n, Change::Raised, n)).collect();
    storm.outbox.sink().catch_up(&active);
    storm.turn();
    assert_eq!(storm.delivered(PEOPLE), own("raised", 1..=5));
    storm.offer(Change::Resolved, 1..=5);
    assert_eq!(storm.delivered(PEOPLE), own("resolved", 1..=5));
}

#[test]
fn observed_conflicts_are_no_storm() {
    let mut storm = Storm::new();
    for n in 1..=8 {
        let AnyEvent::Conflict(conflict) = event(n, Change::Raised, n) else {
            unreachable!()
        };
        let mut conflict = Event::clone(&conflict);
        conflict.data.confidence = Confidence::Observed;
        storm.outbox.sink().offer(&conflict.into());
    }
    storm.turn();
    storm.turn();
    let mut delivered = storm.delivered(PEOPLE);
    delivered.sort();
    assert_eq!(delivered, groups("raised", 1..=8));
}

/// `drift` with what `change` makes of it.
fn drift(serial: usize, address: &str, change: impl FnOnce(&mut AnomalyEvent)) -> AnyEvent {
    let mut event = samples::drift(address);
    event.id = format!("a{serial}");
    change(&mut event);
    event.into()
}

fn resolved(event: &mut AnomalyEvent) {
    event.event_type.change = Change::Resolved;
    event.data.state = SubjectState::Resolved;
    event.data.resolved_because = Some(ResolvedBecause::Seen(ResolveReason::Allocated));
}

#[test]
fn a_wipe_of_ipam_state_is_one_message() {
    let mut storm = Storm::new();
    let addresses: Vec<_> = (1..=200).map(|n| format!("10.0.1.{n}")).collect();
    let mut offer = |change: fn(&mut AnomalyEvent), addresses: &[String], base: usize| {
        for (n, address) in addresses.iter().enumerate() {
            let event = drift(base + n, address, change);
            storm.outbox.sink().offer(&event);
        }
        storm.turn();
        storm.turn();
        (storm.delivered(EACH).len(), storm.delivered(PEOPLE))
    };
    assert_eq!(
        offer(|_| {}, &addresses, 0),
        (200, vec!["ipam_drift raised: 200 from 10.0.1.1".to_owned()])
    );
    // Later ones of the same minute follow as an update, as do no others than new ones.
    let later = ["10.0.2.1".to_owned()];
    assert_eq!(
        offer(|_| {}, &later, 300).1,
        ["ipam_drift updated: 201 from 10.0.1.1, 1 more address"]
    );
    assert_eq!(offer(resolved, &addresses, 400), (200, Vec::new()));
    assert_eq!(
        offer(resolved, &later, 700).1,
        ["ipam_drift resolved: 201 from 10.0.1.1"]
    );
}

#[test]
fn each_kind_of_anomaly_and_each_sweep_is_a_group() {
    let mut storm = Storm::new();
    let events = [
        drift(1, "10.0.1.1", |_| {}),
        drift(2, "10.0.1.2", |event| {
            event.data.kind = AnomalyKind::GatewayUnresolved;
        }),
        samples::sweep("10.0.1.3").into(),
        samples::sweep("10.0.1.4").into(),
    ];
    for event in &events {
        storm.outbox.sink().offer(event);
    }
    storm.turn();
    storm.turn();
    let mut delivered = storm.delivered(PEOPLE);
    delivered.sort();
    assert_eq!(
        delivered,
        [
            "address_sweep raised: 1 from 10.0.1.3",
            "address_sweep raised: 1 from 10.0.1.4",
            "gateway_unresolved raised: 1 from 10.0.1.2",
            "ipam_drift raised: 1 from 10.0.1.1",
        ]
    );
}

#[test]
fn a_sweep_is_updated_when_it_has_doubled() {
    let mut storm = Storm::new();
    let mut offer = |serial: usize, contested: usize| {
        let mut event = samples::sweep("10.0.1.3");
        event.id = format!("a{serial}");
        event.data.contested = Some(contested);
        if serial > 1 {
            event.event_type.change = Change::Updated;
        }
        storm.outbox.sink().offer(&event.into());
        storm.turn();
        storm.turn();
        storm.delivered(PEOPLE)
    };
    assert_eq!(offer(1, 4), ["address_sweep raised: 1 from 10.0.1.3"]);
    assert_eq!(offer(2, 7), [""; 0]);
    assert_eq!(
        offer(3, 8),
        ["address_sweep updated: 1 from 10.0.1.3, it claims 8 addresses of others now, 4 before"]
    );
}

#[test]
fn what_is_collected_is_sent_before_the_agent_stops() {
    let mut sinks = sinks();
    sinks[PEOPLE].digest = Some(DigestRules::FOR_PEOPLE);
    let mut storm = Storm::on(Arc::new(Store::in_memory()), sinks);
    storm.offer(Change::Raised, [1]);
    storm.outbox.sink().offer(&drift(1, "10.0.1.1", |_| {}));
    storm.turn();
    assert_eq!(storm.delivered(PEOPLE), [""; 0]);
    storm.outbox.send_digests();
    storm.turn();
    assert_eq!(
        storm.delivered(PEOPLE),
        [
            "group raised: 1 from 10.0.0.1",
            "ipam_drift raised: 1 from 10.0.1.1",
        ]
    );
}

#[test]
fn a_group_whose_sweep_is_found_in_time_is_never_sent() {
    let mut storm = Storm::new();
    let swept = |id: usize, change, is_swept: bool| {
        let mut event = shared(id, change, 1);
        event.data.confidence = Confidence::Observed;
        event.data.sweep = is_swept.then_some(detector_engine::AnomalyId(7));
        AnyEvent::from(event)
    };
    let mut offer = |events: Vec<AnyEvent>| {
        for event in events {
            storm.outbox.sink().offer(&event);
        }
        storm.turn();
        storm.turn();
        storm.delivered(PEOPLE)
    };
    let raised = swept(1, Change::Raised, false);
    assert_eq!(
        offer(vec![raised, swept(2, Change::Updated, true)]),
        [""; 0]
    );
    assert_eq!(offer(vec![swept(3, Change::Resolved, true)]), [""; 0]);
    // It outlasts the sweep.
    let raised = swept(4, Change::Raised, false);
    assert_eq!(
        offer(vec![raised, swept(5, Change::Updated, true)]),
        [""; 0]
    );
    let outlasts = offer(vec![swept(6, Change::Updated, false)]);
    assert_eq!(outlasts, groups("raised", 1..=1));
    // It becomes part of another.
    assert_eq!(offer(vec![swept(7, Change::Updated, true)]), [""; 0]);
    let end = offer(vec![swept(8, Change::Resolved, true)]);
    assert_eq!(end, groups("resolved", 1..=1));
}

#[test]
fn conflicts_of_a_sweep_wait_until_they_are_not_part_of_it() {
    let mut storm = Storm::new();
    let swept = |id: usize, change, is_swept: bool| {
        let mut event = samples::event(&format!("e{id}"), change, "10.0.0.1", "10.0.0.1");
        event.data.confidence = Confidence::Observed;
        event.data.sweep = is_swept.then_some(detector_engine::AnomalyId(7));
        AnyEvent::from(event)
    };
    let mut offer = |event: AnyEvent| {
        storm.outbox.sink().offer(&event);
        storm.turn();
        storm.delivered(EACH)
    };
    // It began and ended as part of it.
    assert_eq!(offer(swept(1, Change::Raised, true)), [""; 0]);
    assert_eq!(offer(swept(2, Change::Resolved, true)), [""; 0]);
    // It outlasts it.
    assert_eq!(offer(swept(3, Change::Raised, true)), [""; 0]);
    assert_eq!(offer(swept(4, Change::Updated, false)), ["raised 10.0.0.1"]);
    // It becomes part of another.
    assert_eq!(offer(swept(5, Change::Updated, true)), [""; 0]);
    assert_eq!(
        offer(swept(6, Change::Resolved, true)),
        ["resolved 10.0.0.1"]
    );
}
