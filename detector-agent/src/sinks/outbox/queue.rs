//! What waits for one sink, in memory: which event may be sent next.
//!
//! A *lane* is what waits of one conflict. Invariants: events leave a lane in order; the next one may be sent only when
//! the one before it is gone from the store for good, so a repeat after a crash never comes after a later event of its
//! conflict; a lane that is being sent is not evicted. The store holds the same events; [`Queue`] only knows them.

mod victims;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::event::{Change, any_event::AnyEvent};
pub(super) use victims::Victim;

/// Events whose text is kept besides the store, so that what is fresh is sent without reading it back.
const KEPT: usize = 256;

/// One waiting event.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its place in the sink's queue.
    pub seq: u64,
    /// Its conflict.
    pub conflict: Arc<str>,
    /// What it tells this sink.
    pub change: Change,
    /// Its size in the store.
    pub bytes: usize,
    /// How old it was at `since`.
    pub age: Duration,
    /// When it came into this queue.
    pub since: Instant,
    /// Its text, while it is kept.
    pub event: Option<AnyEvent>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Its first event may be sent from then on.
    Ready(Option<Instant>),
    /// Its first event is being sent.
    Sending,
    /// Its first event is done with, and being removed from the store.
    Removing,
}

#[derive(Debug)]
struct Lane {
    entries: VecDeque<Entry>,
    state: State,
    failures: u32,
    /// The receiver may have its first event: an attempt failed, or an earlier run of the agent ended during one.
    tried: bool,
}

/// An event to be sent now.
#[derive(Clone, Debug)]
pub struct Job {
    /// Its place in the queue.
    pub seq: u64,
    /// Failures so far, in this run of the agent.
    pub failures: u32,
    /// How old it is.
    pub age: Duration,
    /// Its text, where it is kept; else it is read from the store.
    pub event: Option<AnyEvent>,
}

/// What [`Queue::take`] gives where nothing can be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// Something may be sent at that time.
    Until(Instant),
    /// Nothing, until the queue changes.
    Empty,
}

/// The queues in memory, one for each sink.
pub(super) type Queues<'q> = [&'q Mutex<Queue>];

