//! The outbox's tables, and what one event changes in them.
//!
//! Everything that one batch of inputs changes is one transaction. The batch's number is written with it, so that after
//! an error in the middle of a commit (which may have reached the disk or not) the next look at the disk tells.

use std::{
    collections::{BTreeSet, HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use redb::{
    Database, Durability, ReadableDatabase as _, ReadableTable as _, Table, TableDefinition,
    WriteTransaction,
};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tracing::error;

use super::{
    Bounds, SinkSpec,
    queue::{Entry, Queue, Victim},
};
use crate::{
    report::{event::Change, story::AnyEvent},
    store::StoreError,
};

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
    at: i64,
    pub(super) event: AnyEvent,
}

#[derive(Clone, Serialize, Deserialize)]
pub(super) struct OpenRecord {
    pub(super) told: BTreeSet<String>,
    pub(super) event: AnyEvent,
}

/// The queues in memory, one for each sink.
pub(super) type Queues<'q> = [&'q Mutex<Queue>];

/// A panic while a queue was locked leaves a queue that is still one.
pub(super) fn locked(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Something that changes the tables.
#[derive(Clone, Debug)]
pub(super) enum Input {
    /// A conflict changed.
    Event(AnyEvent),
    /// Every conflict that is active now, each with its present state.
    Active(Vec<AnyEvent>),
    /// A sink has waited long enough before it hears of this conflict.
    Due(usize, String),
    /// A sink is done with an event.
    Done(usize, Arc<str>, u64),
}

/// A conflict that a sink is to hear of later, if it is still active then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) wait: Duration,
    pub(super) sink: usize,
    pub(super) conflict: String,
}

/// What a committed batch means for the queues in memory.
#[derive(Debug, Default)]
pub(super) struct Changes {
    pub(super) pushed: Vec<(usize, Entry)>,
    pub(super) removed: Vec<(usize, Arc<str>, u64)>,
    pub(super) held: Vec<Held>,
    /// Events dropped at a sink's bound, and what to call it.
    pub(super) evicted: Vec<(usize, &'static str, usize)>,
    /// Events about conflicts beyond the bound of open ones.
    pub(super) refused: usize,
    /// It survives a crash.
    pub(super) durable: bool,
    open: usize,
    next_seq: u64,
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
    sinks: Vec<SinkSpec>,
    bounds: Bounds,
    open: usize,
    next_seq: u64,
    batch: u64,
    /// Distinguishes the ids of events made here.
    run: u64,
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
                        loaded.queues[sink].restore(entry(seq, &record, value.value().len(), now));
                    }
                    (None, _) => {
                        loaded.orphaned += 1;
                        useless.push((name.to_owned(), seq));
                    }
                    (_, Err(why)) => {
                        error!("an event in the outbox cannot be read and is dropped: {why}");
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
            self.batch = batch(&transaction)?;
        }
        transaction.commit()?;
        Ok(loaded)
    }

    /// Whether the batch that [`Ledger::apply`] tried last is on the disk.
    pub(super) fn is_applied(&self, database: &Database) -> Result<bool, StoreError> {
        let transaction = database.begin_read()?;
        let meta = transaction.open_table(META)?;
        let newest = meta.get(BATCH)?.map(|n| n.value());
        Ok(newest == Some(self.batch + 1))
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
            let mut step = Step {
                ledger: self,
                queue: transaction.open_table(QUEUE)?,
                open: transaction.open_table(OPEN)?,
                victims: self.sinks.iter().map(|_| None).collect(),
                gone: HashSet::new(),
                size: queues
                    .iter()
                    .map(|queue| {
                        let queue = locked(queue);
                        (queue.len(), queue.bytes())
                    })
                    .collect(),
                untold: HashSet::new(),
                changes,
                now,
            };
            for input in inputs {
                step.take(input, queues)?;
            }
            transaction
                .open_table(META)?
                .insert(BATCH, self.batch + 1)?;
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

    /// An event's text.
    pub(super) fn read(
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

    /// The sinks that do not know of the conflict but want to, and how long each waits before it hears of it.
    fn waiting(&self, record: &OpenRecord, now: Now) -> Vec<(usize, Duration)> {
        let event = &record.event;
        self.sinks
            .iter()
            .enumerate()
            .filter(|(_, sink)| !record.told.contains(&sink.name) && sink.filter.accepts(event))
            .map(|(n, sink)| (n, sink.filter.time_left(event, now.wall)))
            .collect()
    }
}

fn batch(transaction: &WriteTransaction) -> Result<u64, StoreError> {
    let meta = transaction.open_table(META)?;
    Ok(meta.get(BATCH)?.map_or(0, |n| n.value()))
}

fn entry(seq: u64, record: &QueuedRecord, bytes: usize, now: Now) -> Entry {
    let age = now.wall.as_millisecond().saturating_sub(record.at);
    Entry {
        seq,
        conflict: Arc::from(record.event.story()),
        change: record.event.change(),
        bytes,
        age: Duration::from_millis(u64::try_from(age).unwrap_or(0)),
        since: now.steady,
        event: None,
    }
}

/// One batch under way.
struct Step<'l, 't> {
    ledger: &'l Ledger,
    queue: Table<'t, (&'static str, u64), &'static [u8]>,
    open: Table<'t, &'static str, &'static [u8]>,
    /// Looked for once a batch, where a bound is met.
    victims: Vec<Option<VecDeque<Victim>>>,
    /// Events this batch has removed.
    gone: HashSet<(usize, u64)>,
    /// Conflicts that a sink was to be told of, and in this batch was not to any more.
    untold: HashSet<(usize, Arc<str>)>,
    /// Events and bytes of each sink, with what this batch did.
    size: Vec<(usize, usize)>,
    changes: &'l mut Changes,
    now: Now,
}

