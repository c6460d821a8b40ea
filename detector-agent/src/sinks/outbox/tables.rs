//! The outbox's tables in the state file, and the format of their records.

use std::{collections::BTreeSet, time::Duration};

use detector_event::{AnyEvent, WallTime};
use redb::{
    Database, ReadableDatabase as _, ReadableTable as _, TableDefinition, TableHandle as _,
    UntypedTableHandle, WriteTransaction,
};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::queue::QueueEntry;
use crate::persist::store::StoreError;

/// Queued events: (sink, sequence number) → [`QueuedRecord`].
pub(super) const QUEUE: TableDefinition<'_, (&str, u64), &[u8]> =
    TableDefinition::new("outbox.queue");
/// Open conflicts and anomalies: id → [`OpenRecord`].
pub(super) const OPEN: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("outbox.open");
/// Open conflicts, and anomalies that may be part of one: (address, id).
pub(super) const ADDRESSES: TableDefinition<'_, (&str, &str), ()> =
    TableDefinition::new("outbox.addresses");
/// The incident that a sink has a conflict or an anomaly in: (sink, id) → id of the incident.
pub(super) const INCIDENTS: TableDefinition<'_, (&str, &str), &str> =
    TableDefinition::new("outbox.incidents");
/// The number of the newest batch.
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("outbox.meta");
const BATCH: &str = "batch";
/// What the names of all tables of the outbox begin with.
const PREFIX: &str = "outbox.";

/// An event as one sink gets it.
#[derive(Serialize, Deserialize)]
pub(super) struct QueuedRecord {
    /// When it was stored, milliseconds since the Unix epoch.
    pub(super) at: i64,
    pub(super) event: AnyEvent,
}

impl QueuedRecord {
    /// The entry of the queue in memory; without the event, which is read from the table when it is sent.
    pub(super) fn entry(&self, seq: u64, bytes: usize, now: Now) -> QueueEntry {
        let age = now.wall.as_millisecond().saturating_sub(self.at);
        QueueEntry {
            seq,
            subject: self.event.subject_id(),
            change: self.event.change(),
            changed: self.event.changed().to_vec(),
            bytes,
            age: Duration::from_millis(u64::try_from(age).unwrap_or(0)),
            since: now.steady,
            event: None,
        }
    }
}

/// An open conflict or anomaly.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct OpenRecord {
    /// The sinks that got, or have queued, its `raised` event.
    #[serde(rename = "told")]
    pub(super) notified_sinks: BTreeSet<String>,
    /// The sinks that got a conflict instead that it is part of.
    #[serde(default)]
    pub(super) covered_sinks: BTreeSet<String>,
    /// Its newest event.
    pub(super) event: AnyEvent,
}

/// The time, on both clocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    pub(super) wall: WallTime,
    pub(super) steady: Instant,
}

impl Now {
    pub(super) fn get() -> Self {
        Self {
            wall: WallTime::now(),
            steady: Instant::now(),
        }
    }
}

/// Deletes the tables that only another version of the agent has; returns their names.
pub(super) fn delete_unknown(transaction: &WriteTransaction) -> Result<Vec<String>, StoreError> {
    let known = [
        QUEUE.name(),
        OPEN.name(),
        ADDRESSES.name(),
        INCIDENTS.name(),
        META.name(),
    ];
    let is_unknown = |table: &UntypedTableHandle| {
        table.name().starts_with(PREFIX) && !known.contains(&table.name())
    };
    let unknown: Vec<_> = transaction.list_tables()?.filter(is_unknown).collect();
    let mut deleted = Vec::new();
    for table in unknown {
        deleted.push(table.name().to_owned());
        transaction.delete_table(table)?;
    }
    Ok(deleted)
}

/// The number of the newest batch; 0 before the first.
pub(super) fn newest_batch(transaction: &WriteTransaction) -> Result<u64, StoreError> {
    let meta = transaction.open_table(META)?;
    Ok(meta.get(BATCH)?.map_or(0, |n| n.value()))
}

/// Writes the number of the batch in its own transaction.
pub(super) fn number_batch(transaction: &WriteTransaction, number: u64) -> Result<(), StoreError> {
    transaction.open_table(META)?.insert(BATCH, number)?;
    Ok(())
}

/// Whether this batch is the newest on the disk.
pub(super) fn is_newest_batch(database: &Database, number: u64) -> Result<bool, StoreError> {
    let transaction = database.begin_read()?;
    let meta = transaction.open_table(META)?;
    Ok(meta.get(BATCH)?.map(|n| n.value()) == Some(number))
}

/// Reads queued events; each is `None` if it is missing or cannot be decoded.
pub(super) fn read_events(
    database: &Database,
    sink: &str,
    seqs: &[u64],
) -> Result<Vec<Option<AnyEvent>>, StoreError> {
    let transaction = database.begin_read()?;
    let queue = transaction.open_table(QUEUE)?;
    let read = |seq: &u64| {
        let record = queue.get((sink, *seq))?;
        Ok(record
            .and_then(|r| serde_json::from_slice::<QueuedRecord>(r.value()).ok())
            .map(|r| r.event))
    };
    seqs.iter().map(read).collect()
}
