//! The outbox's tables in the state file, and the format of their records.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use detector_event::{AnyEvent, SubjectId, WallTime};
use redb::{
    Database, ReadableDatabase as _, ReadableTable as _, TableDefinition, WriteTransaction,
};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::queue::QueueEntry;
use crate::{persist::store::StoreError, sinks::message::Message};

/// Queued events: (sink, sequence number) → [`QueuedRecord`].
pub(super) const QUEUE: TableDefinition<'_, (&str, u64), &[u8]> =
    TableDefinition::new("outbox.queue");
/// Open conflicts and anomalies: id → [`OpenRecord`].
pub(super) const OPEN: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("outbox.open");
/// Sink → [`super::digest_state::DigestState`].
pub(super) const DIGESTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("outbox.digests");
/// The open members of each group: (sink, digest, conflict or anomaly).
pub(super) const MEMBERS: TableDefinition<'_, (&str, &str, &str), ()> =
    TableDefinition::new("outbox.members");
/// The number of the newest batch.
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("outbox.meta");
const BATCH: &str = "batch";

/// A message as one sink gets it.
#[derive(Serialize, Deserialize)]
pub(super) struct QueuedRecord {
    /// When it was stored, milliseconds since the Unix epoch.
    pub(super) at: i64,
    #[serde(rename = "event")]
    pub(super) message: Message,
}

impl QueuedRecord {
    /// The entry of the queue in memory; without the event, which is read from the table when it is sent.
    pub(super) fn entry(&self, seq: u64, bytes: usize, now: Now) -> QueueEntry {
        let age = now.wall.as_millisecond().saturating_sub(self.at);
        QueueEntry {
            seq,
            subject: self.message.subject_id(),
            change: self.message.change(),
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
    /// Those of them that have it in a digest only.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) digest_sinks: BTreeSet<String>,
    /// Which digest of those sinks it is in, unless that is the one of a storm.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) groups: BTreeMap<String, SubjectId>,
    /// Its newest event.
    pub(super) event: AnyEvent,
}

impl OpenRecord {
    /// Whether a sink has the subject as messages of its own, not in a digest.
    pub(super) fn has_own_messages(&self, sink: &str) -> bool {
        self.notified_sinks.contains(sink) && !self.digest_sinks.contains(sink)
    }

    /// Forgets that the sink was notified.
    pub(super) fn release(&mut self, sink: &str) {
        self.notified_sinks.remove(sink);
        self.digest_sinks.remove(sink);
        self.groups.remove(sink);
    }
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

/// Reads a queued message; `None` if it is missing or cannot be decoded.
pub(super) fn read_message(
    database: &Database,
    sink: &str,
    seq: u64,
) -> Result<Option<Message>, StoreError> {
    let transaction = database.begin_read()?;
    let queue = transaction.open_table(QUEUE)?;
    let record = queue.get((sink, seq))?;
    Ok(record
        .and_then(|r| serde_json::from_slice::<QueuedRecord>(r.value()).ok())
        .map(|r| r.message))
}