impl Step<'_, '_> {
    fn take(&mut self, input: &Input, queues: &Queues<'_>) -> Result<(), StoreError> {
        match input {
            Input::Event(event) if event.is_over() => self.over(event, queues),
            Input::Event(event) => self.active(event, false, queues),
            Input::Active(events) => self.all_active(events, queues),
            Input::Due(sink, conflict) => self.due(*sink, conflict, queues),
            Input::Done(sink, conflict, seq) => self.remove(*sink, conflict, *seq),
        }
    }

    /// An active conflict changed; or, with `repeated`, is as it was unless its event differs from the one known.
    fn active(
        &mut self,
        event: &AnyEvent,
        repeated: bool,
        queues: &Queues<'_>,
    ) -> Result<(), StoreError> {
        let conflict = event.story();
        let known = self.record(conflict)?;
        if known.is_none() && self.changes.open >= self.ledger.bounds.open {
            self.changes.refused += 1;
            return Ok(());
        }
        self.changes.open += usize::from(known.is_none());
        let same = |known: &OpenRecord| {
            known.event.id() == event.id() || (repeated && known.event.says_all_of(event))
        };
        let news = !known.as_ref().is_some_and(same);
        let mut changed = news;
        let mut record = known.unwrap_or_else(|| OpenRecord {
            told: BTreeSet::new(),
            event: event.clone(),
        });
        if news {
            record.event = event.clone();
            for sink in 0..self.ledger.sinks.len() {
                if record.told.contains(&self.ledger.sinks[sink].name) {
                    self.push(sink, event, Change::Updated, queues)?;
                }
            }
            // Making room may have cost a sink its knowledge of this very conflict.
            if let Some(stored) = self.record(conflict)? {
                record.told = stored.told;
            }
        }
        for (sink, wait) in self.ledger.waiting(&record, self.now) {
            if wait.is_zero() {
                let event = record.event.clone();
                self.push(sink, &event, Change::Raised, queues)?;
                record.told.insert(self.ledger.sinks[sink].name.clone());
                changed = true;
            } else {
                self.changes.held.push(Held {
                    wait,
                    sink,
                    conflict: conflict.to_owned(),
                });
            }
        }
        if changed {
            self.put(conflict, &record)?;
        }
        Ok(())
    }

    fn over(&mut self, event: &AnyEvent, queues: &Queues<'_>) -> Result<(), StoreError> {
        let conflict = event.story();
        let Some(record) = self.record(conflict)? else {
            return Ok(());
        };
        self.open.remove(conflict)?;
        self.changes.open = self.changes.open.saturating_sub(1);
        for sink in 0..self.ledger.sinks.len() {
            if record.told.contains(&self.ledger.sinks[sink].name) {
                self.push(sink, event, Change::Resolved, queues)?;
            }
        }
        Ok(())
    }

    /// What is open here and not among `events` is over, only nobody said so.
    fn all_active(&mut self, events: &[AnyEvent], queues: &Queues<'_>) -> Result<(), StoreError> {
        let active: HashSet<&str> = events.iter().map(AnyEvent::story).collect();
        let mut over = Vec::new();
        for item in self.open.iter()? {
            let (key, value) = item?;
            if active.contains(key.value()) {
                continue;
            }
            if let Ok(record) = serde_json::from_slice::<OpenRecord>(value.value()) {
                over.push(record.event);
            }
        }
        for (n, event) in over.into_iter().enumerate() {
            let id = format!(
                "{:016x}-outbox-{}-{n}",
                self.ledger.run,
                self.ledger.batch + 1
            );
            let event = event.ended_unseen(id, self.now.wall);
            self.over(&event, queues)?;
        }
        for event in events {
            self.active(event, true, queues)?;
        }
        Ok(())
    }

