//! What is known of when a claim began, and which claimant of an address is the newest.
//!
//! The agent cannot see the past: of what a snapshot finds, it knows only that it was there by then. A time is given as
//! a beginning only if the agent saw it, or an earlier run did. Which of two claims is newer may be known without it:
//! one that began after the other was already there.

use serde::{Deserialize, Serialize};

use crate::model::{Claimant, ConflictKind, Evidence, Timestamp};

/// Why it is not known when something began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum UnknownBeginning {
    /// It was there when the agent started.
    BeforeStart,
    /// A later snapshot found it: its notification was lost, or there is none.
    FoundBySnapshot,
    /// It was beyond the bound of what is stored of its pod.
    BeyondBound,
    /// It was first reported when duplicate address detection had ended.
    AfterDetection,
    /// It began on another node.
    OnOtherNode,
}

impl UnknownBeginning {
    /// For people.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::BeforeStart => "it was there before the agent started",
            Self::FoundBySnapshot => {
                "it was found by a snapshot of the kernel's state, not when it appeared"
            }
            Self::BeyondBound => "its pod has more addresses than the agent stores",
            Self::AfterDetection => {
                "the kernel reported it only after duplicate address detection had ended"
            }
            Self::OnOtherNode => "it is on another node, whose clock is not compared",
        }
    }
}

/// What is known of when something began that has a time of first sight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beginning {
    /// Why it may have begun before it was first seen; `None` if it was seen as soon as it could be.
    #[serde(default)]
    pub unknown: Option<UnknownBeginning>,
    /// It did not begin before this time; `None` if no such time is known.
    #[serde(default)]
    pub not_before: Option<Timestamp>,
}

/// When something was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// For the first time.
    #[serde(rename = "first_seen", alias = "first")]
    pub first: Timestamp,
    /// What is known of when it began.
    #[serde(default)]
    pub beginning: Beginning,
    /// For the last time. Frames repeated within 30 s are only counted in the kernel and do not update it.
    #[serde(rename = "last_seen", alias = "last")]
    pub last: Timestamp,
}

impl Seen {
    /// Only once yet.
    #[must_use]
    pub fn once(at: Timestamp, beginning: Beginning) -> Self {
        Self {
            first: at,
            beginning,
            last: at,
        }
    }

    /// The same for something that cannot be older than `appeared`, when its device appeared.
    pub(crate) fn on_device_from(self, appeared: Option<Timestamp>) -> Self {
        Self {
            beginning: self.beginning.on_device_from(appeared),
            ..self
        }
    }
}

impl Default for Beginning {
    /// In records of earlier versions, which took the time of a snapshot for a beginning.
    fn default() -> Self {
        Self::unknown(UnknownBeginning::BeforeStart)
    }
}

impl Beginning {
    /// It was reported as it happened, at this time.
    pub(crate) fn at(at: Timestamp) -> Self {
        Self {
            unknown: None,
            not_before: Some(at),
        }
    }

    /// It was seen as soon as it could be, but may have been there, unseen, for as long as its device.
    #[must_use]
    pub fn seen() -> Self {
        Self {
            unknown: None,
            not_before: None,
        }
    }

    /// It began at a time that cannot be known, for this reason.
    #[must_use]
    pub fn unknown(because: UnknownBeginning) -> Self {
        Self {
            unknown: Some(because),
            not_before: None,
        }
    }

    /// Whether it is known.
    #[must_use]
    pub fn is_known(self) -> bool {
        self.unknown.is_none()
    }

    /// The same for something that cannot be older than `appeared`, when its device appeared.
    pub(crate) fn on_device_from(self, appeared: Option<Timestamp>) -> Self {
        Self {
            not_before: self.not_before.max(appeared),
            ..self
        }
    }

    /// Of a claim that began with the oldest of its evidence, and when it was first seen. Evidence whose beginning is
    /// unknown does not matter if it cannot be older than some whose beginning is known.
    pub(crate) fn of_claim(evidence: &[Evidence]) -> Option<(Timestamp, Self)> {
        let known = evidence.iter().filter(|e| e.seen.beginning.is_known());
        let known = known.map(|e| e.seen.first).min();
        let may_be_older = |e: &&Evidence| {
            e.seen.beginning.unknown.is_some()
                && known.is_none_or(|known| e.seen.beginning.not_before.is_none_or(|at| at < known))
        };
        let unknown = evidence.iter().find(may_be_older);
        let since = match unknown {
            Some(_) => evidence.iter().map(|e| e.seen.first).min(),
            None => known,
        };
        let not_before = evidence.iter().map(|e| e.seen.beginning.not_before).min();
        let beginning = Self {
            unknown: unknown.and_then(|e| e.seen.beginning.unknown),
            not_before: not_before.flatten(),
        };
        Some((since?, beginning))
    }
}

/// Marks the claimant that is certainly newer than all others, if there is one: it began after each of them had been
/// seen. An address that flaps has no newest claimant; its claims come and go.
pub(crate) fn mark_newest(kind: Option<ConflictKind>, claimants: &mut [Claimant]) {
    for claimant in &mut *claimants {
        claimant.is_newest = false;
    }
    if matches!(kind, None | Some(ConflictKind::Flapping)) {
        return;
    }
    let present = || claimants.iter().filter(|c| c.left.is_none());
    // No other claimant can have begun after all others.
    let Some(last) = present().max_by_key(|c| c.beginning.not_before) else {
        return;
    };
    let Some(began) = last.beginning.not_before else {
        return;
    };
    let id = last.id;
    let mut others = present().filter(|c| c.id != id);
    if others.all(|other| other.since < began)
        && let Some(newest) = claimants.iter_mut().find(|c| c.id == id)
    {
        newest.is_newest = true;
    }
}
