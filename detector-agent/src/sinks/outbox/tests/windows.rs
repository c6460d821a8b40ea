//! Messages to people over restarts: one for each window, and incidents that end with their last member.

use std::{sync::Arc, time::Duration};

use detector_engine::{AnomalyId, Confidence};
use detector_event::{AnyEvent, Change, ChangedField, SubjectId, SubjectState, samples};
use tokio::time::Instant;

use super::{
    super::{
        Outbox, OutboxBounds, SinkSpec, Window, batch::OUTLASTS, queue::Idle, worker::OutboxWorker,
    },
    world,
};
use crate::{
    metrics::Metrics,
    persist::store::Store,
    sinks::{EventSink as _, filter::Filter},
};

const CHAT: usize = 0;
const PAGER: usize = 1;

struct People {
    store: Arc<Store>,
    outbox: Outbox,
    worker: OutboxWorker,
    serial: usize,
}

impl People {
    fn new() -> Self {
        Self::on(Arc::new(Store::in_memory()))
    }

    fn on(store: Arc<Store>) -> Self {
        let sink = |name: &str, has_incidents| SinkSpec {
            name: name.to_owned(),
            filter: Filter::default(),
            window: Some(Window {
                lasts: Duration::ZERO,
                has_incidents,
            }),
        };
        let (outbox, worker) = Outbox::assemble(
            &store,
            vec![sink("chat", false), sink("pager", true)],
            OutboxBounds::default(),
            &Arc::new(Metrics::new()),
            world::health(),
        );
        Self {
            store,
            outbox,
            worker,
            serial: 0,
        }
    }

    fn restart(self) -> Self {
        let serial = self.serial;
        let again = Self::on(self.store);
        Self { serial, ..again }
    }

    fn report(&mut self, change: Change, conflicts: impl IntoIterator<Item = usize>) {
        for conflict in conflicts {
            self.serial += 1;
            let address = format!("10.0.{}.{}", conflict / 250, conflict % 250);
            let id = format!("e{}", self.serial);
            let event = samples::event(&id, change, &address, &address);
            self.outbox.sink().on_event(&event.into());
        }
        self.turn();
    }

    fn turn(&mut self) {
        self.worker.turn(Some(Duration::ZERO));
    }

    /// Delivers everything that waits for a sink: change, number of events, incident.
    fn delivered(&mut self, sink: usize) -> Vec<(Change, usize, SubjectId)> {
        let mut delivered = Vec::new();
        let queue = Arc::clone(&self.outbox.sink_queues()[sink]);
        loop {
            let mut job = queue.take(Instant::now());
            if job.is_err() {
                // The incident of a window is stored first.
                self.turn();
                job = queue.take(Instant::now());
            }
            let Ok(job) = job else { break };
            if job.is_superseded {
                queue.superseded(&job);
            } else {
                let message = queue.read(&job).unwrap().unwrap();
                delivered.push((message.change, message.events.len(), message.incident));
                queue.delivered(&job);
            }
            self.turn();
        }
        delivered
    }

    fn counts(&mut self, sink: usize) -> Vec<(Change, usize)> {
        let delivered = self.delivered(sink).into_iter();
        delivered
            .map(|(change, count, _)| (change, count))
            .collect()
    }
}

use Change::{Raised, Resolved, Updated};

#[test]
fn two_hundred_conflicts_are_one_message_and_their_ends_another() {
    let mut people = People::new();
    people.report(Raised, 0..200);
    people.report(Updated, 0..200);
    assert_eq!(people.counts(CHAT), [(Raised, 200)]);
    people.report(Resolved, 0..150);
    people.report(Resolved, 150..200);
    assert_eq!(people.counts(CHAT), [(Resolved, 200)]);
}

#[test]
fn a_pager_gets_an_incident_for_each_window_until_its_last_end() {
    let mut people = People::new();
    people.report(Raised, 0..3);
    let [(Raised, 3, first)] = people.delivered(PAGER)[..] else {
        panic!("one incident is opened");
    };
    people.report(Raised, 3..5);
    let [(Raised, 2, second)] = people.delivered(PAGER)[..] else {
        panic!("another one is opened");
    };
    assert_ne!(first, second);
    people.report(Resolved, [0, 1, 4]);
    assert_eq!(people.delivered(PAGER), []);
    let mut people = people.restart();
    people.report(Resolved, [2]);
    assert_eq!(people.delivered(PAGER), [(Resolved, 1, first)]);
    people.report(Resolved, [3]);
    assert_eq!(people.delivered(PAGER), [(Resolved, 1, second)]);
}

#[test]
fn the_incident_of_an_attempt_that_a_crash_ended_is_opened_again() {
    let mut people = People::new();
    people.report(Raised, 0..2);
    let queue = Arc::clone(&people.outbox.sink_queues()[PAGER]);
    assert_eq!(queue.take(Instant::now()).unwrap_err(), Idle::Empty);
    people.turn();
    // The receiver has it, and the agent does not know.
    let sent = queue.take(Instant::now()).unwrap();
    let mut people = people.restart();
    people.report(Raised, 2..4);
    people.report(Resolved, [0]);
    let [again, other] = people.delivered(PAGER)[..] else {
        panic!("two incidents are opened");
    };
    assert_eq!(again, (Raised, 2, sent.incident));
    assert_ne!(other.2, sent.incident);
    people.report(Resolved, 1..4);
    let ends = [(Resolved, 1, sent.incident), (Resolved, 2, other.2)];
    assert_eq!(people.delivered(PAGER), ends);
}