    fn due(&mut self, sink: usize, conflict: &str, queues: &Queues<'_>) -> Result<(), StoreError> {
        let Some(mut record) = self.record(conflict)? else {
            return Ok(());
        };
        let ledger = self.ledger;
        let Some(spec) = ledger.sinks.get(sink) else {
            return Ok(());
        };
        if record.told.contains(&spec.name) || !spec.filter.accepts(&record.event) {
            return Ok(());
        }
        let event = record.event.clone();
        self.push(sink, &event, Change::Raised, queues)?;
        record.told.insert(spec.name.clone());
        self.put(conflict, &record)
    }

    fn push(
        &mut self,
        sink: usize,
        event: &AnyEvent,
        change: Change,
        queues: &Queues<'_>,
    ) -> Result<(), StoreError> {
        let told = if event.change() == change {
            event.clone()
        } else {
            event.told_as(change)
        };
        let record = QueuedRecord {
            at: self.now.wall.as_millisecond(),
            event: told.clone(),
        };
        let text = serde_json::to_vec(&record).unwrap_or_default();
        self.make_room(sink, text.len(), queues)?;
        let conflict = Arc::from(event.story());
        if change == Change::Raised {
            self.untold.remove(&(sink, conflict));
        } else if self.untold.contains(&(sink, conflict)) {
            // The room was made by dropping the beginning of this very conflict.
            return Ok(());
        }
        let seq = self.changes.next_seq;
        self.changes.next_seq += 1;
        let name = self.ledger.sinks[sink].name.as_str();
        self.queue.insert((name, seq), text.as_slice())?;
        self.size[sink].0 += 1;
        self.size[sink].1 += text.len();
        let entry = Entry {
            event: Some(told),
            ..entry(seq, &record, text.len(), self.now)
        };
        self.changes.pushed.push((sink, entry));
        Ok(())
    }

    fn make_room(
        &mut self,
        sink: usize,
        bytes: usize,
        queues: &Queues<'_>,
    ) -> Result<(), StoreError> {
        let bounds = self.ledger.bounds;
        while self.size[sink].0 + 1 > bounds.events || self.size[sink].1 + bytes > bounds.bytes {
            let victims = self.victims[sink].get_or_insert_with(|| locked(queues[sink]).victims());
            // Without one, all that is left is being sent, or came in this very batch; the next batch makes room.
            let Some(victim) = victims.pop_front() else {
                return Ok(());
            };
            self.evict(sink, &victim)?;
        }
        Ok(())
    }

    fn evict(&mut self, sink: usize, victim: &Victim) -> Result<(), StoreError> {
        let mut seqs = victim.seqs.clone();
        if victim.untold {
            let name = self.ledger.sinks[sink].name.as_str();
            if let Some(mut record) = self.record(&victim.conflict)? {
                record.told.remove(name);
                self.put(&victim.conflict, &record)?;
            }
            self.untold.insert((sink, Arc::clone(&victim.conflict)));
            // What this batch added builds on what is dropped.
            let added = |(s, e): &&(usize, Entry)| *s == sink && e.conflict == victim.conflict;
            seqs.extend(self.changes.pushed.iter().filter(added).map(|(_, e)| e.seq));
        }
        let mut dropped = 0;
        for seq in seqs {
            if !self.gone.contains(&(sink, seq)) {
                self.remove(sink, &victim.conflict, seq)?;
                dropped += 1;
            }
        }
        let outcome = if victim.endless {
            "evicted_end"
        } else {
            "evicted"
        };
        self.changes.evicted.push((sink, outcome, dropped));
        Ok(())
    }

    fn remove(&mut self, sink: usize, conflict: &Arc<str>, seq: u64) -> Result<(), StoreError> {
        let name = self.ledger.sinks[sink].name.as_str();
        let bytes = self
            .queue
            .remove((name, seq))?
            .map(|record| record.value().len());
        if let Some(bytes) = bytes {
            self.size[sink].0 = self.size[sink].0.saturating_sub(1);
            self.size[sink].1 = self.size[sink].1.saturating_sub(bytes);
        }
        self.gone.insert((sink, seq));
        let added = |(s, e): &(usize, Entry)| *s == sink && e.seq == seq;
        match self.changes.pushed.iter().position(added) {
            Some(place) => drop(self.changes.pushed.remove(place)),
            None => self.changes.removed.push((sink, Arc::clone(conflict), seq)),
        }
        Ok(())
    }

    fn record(&self, conflict: &str) -> Result<Option<OpenRecord>, StoreError> {
        let record = self.open.get(conflict)?;
        Ok(record.and_then(|r| serde_json::from_slice(r.value()).ok()))
    }

    fn put(&mut self, conflict: &str, record: &OpenRecord) -> Result<(), StoreError> {
        let text = serde_json::to_vec(record).unwrap_or_default();
        self.open.insert(conflict, text.as_slice())?;
        Ok(())
    }
}
