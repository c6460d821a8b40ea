//! What is pending of one conflict: at most two events; only the second one is replaced.

use std::{sync::Arc, time::Duration};

use detector_event::{
    AnyEvent,
    Change::{self, Raised, Resolved, Updated},
    ChangedField, samples,
};
use tokio::time::Instant;

use super::{
    super::{Outbox, OutboxBounds, SinkSpec, worker::OutboxWorker},
    world,
};
use crate::{
    metrics::{Delivery, Metrics},
    persist::store::Store,
    sinks::{EventSink as _, filter::Filter},
};

struct Hook {
    metrics: Arc<Metrics>,
    outbox: Outbox,
    worker: OutboxWorker,
}

impl Hook {
    fn new(bounds: OutboxBounds) -> Self {
        Self::on(&Arc::new(Store::in_memory()), bounds)
    }

    fn on(store: &Arc<Store>, bounds: OutboxBounds) -> Self {
        let metrics = Arc::new(Metrics::new());
        let hook = SinkSpec {
            name: "hook".to_owned(),
            filter: Filter::default(),
            window: None,
        };
        let (outbox, worker) =
            Outbox::assemble(store, vec![hook], bounds, &metrics, world::health());
        Self {
            metrics,
            outbox,
            worker,
        }
    }

    fn report(&mut self, event: impl Into<AnyEvent>) {
        self.outbox.sink().on_event(&event.into());
        self.worker.turn(Some(Duration::ZERO));
    }

    fn pending(&self) -> usize {
        self.outbox.sink_queues()[0].pending()
    }

    /// Delivers everything: each event's id and change.
    fn delivered(&mut self) -> Vec<(String, Change)> {
        let mut delivered = Vec::new();
        let queue = Arc::clone(&self.outbox.sink_queues()[0]);
        while let Ok(job) = queue.take(Instant::now()) {
            let message = queue.read(&job).unwrap().unwrap();
            delivered.push((message.id, message.change));
            queue.delivered(&job);
            self.worker.turn(Some(Duration::ZERO));
        }
        delivered
    }

    fn counted(&self, outcome: &'static str) -> u64 {
        let labels = Delivery::new("hook", outcome);
        self.metrics.deliveries.get_or_create(&labels).get()
    }
}

#[test]
fn what_was_not_delivered_is_the_oldest_event_and_the_newest_state() {
    // A dot stands for a delivery.
    for (happens, expected) in [
        ("ruuu", "0raised 3updated"),
        ("ruue", "0raised 3resolved"),
        ("r.uuu", "0raised 1updated 3updated"),
        ("r.uue", "0raised 1updated 3resolved"),
        ("r.e", "0raised 1resolved"),
        // It begins again before its end was delivered.
        ("rer", "0raised 2updated"),
        ("rere", "0raised 3resolved"),
        ("r.er", "0raised 1resolved 2raised"),
        ("r.eru", "0raised 1resolved 3raised"),
        ("r.ere", "0raised 1resolved"),
        ("r.erer", "0raised 1resolved 4raised"),
        ("r.uer", "0raised 1updated 3updated"),
        ("re.re", "0raised 1resolved 2raised 3resolved"),
    ] {
        let mut hook = Hook::new(OutboxBounds::default());
        let mut delivered = Vec::new();
        let mut serial = 0_u64;
        for letter in happens.chars() {
            let change = match letter {
                'r' => Raised,
                'u' => Updated,
                'e' => Resolved,
                _ => {
                    delivered.extend(hook.delivered());
                    continue;
                }
            };
            hook.report(samples::event(
                &serial.to_string(),
                change,
                "conflict",
                "10.0.0.1",
            ));
            serial += 1;
            assert!(hook.pending() <= 2, "{happens}");
        }
        delivered.extend(hook.delivered());
        let texts = delivered
            .iter()
            .map(|(id, change)| format!("{id}{}", change.name()));
        assert_eq!(texts.collect::<Vec<_>>().join(" "), expected, "{happens}");
        let superseded = serial - delivered.len() as u64;
        assert_eq!(hook.counted("superseded"), superseded, "{happens}");
    }
}