#[test]
fn people_get_both_messages_of_what_ended_before_the_first() {
    let mut people = People::new();
    people.report(Raised, 0..2);
    people.report(Resolved, 0..2);
    assert_eq!(people.counts(CHAT), [(Raised, 2), (Resolved, 2)]);
    assert_eq!(people.counts(PAGER), [(Raised, 2), (Resolved, 2)]);
}

#[test]
fn a_chat_gets_updates_that_people_act_on_and_a_pager_none() {
    let mut people = People::new();
    people.report(Raised, [1]);
    let mut update = |id: &str, changed: &[ChangedField]| {
        let mut event = samples::event(id, Updated, "10.0.0.1", "10.0.0.1");
        event.data.changed = changed.to_vec();
        people.outbox.sink().on_event(&event.into());
        people.turn();
        (people.counts(CHAT), people.counts(PAGER))
    };
    let raised = vec![(Raised, 1)];
    let first = update("in the window", &[ChangedField::Pod]);
    assert_eq!(first, (raised.clone(), raised));
    let minor = update("minor", &[ChangedField::Evidence]);
    assert_eq!(minor, (vec![], vec![]));
    let joined = update("joined", &[ChangedField::Claimants]);
    assert_eq!(joined, (vec![(Updated, 1)], vec![]));
}

#[test]
fn a_sweep_that_is_found_in_the_window_replaces_its_conflicts() {
    let mut people = People::new();
    let event = |id: &str, change| {
        let mut event = samples::event(id, change, "10.0.0.1", "10.0.0.1");
        event.data.confidence = Confidence::Observed;
        event
    };
    people.outbox.sink().on_event(&event("1", Raised).into());
    people.turn();
    let mut swept = event("2", Updated);
    swept.data.sweep = Some(AnomalyId(7));
    people.outbox.sink().on_event(&swept.into());
    let sweep: AnyEvent = samples::sweep("10.0.0.9").into();
    people.outbox.sink().on_event(&sweep);
    people.turn();
    for sink in [CHAT, PAGER] {
        assert_eq!(people.delivered(sink), [(Raised, 1, sweep.subject_id())]);
    }
    let mut end = event("3", Resolved);
    end.data.sweep = Some(AnomalyId(7));
    people.outbox.sink().on_event(&end.into());
    people.turn();
    assert_eq!(people.delivered(CHAT), []);
}

impl People {
    /// The drift of the address of the conflict with number 1.
    fn drift(&mut self, change: Change) {
        self.serial += 1;
        let mut drift = samples::drift("10.0.0.1");
        drift.id = format!("e{}", self.serial);
        drift.data.anomaly_id = AnomalyId(7);
        drift.event_type.change = change;
        if change == Resolved {
            drift.data.state = SubjectState::Resolved;
        }
        self.outbox.sink().on_event(&drift.into());
        self.turn();
    }

    /// What both get.
    fn both(&mut self) -> Vec<(Change, usize)> {
        let chat = self.counts(CHAT);
        assert_eq!(self.counts(PAGER), chat);
        chat
    }
}

#[test]
fn what_is_part_of_a_conflict_has_no_message() {
    for is_first in [true, false] {
        let mut people = People::new();
        if is_first {
            people.drift(Raised);
        }
        people.report(Raised, [1]);
        people.drift(if is_first { Updated } else { Raised });
        assert_eq!(people.both(), [(Raised, 1)]);
        let mut people = people.restart();
        people.drift(Updated);
        people.drift(Resolved);
        assert_eq!(people.both(), []);
        people.report(Resolved, [1]);
        assert_eq!(people.both(), [(Resolved, 1)]);
    }
}

#[test]
fn what_is_over_shortly_after_its_conflict_has_no_message() {
    let mut people = People::new();
    people.drift(Raised);
    people.report(Raised, [1]);
    people.report(Resolved, [1]);
    people.drift(Updated);
    assert_eq!(people.both(), [(Raised, 1), (Resolved, 1)]);
    people.drift(Resolved);
    assert_eq!(people.both(), []);
}

#[test]
fn what_people_had_before_its_conflict_has_an_end_of_its_own() {
    let mut people = People::new();
    people.drift(Raised);
    assert_eq!(people.both(), [(Raised, 1)]);
    people.report(Raised, [1]);
    assert_eq!(people.both(), [(Raised, 1)]);
    people.report(Resolved, [1]);
    assert_eq!(people.both(), [(Resolved, 1)]);
    people.drift(Resolved);
    assert_eq!(people.both(), [(Resolved, 1)]);
}

#[tokio::test(start_paused = true)]
async fn what_outlasts_its_conflict_is_reported_on_its_own() {
    let mut people = People::new();
    people.report(Raised, [1]);
    people.drift(Raised);
    assert_eq!(people.both(), [(Raised, 1)]);
    tokio::time::advance(OUTLASTS / 2).await;
    people.report(Resolved, [1]);
    tokio::time::advance(OUTLASTS / 2).await;
    people.drift(Updated);
    assert_eq!(people.both(), [(Resolved, 1)]);
    tokio::time::advance(OUTLASTS / 2).await;
    people.turn();
    assert_eq!(people.both(), [(Raised, 1)]);
    people.drift(Resolved);
    assert_eq!(people.both(), [(Resolved, 1)]);
}
