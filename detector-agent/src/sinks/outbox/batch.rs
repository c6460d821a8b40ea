//! One batch of inputs: how each changes the tables, and what follows for the queues in memory.

mod consequences;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Mutex,
    time::Duration,
};

use detector_event::{AnyEvent, Change, SubjectId};
use redb::{ReadableTable as _, Table, WriteTransaction};

use super::{
    outbox_store::{DelayedDelivery, OutboxStore},
    queue::{Queue, QueueEntry, Queues, locked},
    tables::{ADDRESSES, INCIDENTS, Now, OPEN, OpenRecord, QUEUE, QueuedRecord},
};
use crate::persist::store::StoreError;

pub(super) use consequences::OUTLASTS;

/// After this time a raise that was refused at a sink's bound is tried again, if its subject is still open.
const REFUSED: Duration = Duration::from_secs(30);

/// Something that changes the tables.
#[derive(Clone, Debug)]
pub(super) enum OutboxInput {
    /// A conflict or an anomaly changed.
    Event(AnyEvent),
    /// The state of an active conflict, as in an event before a restart.
    Unchanged(AnyEvent),
    /// Everything that is active now, each with its present state.
    Active(Vec<AnyEvent>),
    /// The wait of a sink for this subject is over.
    DelayElapsed(usize, SubjectId),
    /// The window of a sink is over, in which these subjects were raised.
    WindowOver(usize, Vec<SubjectId>),
    /// A sink is done with the events of one message: it delivered them, gave them up, or something later takes their place.
    Finished(FinishedMessage),
}

/// The events of a message that a sink is done with.
#[derive(Clone, Debug)]
pub(super) struct FinishedMessage {
    pub(super) sink: usize,
    /// What happened to the subjects.
    pub(super) change: Change,
    pub(super) events: Vec<(SubjectId, u64)>,
    /// The receiver does not have them, and gets what is behind them instead.
    pub(super) is_superseded: bool,
}

/// What follows from a committed batch for the queues in memory.
#[derive(Debug, Default)]
pub(super) struct BatchOutcome {
    /// By sink and sequence number.
    pub(super) pushed: BTreeMap<(usize, u64), QueueEntry>,
    pub(super) removed: Vec<(usize, SubjectId, u64)>,
    /// Which incident a subject is in now: sink, subject, incident.
    pub(super) incidents: Vec<(usize, SubjectId, Option<SubjectId>)>,
    /// Sinks for which the incident of a window was stored.
    pub(super) windows: Vec<usize>,
    /// Subjects whose delays are over, before any of [`Self::delayed`] began.
    pub(super) undelayed: Vec<SubjectId>,
    pub(super) delayed: Vec<DelayedDelivery>,
    /// For each sink, events that were replaced by a newer state.
    pub(super) superseded: Vec<u64>,
    /// For each sink, events that were not stored because it is at its bound.
    pub(super) refused: Vec<u64>,
    /// Events about subjects beyond the bound of open ones.
    pub(super) refused_subjects: u64,
    /// Whether it survives a crash.
    pub(super) durable: bool,
    /// Open subjects afterwards.
    pub(super) open: usize,
    pub(super) next_seq: u64,
}

