//! When to read the further interfaces of a pod's namespace, and the hardware addresses, again.
//!
//! Notifications of their addresses do not contain what decides whether the pod answers for them, so the namespace is read after
//! each: at once while it has budget, and otherwise as soon as it has. A pod that changes addresses all the time therefore does
//! not keep the worker busy.
//!
//! Invariant: at most one entry per namespace of a pod device.

use std::{collections::BTreeMap, time::Duration};

use detector_common::Budget;

use crate::model::observation::{NsId, Timestamp};

const INTERVAL: Duration = Duration::from_secs(10);
const BURST: u32 = 8;
const BUDGET: Budget = Budget {
    interval_ns: INTERVAL.as_nanos() as u64,
    window_ns: INTERVAL.as_nanos() as u64 * BURST as u64,
};

#[derive(Debug, Default)]
struct Pace {
    /// When the budget is full again.
    full_at: u64,
    /// Something changed since the last read.
    is_stale: bool,
}

impl Pace {
    fn spend(&mut self, now: Timestamp) -> bool {
        let left = BUDGET.spend(self.full_at, now.0);
        self.full_at = left.unwrap_or(self.full_at);
        left.is_some()
    }

    /// When it has budget again if it is stale, or needs not be remembered if it is not.
    fn due(&self) -> Timestamp {
        let spent = if self.is_stale {
            BUDGET.window_ns - BUDGET.interval_ns
        } else {
            0
        };
        Timestamp(self.full_at.saturating_sub(spent))
    }
}

#[derive(Debug, Default)]
pub(crate) struct FurtherReads(BTreeMap<NsId, Pace>);

impl FurtherReads {
    /// An address on a further interface changed. `true` if the namespace is to be read now; otherwise it is due later.
    pub(crate) fn note(&mut self, nsid: NsId, now: Timestamp) -> bool {
        let pace = self.0.entry(nsid).or_default();
        pace.is_stale = pace.is_stale || !pace.spend(now);
        !pace.is_stale
    }

    /// The namespace is gone.
    pub(crate) fn remove(&mut self, nsid: NsId) {
        self.0.remove(&nsid);
    }

    /// When [`FurtherReads::take_due`] has to be called next.
    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        self.0.values().map(Pace::due).min()
    }

    /// The namespaces to read now.
    pub(crate) fn take_due(&mut self, now: Timestamp) -> Vec<NsId> {
        let mut due = Vec::new();
        self.0.retain(|nsid, pace| {
            let is_due = pace.due() <= now;
            if is_due && pace.is_stale && pace.spend(now) {
                pace.is_stale = false;
                due.push(*nsid);
                return true;
            }
            !is_due
        });
        due
    }
}
