//! A day of retries in virtual time.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a test that cannot set itself up fails

use std::{
    collections::HashMap,
    sync::Mutex,
    sync::atomic::{AtomicUsize, Ordering},
};

use detector_event::{Change, Event, Role, SubjectId, samples};
use tokio::{task::LocalSet, time::sleep};

use super::*;
use crate::{
    health::Health,
    metrics::{Delivery, Metrics},
    sinks::outbox::manual::ManualOutbox,
};

/// One attempt: its time, its event, and how many were in progress.
#[derive(Clone, Debug)]
struct AttemptRecord {
    at: Duration,
    id: String,
    subject: SubjectId,
    change: Change,
    concurrent: usize,
}

type OutcomeOf = dyn Fn(&Message, usize) -> DeliveryOutcome + Send + Sync;

/// Answers each attempt (the event, and how often it was attempts before) after 100 ms.
struct Target {
    begun: Instant,
    answer: Box<OutcomeOf>,
    attempts: Mutex<Vec<AttemptRecord>>,
    concurrent: AtomicUsize,
}

impl DeliveryTarget for Target {
    async fn attempt(&self, event: Message) -> DeliveryOutcome {
        let concurrent = self.concurrent.fetch_add(1, Ordering::Relaxed) + 1;
        let before = {
            let mut attempts = self.attempts.lock().unwrap();
            let before = attempts.iter().filter(|t| t.id == event.id).count();
            attempts.push(AttemptRecord {
                at: self.begun.elapsed(),
                id: event.id.clone(),
                subject: event.incident,
                change: event.change,
                concurrent,
            });
            before
        };
        sleep(Duration::from_millis(100)).await;
        self.concurrent.fetch_sub(1, Ordering::Relaxed);
        (self.answer)(&event, before)
    }
}

fn failed() -> DeliveryOutcome {
    DeliveryOutcome::Failed {
        wait: None,
        why: "as configured".to_owned(),
    }
}

fn rejected() -> DeliveryOutcome {
    DeliveryOutcome::Rejected {
        wait: None,
        why: "answered 422".to_owned(),
    }
}

fn event(id: usize, change: Change, conflict: &str) -> Event {
    samples::event(&format!("e{id}"), change, conflict, "10.0.0.1")
}

/// Sends `events` for `time`; gives all attempts and the metrics.
fn send(
    events: Vec<Event>,
    time: Duration,
    answer: impl Fn(&Message, usize) -> DeliveryOutcome + Send + Sync + 'static,
) -> (Vec<AttemptRecord>, Arc<Metrics>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let metrics = Arc::new(Metrics::new());
    let attempts = LocalSet::new().block_on(&runtime, async {
        let mut outbox = ManualOutbox::new(&metrics);
        for event in events {
            outbox.report(event);
        }
        outbox.turn();
        let target = Arc::new(Target {
            begun: Instant::now(),
            answer: Box::new(answer),
            attempts: Mutex::default(),
            concurrent: AtomicUsize::new(0),
        });
        let random = fastrand::Rng::with_seed(1);
        let settings = RetrySettings::default();
        let health = Health::default().part(Role::Sink, "hook");
        let sender = Sender::new(
            outbox.sink_queue(),
            Arc::clone(&target),
            settings,
            random,
            health,
        );
        let (_stop, stopped) = watch::channel(false);
        tokio::task::spawn_local(async move {
            loop {
                outbox.turn();
                sleep(Duration::from_secs(1)).await;
            }
        });
        tokio::task::spawn_local(sender.run(stopped));
        sleep(time).await;
        target.attempts.lock().unwrap().clone()
    });
    (attempts, metrics)
}

fn count(metrics: &Metrics, outcome: &'static str) -> u64 {
    let labels = Delivery::new("hook", outcome);
    metrics.deliveries.get_or_create(&labels).get()
}

const DAY: Duration = Duration::from_secs(24 * 3600);