/// One batch in progress.
pub(super) struct Batch<'l, 't> {
    store: &'l OutboxStore,
    queues: &'l Queues<'l>,
    queue: Table<'t, (&'static str, u64), &'static [u8]>,
    open: Table<'t, &'static str, &'static [u8]>,
    addresses: Table<'t, (&'static str, &'static str), ()>,
    incidents: Table<'t, (&'static str, &'static str), &'static str>,
    /// The lanes it met, with its changes.
    lanes: HashMap<(usize, SubjectId), Vec<(u64, Change)>>,
    /// Events and bytes of each sink, including this batch.
    size: Vec<(usize, usize)>,
    changes: &'l mut BatchOutcome,
    now: Now,
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
            addresses: transaction.open_table(ADDRESSES)?,
            incidents: transaction.open_table(INCIDENTS)?,
            lanes: HashMap::new(),
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
            OutboxInput::Unchanged(event) => self.active(event, true),
            OutboxInput::Active(events) => self.all_active(events),
            OutboxInput::DelayElapsed(sink, subject) => self.delay_elapsed(*sink, *subject),
            OutboxInput::WindowOver(sink, raised) => self.window_over(*sink, raised),
            OutboxInput::Finished(message) => self.finished(message),
        }
    }

    /// An active subject changed, or with `is_unchanged` may have: then only an event that adds something counts.
    fn active(&mut self, event: &AnyEvent, is_unchanged: bool) -> Result<(), StoreError> {
        let subject = event.subject_id();
        let known = self.record(subject)?;
        if known.is_none() && self.changes.open >= self.store.bounds.open {
            self.changes.refused_subjects += 1;
            return Ok(());
        }
        self.changes.open += usize::from(known.is_none());
        let same = |known: &OpenRecord| {
            known.event.id() == event.id() || (is_unchanged && known.event.supersedes(event))
        };
        let is_new = !known.as_ref().is_some_and(same);
        let mut record = known.unwrap_or_else(|| OpenRecord {
            notified_sinks: BTreeSet::new(),
            covered_sinks: BTreeSet::new(),
            event: event.clone(),
        });
        let mut changed = is_new;
        if is_new {
            record.event = event.clone();
            for (sink, spec) in self.store.sinks.iter().enumerate() {
                if !record.notified_sinks.contains(&spec.name) {
                    continue;
                }
                if !spec.filter.gets_sweep_of(event) {
                    self.push(sink, event, Change::Updated)?;
                } else if spec.window.is_some() && self.retract(sink, subject)? {
                    record.notified_sinks.remove(&spec.name);
                }
            }
        }
        for (sink, wait) in self.store.pending_sinks(&record, self.now) {
            if wait.is_zero() {
                changed |= self.raise(sink, &mut record)?;
            } else {
                self.delay(wait, sink, subject);
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
        self.forget_address(event)?;
        self.changes.open = self.changes.open.saturating_sub(1);
        self.end_delays(subject);
        self.delay_consequences(event)?;
        for (sink, spec) in self.store.sinks.iter().enumerate() {
            if record.notified_sinks.contains(&spec.name) {
                self.push(sink, event, Change::Resolved)?;
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
        let Some(mut record) = self.record(subject)? else {
            return Ok(());
        };
        let Some(spec) = self.store.sinks.get(sink) else {
            return Ok(());
        };
        if !record.notified_sinks.contains(&spec.name)
            && spec.filter.accepts(&record.event)
            && self.raise(sink, &mut record)?
        {
            self.put(subject, &record)?;
        }
        Ok(())
    }

    /// Ends all delays of a subject.
    fn end_delays(&mut self, subject: SubjectId) {
        self.changes
            .delayed
            .retain(|delayed| delayed.subject != subject);
        self.changes.undelayed.push(subject);
    }

    fn delay(&mut self, wait: Duration, sink: usize, subject: SubjectId) {
        self.changes.delayed.push(DelayedDelivery {
            wait,
            sink,
            subject,
        });
    }

    /// Raises an open subject at a sink, unless that is at its bound or has a conflict that the subject is part of. Returns whether the
    /// record changed.
    fn raise(&mut self, sink: usize, record: &mut OpenRecord) -> Result<bool, StoreError> {
        let event = record.event.clone();
        let name = self.store.sinks[sink].name.clone();
        if self.is_part_of_conflict(sink, &event)? {
            return Ok(record.covered_sinks.insert(name));
        }
        let is_stored = self.push(sink, &event, Change::Raised)?;
        if is_stored {
            record.covered_sinks.remove(&name);
            record.notified_sinks.insert(name);
            self.cover_consequences(sink, &event)?;
        } else {
            self.delay(REFUSED, sink, event.subject_id());
        }
        Ok(is_stored)
    }

    /// Queues an event: as the head of its lane, or behind the head in place of what is there. `false` if the sink is at
    /// its bound; there is always room for an end.
    fn push(&mut self, sink: usize, event: &AnyEvent, change: Change) -> Result<bool, StoreError> {
        let subject = event.subject_id();
        let lane = self.lane(sink, subject).clone();
        let change = match (lane.first(), change) {
            (None, change) => change,
            (Some((_, Change::Resolved)), Change::Resolved) => {
                // The receiver gets the end before; what came and went after it is nothing new.
                self.drop_behind(sink, subject, &lane)?;
                self.changes.superseded[sink] += 1;
                return Ok(true);
            }
            (Some((_, Change::Resolved)), _) => Change::Raised,
            (Some(_), Change::Resolved) => Change::Resolved,
            (Some(_), _) => Change::Updated,
        };
        let mut event = event.with_change(change);
        if let Some((replaced, Change::Updated)) = lane.get(1..).and_then(<[_]>::last) {
            match self.changes.pushed.get(&(sink, *replaced)) {
                Some(entry) => event.add_changed(&entry.changed),
                None => event.add_changed(&locked(self.queues[sink]).changed(subject)),
            }
        }
        let (record, text) = self.encode(event);
        if change != Change::Resolved && !self.has_room(sink, text.len()) {
            self.changes.refused[sink] += 1;
            return Ok(false);
        }
        self.drop_behind(sink, subject, &lane)?;
        self.insert(sink, record, &text)?;
        Ok(true)
    }

    /// Drops what is behind the head of a lane.
    fn drop_behind(
        &mut self,
        sink: usize,
        subject: SubjectId,
        lane: &[(u64, Change)],
    ) -> Result<(), StoreError> {
        for (seq, _) in lane.iter().skip(1) {
            self.remove(sink, subject, *seq)?;
            self.changes.superseded[sink] += 1;
        }
        Ok(())
    }

    fn encode(&self, event: AnyEvent) -> (QueuedRecord, Vec<u8>) {
        let record = QueuedRecord {
            at: self.now.wall.as_millisecond(),
            event,
        };
        let text = serde_json::to_vec(&record).unwrap_or_default();
        (record, text)
    }

    /// Whether there is room for an event, and for the end of its subject.
    fn has_room(&self, sink: usize, bytes: usize) -> bool {
        let (bounds, (events, used)) = (self.store.bounds, self.size[sink]);
        events + 2 <= bounds.events && used + bytes <= bounds.bytes
    }

    fn insert(&mut self, sink: usize, record: QueuedRecord, text: &[u8]) -> Result<(), StoreError> {
        let seq = self.changes.next_seq;
        self.changes.next_seq += 1;
        let name = self.store.sinks[sink].name.as_str();
        self.queue.insert((name, seq), text)?;
        self.size[sink].0 += 1;
        self.size[sink].1 += text.len();
        let mut entry = record.entry(seq, text.len(), self.now);
        entry.event = Some(record.event);
        self.lane(sink, entry.subject).push((seq, entry.change));
        self.changes.pushed.insert((sink, seq), entry);
        Ok(())
    }

    /// Drops the undelivered raise of a subject, and what is behind it; `false` if the receiver may have it.
    fn retract(&mut self, sink: usize, subject: SubjectId) -> Result<bool, StoreError> {
        let lane = self.lane(sink, subject).clone();
        let Some((head, Change::Raised)) = lane.first() else {
            return Ok(false);
        };
        let key = (self.store.sinks[sink].name.as_str(), subject.to_string());
        let is_in_incident = self.incidents.get((key.0, key.1.as_str()))?.is_some();
        let is_new = self.changes.pushed.contains_key(&(sink, *head));
        if is_in_incident || (!is_new && !locked(self.queues[sink]).retract(subject)) {
            return Ok(false);
        }
        for (seq, _) in lane {
            self.remove(sink, subject, seq)?;
            self.changes.superseded[sink] += 1;
        }
        Ok(true)
    }

    fn finished(&mut self, message: &FinishedMessage) -> Result<(), StoreError> {
        let sink = message.sink;
        for (subject, seq) in &message.events {
            let lane = self.lane(sink, *subject).clone();
            self.remove(sink, *subject, *seq)?;
            match message.change {
                Change::Raised if message.is_superseded => {
                    self.raise_next(sink, *subject, &lane)?;
                }
                Change::Resolved => self.leave(sink, *subject)?,
                Change::Raised | Change::Updated => {}
            }
        }
        Ok(())
    }

    /// The receiver knows nothing of what the update behind a raise was before.
    fn raise_next(
        &mut self,
        sink: usize,
        subject: SubjectId,
        lane: &[(u64, Change)],
    ) -> Result<(), StoreError> {
        let Some((seq, Change::Updated)) = lane.get(1) else {
            return Ok(());
        };
        let update = self.queued(sink, *seq)?;
        self.remove(sink, subject, *seq)?;
        let Some(update) = update else {
            return Ok(());
        };
        let (record, text) = self.encode(update.with_change(Change::Raised));
        self.insert(sink, record, &text)
    }

    /// The subjects that are still to be raised are an incident.
    fn window_over(&mut self, sink: usize, raised: &[SubjectId]) -> Result<(), StoreError> {
        let name = self.store.sinks[sink].name.as_str();
        let mut incident = None;
        for subject in raised {
            if !matches!(self.lane(sink, *subject).first(), Some((_, Change::Raised))) {
                continue;
            }
            let incident = *incident.get_or_insert(*subject);
            let (member, key) = (subject.to_string(), incident.to_string());
            self.incidents
                .insert((name, member.as_str()), key.as_str())?;
            self.changes
                .incidents
                .push((sink, *subject, Some(incident)));
        }
        self.changes.windows.push(sink);
        Ok(())
    }

    fn leave(&mut self, sink: usize, subject: SubjectId) -> Result<(), StoreError> {
        let name = self.store.sinks[sink].name.as_str();
        self.incidents
            .remove((name, subject.to_string().as_str()))?;
        self.changes.incidents.push((sink, subject, None));
        Ok(())
    }

    fn lane(&mut self, sink: usize, subject: SubjectId) -> &mut Vec<(u64, Change)> {
        let stored = || locked(self.queues[sink]).lane(subject);
        self.lanes.entry((sink, subject)).or_insert_with(stored)
    }

    /// A queued event; `None` if it cannot be decoded.
    fn queued(&self, sink: usize, seq: u64) -> Result<Option<AnyEvent>, StoreError> {
        let name = self.store.sinks[sink].name.as_str();
        let record = self.queue.get((name, seq))?;
        Ok(record
            .and_then(|record| serde_json::from_slice::<QueuedRecord>(record.value()).ok())
            .map(|record| record.event))
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
        self.lane(sink, subject).retain(|(other, _)| *other != seq);
        if self.changes.pushed.remove(&(sink, seq)).is_none() {
            self.changes.removed.push((sink, subject, seq));
        }
        Ok(())
    }

    fn record(&self, subject: SubjectId) -> Result<Option<OpenRecord>, StoreError> {
        let record = self.open.get(subject.to_string().as_str())?;
        Ok(record.and_then(|r| serde_json::from_slice(r.value()).ok()))
    }

    fn put(&mut self, subject: SubjectId, record: &OpenRecord) -> Result<(), StoreError> {
        self.note_address(&record.event)?;
        let text = serde_json::to_vec(record).unwrap_or_default();
        self.open
            .insert(subject.to_string().as_str(), text.as_slice())?;
        Ok(())
    }
}
