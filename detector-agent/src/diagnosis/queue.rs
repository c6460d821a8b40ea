//! What waits to be explained.

use std::{
    collections::BTreeMap,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use detector_event::{AnyEvent, Change, Explanations, Pod, SubjectId};

use crate::sinks::EventSink;

/// How long a finding waits: network plugins and lookups of pods have to end first.
const SETTLED_AFTER: Duration = Duration::from_millis(300);
/// The same as long as a pod, or when its sandbox was created, is not known.
const LATEST_AFTER: Duration = Duration::from_millis(1_200);

/// A finding, in its newest state.
#[derive(Debug)]
struct Finding {
    since: Instant,
    event: AnyEvent,
}

impl Finding {
    fn due(&self) -> Instant {
        let is_vague = |pod: Option<&Pod>| pod.is_none_or(|pod| pod.sandbox_created_at.is_none());
        let unknown = match &self.event {
            AnyEvent::Conflict(event) => event.data.present().any(|c| is_vague(c.pod.as_deref())),
            AnyEvent::Anomaly(event) => is_vague(event.data.pod.as_deref()),
        };
        self.since + if unknown { LATEST_AFTER } else { SETTLED_AFTER }
    }
}

/// The findings that wait. Bounded by what is open at once.
#[derive(Debug, Default)]
struct PendingFindings {
    findings: BTreeMap<SubjectId, Finding>,
    is_closed: bool,
}

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<PendingFindings>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, PendingFindings> {
        // A panic while it was held leaves at worst a finding that is not explained.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Queues every conflict and anomaly, again with each of its changes.
#[derive(Debug)]
pub(crate) struct DiagnosisSink {
    shared: Arc<Shared>,
    explanations: Arc<Explanations>,
}

/// The other end of a [`DiagnosisSink`].
#[derive(Debug)]
pub(crate) struct Findings(Arc<Shared>);

/// A queue. The explanations of what is over are removed.
#[must_use]
pub(crate) fn queue(explanations: Arc<Explanations>) -> (DiagnosisSink, Findings) {
    let shared = Arc::new(Shared::default());
    let sink = DiagnosisSink {
        shared: Arc::clone(&shared),
        explanations,
    };
    (sink, Findings(shared))
}

impl EventSink for DiagnosisSink {
    fn on_event(&mut self, event: &AnyEvent) {
        let id = event.subject_id();
        let mut waiting = self.shared.lock();
        let known = waiting.findings.remove(&id);
        if event.change() == Change::Resolved {
            self.explanations.remove(id);
            return;
        }
        let finding = Finding {
            since: known.map_or_else(Instant::now, |known| known.since),
            event: event.clone(),
        };
        waiting.findings.insert(id, finding);
        self.shared.changed.notify_one();
    }

    fn on_current_state(&mut self, state: &AnyEvent) {
        self.on_event(state);
    }

    /// Each agent has facts about its own node that no other one can read.
    fn on_remote_event(&mut self, event: &AnyEvent) {
        self.on_event(event);
    }
}

impl Drop for DiagnosisSink {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.changed.notify_one();
    }
}

/// What there is to do.
#[derive(Debug)]
pub(super) enum Next {
    /// Explain a finding, and when it was due.
    Finding(AnyEvent, Instant),
    /// It is time to look at what later findings may depend on.
    Look,
    /// The sink was dropped.
    Closed,
}

impl Findings {
    /// Waits for the next finding, until it is time to look.
    pub(super) fn next(&self, look: Instant) -> Next {
        let mut waiting = self.0.lock();
        loop {
            if waiting.is_closed {
                return Next::Closed;
            }
            let now = Instant::now();
            let next = waiting.findings.iter().map(|(id, f)| (f.due(), *id)).min();
            if let Some((due, id)) = next.filter(|(due, _)| *due <= now)
                && let Some(finding) = waiting.findings.remove(&id)
            {
                return Next::Finding(finding.event, due);
            }
            if look <= now {
                return Next::Look;
            }
            let until = next.map_or(look, |(due, _)| due.min(look));
            let waited = self.0.changed.wait_timeout(waiting, until - now);
            waiting = waited.map_or_else(|e| e.into_inner().0, |(waiting, _)| waiting);
        }
    }
}
