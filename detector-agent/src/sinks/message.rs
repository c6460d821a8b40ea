//! What a sender sends.

use std::hash::Hasher as _;

use detector_event::{AnyEvent, Change, SubjectId};
use fnv::FnvHasher;

/// One event, or the events of one window for a sink that notifies people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Unique; the same on every delivery of the same events.
    pub id: String,
    /// What happened to the subjects of its events.
    pub change: Change,
    /// The incident that it opens or resolves, for receivers that have incidents.
    pub incident: SubjectId,
    /// At least one, oldest first. In a message that raises them, each has the newest state of its subject.
    pub events: Vec<AnyEvent>,
}

impl Message {
    /// A message of one event.
    #[must_use]
    pub fn of_event(event: AnyEvent) -> Self {
        Self {
            id: event.id().to_owned(),
            change: event.change(),
            incident: event.subject_id(),
            events: vec![event],
        }
    }

    /// A message of several events; `None` without any.
    #[must_use]
    pub fn of_window(change: Change, incident: SubjectId, events: Vec<AnyEvent>) -> Option<Self> {
        let mut hasher = FnvHasher::default();
        for event in &events {
            hasher.write(event.id().as_bytes());
            hasher.write_u8(0);
        }
        Some(Self {
            id: format!("{}-{:016x}", events.first()?.id(), hasher.finish()),
            change,
            incident,
            events,
        })
    }
}
