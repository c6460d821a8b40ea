//! Conflicts that ended a moment ago. One of the same claimants that begins again is the same conflict, so that an address that
//! is added and removed in a loop is one conflict that repeats.
//!
//! A conflict that repeats is resolved only after it has not been there for [`QUIET`]. So the loop causes a few events a minute,
//! however fast it is.
//!
//! Bound: as many as conflicts may be open at once, the newest. What is forgotten begins again under another id.

use std::{
    collections::VecDeque,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    net::IpAddr,
    time::Duration,
};

use crate::{
    hash::HashMap,
    model::{ClaimantId, Conflict, ConflictId, ConflictKind, Scope, Timestamp},
};

/// How long after its end a conflict can begin again.
const WITHIN: Duration = Duration::from_secs(60);
/// How long a conflict that has begun again must be over to be resolved.
pub(crate) const QUIET: Duration = Duration::from_secs(10);

/// What a conflict has in common with one that ended before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Recurrence {
    address: IpAddr,
    scope: Scope,
    kind: ConflictKind,
    /// A hash of the claimants.
    claimants: u64,
}

impl Recurrence {
    pub(crate) fn new(
        address: IpAddr,
        scope: Scope,
        kind: ConflictKind,
        claimants: &[ClaimantId],
    ) -> Self {
        let mut hasher = DefaultHasher::new();
        claimants.hash(&mut hasher);
        Self {
            address,
            scope,
            kind,
            claimants: hasher.finish(),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct EndedConflicts {
    /// The id of each, how often it had begun again, and when it ended.
    ended: HashMap<Recurrence, (ConflictId, u32, Timestamp)>,
    order: VecDeque<(Timestamp, Recurrence)>,
}

impl EndedConflicts {
    /// A conflict ended.
    pub(crate) fn add(
        &mut self,
        what: Recurrence,
        conflict: &Conflict,
        now: Timestamp,
        bound: usize,
    ) {
        self.ended
            .insert(what, (conflict.id, conflict.repeats, now));
        self.order.push_back((now, what));
        while let Some((at, oldest)) = self.order.front().copied()
            && (self.order.len() > bound || now.since(at) > WITHIN)
        {
            self.order.pop_front();
            if self
                .ended
                .get(&oldest)
                .is_some_and(|(.., ended)| *ended == at)
            {
                self.ended.remove(&oldest);
            }
        }
    }

    /// A conflict begins: its id and how often it has begun again, if it ended a moment ago.
    pub(crate) fn take(
        &mut self,
        what: impl FnOnce() -> Recurrence,
        now: Timestamp,
    ) -> Option<(ConflictId, u32)> {
        if self.ended.is_empty() {
            return None;
        }
        let (id, repeats, at) = self.ended.remove(&what())?;
        (now.since(at) <= WITHIN).then_some((id, repeats.saturating_add(1)))
    }
}
