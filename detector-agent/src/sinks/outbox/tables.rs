//! The outbox's tables in the state file, and what stands in them.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use redb::{
    Database, ReadableDatabase as _, ReadableTable as _, TableDefinition, WriteTransaction,
};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::queue::Entry;
use crate::{event::AnyEvent, persist::store::StoreError};

/// What waits: (sink, place in its queue) → the event as the sink is told it.
pub(super) const QUEUE: TableDefinition<'_, (&str, u64), &[u8]> =
    TableDefinition::new("outbox.queue");
/// Conflicts that are not over: id → its newest event, and the sinks that know of it.
pub(super) const OPEN: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("outbox.open");
/// The number of the newest batch.
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("outbox.meta");
const BATCH: &str = "batch";

#[derive(Serialize, Deserialize)]
pub(super) struct QueuedRecord {
    /// When it was stored, milliseconds of the wall clock.
    pub(super) at: i64,
    pub(super) event: AnyEvent,
}

impl QueuedRecord {
    /// The same as the queue in memory knows it.
    pub(super) fn entry(&self, seq: u64, bytes: usize, now: Now) -> Entry {
        let age = now.wall.as_millisecond().saturating_sub(self.at);
        Entry {
            seq,
            conflict: Arc::from(self.event.subject_id()),
            change: self.event.change(),
            bytes,
            age: Duration::from_millis(u64::try_from(age).unwrap_or(0)),
            since: now.steady,
            event: None,
        }
    }
}

#[derive(Clone, Serialize, Deserialize)]
pub(super) struct OpenRecord {
    pub(super) told: BTreeSet<String>,
    pub(super) event: AnyEvent,
}

/// The time, on both clocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    pub(super) wall: jiff::Timestamp,
    pub(super) steady: Instant,
}

impl Now {
    pub(super) fn get() -> Self {
        Self {
            wall: jiff::Timestamp::now(),
            steady: Instant::now(),
        }
    }
}

/// The number of the newest batch; 0 before the first.
pub(super) fn newest_batch(transaction: &WriteTransaction) -> Result<u64, StoreError> {
    let meta = transaction.open_table(META)?;
    Ok(meta.get(BATCH)?.map_or(0, |n| n.value()))
}

/// Writes the number of a batch with it.
pub(super) fn number_batch(transaction: &WriteTransaction, number: u64) -> Result<(), StoreError> {
    transaction.open_table(META)?.insert(BATCH, number)?;
    Ok(())
}

/// Whether the batch of this number is the newest on the disk.
pub(super) fn is_newest_batch(database: &Database, number: u64) -> Result<bool, StoreError> {
    let transaction = database.begin_read()?;
    let meta = transaction.open_table(META)?;
    Ok(meta.get(BATCH)?.map(|n| n.value()) == Some(number))
}

/// A waiting event's text.
pub(super) fn read_event(
    database: &Database,
    sink: &str,
    seq: u64,
) -> Result<Option<AnyEvent>, StoreError> {
    let transaction = database.begin_read()?;
    let queue = transaction.open_table(QUEUE)?;
    let record = queue.get((sink, seq))?;
    Ok(record
        .and_then(|r| serde_json::from_slice::<QueuedRecord>(r.value()).ok())
        .map(|r| r.event))
}
