//! Which objects have Kubernetes Events about what is active, and what has to be posted next. Pure.
//!
//! An Event waits up to [`PATIENCE`] for the pods that it should name and for the cause, and is posted once. Everything is bounded; beyond a bound
//! the oldest is forgotten, so that at worst it has no end.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use detector_event::{AnyEvent, Change, ChangedField, SubjectId};
use tokio::time::Instant;

use super::object_events::{ObjectEvent, ObjectEvents};

/// How long an Event waits for names and the cause.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long pods that become known count as those about which an earlier agent posted Events: after a start they are only being looked up.
const PATIENCE_AFTER_START: Duration = Duration::from_secs(30);
/// The most conflicts and anomalies with Events.
const SUBJECTS: usize = 4096;
/// The most that wait; beyond it, the oldest does not wait any longer.
const WAITING: usize = 512;
/// The most objects with an Event about one subject.
const OBJECTS: usize = 256;

/// What to post.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) subject: SubjectId,
    pub(super) object_event: ObjectEvent,
}

/// A subject, and the object of an Event about it.
pub(super) type Key = (SubjectId, String);

impl Request {
    /// What is posted with one key stays in order.
    pub(super) fn key(&self) -> Key {
        (self.subject, self.object_event.object())
    }
}

/// The Events about what is active.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// Whether an object has an Event about the subject, by object.
    subjects: HashMap<SubjectId, HashMap<String, bool>>,
    /// The subjects, oldest first.
    order: VecDeque<SubjectId>,
    /// What waits for names or the cause, oldest first.
    waiting: VecDeque<WaitingEvent>,
}

#[derive(Debug)]
struct WaitingEvent {
    until: Instant,
    event: AnyEvent,
    /// An earlier agent posted the Events.
    is_restored: bool,
}

impl Ledger {
    /// What to post at once because of this event.
    pub(super) fn apply(&mut self, event: &AnyEvent, now: Instant) -> Vec<Request> {
        let id = event.subject_id();
        let waited = self
            .waiting
            .iter()
            .position(|waiting| waiting.event.subject_id() == id);
        let waited = waited.and_then(|position| self.waiting.remove(position));
        if event.change() == Change::Resolved {
            return self.resolve(event, waited);
        }
        if is_swept(event) {
            // The pod that sweeps has an Event about all of them.
            return Vec::new();
        }
        let (until, is_restored) = match waited {
            Some(waited) => (waited.until, waited.is_restored),
            None if self.subjects.contains_key(&id) => (now, false),
            None if is_beginning(event) => (now + PATIENCE, false),
            None => (now + PATIENCE_AFTER_START, true),
        };
        let waiting = WaitingEvent {
            until,
            event: event.clone(),
            is_restored,
        };
        if until <= now || !ObjectEvents::of(event).is_incomplete {
            return self.requests(&waiting);
        }
        self.waiting.push_back(waiting);
        let oldest = (self.waiting.len() > WAITING).then(|| self.waiting.pop_front());
        oldest
            .flatten()
            .map(|oldest| self.requests(&oldest))
            .unwrap_or_default()
    }

    /// When [`Ledger::take_due`] has something.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.waiting.iter().map(|waiting| waiting.until).min()
    }

    /// What to post because it has waited long enough.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<Request> {
        let (due, waiting) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition::<VecDeque<_>, _>(|waiting| waiting.until <= now);
        self.waiting = waiting;
        due.iter().flat_map(|due| self.requests(due)).collect()
    }

    /// Records that an Event is not posted; it has no end either.
    pub(super) fn held_back(&mut self, (subject, object): &Key) {
        let objects = self.subjects.get_mut(subject);
        if let Some(has_event) = objects.and_then(|objects| objects.get_mut(object)) {
            *has_event = false;
        }
    }

    /// The new Events of an active subject.
    fn requests(&mut self, waiting: &WaitingEvent) -> Vec<Request> {
        let subject = waiting.event.subject_id();
        let object_events = ObjectEvents::of(&waiting.event);
        let has_pods = !object_events.on_pods.is_empty();
        let objects = self.remember(subject);
        let mut requests = Vec::new();
        for object_event in object_events
            .on_pods
            .into_iter()
            .chain([object_events.on_node])
        {
            let object = object_event.object();
            let is_replaced = object_event.is_on_node() && has_pods;
            if is_replaced || objects.len() >= OBJECTS || objects.contains_key(&object) {
                continue;
            }
            objects.insert(object, true);
            if !waiting.is_restored {
                requests.push(Request {
                    subject,
                    object_event,
                });
            }
        }
        requests
    }

    /// The last Events about a subject: on each object that has one.
    fn resolve(&mut self, event: &AnyEvent, waited: Option<WaitingEvent>) -> Vec<Request> {
        let waited = waited.map(|mut waited| {
            if waited.is_restored {
                // It may name more of the pods that have Events.
                waited.event = event.clone();
            }
            self.requests(&waited)
        });
        let mut requests = waited.unwrap_or_default();
        let subject = event.subject_id();
        let objects = self.subjects.remove(&subject).unwrap_or_default();
        self.order.retain(|other| *other != subject);
        let object_events = ObjectEvents::of(event);
        let ends = object_events
            .on_pods
            .into_iter()
            .chain([object_events.on_node]);
        requests.extend(
            ends.filter(|object_event| objects.get(&object_event.object()) == Some(&true))
                .map(|object_event| Request {
                    subject,
                    object_event,
                }),
        );
        requests
    }

    #[cfg(test)]
    pub(super) fn remembered(&self) -> usize {
        self.subjects.len().max(self.order.len())
    }

    /// The objects with Events about a subject.
    fn remember(&mut self, subject: SubjectId) -> &mut HashMap<String, bool> {
        if !self.subjects.contains_key(&subject) {
            self.order.push_back(subject);
            if self.order.len() > SUBJECTS
                && let Some(oldest) = self.order.pop_front()
            {
                self.subjects.remove(&oldest);
            }
        }
        self.subjects.entry(subject).or_default()
    }
}

/// Whether no agent can have posted an Event about it: it was raised, or is no longer part of a sweep.
fn is_beginning(event: &AnyEvent) -> bool {
    let left_sweep = matches!(event, AnyEvent::Conflict(event) if event.data.changed.contains(&ChangedField::Sweep));
    left_sweep || event.change() == Change::Raised
}

fn is_swept(event: &AnyEvent) -> bool {
    matches!(event, AnyEvent::Conflict(event) if event.data.sweep.is_some())
}
