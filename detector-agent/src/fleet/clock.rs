//! The clock of the protocol, which follows that of tokio.

use detector_engine::Timestamp;
use tokio::time::Instant;

use crate::process::clock;

/// Turns times of tokio into times of the protocol, and back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    instant: Instant,
    timestamp: Timestamp,
}

impl Clock {
    pub(super) fn new() -> Self {
        Self {
            instant: Instant::now(),
            timestamp: clock::now(),
        }
    }

    pub(super) fn now(self) -> Timestamp {
        self.timestamp + self.instant.elapsed()
    }

    pub(super) fn instant(self, at: Timestamp) -> Instant {
        self.instant + at.since(self.timestamp)
    }
}
