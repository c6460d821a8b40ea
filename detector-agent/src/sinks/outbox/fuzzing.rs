//! Fuzz entry points: a store with arbitrary records; see [`crate::fuzzing`].

use std::{sync::Mutex, time::Duration};

use detector_event::Change;
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
        send(&record.message);
    }
    if let Some(record) = &open {
        send(&Message::Event(record.event.clone()));
    }
    if queued.is_none() && open.is_none() {
        return;
    }
    let unreadable = usize::from(queued.is_none()) + usize::from(open.is_none());
    let store = Store::in_memory();
    let went = store
        .database()
        .and_then(|database| resume(&database, bytes, open, unreadable));
    assert!(went.is_ok(), "a store in memory fails: {went:?}");
}

/// Formats a message as a sender does.
fn send(message: &Message) {
    for format in [Format::Cloudevents, Format::Slack, Format::Pagerduty] {
        assert!(format.body(message, "key", None).is_ok(), "{message:?}");
    }
    let Message::Event(event) = message else {
        return;
    };
    assert!(event.supersedes(event));
    for change in [Change::Raised, Change::Updated, Change::Resolved] {
        assert_eq!(event.with_change(change).change(), change);
    }
}

fn resume(
    database: &Database,
    bytes: &[u8],
    open: Option<OpenRecord>,
    unreadable: usize,
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
        digest: None,
    };
    let sinks = vec![
        sink(EAGER, Duration::ZERO),
        sink(PATIENT, Duration::from_secs(3600)),
    ];
    let mut tables = OutboxStore::new(sinks, OutboxBounds::default(), 0);
    let now = Now::get();
    let loaded = tables.load(database, now)?;
    assert_eq!(loaded.unreadable, unreadable);
    assert_eq!(loaded.orphaned, 0);

    let queues: Vec<_> = loaded.queues.into_iter().map(Mutex::new).collect();
    let queues: Vec<_> = queues.iter().collect();
    let mut changes = BatchOutcome::default();
    let all_ended = [OutboxInput::Active(Vec::new())];
    tables.apply(database, &all_ended, &queues, &mut changes, false, now)?;
    tables.applied(&changes);
    let was_notified = |name| {
        open.as_ref()
            .is_some_and(|record| record.has_own_messages(name))
    };
    let notified = [EAGER, PATIENT]
        .into_iter()
        .filter(|name| was_notified(*name));
    assert_eq!(
        changes.pushed.len(),
        notified.count(),
        "every notified sink gets the resolving event"
    );
    for (sink, entry) in &changes.pushed {
        let name = [EAGER, PATIENT][*sink];
        let message = tables::read_message(database, name, entry.seq)?;
        assert!(
            message.is_some_and(|message| message.change() == Change::Resolved),
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
