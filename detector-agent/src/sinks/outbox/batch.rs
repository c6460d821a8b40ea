//! One batch of inputs: how each changes the tables, and what follows for the queues in memory.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet, VecDeque},
    sync::Mutex,
};

use detector_event::{AnyEvent, Change, SubjectId};
use redb::{ReadableTable as _, Table, WriteTransaction};

use super::{
    SinkSpec,
    outbox_store::{DelayedDelivery, OutboxStore},
    queue::{EvictionCandidate, Queue, QueueEntry, Queues, locked},
    tables::{DIGESTS, MEMBERS, Now, OPEN, OpenRecord, QUEUE, QueuedRecord},
};
use crate::{persist::store::StoreError, sinks::message::Message};

/// Something that changes the tables.
#[derive(Clone, Debug)]
pub(super) enum OutboxInput {
    /// A conflict or an anomaly changed.
    Event(AnyEvent),
    /// The state of an active conflict, as in an event before a restart.
    Repeated(AnyEvent),
    /// Everything that is active now, each with its present state.
    Active(Vec<AnyEvent>),
    /// The minimum duration of a sink's filter has passed for this subject.
    DelayElapsed(usize, SubjectId),
    /// The agent stops: digests whose conflicts and changes are still being collected are due now.
    DigestsDue,
    /// A sink delivered an event or gave it up.
    Finished(usize, SubjectId, u64),
    /// A sink's receiver rejected an event, and a later one of the subject takes its place.
    Superseded(usize, SubjectId, u64),
}

/// What follows from a committed batch for the queues in memory.
#[derive(Debug, Default)]
pub(super) struct BatchOutcome {
    pub(super) pushed: Vec<(usize, QueueEntry)>,
    pub(super) removed: Vec<(usize, SubjectId, u64)>,
    /// Subjects that ended, before any of [`Self::delayed`] began.
    pub(super) ended: Vec<SubjectId>,
    pub(super) delayed: Vec<DelayedDelivery>,
    /// Events dropped at a sink's bound, with the outcome to count them under.
    pub(super) evicted: Vec<(usize, &'static str, usize)>,
    /// Events about subjects beyond the bound of open ones.
    pub(super) refused: usize,
    /// Whether it survives a crash.
    pub(super) durable: bool,
    /// Open subjects afterwards.
    pub(super) open: usize,
    pub(super) next_seq: u64,
}

/// One batch in progress.
pub(super) struct Batch<'l, 't> {
    pub(super) store: &'l OutboxStore,
    queues: &'l Queues<'l>,
    queue: Table<'t, (&'static str, u64), &'static [u8]>,
    open: Table<'t, &'static str, &'static [u8]>,
    pub(super) digests: Table<'t, &'static str, &'static [u8]>,
    pub(super) members: Table<'t, (&'static str, &'static str, &'static str), ()>,
    /// Per sink; collected once a batch, when a bound is met.
    eviction_candidates: Vec<Option<VecDeque<EvictionCandidate>>>,
    /// Events this batch has removed.
    gone: HashSet<(usize, u64)>,
    /// Subjects whose undelivered `raised` event this batch evicted.
    dropped_raised: HashSet<(usize, SubjectId)>,
    /// Events and bytes of each sink, including this batch.
    size: Vec<(usize, usize)>,
    pub(super) changes: &'l mut BatchOutcome,
    pub(super) now: Now,
}

impl<'l, 't> Batch<'l, 't> {
    pub(super) fn begin(
        store: &'l OutboxStore,
        transaction: &'t WriteTransaction,
        queues: &'l Queues<'l>,
        changes: &'l mut BatchOutcome,
        now: Now,
    ) -> Result<Self, StoreError> {
        let size = |queue: &&Mutex<Queue>| {
            let queue = locked(queue);
            (queue.len(), queue.bytes())
        };
        Ok(Self {
            store,
            queues,
            queue: transaction.open_table(QUEUE)?,
            open: transaction.open_table(OPEN)?,
            digests: transaction.open_table(DIGESTS)?,
            members: transaction.open_table(MEMBERS)?,
            eviction_candidates: store.sinks.iter().map(|_| None).collect(),
            gone: HashSet::new(),
            dropped_raised: HashSet::new(),
            size: queues.iter().map(size).collect(),
            changes,
            now,
        })
    }

