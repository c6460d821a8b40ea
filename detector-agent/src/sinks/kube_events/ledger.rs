//! Which Kubernetes Events exist about what is active, and what has to be posted next. Pure.
//!
//! An Event waits up to [`PATIENCE`] for the pods that it should name. One that was posted without a name is corrected
//! when the name is known. Everything is bounded; beyond a bound the oldest is forgotten, so that at worst it has no
//! end or is not corrected.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use detector_event::{AnyEvent, Change, SubjectId};
use tokio::time::Instant;

use super::notices::{Notice, Notices};

/// How long an Event waits for names.
const PATIENCE: Duration = Duration::from_secs(2);
/// The same if an earlier agent reported the subject: the pods are only being looked up, and have Events already.
const PATIENCE_AFTER_START: Duration = Duration::from_secs(30);
/// The most conflicts and anomalies with Events.
const SUBJECTS: usize = 4096;
/// The most that wait for names; beyond it, the oldest does not wait any longer.
const WAITING: usize = 512;
/// The most objects with an Event about one subject.
const OBJECTS: usize = 256;
/// A repetition within this time is counted in the existing Event, as in client-go.
const SERIES: Duration = Duration::from_secs(360);
/// The most Events that may be repeated.
const RECENT: usize = 4096;

/// What to post.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) subject: SubjectId,
    pub(super) notice: Notice,
    /// The Event's name.
    pub(super) name: String,
    pub(super) kind: RequestKind,
}

/// A subject, and the object of an Event about it.
pub(super) type Key = (SubjectId, String);

impl Request {
    /// What is posted with one key stays in order.
    pub(super) fn key(&self) -> Key {
        (self.subject, self.notice.object())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestKind {
    /// A new Event.
    Create,
    /// An existing one observed once more, this many times in all.
    Repeat(i32),
    /// An existing one with a better message.
    Correct,
}

/// The Events about what is active.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    subjects: HashMap<SubjectId, Subject>,
    /// The subjects, oldest first.
    order: VecDeque<SubjectId>,
    /// What waits for names, oldest first.
    waiting: VecDeque<Waiting>,
    recent: RecentEvents,
}

#[derive(Debug)]
struct Waiting {
    subject: SubjectId,
    until: Instant,
    event: AnyEvent,
}

/// The Events about one subject, by object.
#[derive(Debug, Default)]
struct Subject {
    posted: HashMap<String, Posted>,
}

#[derive(Debug)]
struct Posted {
    /// `None` if it was held back by the rate limit.
    name: Option<String>,
    unknown: usize,
}

impl Ledger {
    /// What to post at once because of this event.
    pub(super) fn apply(&mut self, event: &AnyEvent, now: Instant) -> Vec<Request> {
        let id = event.subject_id();
        let waited = self.waiting.iter().position(|w| w.subject == id);
        let waiting = waited.and_then(|position| self.waiting.remove(position));
        if event.change() == Change::Resolved {
            return self.resolve(event, waiting, now);
        }
        if is_swept(event) {
            // The pod that sweeps has an Event about all of them.
            return Vec::new();
        }
        let notices = Notices::of(event);
        let until = match waiting {
            Some(waiting) => waiting.until,
            None if self.subjects.contains_key(&id) => now,
            None if event.change() == Change::Raised => now + PATIENCE,
            None => now + PATIENCE_AFTER_START,
        };
        if !notices.is_incomplete || until <= now {
            return self.requests(id, notices, now);
        }
        self.waiting.push_back(Waiting {
            subject: id,
            until,
            event: event.clone(),
        });
        if self.waiting.len() > WAITING
            && let Some(oldest) = self.waiting.pop_front()
        {
            return self.requests(oldest.subject, Notices::of(&oldest.event), now);
        }
        Vec::new()
    }

    /// When [`Ledger::take_due`] has something.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.waiting.iter().map(|w| w.until).min()
    }

