//! What the outbox knows of its tables, and how a batch of inputs gets into them.
//!
//! Everything that one batch of inputs changes is one transaction. The batch's number is written with it, so that after
//! an error in the middle of a commit (which may have reached the disk or not) the next look at the disk tells.

use std::time::Duration;

use redb::{Database, Durability, ReadableTable as _};
use tracing::debug;

use super::{
    Bounds, SinkSpec,
    batch::{Batch, Changes, Input},
    queue::{Queue, Queues, locked},
    tables::{self, Now, OPEN, OpenRecord, QUEUE, QueuedRecord},
};
use crate::persist::store::StoreError;

/// A conflict that a sink is to hear of later, if it is still active then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) wait: Duration,
    pub(super) sink: usize,
    pub(super) conflict: String,
}

/// What the tables held at the start.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    pub(super) queues: Vec<Queue>,
    pub(super) held: Vec<Held>,
    /// Events for sinks that are no longer configured, dropped.
    pub(super) orphaned: usize,
    /// Records that could not be read, dropped.
    pub(super) unreadable: usize,
}

/// Knows the tables, and the little of them that is needed in memory.
#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) sinks: Vec<SinkSpec>,
    pub(super) bounds: Bounds,
    open: usize,
    next_seq: u64,
    /// The number of the newest batch.
    pub(super) batch: u64,
    /// Distinguishes the ids of events made here.
    pub(super) run: u64,
}

impl Ledger {
    pub(super) fn new(sinks: Vec<SinkSpec>, bounds: Bounds, run: u64) -> Self {
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
            queues: self.sinks.iter().map(|_| Queue::default()).collect(),
            ..Loaded::default()
        };
        let transaction = database.begin_write()?;
        {
            let mut queue = transaction.open_table(QUEUE)?;
            let mut useless = Vec::new();
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
                        useless.push((name.to_owned(), seq));
                    }
                    (_, Err(why)) => {
                        debug!("a waiting event cannot be read: {why}");
                        loaded.unreadable += 1;
                        useless.push((name.to_owned(), seq));
                    }
                }
            }
            for (name, seq) in useless {
                queue.remove((name.as_str(), seq))?;
            }
            let mut open = transaction.open_table(OPEN)?;
            let mut useless = Vec::new();
            self.open = 0;
            for item in open.iter()? {
                let (key, value) = item?;
                let Ok(record) = serde_json::from_slice::<OpenRecord>(value.value()) else {
                    loaded.unreadable += 1;
                    useless.push(key.value().to_owned());
                    continue;
                };
                self.open += 1;
                for (sink, wait) in self.waiting(&record, now) {
                    loaded.held.push(Held {
                        wait,
                        sink,
                        conflict: key.value().to_owned(),
                    });
                }
            }
            for conflict in useless {
                open.remove(conflict.as_str())?;
            }
            self.batch = tables::newest_batch(&transaction)?;
        }
        transaction.commit()?;
        Ok(loaded)
    }

    /// Whether the batch that [`Ledger::apply`] tried last is on the disk.
    pub(super) fn is_applied(&self, database: &Database) -> Result<bool, StoreError> {
        tables::is_newest_batch(database, self.batch + 1)
    }

    /// Writes what `inputs` change. On an error nothing, or all of it, is on the disk; ask [`Ledger::is_applied`].
    /// [`Ledger::applied`] must follow once it is. Where nothing but removals came in, the commit may be lost in a crash
    /// (not by later commits), unless `force` asks for the disk.
    pub(super) fn apply(
        &self,
        database: &Database,
        inputs: &[Input],
        queues: &Queues<'_>,
        changes: &mut Changes,
        force: bool,
        now: Now,
    ) -> Result<(), StoreError> {
        *changes = Changes {
            open: self.open,
            next_seq: self.next_seq,
            ..Changes::default()
        };
        let mut transaction = database.begin_write()?;
        let lasting = inputs.iter().any(|input| match input {
            Input::Done(sink, _, seq) => queues
                .get(*sink)
                .is_some_and(|queue| locked(queue).has_later(*seq)),
            _ => true,
        });
        changes.durable = force || lasting;
        if !changes.durable {
            // Sending again what was delivered is allowed, as long as nothing newer has gone out meanwhile.
            // It cannot fail: there are no savepoints.
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
    pub(super) fn applied(&mut self, changes: &Changes) {
        self.batch += 1;
        self.open = changes.open;
        self.next_seq = changes.next_seq;
    }

    /// The sinks that do not know of the conflict but want to, and how long each waits before it hears of it.
    pub(super) fn waiting(&self, record: &OpenRecord, now: Now) -> Vec<(usize, Duration)> {
        let event = &record.event;
        self.sinks
            .iter()
            .enumerate()
            .filter(|(_, sink)| !record.told.contains(&sink.name) && sink.filter.accepts(event))
            .map(|(n, sink)| (n, sink.filter.time_left(event, now.wall)))
            .collect()
    }
}
