//! The kernel programs' table of claimed addresses: the worker writes what the engine changed.

use std::time::Duration;

use tracing::warn;

use super::Core;
use crate::{
    engine::Timestamp,
    observe::{ebpf::ClaimedError, worker::WorkerJob},
};

/// Time until the table is written again as a whole after a failure.
const RETRY_AFTER: Duration = Duration::from_secs(60);

/// What follows from failed writes of the table.
#[derive(Debug, Default)]
pub(super) struct ClaimedWrites {
    /// When the table is written again as a whole.
    retry_at: Option<Timestamp>,
    is_failure_logged: bool,
}

impl Core {
    /// Once a round: has the changes written.
    pub(super) fn write_claimed(&mut self) {
        let Some(update) = self.engine.take_claimed_update() else {
            return;
        };
        // Without programs there is no table.
        if self.kernel_counters.is_some() {
            self.send_job(WorkerJob::WriteClaimed(update));
        }
    }

    /// A write failed: until the next one, claims beyond a device's budget are dropped even if they are contested.
    pub(super) fn retry_claimed_later(&mut self, error: &ClaimedError, now: Timestamp) {
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
            self.engine.rewrite_claimed();
        }
    }
}
