//! Messages to people: what happens within one window of time is one message.
//!
//! A window begins with the oldest event of its sort (raises, updates or ends) and is over a fixed time later; everything that is
//! there then is one message. The raises of a window are an *incident*, named after the first of them. Which incident a subject
//! is in is stored before its raise is sent, and until its end is delivered: so a pager has it under the same key after any
//! failure or crash. A pager resolves an incident with the end of its last member; it does not get the ends before.

use std::{collections::HashMap, time::Duration};

use detector_event::{Change, SubjectId};
use tokio::time::Instant;

use super::{Idle, Lane, Queue, QueueEntry, SendJob, earlier};

/// The most members of one message.
pub(super) const MEMBERS: usize = 1024;

/// How events become messages to people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// How long events are collected for one message.
    pub lasts: Duration,
    /// Whether the receiver opens and resolves incidents, rather than showing a list of messages.
    pub has_incidents: bool,
}

/// Which incident each subject is in.
#[derive(Debug, Default)]
pub(in crate::sinks::outbox) struct Incidents {
    of: HashMap<SubjectId, SubjectId>,
    /// The number of members of each incident.
    sizes: HashMap<SubjectId, usize>,
}

impl Incidents {
    pub(in crate::sinks::outbox) fn join(&mut self, subject: SubjectId, incident: SubjectId) {
        self.leave(subject);
        self.of.insert(subject, incident);
        *self.sizes.entry(incident).or_default() += 1;
    }

    pub(in crate::sinks::outbox) fn leave(&mut self, subject: SubjectId) {
        if let Some(incident) = self.of.remove(&subject)
            && let Some(size) = self.sizes.get_mut(&incident)
        {
            *size -= 1;
            if *size == 0 {
                self.sizes.remove(&incident);
            }
        }
    }

    /// The incident of a subject; one that is in none has one of its own.
    fn of(&self, subject: SubjectId) -> SubjectId {
        self.of.get(&subject).copied().unwrap_or(subject)
    }
}

impl Window {
    fn end(self, first: &QueueEntry, now: Instant) -> Instant {
        now + self.lasts.saturating_sub(first.age_at(now))
    }
}

impl Queue {
    /// Ends the wait for further events, because the agent stops.
    pub(in crate::sinks::outbox) fn close_window(&mut self) {
        if let Some(window) = &mut self.window {
            window.lasts = Duration::ZERO;
        }
    }

    /// The raised subjects of a window that is over at `now`, oldest first: they become an incident, and are not returned
    /// again until [`Queue::window_stored`].
    pub(in crate::sinks::outbox) fn raised_in_window(&mut self, now: Instant) -> Vec<SubjectId> {
        let Some(window) = self.window.filter(|_| !self.is_storing_window) else {
            return Vec::new();
        };
        let raised = self.heads.values().filter(|subject| {
            let head = self
                .lanes
                .get(subject)
                .and_then(|lane| lane.ready(Change::Raised));
            head.is_some() && !self.incidents.of.contains_key(subject)
        });
        let raised: Vec<_> = raised.copied().take(MEMBERS).collect();
        let first = raised.first().and_then(|first| self.lanes.get(first));
        let first = first.and_then(|lane| lane.entries.front());
        if first.is_none_or(|first| window.end(first, now) > now) {
            return Vec::new();
        }
        self.is_storing_window = true;
        raised
    }

    /// The incident of a window is stored.
    pub(in crate::sinks::outbox) fn window_stored(&mut self) {
        self.is_storing_window = false;
    }

    /// Takes a message that is due at `now`: raises before updates before ends.
    pub(super) fn take_window(&mut self, window: Window, now: Instant) -> Result<SendJob, Idle> {
        let mut next: Option<Instant> = None;
        for change in [Change::Raised, Change::Updated, Change::Resolved] {
            let mut ready = Vec::new();
            let mut end: Option<Instant> = None;
            let mut incident = None;
            for subject in self.heads.values() {
                let lane = self.lanes.get(subject);
                let Some((lane, head)) = lane.and_then(|lane| Some((lane, lane.ready(change)?)))
                else {
                    continue;
                };
                if let Some(at) = lane.waits_until(now) {
                    next = earlier(next, Some(at));
                    continue;
                }
                let is_silent = window.has_incidents || !head.is_notable();
                if lane.is_superseded() || (change == Change::Updated && is_silent) {
                    return self.superseded(&[*subject], now);
                }
                if change == Change::Raised {
                    let joined = self.incidents.of.get(subject).copied();
                    if joined.is_none() && !self.is_storing_window {
                        next = earlier(next, Some(window.end(head, now)));
                    }
                    if joined.is_none() || joined != *incident.get_or_insert(joined) {
                        continue;
                    }
                    end = Some(now);
                }
                end = earlier(end, Some(window.end(head, now)));
                ready.push(*subject);
            }
            if end.is_none_or(|end| end > now) {
                next = earlier(next, end);
                continue;
            }
            if change == Change::Resolved && window.has_incidents {
                return self.end_of_incident(&ready, now);
            }
            ready.truncate(self.limit);
            return self.job(&ready, incident.flatten(), now).ok_or(Idle::Empty);
        }
        Err(next.map_or(Idle::Empty, Idle::Until))
    }

    /// The ends in the incident of the first of these subjects: they are sent if nothing in it is active any more.
    fn end_of_incident(&mut self, ready: &[SubjectId], now: Instant) -> Result<SendJob, Idle> {
        let Some(incident) = ready.first().map(|first| self.incidents.of(*first)) else {
            return Err(Idle::Empty);
        };
        let is_member = |subject: &&SubjectId| self.incidents.of(**subject) == incident;
        let ended: Vec<_> = ready.iter().filter(is_member).copied().collect();
        let has_ended = |lane: &&Lane| {
            let head = lane.entries.front();
            head.is_some_and(|head| {
                head.change == Change::Resolved
                    && self.incidents.of.get(&head.subject) == Some(&incident)
            })
        };
        let all_ended = self.lanes.values().filter(has_ended).count();
        let members = self.incidents.sizes.get(&incident).copied();
        if members.unwrap_or_default() > all_ended {
            return self.superseded(&ended, now);
        }
        self.job(&ended, Some(incident), now).ok_or(Idle::Empty)
    }

    /// Takes what is not to be sent.
    fn superseded(&mut self, subjects: &[SubjectId], now: Instant) -> Result<SendJob, Idle> {
        let job = self.job(subjects, None, now).ok_or(Idle::Empty)?;
        Ok(SendJob {
            is_superseded: true,
            ..job
        })
    }
}
