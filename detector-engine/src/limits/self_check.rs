//! Self-checks: what the engine holds about a device is compared with a fresh snapshot of it.
//!
//! The snapshot is merged like any other, so a difference is corrected at once. It is reported only
//! if no live update explains it within [`EXPLANATION_TIME`]: a dump may show a change a moment
//! before its notification is queued.

use std::{collections::VecDeque, time::Duration};

use crate::{
    limits::in_flight_snapshots::StateKey,
    model::{Discrepancy, IfIndex, Timestamp},
};

/// How long a notification may follow the dump that already shows its change: a dump contains an
/// IPv6 address from the start, and the kernel reports it at the end of duplicate address detection,
/// which takes up to two seconds (RFC 4862, section 5.4.2).
const EXPLANATION_TIME: Duration = Duration::from_secs(4);
/// Bound on differences that wait for an explanation; further ones are reported at once.
const MAX_PENDING: usize = 4_096;

/// Differences that were corrected and wait for an explanation, in the order in which that time
/// ends.
#[derive(Debug, Default)]
pub(crate) struct PendingDiscrepancies(VecDeque<(Timestamp, StateKey, Discrepancy)>);

impl PendingDiscrepancies {
    /// Adds a difference found at `now`; returns it if there is no room for it.
    pub(crate) fn add(
        &mut self,
        now: Timestamp,
        key: StateKey,
        discrepancy: Discrepancy,
    ) -> Option<Discrepancy> {
        if self.0.len() >= MAX_PENDING {
            return Some(discrepancy);
        }
        // Never before the last one: the front is what ends next.
        let due = now + EXPLANATION_TIME;
        let due = self.0.back().map_or(due, |(last, ..)| due.max(*last));
        self.0.push_back((due, key, discrepancy));
        None
    }

    /// A live update of `key` arrived.
    pub(crate) fn explain(&mut self, key: &StateKey) {
        if !self.0.is_empty() {
            self.0.retain(|(_, known, _)| known != key);
        }
    }

    /// The device was removed or replaced.
    pub(crate) fn explain_device(&mut self, ifindex: IfIndex) {
        if !self.0.is_empty() {
            self.0.retain(|(_, _, found)| found.ifindex != ifindex);
        }
    }

    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        self.0.front().map(|(due, ..)| *due)
    }

    /// A difference that was not explained in time.
    pub(crate) fn pop_due(&mut self, now: Timestamp) -> Option<Discrepancy> {
        self.next_due().filter(|due| *due <= now)?;
        self.0.pop_front().map(|(.., discrepancy)| discrepancy)
    }
}
