//! Reads and writes the outbox's tables.
//!
//! A batch of inputs is one transaction. The batch's number is part of it, so that after an error in the middle of a
//! commit (which may have reached the disk or not) reading the number back settles it.

use std::time::Duration;

use detector_event::SubjectId;
use redb::{Database, Durability, ReadableTable as _, Table};
use tracing::debug;

use super::{
    OutboxBounds, SinkSpec,
    batch::{Batch, BatchOutcome, FinishedMessage, OUTLASTS, OutboxInput},
    queue::{Queue, Queues, locked},
    tables::{self, INCIDENTS, Now, OPEN, OpenRecord, QUEUE, QueuedRecord},
};
use crate::persist::store::StoreError;

/// A subject that a sink gets later, if it is still active then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DelayedDelivery {
    pub(super) wait: Duration,
    pub(super) sink: usize,
    pub(super) subject: SubjectId,
}

/// The content of the tables at the start.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    pub(super) queues: Vec<Queue>,
    pub(super) delayed: Vec<DelayedDelivery>,
    /// Events for sinks that are no longer configured, dropped.
    pub(super) orphaned: usize,
    /// Records that could not be decoded, dropped.
    pub(super) unreadable: usize,
    /// Tables of another version of the agent, deleted.
    pub(super) deleted: Vec<String>,
}

/// The tables, and the counters of them that are kept in memory.
#[derive(Debug)]
pub(super) struct OutboxStore {
    pub(super) sinks: Vec<SinkSpec>,
    pub(super) bounds: OutboxBounds,
    open: usize,
    next_seq: u64,
    /// The number of the newest batch.
    pub(super) batch: u64,
    /// Makes the ids of events created here unique.
    pub(super) run: u64,
}

impl OutboxStore {
    pub(super) fn new(sinks: Vec<SinkSpec>, bounds: OutboxBounds, run: u64) -> Self {
        Self {
            sinks,
            bounds,
            open: 0,
            next_seq: 0,
            batch: 0,
            run,
        }
    }

    pub(super) fn sinks(&self) -> &[SinkSpec] {
        &self.sinks
    }

    /// Reads everything, and drops what belongs to sinks that are no longer configured.
    pub(super) fn load(&mut self, database: &Database, now: Now) -> Result<Loaded, StoreError> {
        let mut loaded = Loaded {
            queues: self.sinks.iter().map(|s| Queue::new(s.window)).collect(),
            ..Loaded::default()
        };
        let transaction = database.begin_write()?;
        {
            let mut queue = transaction.open_table(QUEUE)?;
            let mut dropped = Vec::new();
            for item in queue.iter()? {
                let (key, value) = item?;
                let (name, seq) = key.value();
                self.next_seq = self.next_seq.max(seq + 1);
                let sink = self.sinks.iter().position(|s| s.name == name);
                let record = serde_json::from_slice::<QueuedRecord>(value.value());
                match (sink, record) {
                    (Some(sink), Ok(record)) => {
                        loaded.queues[sink].restore(record.entry(seq, value.value().len(), now));
                    }
                    (None, _) => {
                        loaded.orphaned += 1;
                        dropped.push((name.to_owned(), seq));
                    }
                    (_, Err(why)) => {
                        debug!(error = %why, "cannot decode a queued event");
                        loaded.unreadable += 1;
                        dropped.push((name.to_owned(), seq));
                    }
                }
            }
            for (name, seq) in dropped {
                queue.remove((name.as_str(), seq))?;
            }
            let mut open = transaction.open_table(OPEN)?;
            let mut dropped = Vec::new();
            self.open = 0;
            for item in open.iter()? {
                let (key, value) = item?;
                let record = serde_json::from_slice::<OpenRecord>(value.value()).ok();
                let subject = record.as_ref().map(|record| record.event.subject_id());
                let (Some(record), Some(subject)) = (
                    record,
                    subject.filter(|subject| subject.to_string() == key.value()),
                ) else {
                    loaded.unreadable += 1;
                    dropped.push(key.value().to_owned());
                    continue;
                };
                self.open += 1;
                for (sink, wait) in self.pending_sinks(&record, now) {
                    loaded.delayed.push(DelayedDelivery {
                        wait,
                        sink,
                        subject,
                    });
                }
            }
            for subject in dropped {
                open.remove(subject.as_str())?;
            }
            let mut incidents = transaction.open_table(INCIDENTS)?;
            self.load_incidents(&open, &mut incidents, &mut loaded.queues)?;
            loaded.deleted = tables::delete_unknown(&transaction)?;
            self.batch = tables::newest_batch(&transaction)?;
        }
        transaction.commit()?;
        Ok(loaded)
    }

