//! How many changes of its addresses a pod device may cause.
//!
//! A pod that is allowed to can add and remove addresses thousands of times a second. Beyond the budget its changes are not
//! processed one by one: the device is read instead ([`BoundKind::AddressChanges`](crate::model::BoundKind)). Changes of an
//! address that others claim too have a budget of their own, so that a flood delays no conflict.

use detector_common::Budget;

use crate::model::{Bounds, Timestamp};

/// What one device has left, as in [`Budget`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ChangeBudget {
    full_at: u64,
    contested_full_at: u64,
}

impl ChangeBudget {
    /// Whether a change at `now` is to be processed. `is_contested`: whether others claim its address.
    pub(crate) fn spend(
        &mut self,
        bounds: &Bounds,
        now: Timestamp,
        is_contested: impl FnOnce() -> bool,
    ) -> bool {
        if let Some(next) = bounds.address_changes.spend(self.full_at, now.0) {
            self.full_at = next;
            return true;
        }
        let contested = bounds.contested_address_changes;
        let next = contested
            .spend(self.contested_full_at, now.0)
            .filter(|_| is_contested());
        self.contested_full_at = next.unwrap_or(self.contested_full_at);
        next.is_some()
    }

    /// A change that was processed at `now` had `decisions` addresses decided again, each of which counts as a change. This may
    /// be more than is left: no change is processed then until it is refilled.
    pub(crate) fn charge(&mut self, bounds: &Bounds, now: Timestamp, decisions: usize) {
        let of = |budget: Budget, full_at: &mut u64| {
            *full_at = budget.charge(*full_at, now.0, decisions as u64)
        };
        of(bounds.address_changes, &mut self.full_at);
        of(
            bounds.contested_address_changes,
            &mut self.contested_full_at,
        );
    }
}
