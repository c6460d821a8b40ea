//! Which subject is next.

use std::collections::{BTreeMap, BTreeSet};

use detector_engine::Timestamp;

use crate::Subject;

/// How many urgent requests are sent for each plain one while both wait, so that a flood of conflicts does not stop registration.
const URGENT_PER_PLAIN: u8 = 3;

/// How soon a request is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Priority {
    /// Registrations, and verifications of them.
    Plain,
    /// Requests about conflicts, and releases, which keep conflicts from arising.
    Urgent,
}

/// Where a subject is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Ready(Priority, u64),
    At(Timestamp),
}

/// Subjects with a request to be sent, now or at a time. Each is in one place at most.
#[derive(Debug, Default)]
pub(super) struct Queue {
    places: BTreeMap<Subject, Place>,
    urgent: BTreeMap<u64, Subject>,
    plain: BTreeMap<u64, Subject>,
    timers: BTreeSet<(Timestamp, Subject)>,
    next: u64,
    urgent_in_a_row: u8,
}

impl Queue {
    /// Queues the request of `subject`. One that waits already keeps its place.
    pub(super) fn ready(&mut self, subject: Subject, priority: Priority) {
        if matches!(self.places.get(&subject), Some(Place::Ready(at, _)) if *at == priority) {
            return;
        }
        self.remove(&subject);
        self.next += 1;
        let number = self.next;
        self.lane(priority).insert(number, subject);
        self.places.insert(subject, Place::Ready(priority, number));
    }

    /// Plans `subject` again at this time.
    pub(super) fn at(&mut self, subject: Subject, time: Timestamp) {
        self.remove(&subject);
        self.timers.insert((time, subject));
        self.places.insert(subject, Place::At(time));
    }

    pub(super) fn remove(&mut self, subject: &Subject) {
        match self.places.remove(subject) {
            Some(Place::Ready(priority, number)) => {
                self.lane(priority).remove(&number);
            }
            Some(Place::At(time)) => {
                self.timers.remove(&(time, *subject));
            }
            None => {}
        }
    }

    /// A subject whose time has come.
    pub(super) fn pop_due(&mut self, now: Timestamp) -> Option<Subject> {
        let (time, subject) = *self.timers.first()?;
        (time <= now).then(|| {
            self.remove(&subject);
            subject
        })
    }

    pub(super) fn pop_ready(&mut self) -> Option<Subject> {
        let is_plain_due = self.urgent_in_a_row >= URGENT_PER_PLAIN || self.urgent.is_empty();
        let lane = if is_plain_due && !self.plain.is_empty() {
            self.urgent_in_a_row = 0;
            &self.plain
        } else {
            self.urgent_in_a_row = self.urgent_in_a_row.saturating_add(1);
            &self.urgent
        };
        let subject = *lane.first_key_value()?.1;
        self.remove(&subject);
        Some(subject)
    }

    pub(super) fn has_ready(&self) -> bool {
        !self.urgent.is_empty() || !self.plain.is_empty()
    }

    pub(super) fn ready_count(&self) -> usize {
        self.urgent.len() + self.plain.len()
    }

    pub(super) fn next_timer(&self) -> Option<Timestamp> {
        self.timers.first().map(|(time, _)| *time)
    }

    fn lane(&mut self, priority: Priority) -> &mut BTreeMap<u64, Subject> {
        match priority {
            Priority::Plain => &mut self.plain,
            Priority::Urgent => &mut self.urgent,
        }
    }
}
