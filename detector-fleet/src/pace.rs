//! When the next request about a subject may be sent.

use std::time::Duration;

use detector_engine::Timestamp;

/// The wait after the first failure, and after the first request too many.
const FIRST: Duration = Duration::from_millis(250);
/// The longest wait.
const LONGEST: Duration = Duration::from_secs(60);
/// The wait after a rejection.
const REJECTED: Duration = Duration::from_secs(300);
/// Requests about one subject without a pause. The longest ordinary exchange takes seven; more means that others write at the same time.
const BURST: u32 = 8;
/// A pause this long ends a burst.
const PAUSE: Duration = Duration::from_secs(10);

/// Failures and bursts of requests about one subject.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    failures: u32,
    burst: u32,
    last: Timestamp,
    not_before: Timestamp,
    rejected_until: Option<Timestamp>,
}

impl Pace {
    /// When the next request may be sent.
    pub(super) fn not_before(&self) -> Timestamp {
        self.not_before.max(self.rejected_until.unwrap_or_default())
    }

    /// A request is sent. Beyond a burst the next one waits, so that agents that write the same object do not outpace each other.
    pub(super) fn sent(&mut self, now: Timestamp, rng: &mut fastrand::Rng) {
        if now.since(self.last) > PAUSE {
            self.burst = 0;
        }
        self.last = now;
        self.burst = self.burst.saturating_add(1);
        if self.burst > BURST {
            self.not_before = now + backoff(self.burst - BURST, rng);
        }
    }

    /// The request failed: the next one waits.
    pub(super) fn failed(&mut self, now: Timestamp, rng: &mut fastrand::Rng) {
        self.failures = self.failures.saturating_add(1);
        self.not_before = self.not_before.max(now + backoff(self.failures, rng));
    }

    /// The server answered.
    pub(super) fn answered(&mut self) {
        self.failures = 0;
        self.rejected_until = None;
    }

    /// The server rejected the request: repeating it makes no difference for now.
    pub(super) fn rejected(&mut self, now: Timestamp, rng: &mut fastrand::Rng) {
        self.failures = 0;
        self.rejected_until = Some(now + jitter(REJECTED, rng));
    }

    /// The next request differs from the one that was rejected.
    pub(super) fn content_changed(&mut self) {
        self.rejected_until = None;
    }
}

/// Between half of and the whole wait, which doubles each time.
fn backoff(repetition: u32, rng: &mut fastrand::Rng) -> Duration {
    let doubled = FIRST.saturating_mul(1 << repetition.saturating_sub(1).min(16));
    doubled.min(LONGEST).mul_f64(0.5 + rng.f64() / 2.0)
}

/// `period` ± 20 %, so that agents that started together spread.
pub(super) fn jitter(period: Duration, rng: &mut fastrand::Rng) -> Duration {
    period.mul_f64(0.8 + rng.f64() * 0.4)
}
