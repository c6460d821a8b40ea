//! One sink's queue in memory: what may be sent next.
//!
//! A *lane* holds the pending events of one subject. Invariants: events leave a lane in order; the next one may be sent
//! only after the one before it was removed from the store durably, so a repeat after a crash never follows a later
//! event of its subject; only the head of a lane is ever sent as an event of its own, so what is behind it may be replaced.
//! The events themselves are in the store.
//!
//! A lane whose head the receiver rejected is *parked*: the head waits for a late attempt, and with it the newest state,
//! unless the newest state is an update that [supersedes](SendJob::is_superseded) the head.

mod window;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use detector_event::{AnyEvent, Change, ChangedField, SubjectId};
use tokio::time::Instant;

pub(super) use window::Incidents;
pub use window::Window;

/// Events that are also held in memory, so that fresh ones are sent without reading them back.
const CACHED: usize = 256;

/// One queued event.
#[derive(Clone, Debug)]
pub struct QueueEntry {
    /// Its sequence number in the sink's queue.
    pub seq: u64,
    /// The conflict or anomaly it is about.
    pub subject: SubjectId,
    /// What happened to its subject, as this sink sees it.
    pub change: Change,
    /// The fields that it names as changed, if it is an update.
    pub changed: Vec<ChangedField>,
    /// Its size in the store.
    pub bytes: usize,
    /// How old it was at `since`.
    pub age: Duration,
    /// When it was added to this queue.
    pub since: Instant,
    /// The event, if it is cached.
    pub event: Option<AnyEvent>,
}

impl QueueEntry {
    /// Whether it is an update that people are notified of.
    fn is_notable(&self) -> bool {
        self.changed
            .iter()
            .any(|field| field.for_people().is_some())
    }

    fn age_at(&self, now: Instant) -> Duration {
        self.age + now.saturating_duration_since(self.since)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LaneState {
    /// Its head may be sent from then on.
    Ready(Option<Instant>),
    /// Its head is being sent.
    Sending,
    /// Its head is finished and being removed from the store.
    Removing,
    /// It is being removed from the store without having been sent.
    Retracted,
}

#[derive(Debug)]
struct Lane {
    /// The head, and at most one more, unless an earlier version of the agent stored them.
    entries: VecDeque<QueueEntry>,
    state: LaneState,
    failures: u32,
    /// The receiver may have its head: an attempt failed, or an earlier run of the agent ended during one.
    was_attempted: bool,
    /// The receiver rejected its head.
    is_parked: bool,
}

impl Lane {
    /// Whether an update makes the parked head worthless.
    fn is_superseded(&self) -> bool {
        let mut changes = self.entries.iter().map(|entry| entry.change);
        self.is_parked
            && matches!(
                (changes.next(), changes.next()),
                (Some(Change::Updated), Some(_)) | (Some(Change::Raised), Some(Change::Updated))
            )
    }

    /// Its head, if that has this change and is not being sent or removed.
    fn ready(&self, change: Change) -> Option<&QueueEntry> {
        let head = self.entries.front().filter(|head| head.change == change);
        head.filter(|_| matches!(self.state, LaneState::Ready(_)))
    }

    /// Until when its head is not to be sent.
    fn waits_until(&self, now: Instant) -> Option<Instant> {
        match self.state {
            LaneState::Ready(at) => at.filter(|at| *at > now && !self.is_superseded()),
            LaneState::Sending | LaneState::Removing | LaneState::Retracted => None,
        }
    }
}

/// The event of one subject that is part of a message.
#[derive(Clone, Debug)]
pub struct SendMember {
    /// The subject.
    pub subject: SubjectId,
    /// The head of its lane.
    pub seq: u64,
    /// The event that the message has: the head, or what is behind a raise.
    pub content: u64,
    /// That event, if it is cached; otherwise it is read from the store.
    pub event: Option<AnyEvent>,
    /// How old the head is.
    pub age: Duration,
}

/// A message to be sent now.
#[derive(Clone, Debug)]
pub struct SendJob {
    /// What it is about, at least one, the oldest first.
    pub members: Vec<SendMember>,
    /// What happened to all of them.
    pub change: Change,
    /// Whether it is the message of a window.
    pub is_window: bool,
    /// The incident that it opens or resolves.
    pub incident: SubjectId,
    /// Failures so far, in this run of the agent.
    pub failures: u32,
    /// The receiver rejected it before, in this run of the agent.
    pub was_rejected: bool,
    /// It is not to be sent: something later takes its place.
    pub is_superseded: bool,
}

/// Why [`Queue::take`] returns nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// Nothing may be sent before that time.
    Until(Instant),
    /// Nothing may be sent until the queue changes.
    Empty,
}

fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}

