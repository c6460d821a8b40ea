//! A store that holds anything at all; see [`crate::fuzzing`].

use std::{sync::Mutex, time::Duration};

use redb::Database;

use super::{
    Bounds, SinkSpec,
    batch::{Changes, Input},
    ledger::Ledger,
    tables::{self, Now, OPEN, OpenRecord, QUEUE, QueuedRecord},
};
use crate::{
    config::sinks::Format,
    event::{Change, any_event::AnyEvent},
    persist::store::{Store, StoreError},
    sinks::filter::Filter,
};

/// A sink that hears of everything, and one that waits with it.
const EAGER: &str = "hook";
const PATIENT: &str = "later";

/// Goes on with a store in which the bytes stand as an event that waits and as a conflict that is open, and is over now.
pub fn outbox_records(bytes: &[u8]) {
    let queued = serde_json::from_slice::<QueuedRecord>(bytes).ok();
    let open = serde_json::from_slice::<OpenRecord>(bytes).ok();
    let events = queued.iter().map(|record| &record.event);
    for event in events.chain(open.iter().map(|record| &record.event)) {
        send(event);
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

/// What a sender makes of an event.
fn send(event: &AnyEvent) {
    for format in [Format::Cloudevents, Format::Slack, Format::Pagerduty] {
        assert!(format.body(event, "key").is_ok(), "{event:?}");
    }
    assert!(event.supersedes(event));
    for change in [Change::Raised, Change::Updated, Change::Resolved] {
        assert_eq!(event.told_as(change).change(), change);
    }
}

fn resume(
    database: &Database,
    bytes: &[u8],
    open: Option<OpenRecord>,
    unreadable: usize,
) -> Result<(), StoreError> {
    let write = database.begin_write()?;
    let story = open.as_ref().map_or("", |record| record.event.subject_id());
    write.open_table(QUEUE)?.insert((EAGER, 0), bytes)?;
    write.open_table(OPEN)?.insert(story, bytes)?;
    write.commit()?;

    let sink = |name: &str, min_duration| SinkSpec {
        name: name.to_owned(),
        filter: Filter {
            min_duration,
            ..Filter::default()
        },
    };
    let sinks = vec![
        sink(EAGER, Duration::ZERO),
        sink(PATIENT, Duration::from_secs(3600)),
    ];
    let mut ledger = Ledger::new(sinks, Bounds::default(), 0);
    let now = Now::get();
    let loaded = ledger.load(database, now)?;
    assert_eq!(loaded.unreadable, unreadable);
    assert_eq!(loaded.orphaned, 0);

    let queues: Vec<_> = loaded.queues.into_iter().map(Mutex::new).collect();
    let queues: Vec<_> = queues.iter().collect();
    let mut changes = Changes::default();
    let over = [Input::Active(Vec::new())];
    ledger.apply(database, &over, &queues, &mut changes, false, now)?;
    ledger.applied(&changes);
    let knew = |name| {
        open.as_ref()
            .is_some_and(|record| record.told.contains(name))
    };
    let knowing = [EAGER, PATIENT].into_iter().filter(|name| knew(*name));
    assert_eq!(
        changes.pushed.len(),
        knowing.count(),
        "who knew hears the end"
    );
    for (sink, entry) in &changes.pushed {
        let name = [EAGER, PATIENT][*sink];
        let event = tables::read_event(database, name, entry.seq)?;
        assert!(
            event.is_some_and(|event| event.is_over() && event.change() == Change::Resolved),
            "what was stored does not come back"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test that cannot set itself up fails

    use super::*;

    #[test]
    fn the_first_inputs_are_understood() {
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