    /// Takes one input.
    pub(super) fn take(&mut self, input: &OutboxInput) -> Result<(), StoreError> {
        match input {
            OutboxInput::Event(event) if event.is_resolved() => self.resolved(event),
            OutboxInput::Event(event) => self.active(event, false),
            OutboxInput::Repeated(event) => self.active(event, true),
            OutboxInput::Active(events) => self.all_active(events),
            OutboxInput::DelayElapsed(sink, subject) => self.delay_elapsed(*sink, *subject),
            OutboxInput::DigestsDue => self.digests_due(),
            OutboxInput::Finished(sink, subject, seq) => self.remove(*sink, *subject, *seq),
            OutboxInput::Superseded(sink, subject, seq) => self.supersede(*sink, *subject, *seq),
        }
    }

    /// An active subject changed, or with `repeated` may have: then only an event that adds something counts.
    fn active(&mut self, event: &AnyEvent, repeated: bool) -> Result<(), StoreError> {
        let subject = event.subject_id();
        let known = self.record(subject)?;
        if known.is_none() && self.changes.open >= self.store.bounds.open {
            self.changes.refused += 1;
            return Ok(());
        }
        self.changes.open += usize::from(known.is_none());
        let same = |known: &OpenRecord| {
            known.event.id() == event.id() || (repeated && known.event.supersedes(event))
        };
        let is_new = !known.as_ref().is_some_and(same);
        let mut changed = is_new;
        let mut record = known.unwrap_or_else(|| OpenRecord {
            notified_sinks: BTreeSet::new(),
            digest_sinks: BTreeSet::new(),
            groups: BTreeMap::new(),
            event: event.clone(),
        });
        if is_new {
            record.event = event.clone();
            for sink in 0..self.store.sinks.len() {
                let SinkSpec { name, filter, .. } = &self.store.sinks[sink];
                if filter.gets_sweep_of(event) {
                    continue;
                }
                if record.has_own_messages(name) {
                    self.push(sink, event, Change::Updated)?;
                } else if let Some(digest) = record.groups.get(name) {
                    self.digest_changed(sink, *digest)?;
                }
            }
            // Making room may have evicted this subject's own `raised` event.
            if let Some(stored) = self.record(subject)? {
                record.notified_sinks = stored.notified_sinks;
            }
        }
        for sink in &self.store.sinks {
            // Its format was changed: it gets each conflict now.
            if sink.digest.is_none() && record.digest_sinks.contains(&sink.name) {
                record.release(&sink.name);
                changed = true;
            }
        }
        for (sink, wait) in self.store.pending_sinks(&record, self.now) {
            if wait.is_zero() {
                let event = record.event.clone();
                self.raise(sink, &event, &mut record)?;
                changed = true;
            } else {
                self.changes.delayed.push(DelayedDelivery {
                    wait,
                    sink,
                    subject,
                });
            }
        }
        if changed {
            self.put(subject, &record)?;
        }
        Ok(())
    }

    fn resolved(&mut self, event: &AnyEvent) -> Result<(), StoreError> {
        let subject = event.subject_id();
        let Some(record) = self.record(subject)? else {
            return Ok(());
        };
        self.open.remove(subject.to_string().as_str())?;
        self.changes.open = self.changes.open.saturating_sub(1);
        self.changes
            .delayed
            .retain(|delayed| delayed.subject != subject);
        self.changes.ended.push(subject);
        for sink in 0..self.store.sinks.len() {
            let name = &self.store.sinks[sink].name;
            if record.has_own_messages(name) {
                self.push(sink, event, Change::Resolved)?;
            } else if record.digest_sinks.contains(name) {
                self.leave_digest(sink, event, record.groups.get(name).copied())?;
            }
        }
        Ok(())
    }

