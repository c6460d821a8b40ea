//! The kernel programs' table of claimed addresses: the worker writes what the engine changed.

use std::time::Duration;

use detector_engine::{Observation, TimedObservation, Timestamp};
use tracing::warn;

use super::Core;
use crate::observe::{ebpf::ClaimedError, worker::WorkerJob};

/// Time until the table is written again as a whole after a failure.
const RETRY_AFTER: Duration = Duration::from_secs(60);

/// What follows from failed writes of the table.
#[derive(Debug, Default)]
pub(super) struct ClaimedWrites {
    /// When the table is written again as a whole.
    retry_at: Option<Timestamp>,
    is_failure_logged: bool,
    /// The worker has not completed the last write. What changes meanwhile is one write: the worker may be waiting for a
    /// lock of the kernel, and its queue must not grow with every round.
    is_in_flight: bool,
}

impl ClaimedWrites {
    /// Whether a write may start now; if so, it is in flight until [`Self::finish`].
    fn start(&mut self) -> bool {
        !std::mem::replace(&mut self.is_in_flight, true)
    }

    fn finish(&mut self) {
        self.is_in_flight = false;
    }
}

impl Core {
    /// Once a round: has the changes written.
    pub(super) fn write_claimed(&mut self) {
        if !self.claimed_writes.start() {
            return;
        }
        // Without programs there is no table.
        let has_table = self.kernel_counters.is_some();
        match self.engine.take_claimed_update().filter(|_| has_table) {
            Some(update) => self.send_job(WorkerJob::WriteClaimed(update)),
            None => self.claimed_writes.finish(),
        }
    }

    /// A write is done.
    pub(super) fn finish_claimed(&mut self, outcome: Result<(), ClaimedError>, now: Timestamp) {
        self.claimed_writes.finish();
        if let Err(error) = outcome {
            self.retry_claimed_later(&error, now);
        }
    }

    /// A write failed: until the next one, claims beyond a device's budget are dropped even if they are contested.
    fn retry_claimed_later(&mut self, error: &ClaimedError, now: Timestamp) {
        let writes = &mut self.claimed_writes;
        writes.retry_at.get_or_insert(now + RETRY_AFTER);
        if !writes.is_failure_logged {
            writes.is_failure_logged = true;
            warn!(%error, "contested claims beyond a device's budget may go unnoticed; trying again every minute");
        }
    }

    /// Once a second.
    pub(super) fn retry_claimed_if_due(&mut self, now: Timestamp) {
        if self.claimed_writes.retry_at.is_some_and(|at| at <= now) {
            self.claimed_writes.retry_at = None;
            self.step(TimedObservation::new(now, Observation::ClaimedTableLost));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ClaimedWrites;

    #[test]
    fn one_write_is_in_flight_at_a_time() {
        let mut writes = ClaimedWrites::default();
        assert!(writes.start());
        assert!(!writes.start() && !writes.start());
        writes.finish();
        assert!(writes.start());
    }
}