#[test]
fn an_update_has_the_changes_of_those_that_it_replaces() {
    let mut hook = Hook::new(OutboxBounds::default());
    hook.report(samples::raised("10.0.0.1"));
    for (id, changed) in [
        ("1", vec![ChangedField::Pod]),
        ("2", vec![ChangedField::Kind, ChangedField::Pod]),
    ] {
        let mut event = samples::event(id, Updated, "10.0.0.1", "10.0.0.1");
        event.data.changed = changed;
        hook.report(event);
    }
    hook.report(samples::drift("10.0.0.9"));
    let queue = Arc::clone(&hook.outbox.sink_queues()[0]);
    let raise = queue.take(Instant::now()).unwrap();
    queue.delivered(&raise);
    hook.worker.turn(Some(Duration::ZERO));
    let update = queue.take(Instant::now()).unwrap();
    let message = queue.read(&update).unwrap().unwrap();
    let [AnyEvent::Conflict(event)] = &message.events[..] else {
        panic!("{message:?}");
    };
    let expected = [ChangedField::Kind, ChangedField::Pod];
    assert_eq!(
        (event.id.as_str(), &event.data.changed[..]),
        ("2", &expected[..])
    );
}

#[test]
fn at_the_bound_new_conflicts_wait_and_ends_of_others_are_stored() {
    let bounds = OutboxBounds {
        events: 3,
        ..OutboxBounds::default()
    };
    let mut hook = Hook::new(bounds);
    let event = |id: &str, change, conflict| samples::event(id, change, conflict, "10.0.0.1");
    hook.report(event("1", Raised, "a"));
    hook.report(event("2", Raised, "b"));
    assert_eq!(hook.pending(), 2);
    hook.report(event("3", Raised, "c"));
    hook.report(event("4", Updated, "c"));
    hook.report(event("5", Updated, "a"));
    assert_eq!((hook.pending(), hook.counted("refused")), (2, 3));
    hook.report(event("6", Resolved, "a"));
    hook.report(event("7", Resolved, "b"));
    assert_eq!(hook.pending(), 4);
    let delivered = hook.delivered();
    assert_eq!(delivered.len(), 4, "{delivered:?}");
    // It is raised once there is room.
    hook.report(event("8", Updated, "c"));
    assert_eq!(hook.delivered(), [("8".to_owned(), Raised)]);
}

#[test]
fn what_another_version_stored_is_dropped_or_used() {
    use redb::TableDefinition;
    const QUEUE: TableDefinition<'_, (&str, u64), &[u8]> = TableDefinition::new("outbox.queue");
    const DIGESTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("outbox.digests");
    const OTHER: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("state.conflicts");

    let store = Arc::new(Store::in_memory());
    let database = store.database().unwrap();
    let write = database.begin_write().unwrap();
    {
        let mut queue = write.open_table(QUEUE).unwrap();
        let changes = [Raised, Updated, Updated];
        for (seq, change) in changes.into_iter().enumerate() {
            let event = samples::event(&seq.to_string(), change, "a", "10.0.0.1");
            let record = serde_json::json!({"at": 0, "event": event});
            let record = record.to_string().into_bytes();
            queue.insert(("hook", seq as u64), &record[..]).unwrap();
        }
        let digest = br#"{"at": 0, "event": {"id": "1", "digest_id": "2"}}"#;
        queue.insert(("hook", 3), &digest[..]).unwrap();
        for table in [DIGESTS, OTHER] {
            let mut table = write.open_table(table).unwrap();
            table.insert("hook", &b"{}"[..]).unwrap();
        }
    }
    write.commit().unwrap();
    drop(database);

    let mut hook = Hook::on(&store, OutboxBounds::default());
    let labels = Delivery::new("outbox", "unreadable");
    assert_eq!(hook.metrics.deliveries.get_or_create(&labels).get(), 1);
    let delivered = hook.delivered();
    let ids: Vec<_> = delivered.iter().map(|(id, _)| id.as_str()).collect();
    assert_eq!(ids, ["0", "1", "2"]);
    let database = store.database().unwrap();
    let write = database.begin_write().unwrap();
    assert!(!write.delete_table(DIGESTS).unwrap());
    assert!(write.delete_table(OTHER).unwrap());
}