    /// A subject that is open here and not among `events` ended unseen.
    fn all_active(&mut self, events: &[AnyEvent]) -> Result<(), StoreError> {
        let active: HashSet<_> = events.iter().map(AnyEvent::subject_id).collect();
        let mut ended = Vec::new();
        for item in self.open.iter()? {
            let (_, value) = item?;
            if let Ok(record) = serde_json::from_slice::<OpenRecord>(value.value())
                && !active.contains(&record.event.subject_id())
            {
                ended.push(record.event);
            }
        }
        for (n, event) in ended.into_iter().enumerate() {
            let id = format!(
                "{:016x}-outbox-{}-{n}",
                self.store.run,
                self.store.batch + 1
            );
            let event = event.resolved_unseen(id, self.now.wall);
            self.resolved(&event)?;
        }
        for event in events {
            self.active(event, true)?;
        }
        Ok(())
    }

    fn delay_elapsed(&mut self, sink: usize, subject: SubjectId) -> Result<(), StoreError> {
        if self.digest_due(sink, subject)? {
            return Ok(());
        }
        let Some(mut record) = self.record(subject)? else {
            return Ok(());
        };
        let store = self.store;
        let Some(spec) = store.sinks.get(sink) else {
            return Ok(());
        };
        if record.notified_sinks.contains(&spec.name) || !spec.filter.accepts(&record.event) {
            return Ok(());
        }
        let event = record.event.clone();
        self.raise(sink, &event, &mut record)?;
        self.put(subject, &record)
    }

    pub(super) fn push(
        &mut self,
        sink: usize,
        event: &AnyEvent,
        change: Change,
    ) -> Result<(), StoreError> {
        let event = if event.change() == change {
            event.clone()
        } else {
            event.with_change(change)
        };
        self.push_message(sink, Message::Event(event))
    }

    pub(super) fn push_message(&mut self, sink: usize, message: Message) -> Result<(), StoreError> {
        let record = QueuedRecord {
            at: self.now.wall.as_millisecond(),
            message: message.clone(),
        };
        let text = serde_json::to_vec(&record).unwrap_or_default();
        self.make_room(sink, text.len())?;
        let (subject, change) = (message.subject_id(), message.change());
        if change == Change::Raised {
            self.dropped_raised.remove(&(sink, subject));
        } else if self.dropped_raised.contains(&(sink, subject)) {
            // Making room evicted this subject's own `raised` event.
            return Ok(());
        }
        let seq = self.changes.next_seq;
        self.changes.next_seq += 1;
        let name = self.store.sinks[sink].name.as_str();
        self.queue.insert((name, seq), text.as_slice())?;
        self.size[sink].0 += 1;
        self.size[sink].1 += text.len();
        let entry = QueueEntry {
            event: Some(message),
            ..record.entry(seq, text.len(), self.now)
        };
        self.changes.pushed.push((sink, entry));
        Ok(())
    }

    fn make_room(&mut self, sink: usize, bytes: usize) -> Result<(), StoreError> {
        let bounds = self.store.bounds;
        while self.size[sink].0 + 1 > bounds.events || self.size[sink].1 + bytes > bounds.bytes {
            let eviction_candidates = self.eviction_candidates[sink]
                .get_or_insert_with(|| locked(self.queues[sink]).eviction_candidates());
            // Without one, everything left is being sent or belongs to this batch; the next batch makes room.
            let Some(candidate) = eviction_candidates.pop_front() else {
                return Ok(());
            };
            self.evict(sink, &candidate)?;
        }
        Ok(())
    }

    fn evict(&mut self, sink: usize, candidate: &EvictionCandidate) -> Result<(), StoreError> {
        let mut seqs = candidate.seqs.clone();
        if candidate.drops_raised {
            let name = self.store.sinks[sink].name.as_str();
            if let Some(mut record) = self.record(candidate.subject)? {
                record.notified_sinks.remove(name);
                self.put(candidate.subject, &record)?;
            }
            self.digest_evicted(sink, candidate.subject)?;
            self.dropped_raised.insert((sink, candidate.subject));
            // Events of the subject that this batch added follow the dropped one.
            let added =
                |(s, e): &&(usize, QueueEntry)| *s == sink && e.subject == candidate.subject;
            seqs.extend(self.changes.pushed.iter().filter(added).map(|(_, e)| e.seq));
        }
        let mut dropped = 0;
        for seq in seqs {
            if !self.gone.contains(&(sink, seq)) {
                self.remove(sink, candidate.subject, seq)?;
                dropped += 1;
            }
        }
        let outcome = if candidate.loses_resolved {
            "evicted_end"
        } else {
            "evicted"
        };
        self.changes.evicted.push((sink, outcome, dropped));
        Ok(())
    }

