//! Which claimant of a conflict is the newest, as far as that is known.

use serde::{Deserialize, Serialize};

/// How a claimant is known to be the newest of a conflict, best source first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NewestBy {
    /// The agent saw its claim begin after it had seen those of all others.
    FirstSight,
    /// Its pod's sandbox was created last.
    Sandbox,
    /// Its pod was created last.
    Pod,
}

impl NewestBy {
    /// Its name in events.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::FirstSight => "first_sight",
            Self::Sandbox => "sandbox",
            Self::Pod => "pod",
        }
    }

    /// For people: completes "the newest claimant, …".
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::FirstSight => "by when the agent saw the claims begin",
            Self::Sandbox => "by when the sandboxes were created",
            Self::Pod => "by when the pods were created",
        }
    }
}
