//! One sink's queue in memory: which event may be sent next.
//!
//! A *lane* holds the queued events of one subject. Invariants: events leave a lane in order; the next one may be sent
//! only after the one before it was removed from the store durably, so a repeat after a crash never follows a later
//! event of its subject; a lane that is being sent is not evicted. The events themselves are in the store.
//!
//! A lane whose first event the receiver rejected is *parked*: that event waits for a late attempt, and with it the later
//! ones of its subject, unless one of them [supersedes](SendJob::is_superseded) it.

mod eviction;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use detector_event::{Change, SubjectId};
use tokio::time::Instant;

use crate::sinks::message::Message;
pub(super) use eviction::EvictionCandidate;

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
    /// Its size in the store.
    pub bytes: usize,
    /// How old it was at `since`.
    pub age: Duration,
    /// When it was added to this queue.
    pub since: Instant,
    /// The event, if it is cached.
    pub event: Option<Message>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LaneState {
    /// Its first event may be sent from then on.
    Ready(Option<Instant>),
    /// Its first event is being sent.
    Sending,
    /// Its first event is finished and being removed from the store.
    Removing,
}

#[derive(Debug)]
struct Lane {
    entries: VecDeque<QueueEntry>,
    state: LaneState,
    failures: u32,
    /// The receiver may have its first event: an attempt failed, or an earlier run of the agent ended during one.
    tried: bool,
    /// The receiver rejected its first event.
    is_parked: bool,
}

impl Lane {
    /// Whether a later event makes the parked one worthless. A `raised` one still precedes `resolved`: the receiver
    /// knows nothing of the subject.
    fn is_superseded(&self) -> bool {
        let mut changes = self.entries.iter().map(|entry| entry.change);
        self.is_parked
            && matches!(
                (changes.next(), changes.next()),
                (Some(Change::Updated), Some(_)) | (Some(Change::Raised), Some(Change::Updated))
            )
    }
}

/// An event to be sent now.
#[derive(Clone, Debug)]
pub struct SendJob {
    /// Its sequence number.
    pub seq: u64,
    /// Failures so far, in this run of the agent.
    pub failures: u32,
    /// How old it is.
    pub age: Duration,
    /// The event, if it is cached; otherwise it is read from the store.
    pub event: Option<Message>,
    /// The receiver rejected it before, in this run of the agent.
    pub was_rejected: bool,
    /// It was rejected, and a later event of its subject takes its place: it is not to be sent.
    pub is_superseded: bool,
}

/// Why [`Queue::take`] returns no event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// Nothing may be sent before that time.
    Until(Instant),
    /// Nothing may be sent until the queue changes.
    Empty,
}

/// The queues in memory, one for each sink.
pub(super) type Queues<'q> = [&'q Mutex<Queue>];

