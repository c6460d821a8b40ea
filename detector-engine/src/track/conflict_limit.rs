//! How many conflicts may be open at once, and which ones wait at the bound.
//!
//! A few devices that contest each other's addresses must not use up the room for conflicts of others. Only a conflict all of
//! whose claimants already take part in [`Bounds::conflicts_per_device`] others counts against
//! [`Bounds::open_conflicts`]; observed ones may use three quarters of it. Any other is admitted up to
//! [`Bounds::all_open_conflicts`].

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use crate::{
    counts::Counts,
    model::{Bounds, ClaimantId, Confidence},
};

/// What decides whether a conflict that waits is admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    /// A claimant takes part in few conflicts.
    Reserved,
    Certain,
    Observed,
}

impl Class {
    fn limit(self, bounds: &Bounds) -> usize {
        let bound = bounds.open_conflicts;
        match self {
            Self::Reserved => bounds.all_open_conflicts(),
            Self::Certain => bound,
            Self::Observed => bound - bound / 4,
        }
    }
}

/// What to decide again now that there is room.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RetryTarget {
    Address(IpAddr),
    /// Any address may have been rejected.
    All,
}

#[derive(Debug, Default)]
pub(crate) struct ConflictLimit {
    open: usize,
    by_claimant: Counts<ClaimantId>,
    /// Addresses whose conflict was rejected, to be decided again when there is room for its class.
    waiting: BTreeMap<Class, BTreeSet<IpAddr>>,
    /// More addresses of these classes were rejected than are remembered.
    overflowed: BTreeSet<Class>,
}

impl ConflictLimit {
    /// A conflict with these claimants was opened.
    pub(crate) fn open(&mut self, claimants: &[ClaimantId]) {
        self.open += 1;
        for id in claimants {
            self.by_claimant.add(*id);
        }
    }

    /// A conflict with these claimants was resolved.
    pub(crate) fn close(&mut self, claimants: &[ClaimantId]) {
        self.open = self.open.saturating_sub(1);
        for id in claimants {
            self.by_claimant.subtract(*id);
        }
    }

    /// Whether a conflict may be opened. If not, its address is remembered; `Some(true)` if it was not yet.
    pub(crate) fn reject(
        &mut self,
        address: IpAddr,
        claimants: impl Iterator<Item = ClaimantId>,
        confidence: Confidence,
        bounds: &Bounds,
    ) -> Option<bool> {
        let class = self.class(claimants, confidence, bounds);
        if self.open < class.limit(bounds) {
            return None;
        }
        let is_known = self.waiting.values().any(|all| all.contains(&address));
        let waiting = self.waiting.entry(class).or_default();
        if waiting.len() >= bounds.open_conflicts {
            self.overflowed.insert(class);
        } else {
            waiting.insert(address);
        }
        Some(!is_known)
    }

    fn class(
        &self,
        mut claimants: impl Iterator<Item = ClaimantId>,
        confidence: Confidence,
        bounds: &Bounds,
    ) -> Class {
        // The node has few addresses, and takes part in no conflict by itself.
        let is_rare = |id: ClaimantId| {
            id != ClaimantId::Host && self.by_claimant.of(&id) < bounds.conflicts_per_device
        };
        if claimants.any(is_rare) {
            Class::Reserved
        } else if confidence == Confidence::Certain {
            Class::Certain
        } else {
            Class::Observed
        }
    }

    /// The next rejected address to decide again, if there is room.
    pub(crate) fn next_retry(&mut self, bounds: &Bounds) -> Option<RetryTarget> {
        let open = self.open;
        let has_room = |class: &Class| open < class.limit(bounds);
        let mut waiting = self.waiting.iter_mut().filter(|(class, _)| has_room(class));
        if let Some(address) = waiting.find_map(|(_, addresses)| addresses.pop_first()) {
            return Some(RetryTarget::Address(address));
        }
        let overflowed = self
            .overflowed
            .iter()
            .find(|class| has_room(class))
            .copied()?;
        self.overflowed.remove(&overflowed);
        Some(RetryTarget::All)
    }
}