#[test]
fn waits_double_with_jitter_up_to_15_min_for_a_day() {
    let events = vec![event(1, Change::Raised, "a")];
    let (attempts, metrics) = send(events, 2 * DAY, |_, _| failed());
    let mut waits = HashMap::new();
    for (n, pair) in attempts.windows(2).enumerate() {
        let wait = (pair[1].at - pair[0].at).as_secs_f64() - 0.1;
        let full = 2f64.powi(n.min(20).try_into().unwrap()).min(900.0);
        assert!(
            wait >= full / 2.0 - 0.01 && wait <= full + 0.01,
            "wait {n}: {wait}, not about {full}"
        );
        waits.insert((wait * 1000.0) as u64, n);
    }
    assert!(waits.len() > attempts.len() * 9 / 10, "no jitter");
    let last = attempts.last().unwrap().at;
    assert!(
        last >= DAY && last < DAY + Duration::from_secs(900),
        "{last:?}"
    );
    assert_eq!(count(&metrics, "given_up"), 1);
    assert_eq!(count(&metrics, "failed"), attempts.len() as u64 - 1);
}

#[test]
fn retry_after_delays_everything() {
    let wait = Duration::from_secs(120);
    let events = (0..20)
        .map(|n| event(n, Change::Raised, &format!("c{n}")))
        .collect();
    let (attempts, metrics) = send(events, DAY, move |event, before| {
        if event.id == "e0" && before == 0 {
            DeliveryOutcome::Failed {
                wait: Some(wait),
                why: "as configured".to_owned(),
            }
        } else {
            DeliveryOutcome::Delivered
        }
    });
    // Requests in progress were answered before the header arrived.
    let later: Vec<_> = attempts
        .iter()
        .filter(|t| t.at > Duration::from_millis(150))
        .collect();
    assert!(later.len() > 4, "{attempts:?}");
    assert!(later.iter().all(|t| t.at >= wait), "{later:?}");
    assert_eq!(count(&metrics, "delivered"), 20);
}

#[test]
fn after_410_nothing_is_sent_and_events_stay_queued() {
    let events = (0..20)
        .map(|n| event(n, Change::Raised, &format!("c{n}")))
        .collect();
    let (attempts, metrics) = send(events, 2 * DAY, |_, _| DeliveryOutcome::Gone);
    assert!(attempts.len() <= CONCURRENCY, "{attempts:?}");
    assert_eq!(count(&metrics, "disabled"), 1);
    assert_eq!(count(&metrics, "delivered"), 0);
    let labels = crate::metrics::Sink {
        sink: "hook".to_owned(),
    };
    assert_eq!(metrics.pending.get_or_create(&labels).get(), 20);
}

#[test]
fn an_event_that_always_fails_delays_only_its_own_conflict() {
    let mut events = vec![
        event(0, Change::Raised, "bad"),
        event(1, Change::Resolved, "bad"),
    ];
    for n in 0..50 {
        let conflict = format!("good{n}");
        events.push(event(10 + 2 * n, Change::Raised, &conflict));
        events.push(event(11 + 2 * n, Change::Resolved, &conflict));
    }
    let (attempts, metrics) = send(events, Duration::from_secs(600), |event, _| {
        if event.incident == samples::subject_id("bad") {
            failed()
        } else {
            DeliveryOutcome::Delivered
        }
    });
    assert_eq!(count(&metrics, "delivered"), 100);
    let bad: Vec<_> = attempts
        .iter()
        .filter(|t| t.subject == samples::subject_id("bad"))
        .collect();
    assert!(bad.len() > 5);
    assert!(bad.iter().all(|t| t.id == "e0"), "resolved overtook raised");
}

#[test]
fn rejected_events_wait_alone_and_are_tried_for_a_day() {
    let mut events: Vec<_> = (0..10)
        .map(|n| event(n, Change::Raised, &format!("bad{n}")))
        .collect();
    events.extend((10..60).map(|n| event(n, Change::Raised, &format!("good{n}"))));
    let (attempts, metrics) = send(events, 2 * DAY, |event, _| {
        let id: usize = event.id[1..].parse().unwrap();
        if id < 10 {
            rejected()
        } else {
            DeliveryOutcome::Delivered
        }
    });
    assert_eq!(count(&metrics, "delivered"), 50);
    let (bad, good): (Vec<_>, Vec<_>) = attempts.iter().partition(|t| t.id.len() == 2);
    let last = good.iter().map(|t| t.at).max().unwrap();
    assert!(
        last < Duration::from_secs(2),
        "the last one waited {last:?}"
    );
    for n in 0..10 {
        let attempts: Vec<_> = bad.iter().filter(|t| t.id == format!("e{n}")).collect();
        for pair in attempts.windows(2) {
            let wait = pair[1].at - pair[0].at;
            let is_slow = wait >= Duration::from_secs(450) && wait <= Duration::from_secs(3601);
            assert!(is_slow, "{wait:?}");
        }
        let last = attempts.last().unwrap().at;
        assert!(last >= DAY && last < DAY + Duration::from_secs(3601));
        assert!((20..60).contains(&attempts.len()), "{}", attempts.len());
    }
    assert_eq!(count(&metrics, "given_up"), 10);
    assert_eq!(count(&metrics, "failed"), 0);
}