/// The queues in memory, one for each sink.
pub(super) type Queues<'q> = [&'q Mutex<Queue>];

/// Locks a queue; a panic while it was locked leaves it usable.
pub(super) fn locked(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The events queued for one sink.
#[derive(Debug)]
pub struct Queue {
    lanes: HashMap<SubjectId, Lane>,
    /// The sequence number of each lane's head.
    heads: BTreeMap<u64, SubjectId>,
    len: usize,
    bytes: usize,
    cached: usize,
    /// Events of parked lanes.
    parked: usize,
    window: Option<Window>,
    /// The most members of one message.
    limit: usize,
    /// The incident of a window is being stored.
    is_storing_window: bool,
    pub(super) incidents: Incidents,
}

impl Queue {
    /// An empty queue; with a `window`, of messages to people.
    #[must_use]
    pub fn new(window: Option<Window>) -> Self {
        Self {
            lanes: HashMap::new(),
            heads: BTreeMap::new(),
            len: 0,
            bytes: 0,
            cached: 0,
            parked: 0,
            window,
            limit: window::MEMBERS,
            is_storing_window: false,
            incidents: Incidents::default(),
        }
    }

    /// The number of queued events.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no event is queued.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of events that the receiver rejected, and of those that wait behind them.
    #[must_use]
    pub fn parked(&self) -> usize {
        self.parked
    }

    /// Their size in the store.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds an event that an earlier run of the agent stored, and perhaps sent.
    pub(super) fn restore(&mut self, entry: QueueEntry) {
        let subject = entry.subject;
        self.push(entry);
        if let Some(lane) = self.lanes.get_mut(&subject) {
            lane.was_attempted = true;
        }
    }

    /// Adds a stored event, whose `seq` must be higher than all before.
    pub(super) fn push(&mut self, mut entry: QueueEntry) {
        if self.cached >= CACHED {
            entry.event = None;
        }
        self.cached += usize::from(entry.event.is_some());
        self.len += 1;
        self.bytes += entry.bytes;
        let lane = self.lanes.entry(entry.subject).or_insert_with(|| Lane {
            entries: VecDeque::new(),
            state: LaneState::Ready(None),
            failures: 0,
            was_attempted: false,
            is_parked: false,
        });
        self.parked += usize::from(lane.is_parked);
        if lane.entries.is_empty() {
            self.heads.insert(entry.seq, entry.subject);
        }
        lane.entries.push_back(entry);
    }

    /// Takes the oldest message that may be sent at `now`.
    ///
    /// # Errors
    /// If none may be sent: until when.
    pub fn take(&mut self, now: Instant) -> Result<SendJob, Idle> {
        if let Some(window) = self.window {
            return self.take_window(window, now);
        }
        let mut next: Option<Instant> = None;
        for subject in self.heads.values().copied() {
            let lane = self.lanes.get(&subject);
            let is_ready = |lane: &&Lane| matches!(lane.state, LaneState::Ready(_));
            let Some(lane) = lane.filter(is_ready) else {
                continue;
            };
            match lane.waits_until(now) {
                Some(at) => next = earlier(next, Some(at)),
                None => return self.job(&[subject], None, now).ok_or(Idle::Empty),
            }
        }
        Err(next.map_or(Idle::Empty, Idle::Until))
    }

    /// Marks these lanes as being sent. `None` without any.
    fn job(
        &mut self,
        subjects: &[SubjectId],
        incident: Option<SubjectId>,
        now: Instant,
    ) -> Option<SendJob> {
        let mut job: Option<SendJob> = None;
        for subject in subjects {
            let Some(lane) = self.lanes.get_mut(subject) else {
                continue;
            };
            let Some(head) = lane.entries.front() else {
                continue;
            };
            lane.state = LaneState::Sending;
            let newest = lane.entries.get(1).filter(|newest| {
                self.window.is_some()
                    && (head.change, newest.change) == (Change::Raised, Change::Updated)
            });
            let content = newest.unwrap_or(head);
            let member = SendMember {
                subject: *subject,
                seq: head.seq,
                content: content.seq,
                event: content.event.clone(),
                age: head.age_at(now),
            };
            let job = job.get_or_insert_with(|| SendJob {
                members: Vec::new(),
                change: head.change,
                is_window: self.window.is_some(),
                incident: incident.unwrap_or(*subject),
                failures: 0,
                was_rejected: false,
                is_superseded: lane.is_superseded(),
            });
            job.failures = job.failures.max(lane.failures);
            job.was_rejected |= lane.is_parked;
            job.members.push(member);
        }
        job
    }

    /// The event could not be delivered; it may be sent again at `at`.
    pub(super) fn failed(&mut self, seq: u64, at: Instant) {
        if let Some(lane) = self.lane_of(seq) {
            lane.state = LaneState::Ready(Some(at));
            lane.failures = lane.failures.saturating_add(1);
            lane.was_attempted = true;
        }
    }

    /// The receiver rejected the message, which may be sent again at `at`. One of several events is divided first, so that a
    /// single rejected event costs the others nothing.
    pub(super) fn rejected(&mut self, job: &SendJob, at: Instant) {
        let ends_incident = job.change == Change::Resolved
            && self.window.is_some_and(|window| window.has_incidents);
        if job.members.len() > 1 && !ends_incident {
            self.limit = job.members.len().div_ceil(2);
            for member in &job.members {
                self.put_back(member.seq);
            }
            return;
        }
        for member in &job.members {
            if let Some(lane) = self.lanes.get_mut(&member.subject) {
                lane.state = LaneState::Ready(Some(at));
                lane.failures = lane.failures.saturating_add(1);
                if !std::mem::replace(&mut lane.is_parked, true) {
                    self.parked += lane.entries.len();
                }
            }
        }
    }

    /// The receiver accepted a message.
    pub(super) fn accepted(&mut self) {
        self.limit = (self.limit * 2).min(window::MEMBERS);
    }

    /// Returns the event as if it had not been taken.
    pub(super) fn put_back(&mut self, seq: u64) {
        if let Some(lane) = self.lane_of(seq) {
            lane.state = LaneState::Ready(None);
        }
    }

    /// The event was delivered or given up and will be removed from the store.
    pub(super) fn finished(&mut self, seq: u64) {
        let subject = self.heads.get(&seq);
        if let Some(lane) = subject.and_then(|subject| self.lanes.get_mut(subject)) {
            lane.state = LaneState::Removing;
            if std::mem::take(&mut lane.is_parked) {
                self.parked -= lane.entries.len();
            }
        }
    }

    /// Keeps the events of a subject from being sent, which are to be removed; `false` if the receiver may have one.
    pub(super) fn retract(&mut self, subject: SubjectId) -> bool {
        let Some(lane) = self.lanes.get_mut(&subject) else {
            return false;
        };
        if matches!(lane.state, LaneState::Ready(_)) && !lane.was_attempted {
            lane.state = LaneState::Retracted;
        }
        lane.state == LaneState::Retracted
    }

    /// The events of a subject: sequence number and change.
    pub(super) fn lane(&self, subject: SubjectId) -> Vec<(u64, Change)> {
        let entries = self.lanes.get(&subject).map(|lane| &lane.entries);
        let entries = entries.into_iter().flatten();
        entries.map(|entry| (entry.seq, entry.change)).collect()
    }

    /// The fields that the newest event of a subject names as changed.
    pub(super) fn changed(&self, subject: SubjectId) -> Vec<ChangedField> {
        let lane = self.lanes.get(&subject);
        let newest = lane.and_then(|lane| lane.entries.back());
        newest.map_or_else(Vec::new, |newest| newest.changed.clone())
    }

    /// Whether an event waits only for the outbox: for the removal of the one before it, or for its incident.
    #[must_use]
    pub fn has_successors(&self) -> bool {
        let mut lanes = self.lanes.values();
        self.is_storing_window
            || lanes.any(|lane| lane.state == LaneState::Removing && lane.entries.len() > 1)
    }

    /// The event was removed from the store.
    pub(super) fn removed(&mut self, subject: SubjectId, seq: u64) {
        let Some(lane) = self.lanes.get_mut(&subject) else {
            return;
        };
        let Some(position) = lane.entries.iter().position(|e| e.seq == seq) else {
            return;
        };
        if let Some(entry) = lane.entries.remove(position) {
            self.len -= 1;
            self.bytes -= entry.bytes;
            self.cached -= usize::from(entry.event.is_some());
            self.parked -= usize::from(lane.is_parked);
        }
        if position > 0 {
            return;
        }
        self.heads.remove(&seq);
        if std::mem::take(&mut lane.is_parked) {
            self.parked -= lane.entries.len();
        }
        lane.state = LaneState::Ready(None);
        lane.failures = 0;
        lane.was_attempted = false;
        match lane.entries.front() {
            Some(next) => drop(self.heads.insert(next.seq, next.subject)),
            None => drop(self.lanes.remove(&subject)),
        }
    }

    fn lane_of(&mut self, seq: u64) -> Option<&mut Lane> {
        let subject = self.heads.get(&seq)?;
        self.lanes.get_mut(subject)
    }
}

#[cfg(test)]
mod tests;
