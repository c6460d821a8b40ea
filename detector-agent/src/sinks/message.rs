//! What a sender sends.

use std::sync::Arc;

use detector_event::{AnyEvent, Change, SubjectId};
use serde::{Deserialize, Serialize};

use super::digest::Digest;

/// An event, or a digest of many. Cheap to clone; an event is serialised as the event itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Message {
    /// One event.
    Event(AnyEvent),
    /// Many conflicts in one message.
    Digest(Arc<Digest>),
}

impl Message {
    /// Unique; the same on every delivery.
    #[must_use]
    pub fn id(&self) -> &str {
        match self {
            Self::Event(event) => event.id(),
            Self::Digest(digest) => &digest.id,
        }
    }

    /// What it is about. A sink gets the messages about one subject in order.
    #[must_use]
    pub fn subject_id(&self) -> SubjectId {
        match self {
            Self::Event(event) => event.subject_id(),
            Self::Digest(digest) => digest.digest_id,
        }
    }

    /// The same message with another change.
    #[must_use]
    pub fn with_change(&self, change: Change) -> Self {
        match self {
            Self::Event(event) => Self::Event(event.with_change(change)),
            Self::Digest(digest) => Self::Digest(Arc::new(Digest {
                change,
                ..Digest::clone(digest)
            })),
        }
    }

    /// What happened to its subject.
    #[must_use]
    pub fn change(&self) -> Change {
        match self {
            Self::Event(event) => event.change(),
            Self::Digest(digest) => digest.change,
        }
    }
}
