//! Fuzz entry points: a store with arbitrary records; see [`crate::fuzzing`].

use std::{sync::Mutex, time::Duration};

use detector_event::{AnyEvent, Change};
use redb::Database;

use super::{
    OutboxBounds, SinkSpec,
    batch::{BatchOutcome, OutboxInput},
    outbox_store::OutboxStore,
    tables::{self, Now, OPEN, OpenRecord, QUEUE, QueuedRecord},
};
use crate::{
    persist::store::{Store, StoreError},
    sinks::{filter::Filter, message::Message, settings::Format},
};

/// A sink that gets everything, and one with a minimum duration.
const EAGER: &str = "hook";
const PATIENT: &str = "later";

/// Loads a store that has the bytes as a queued event and as an open subject, which then turns out to have ended.
pub fn outbox_records(bytes: &[u8]) {
    let queued = serde_json::from_slice::<QueuedRecord>(bytes).ok();
    let open = serde_json::from_slice::<OpenRecord>(bytes).ok();
    if let Some(record) = &queued {
        send(&record.event);
    }
    if let Some(record) = &open {
        send(&record.event);
    }
    if queued.is_none() && open.is_none() {
        return;
    }
    let store = Store::in_memory();
    let went = store
        .database()
        .and_then(|database| resume(&database, bytes, queued, open));
    assert!(went.is_ok(), "a store in memory fails: {went:?}");
}

/// Formats an event as a sender does.
fn send(event: &AnyEvent) {
    let message = Message::of_event(event.clone());
    for format in [Format::Cloudevents, Format::Slack, Format::Pagerduty] {
        assert!(format.body(&message, "key", None).is_ok(), "{message:?}");
    }
    assert!(event.supersedes(event));
    for change in [Change::Raised, Change::Updated, Change::Resolved] {
        assert_eq!(event.with_change(change).change(), change);
    }
}

fn resume(
    database: &Database,
    bytes: &[u8],
    queued: Option<QueuedRecord>,
    open: Option<OpenRecord>,
) -> Result<(), StoreError> {
    let write = database.begin_write()?;
    let subject = open
        .as_ref()
        .map_or_else(String::new, |record| record.event.subject_id().to_string());
    write.open_table(QUEUE)?.insert((EAGER, 0), bytes)?;
    write.open_table(OPEN)?.insert(subject.as_str(), bytes)?;
    write.commit()?;

    let sink = |name: &str, min_duration| SinkSpec {
        name: name.to_owned(),
        filter: Filter {
            min_duration,
            ..Filter::default()
        },
        window: None,
    };
    let sinks = vec![
        sink(EAGER, Duration::ZERO),
        sink(PATIENT, Duration::from_secs(3600)),
    ];
    let mut tables = OutboxStore::new(sinks, OutboxBounds::default(), 0);
    let now = Now::get();
    let loaded = tables.load(database, now)?;
    let unreadable = usize::from(queued.is_none()) + usize::from(open.is_none());
    assert_eq!(loaded.unreadable, unreadable);
    assert_eq!(loaded.orphaned, 0);

    let queues: Vec<_> = loaded.queues.into_iter().map(Mutex::new).collect();
    let queues: Vec<_> = queues.iter().collect();
    let mut changes = BatchOutcome::default();
    let all_ended = [OutboxInput::Active(Vec::new())];
    tables.apply(database, &all_ended, &queues, &mut changes, false, now)?;
    tables.applied(&changes);
    let has_end = |name: &str| {
        let is_end = |queued: &QueuedRecord| queued.event.change() == Change::Resolved;
        name == EAGER && queued.as_ref().is_some_and(is_end)
    };
    let is_notified = |name: &&str| {
        let is_notified = |open: &OpenRecord| open.notified_sinks.contains(*name);
        open.as_ref().is_some_and(is_notified) && !has_end(name)
    };
    let notified = [EAGER, PATIENT].into_iter().filter(is_notified);
    assert_eq!(
        changes.pushed.len(),
        notified.count(),
        "every notified sink that has no end yet gets one"
    );
    for (sink, seq) in changes.pushed.keys() {
        let name = [EAGER, PATIENT][*sink];
        let events = tables::read_events(database, name, &[*seq])?;
        let is_end = |event: &Option<AnyEvent>| {
            let change = event.as_ref().map(AnyEvent::change);
            change == Some(Change::Resolved)
        };
        assert!(
            events.len() == 1 && events.iter().all(is_end),
            "a stored event is not read back"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test that cannot set itself up fails

    use super::*;

    #[test]
    fn the_seed_corpus_is_decoded() {
        for input in [
            &include_bytes!("../../../../fuzz/corpus/outbox_records/conflict")[..],
            include_bytes!("../../../../fuzz/corpus/outbox_records/anomaly"),
        ] {
            serde_json::from_slice::<QueuedRecord>(input)
                .map(drop)
                .unwrap();
            serde_json::from_slice::<OpenRecord>(input)
                .map(drop)
                .unwrap();
        }
    }
}