    /// Drops a rejected event. If it was the `raised` one, the receiver knows nothing of the subject, and the newest state
    /// becomes `raised`.
    fn supersede(&mut self, sink: usize, subject: SubjectId, seq: u64) -> Result<(), StoreError> {
        let mut lane = locked(self.queues[sink]).lane(subject);
        let pushed = self.changes.pushed.iter();
        let pushed = pushed.filter(|(s, entry)| *s == sink && entry.subject == subject);
        lane.extend(pushed.map(|(_, entry)| (entry.seq, entry.change)));
        lane.retain(|(seq, _)| !self.gone.contains(&(sink, *seq)));
        if let Some(again) = lane
            .iter()
            .rposition(|(_, change)| *change == Change::Raised)
            && again > 0
            && lane.first() == Some(&(seq, Change::Raised))
        {
            // The receiver knows nothing of what it was before.
            for (seq, _) in &lane[..again] {
                self.remove(sink, subject, *seq)?;
            }
            return Ok(());
        }
        let newest = lane.iter().rfind(|(_, change)| *change == Change::Updated);
        let (Some(newest), true) = (newest, lane.first() == Some(&(seq, Change::Raised))) else {
            return self.remove(sink, subject, seq);
        };
        let newest = self.queued(sink, newest.0)?;
        let resolved = match lane.last() {
            Some((seq, Change::Resolved)) => self.queued(sink, *seq)?,
            _ => None,
        };
        for (seq, _) in lane {
            self.remove(sink, subject, seq)?;
        }
        if let Some(message) = newest {
            self.push_message(sink, message.with_change(Change::Raised))?;
        }
        if let Some(message) = resolved {
            self.push_message(sink, message)?;
        }
        Ok(())
    }

    /// A queued message; `None` if it cannot be decoded.
    fn queued(&self, sink: usize, seq: u64) -> Result<Option<Message>, StoreError> {
        let name = self.store.sinks[sink].name.as_str();
        let record = self.queue.get((name, seq))?;
        Ok(record
            .and_then(|record| serde_json::from_slice::<QueuedRecord>(record.value()).ok())
            .map(|record| record.message))
    }

    fn remove(&mut self, sink: usize, subject: SubjectId, seq: u64) -> Result<(), StoreError> {
        let name = self.store.sinks[sink].name.as_str();
        let bytes = self
            .queue
            .remove((name, seq))?
            .map(|record| record.value().len());
        if let Some(bytes) = bytes {
            self.size[sink].0 = self.size[sink].0.saturating_sub(1);
            self.size[sink].1 = self.size[sink].1.saturating_sub(bytes);
        }
        self.gone.insert((sink, seq));
        let added = |(s, e): &(usize, QueueEntry)| *s == sink && e.seq == seq;
        match self.changes.pushed.iter().position(added) {
            Some(place) => drop(self.changes.pushed.remove(place)),
            None => self.changes.removed.push((sink, subject, seq)),
        }
        Ok(())
    }

    pub(super) fn record(&self, subject: SubjectId) -> Result<Option<OpenRecord>, StoreError> {
        let record = self.open.get(subject.to_string().as_str())?;
        Ok(record.and_then(|r| serde_json::from_slice(r.value()).ok()))
    }

    pub(super) fn put(
        &mut self,
        subject: SubjectId,
        record: &OpenRecord,
    ) -> Result<(), StoreError> {
        let text = serde_json::to_vec(record).unwrap_or_default();
        self.open
            .insert(subject.to_string().as_str(), text.as_slice())?;
        Ok(())
    }
}