#[test]
fn a_rejected_event_is_delivered_once_the_receiver_takes_it() {
    let events = vec![
        event(0, Change::Raised, "a"),
        event(1, Change::Resolved, "a"),
    ];
    let (attempts, metrics) = send(events, DAY, |event, before| {
        if event.id == "e0" && before < 3 {
            rejected()
        } else {
            DeliveryOutcome::Delivered
        }
    });
    let ids: Vec<_> = attempts.iter().map(|t| t.id.as_str()).collect();
    assert_eq!(ids, ["e0", "e0", "e0", "e0", "e1"]);
    let labels = crate::metrics::Sink {
        sink: "hook".to_owned(),
    };
    assert_eq!(metrics.parked.get_or_create(&labels).get(), 0);
}

#[test]
fn an_update_takes_the_place_of_a_rejected_raise() {
    let changes = [Change::Raised, Change::Updated, Change::Updated];
    let events = changes.into_iter().enumerate();
    let events = events.map(|(n, change)| event(n, change, "a")).collect();
    let (attempts, metrics) = send(events, Duration::from_secs(60), |event, _| {
        if event.id == "e0" {
            rejected()
        } else {
            DeliveryOutcome::Delivered
        }
    });
    let attempts: Vec<_> = attempts.iter().map(|t| (t.id.as_str(), t.change)).collect();
    assert_eq!(attempts, [("e0", Change::Raised), ("e2", Change::Raised)]);
    // The update between them, and the raise.
    assert_eq!(
        (count(&metrics, "superseded"), count(&metrics, "delivered")),
        (2, 1)
    );
}

#[test]
fn events_of_a_conflict_are_sent_in_order_despite_failures() {
    let mut events = Vec::new();
    for n in 0..30 {
        let conflict = format!("c{}", n % 10);
        let change = [Change::Raised, Change::Updated, Change::Resolved][n / 10];
        events.push(event(n, change, &conflict));
    }
    let (attempts, metrics) = send(events, DAY, |event, before| {
        let id: usize = event.id[1..].parse().unwrap();
        if before < id % 4 {
            failed()
        } else {
            DeliveryOutcome::Delivered
        }
    });
    // The updates are superseded by the ends, which are there before the first attempt.
    assert_eq!(count(&metrics, "delivered"), 20);
    for n in 0..10 {
        let subject = samples::subject_id(&format!("c{n}"));
        let mut ids: Vec<usize> = attempts
            .iter()
            .filter(|t| t.subject == subject)
            .map(|t| t.id[1..].parse().unwrap())
            .collect();
        ids.dedup();
        assert_eq!(ids, [n, n + 20]);
    }
}

#[test]
fn a_receiver_that_is_down_gets_one_request_at_a_time() {
    let events = (0..200)
        .map(|n| event(n, Change::Raised, &format!("c{n}")))
        .collect();
    let down = Duration::from_secs(3600);
    let begun = Arc::new(Mutex::new(None));
    let (attempts, metrics) = send(events, DAY, move |_, _| {
        let now = Instant::now();
        let begun = *begun.lock().unwrap().get_or_insert(now);
        if now - begun < down {
            failed()
        } else {
            DeliveryOutcome::Delivered
        }
    });
    let while_down: Vec<_> = attempts
        .iter()
        .filter(|t| t.at > Duration::from_millis(100) && t.at < down)
        .collect();
    assert!(
        while_down.iter().all(|t| t.concurrent == 1),
        "{while_down:?}"
    );
    assert!(while_down.len() < 30, "{}", while_down.len());
    assert_eq!(count(&metrics, "delivered"), 200);
}