/// Locks a queue; a panic while it was locked leaves it usable.
pub(super) fn locked(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The events queued for one sink.
#[derive(Debug, Default)]
pub struct Queue {
    lanes: HashMap<SubjectId, Lane>,
    /// The sequence number of each lane's first event.
    heads: BTreeMap<u64, SubjectId>,
    len: usize,
    bytes: usize,
    cached: usize,
    /// Events of parked lanes.
    parked: usize,
    /// Events are being evicted; nothing is sent until that is committed.
    frozen: bool,
}

impl Queue {
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
            lane.tried = true;
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
            tried: false,
            is_parked: false,
        });
        self.parked += usize::from(lane.is_parked);
        if lane.entries.is_empty() {
            self.heads.insert(entry.seq, entry.subject);
        }
        lane.entries.push_back(entry);
    }

    /// Takes the oldest event that may be sent at `now`.
    ///
    /// # Errors
    /// If none may be sent: until when.
    pub fn take(&mut self, now: Instant) -> Result<SendJob, Idle> {
        if self.frozen {
            return Err(Idle::Empty);
        }
        let mut next: Option<Instant> = None;
        for (seq, subject) in &self.heads {
            let Some(lane) = self.lanes.get_mut(subject) else {
                continue;
            };
            let is_superseded = lane.is_superseded();
            match lane.state {
                LaneState::Ready(Some(at)) if at > now && !is_superseded => {
                    next = Some(next.map_or(at, |other| other.min(at)));
                }
                LaneState::Ready(_) => {
                    lane.state = LaneState::Sending;
                    let entry = lane.entries.front();
                    return Ok(SendJob {
                        seq: *seq,
                        failures: lane.failures,
                        age: entry.map_or(Duration::ZERO, |e| {
                            e.age + now.saturating_duration_since(e.since)
                        }),
                        event: entry.and_then(|e| e.event.clone()),
                        was_rejected: lane.is_parked,
                        is_superseded,
                    });
                }
                LaneState::Sending | LaneState::Removing => {}
            }
        }
        Err(next.map_or(Idle::Empty, Idle::Until))
    }

    /// The event could not be delivered; it may be sent again at `at`.
    pub(super) fn failed(&mut self, seq: u64, at: Instant) {
        if let Some(lane) = self.lane_of(seq) {
            lane.state = LaneState::Ready(Some(at));
            lane.failures = lane.failures.saturating_add(1);
            lane.tried = true;
        }
    }

    /// The receiver rejected the event; it may be sent again at `at`.
    pub(super) fn rejected(&mut self, seq: u64, at: Instant) {
        let subject = self.subject_of(seq);
        if let Some(lane) = subject.and_then(|subject| self.lanes.get_mut(&subject)) {
            lane.state = LaneState::Ready(Some(at));
            lane.failures = lane.failures.saturating_add(1);
            if !std::mem::replace(&mut lane.is_parked, true) {
                self.parked += lane.entries.len();
            }
        }
    }

    /// Returns the event as if it had not been taken.
    pub(super) fn put_back(&mut self, seq: u64) {
        if let Some(lane) = self.lane_of(seq) {
            lane.state = LaneState::Ready(None);
        }
    }

    /// The event was delivered or given up and will be removed from the store.
    pub(super) fn finished(&mut self, seq: u64) {
        let subject = self.subject_of(seq);
        if let Some(lane) = subject.and_then(|subject| self.lanes.get_mut(&subject)) {
            lane.state = LaneState::Removing;
            if std::mem::take(&mut lane.is_parked) {
                self.parked -= lane.entries.len();
            }
        }
    }

    /// The events of a subject: sequence number and change.
    pub(super) fn lane(&self, subject: SubjectId) -> Vec<(u64, Change)> {
        let entries = self.lanes.get(&subject).map(|lane| &lane.entries);
        let entries = entries.into_iter().flatten();
        entries.map(|entry| (entry.seq, entry.change)).collect()
    }

    /// Whether another event of the subject is queued behind this one.
    pub(super) fn has_later(&self, seq: u64) -> bool {
        self.heads
            .get(&seq)
            .and_then(|subject| self.lanes.get(subject))
            .is_some_and(|lane| lane.entries.len() > 1)
    }

    /// Whether an event waits for the removal of the one before it.
    #[must_use]
    pub fn has_successors(&self) -> bool {
        self.lanes
            .values()
            .any(|lane| lane.state == LaneState::Removing && lane.entries.len() > 1)
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
        lane.tried = false;
        match lane.entries.front() {
            Some(next) => drop(self.heads.insert(next.seq, next.subject)),
            None => drop(self.lanes.remove(&subject)),
        }
    }

    /// The subject of a lane's first event.
    pub(super) fn subject_of(&self, seq: u64) -> Option<SubjectId> {
        self.heads.get(&seq).copied()
    }

    /// The evictions are committed.
    pub(super) fn unfreeze(&mut self) {
        self.frozen = false;
    }

    fn lane_of(&mut self, seq: u64) -> Option<&mut Lane> {
        let subject = self.heads.get(&seq)?;
        self.lanes.get_mut(subject)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test that cannot set itself up fails

    use detector_event::samples;

    use super::*;

    pub(super) fn queue(entries: &[(&str, Change)]) -> Queue {
        let mut queue = Queue::default();
        for (seq, (subject, change)) in entries.iter().enumerate() {
            queue.push(QueueEntry {
                seq: seq as u64,
                subject: samples::subject_id(subject),
                change: *change,
                bytes: 10,
                age: Duration::ZERO,
                since: Instant::now(),
                event: None,
            });
        }
        queue
    }

    use Change::{Raised, Resolved};

    #[test]
    fn the_next_event_of_a_subject_waits_for_the_removal_of_the_last() {
        let mut queue = queue(&[("a", Raised), ("a", Resolved), ("b", Raised)]);
        let now = Instant::now();
        assert_eq!(queue.take(now).unwrap().seq, 0);
        assert_eq!(queue.take(now).unwrap().seq, 2);
        assert_eq!(queue.take(now).unwrap_err(), Idle::Empty);
        queue.finished(0);
        assert_eq!(queue.take(now).unwrap_err(), Idle::Empty);
        assert!(queue.has_successors());
        queue.removed(samples::subject_id("a"), 0);
        assert_eq!(queue.take(now).unwrap().seq, 1);
        assert_eq!((queue.len(), queue.bytes()), (2, 20));
    }

    #[test]
    fn a_parked_event_waits_unless_a_later_one_supersedes_it() {
        use Change::Updated;
        let now = Instant::now();
        let at = now + Duration::from_secs(900);
        for (lane, is_superseded) in [
            (&[Raised][..], false),
            (&[Raised, Resolved], false),
            (&[Raised, Updated, Resolved], true),
            (&[Updated], false),
            (&[Updated, Updated], true),
            (&[Updated, Resolved], true),
            (&[Resolved], false),
        ] {
            let entries: Vec<_> = lane.iter().map(|change| ("a", *change)).collect();
            let mut queue = queue(&entries);
            assert!(!queue.take(now).unwrap().was_rejected);
            queue.rejected(0, at);
            assert_eq!((queue.len(), queue.parked()), (lane.len(), lane.len()));
            if !is_superseded {
                assert_eq!(queue.take(now).unwrap_err(), Idle::Until(at), "{lane:?}");
            }
            let again = queue.take(at).unwrap();
            assert_eq!(again.seq, 0);
            assert!(again.was_rejected);
            assert_eq!(again.is_superseded, is_superseded, "{lane:?}");
            queue.finished(0);
            assert_eq!(queue.parked(), 0);
            queue.removed(samples::subject_id("a"), 0);
            assert_eq!(queue.len(), lane.len() - 1);
        }
    }

    #[test]
    fn a_failed_event_delays_only_its_own_subject() {
        let mut queue = queue(&[("a", Raised), ("a", Resolved), ("b", Raised)]);
        let now = Instant::now();
        let later = now + Duration::from_secs(5);
        assert_eq!(queue.take(now).unwrap().seq, 0);
        queue.failed(0, later);
        assert_eq!(queue.take(now).unwrap().seq, 2);
        assert_eq!(queue.take(now).unwrap_err(), Idle::Until(later));
        let again = queue.take(later).unwrap();
        assert_eq!((again.seq, again.failures), (0, 1));
    }
}