    /// What to post because it has waited long enough.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<Request> {
        let (due, waiting) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition::<VecDeque<_>, _>(|w| w.until <= now);
        self.waiting = waiting;
        due.into_iter()
            .flat_map(|due| self.requests(due.subject, Notices::of(&due.event), now))
            .collect()
    }

    /// Records that a request was granted: the Event exists under the request's name, or will.
    pub(super) fn posted(&mut self, request: &Request, now: Instant) {
        self.record(request, Some(request.name.clone()));
        self.recent.record(request, now);
    }

    /// Records that an Event is held back; what follows from it is held back as well.
    pub(super) fn held_back(&mut self, request: &Request) {
        if request.kind != RequestKind::Correct {
            self.record(request, None);
        }
    }

    fn record(&mut self, request: &Request, name: Option<String>) {
        if let Some(subject) = self.subjects.get_mut(&request.subject) {
            let unknown = request.notice.unknown;
            let posted = Posted { name, unknown };
            subject.posted.insert(request.notice.object(), posted);
        }
    }

    /// The new Events of an active subject, and those that can be corrected.
    fn requests(&mut self, id: SubjectId, notices: Notices, now: Instant) -> Vec<Request> {
        self.remember(id);
        let mut requests = Vec::new();
        let Some(Subject { posted: known }) = self.subjects.get(&id) else {
            return requests;
        };
        let has_pods = !notices.on_pods.is_empty();
        for notice in notices.on_pods.into_iter().chain([notices.on_node]) {
            match known.get(&notice.object()) {
                Some(Posted {
                    name: Some(name),
                    unknown,
                }) if notice.unknown < *unknown => requests.push(Request {
                    subject: id,
                    name: name.clone(),
                    notice,
                    kind: RequestKind::Correct,
                }),
                Some(_) => {}
                None if notice.is_on_node() && has_pods => {}
                None if known.len() + requests.len() >= OBJECTS => {}
                None => requests.push(self.new_event(id, notice, now)),
            }
        }
        requests
    }

    /// The last Events about a subject: on each object that has one.
    fn resolve(
        &mut self,
        event: &AnyEvent,
        waiting: Option<Waiting>,
        now: Instant,
    ) -> Vec<Request> {
        let id = event.subject_id();
        let mut requests = match waiting {
            Some(waiting) => self.requests(id, Notices::of(&waiting.event), now),
            None => Vec::new(),
        };
        let subject = self.subjects.remove(&id).unwrap_or_default();
        self.order.retain(|subject| *subject != id);
        let notices = Notices::of(event);
        for notice in notices.on_pods.into_iter().chain([notices.on_node]) {
            let object = notice.object();
            let is_posted = match subject.posted.get(&object) {
                Some(posted) => posted.name.is_some(),
                None => requests.iter().any(|r| r.notice.object() == object),
            };
            if is_posted {
                requests.push(self.new_event(id, notice, now));
            }
        }
        requests
    }

    #[cfg(test)]
    pub(super) fn remembered(&self) -> usize {
        self.subjects.len().max(self.order.len())
    }

    fn remember(&mut self, id: SubjectId) {
        if self.subjects.contains_key(&id) {
            return;
        }
        self.order.push_back(id);
        if self.order.len() > SUBJECTS
            && let Some(oldest) = self.order.pop_front()
        {
            self.subjects.remove(&oldest);
        }
        self.subjects.insert(id, Subject::default());
    }

    /// An Event that exists under another name if this repeats it.
    fn new_event(&self, id: SubjectId, notice: Notice, now: Instant) -> Request {
        let (name, kind) = match self.recent.find(&notice, now) {
            Some((name, count)) => (name, RequestKind::Repeat(count)),
            None => (notice.name(id), RequestKind::Create),
        };
        Request {
            subject: id,
            notice,
            name,
            kind,
        }
    }
}

fn is_swept(event: &AnyEvent) -> bool {
    matches!(event, AnyEvent::Conflict(event) if event.data.sweep.is_some())
}

/// Events that a repetition is counted in.
#[derive(Debug, Default)]
struct RecentEvents {
    by_key: HashMap<[String; 3], Recent>,
}

#[derive(Debug)]
struct Recent {
    name: String,
    count: i32,
    at: Instant,
}

impl RecentEvents {
    /// The name of the Event that this would repeat, and how many times it will have been observed.
    fn find(&self, notice: &Notice, now: Instant) -> Option<(String, i32)> {
        let recent = self.by_key.get(&Self::key(notice))?;
        (now < recent.at + SERIES).then(|| (recent.name.clone(), recent.count.saturating_add(1)))
    }

    fn record(&mut self, request: &Request, now: Instant) {
        let key = Self::key(&request.notice);
        let count = match request.kind {
            RequestKind::Create => 1,
            RequestKind::Repeat(count) => count,
            RequestKind::Correct => return,
        };
        if self.by_key.len() >= RECENT && !self.by_key.contains_key(&key) {
            self.by_key.retain(|_, recent| now < recent.at + SERIES);
            if self.by_key.len() >= RECENT
                && let Some(oldest) = self.by_key.iter().min_by_key(|(_, r)| r.at)
            {
                let oldest = oldest.0.clone();
                self.by_key.remove(&oldest);
            }
        }
        let name = request.name.clone();
        self.by_key.insert(
            key,
            Recent {
                name,
                count,
                at: now,
            },
        );
    }

    fn key(notice: &Notice) -> [String; 3] {
        [
            notice.object(),
            notice.reason.to_owned(),
            notice.about.clone(),
        ]
    }
}