    /// Reads which incident each subject is in, and drops what nothing refers to any more.
    fn load_incidents(
        &self,
        open: &Table<'_, &str, &[u8]>,
        incidents: &mut Table<'_, (&'static str, &'static str), &'static str>,
        queues: &mut [Queue],
    ) -> Result<(), StoreError> {
        let mut dropped = Vec::new();
        for item in incidents.iter()? {
            let (key, value) = item?;
            let (name, member) = key.value();
            let mut sinks = self.sinks.iter();
            let sink = sinks.position(|sink| sink.name == name && sink.window.is_some());
            let queue = sink.and_then(|sink| queues.get_mut(sink));
            let ids = (
                SubjectId::try_from(member.to_owned()),
                SubjectId::try_from(value.value().to_owned()),
            );
            match (queue, ids) {
                (Some(queue), (Ok(subject), Ok(incident)))
                    if open.get(member)?.is_some() || !queue.lane(subject).is_empty() =>
                {
                    queue.incidents.join(subject, incident);
                }
                _ => dropped.push((name.to_owned(), member.to_owned())),
            }
        }
        for (name, member) in dropped {
            incidents.remove((name.as_str(), member.as_str()))?;
        }
        Ok(())
    }

    /// Whether the batch of the last [`OutboxStore::apply`] is on the disk.
    pub(super) fn is_applied(&self, database: &Database) -> Result<bool, StoreError> {
        tables::is_newest_batch(database, self.batch + 1)
    }

    /// Writes what `inputs` change. After an error nothing or all of it is on the disk; [`OutboxStore::is_applied`]
    /// shows which. [`OutboxStore::applied`] must follow once it is. A commit of removals alone may be lost in a crash
    /// (not by later commits) unless `force` is set.
    pub(super) fn apply(
        &self,
        database: &Database,
        inputs: &[OutboxInput],
        queues: &Queues<'_>,
        changes: &mut BatchOutcome,
        force: bool,
        now: Now,
    ) -> Result<(), StoreError> {
        *changes = BatchOutcome {
            open: self.open,
            next_seq: self.next_seq,
            superseded: vec![0; self.sinks.len()],
            refused: vec![0; self.sinks.len()],
            ..BatchOutcome::default()
        };
        let mut transaction = database.begin_write()?;
        let lasting = inputs.iter().any(|input| match input {
            OutboxInput::Finished(message) => !leaves_nothing(message, queues),
            _ => true,
        });
        changes.durable = force || lasting;
        if !changes.durable {
            // What was delivered may be sent again as long as no newer event of its subject was.
            // This cannot fail: there are no savepoints.
            let _ = transaction.set_durability(Durability::None);
        }
        {
            let mut batch = Batch::begin(self, &transaction, queues, changes, now)?;
            for input in inputs {
                batch.take(input)?;
            }
            tables::number_batch(&transaction, self.batch + 1)?;
        }
        transaction.commit()?;
        Ok(())
    }

    /// The batch is on the disk.
    pub(super) fn applied(&mut self, changes: &BatchOutcome) {
        self.batch += 1;
        self.open = changes.open;
        self.next_seq = changes.next_seq;
    }

    /// The sinks whose filter accepts the subject and that have not got it yet, each with the time it must still last; of one that is
    /// part of a conflict, once that is over.
    pub(super) fn pending_sinks(&self, record: &OpenRecord, now: Now) -> Vec<(usize, Duration)> {
        let event = &record.event;
        self.sinks
            .iter()
            .enumerate()
            .filter(|(_, sink)| {
                !record.notified_sinks.contains(&sink.name) && sink.filter.accepts(event)
            })
            .map(|(n, sink)| {
                let wait = sink.filter.time_left(event, now.wall);
                match record.covered_sinks.contains(&sink.name) {
                    true => (n, wait.max(OUTLASTS)),
                    false => (n, wait),
                }
            })
            .collect()
    }
}

/// Whether no event of the subjects of this message remains queued.
fn leaves_nothing(message: &FinishedMessage, queues: &Queues<'_>) -> bool {
    let Some(queue) = queues.get(message.sink) else {
        return true;
    };
    let queue = locked(queue);
    message.events.iter().all(|(subject, _)| {
        let mut lane = queue.lane(*subject).into_iter();
        lane.all(|(seq, _)| message.events.contains(&(*subject, seq)))
    })
}