/// A panic while a queue was locked leaves a queue that is still one.
pub(super) fn locked(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The events that wait for one sink.
#[derive(Debug, Default)]
pub struct Queue {
    lanes: HashMap<Arc<str>, Lane>,
    /// The first event of each lane.
    heads: BTreeMap<u64, Arc<str>>,
    len: usize,
    bytes: usize,
    kept: usize,
    /// Some of it is being dropped; until that is certain, nothing is sent.
    frozen: bool,
}

impl Queue {
    /// How many events wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Their size in the store.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds an event that an earlier run of the agent stored, and perhaps sent.
    pub(super) fn restore(&mut self, entry: Entry) {
        let conflict = Arc::clone(&entry.conflict);
        self.push(entry);
        if let Some(lane) = self.lanes.get_mut(&conflict) {
            lane.tried = true;
        }
    }

    /// Adds an event that is stored. Its `seq` is higher than all before.
    pub(super) fn push(&mut self, mut entry: Entry) {
        if self.kept >= KEPT {
            entry.event = None;
        }
        self.kept += usize::from(entry.event.is_some());
        self.len += 1;
        self.bytes += entry.bytes;
        let lane = self
            .lanes
            .entry(Arc::clone(&entry.conflict))
            .or_insert_with(|| Lane {
                entries: VecDeque::new(),
                state: State::Ready(None),
                failures: 0,
                tried: false,
            });
        if lane.entries.is_empty() {
            self.heads.insert(entry.seq, Arc::clone(&entry.conflict));
        }
        lane.entries.push_back(entry);
    }

    /// Takes the oldest event that may be sent at `now`.
    ///
    /// # Errors
    /// Where none may: when to ask again.
    pub fn take(&mut self, now: Instant) -> Result<Job, Idle> {
        if self.frozen {
            return Err(Idle::Empty);
        }
        let mut next: Option<Instant> = None;
        for (seq, conflict) in &self.heads {
            let Some(lane) = self.lanes.get_mut(conflict) else {
                continue;
            };
            match lane.state {
                State::Ready(Some(at)) if at > now => {
                    next = Some(next.map_or(at, |other| other.min(at)));
                }
                State::Ready(_) => {
                    lane.state = State::Sending;
                    let entry = lane.entries.front();
                    return Ok(Job {
                        seq: *seq,
                        failures: lane.failures,
                        age: entry.map_or(Duration::ZERO, |e| {
                            e.age + now.saturating_duration_since(e.since)
                        }),
                        event: entry.and_then(|e| e.event.clone()),
                    });
                }
                State::Sending | State::Removing => {}
            }
        }
        Err(next.map_or(Idle::Empty, Idle::Until))
    }

    /// The event could not be delivered; it may be sent again at `at`.
    pub(super) fn failed(&mut self, seq: u64, at: Instant) {
        if let Some(lane) = self.lane_of(seq) {
            lane.state = State::Ready(Some(at));
            lane.failures = lane.failures.saturating_add(1);
            lane.tried = true;
        }
    }

    /// The event goes back as if it had not been taken.
    pub(super) fn put_back(&mut self, seq: u64) {
        if let Some(lane) = self.lane_of(seq) {
            lane.state = State::Ready(None);
        }
    }

    /// The event is done with and will be removed from the store.
    pub(super) fn done(&mut self, seq: u64) {
        if let Some(lane) = self.lane_of(seq) {
            lane.state = State::Removing;
        }
    }

    /// Whether another event waits behind this one.
    pub(super) fn has_later(&self, seq: u64) -> bool {
        self.heads
            .get(&seq)
            .and_then(|conflict| self.lanes.get(conflict))
            .is_some_and(|lane| lane.entries.len() > 1)
    }

    /// Whether something is being removed before its successor may go.
    #[must_use]
    pub fn is_moving(&self) -> bool {
        self.lanes
            .values()
            .any(|lane| lane.state == State::Removing && lane.entries.len() > 1)
    }

    /// The event is gone from the store.
    pub(super) fn removed(&mut self, conflict: &str, seq: u64) {
        let Some(lane) = self.lanes.get_mut(conflict) else {
            return;
        };
        let Some(place) = lane.entries.iter().position(|e| e.seq == seq) else {
            return;
        };
        if let Some(entry) = lane.entries.remove(place) {
            self.len -= 1;
            self.bytes -= entry.bytes;
            self.kept -= usize::from(entry.event.is_some());
        }
        if place > 0 {
            return;
        }
        self.heads.remove(&seq);
        lane.state = State::Ready(None);
        lane.failures = 0;
        lane.tried = false;
        match lane.entries.front() {
            Some(next) => drop(self.heads.insert(next.seq, Arc::clone(&next.conflict))),
            None => drop(self.lanes.remove(conflict)),
        }
    }

    /// The conflict of a lane's first event.
    pub(super) fn conflict_of(&self, seq: u64) -> Option<Arc<str>> {
        self.heads.get(&seq).cloned()
    }

    /// What was to be dropped is dropped.
    pub(super) fn thaw(&mut self) {
        self.frozen = false;
    }

    fn lane_of(&mut self, seq: u64) -> Option<&mut Lane> {
        let conflict = self.heads.get(&seq)?;
        self.lanes.get_mut(conflict)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test that cannot set itself up fails

    use super::*;

    pub(super) fn queue(entries: &[(&str, Change)]) -> Queue {
        let mut queue = Queue::default();
        for (seq, (conflict, change)) in entries.iter().enumerate() {
            queue.push(Entry {
                seq: seq as u64,
                conflict: Arc::from(*conflict),
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
    fn a_conflicts_next_event_waits_until_the_one_before_is_removed() {
        let mut queue = queue(&[("a", Raised), ("a", Resolved), ("b", Raised)]);
        let now = Instant::now();
        assert_eq!(queue.take(now).unwrap().seq, 0);
        assert_eq!(queue.take(now).unwrap().seq, 2);
        assert_eq!(queue.take(now).unwrap_err(), Idle::Empty);
        queue.done(0);
        assert_eq!(queue.take(now).unwrap_err(), Idle::Empty);
        assert!(queue.is_moving());
        queue.removed("a", 0);
        assert_eq!(queue.take(now).unwrap().seq, 1);
        assert_eq!((queue.len(), queue.bytes()), (2, 20));
    }

    #[test]
    fn a_failed_event_holds_back_its_own_conflict_alone() {
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
