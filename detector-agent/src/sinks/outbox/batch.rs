//! One batch of inputs: what each of them changes in the tables, and what that means for the queues in memory.

use std::{
    collections::{BTreeSet, HashSet, VecDeque},
    sync::{Arc, Mutex},
};

use redb::{ReadableTable as _, Table, WriteTransaction};

use super::{
    ledger::{Held, Ledger},
    queue::{Entry, Queue, Queues, Victim, locked},
    tables::{Now, OPEN, OpenRecord, QUEUE, QueuedRecord},
};
use crate::{
    event::{Change, any_event::AnyEvent},
    persist::store::StoreError,
};

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
    /// Conflicts that are not over, afterwards.
    pub(super) open: usize,
    pub(super) next_seq: u64,
}

/// One batch under way.
pub(super) struct Batch<'l, 't> {
    ledger: &'l Ledger,
    queues: &'l Queues<'l>,
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

impl<'l, 't> Batch<'l, 't> {
    pub(super) fn begin(
        ledger: &'l Ledger,
        transaction: &'t WriteTransaction,
        queues: &'l Queues<'l>,
        changes: &'l mut Changes,
        now: Now,
    ) -> Result<Self, StoreError> {
        let size = |queue: &&Mutex<Queue>| {
            let queue = locked(queue);
            (queue.len(), queue.bytes())
        };
        Ok(Self {
            ledger,
            queues,
            queue: transaction.open_table(QUEUE)?,
            open: transaction.open_table(OPEN)?,
            victims: ledger.sinks.iter().map(|_| None).collect(),
            gone: HashSet::new(),
            untold: HashSet::new(),
            size: queues.iter().map(size).collect(),
            changes,
            now,
        })
    }

    /// Takes one input.
    pub(super) fn take(&mut self, input: &Input) -> Result<(), StoreError> {
        match input {
            Input::Event(event) if event.is_over() => self.over(event),
            Input::Event(event) => self.active(event, false),
            Input::Active(events) => self.all_active(events),
            Input::Due(sink, conflict) => self.due(*sink, conflict),
            Input::Done(sink, conflict, seq) => self.remove(*sink, conflict, *seq),
        }
    }

    /// An active conflict changed; or, with `repeated`, is as it was unless its event differs from the one known.
    fn active(&mut self, event: &AnyEvent, repeated: bool) -> Result<(), StoreError> {
        let conflict = event.subject_id();
        let known = self.record(conflict)?;
        if known.is_none() && self.changes.open >= self.ledger.bounds.open {
            self.changes.refused += 1;
            return Ok(());
        }
        self.changes.open += usize::from(known.is_none());
        let same = |known: &OpenRecord| {
            known.event.id() == event.id() || (repeated && known.event.supersedes(event))
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
                    self.push(sink, event, Change::Updated)?;
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
                self.push(sink, &event, Change::Raised)?;
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

    fn over(&mut self, event: &AnyEvent) -> Result<(), StoreError> {
        let conflict = event.subject_id();
        let Some(record) = self.record(conflict)? else {
            return Ok(());
        };
        self.open.remove(conflict)?;
        self.changes.open = self.changes.open.saturating_sub(1);
        for sink in 0..self.ledger.sinks.len() {
            if record.told.contains(&self.ledger.sinks[sink].name) {
                self.push(sink, event, Change::Resolved)?;
            }
        }
        Ok(())
    }

    /// What is open here and not among `events` is over, only nobody said so.
    fn all_active(&mut self, events: &[AnyEvent]) -> Result<(), StoreError> {
        let active: HashSet<&str> = events.iter().map(AnyEvent::subject_id).collect();
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
            self.over(&event)?;
        }
        for event in events {
            self.active(event, true)?;
        }
        Ok(())
    }

    fn due(&mut self, sink: usize, conflict: &str) -> Result<(), StoreError> {
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
        self.push(sink, &event, Change::Raised)?;
        record.told.insert(spec.name.clone());
        self.put(conflict, &record)
    }

    fn push(&mut self, sink: usize, event: &AnyEvent, change: Change) -> Result<(), StoreError> {
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
        self.make_room(sink, text.len())?;
        let conflict = Arc::from(event.subject_id());
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
            ..record.entry(seq, text.len(), self.now)
        };
        self.changes.pushed.push((sink, entry));
        Ok(())
    }

    fn make_room(&mut self, sink: usize, bytes: usize) -> Result<(), StoreError> {
        let bounds = self.ledger.bounds;
        while self.size[sink].0 + 1 > bounds.events || self.size[sink].1 + bytes > bounds.bytes {
            let victims =
                self.victims[sink].get_or_insert_with(|| locked(self.queues[sink]).victims());
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
