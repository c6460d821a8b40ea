//! Waiting helpers of the asynchronous tasks.

use std::{future::pending, time::Duration};

use tokio::time::{Instant, sleep_until};

/// Sleeps until `deadline`; without one, forever.
pub async fn sleep_until_some(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => pending().await,
    }
}

/// A delay shortened by up to half at random, so that many agents do not retry at the same moment.
pub fn with_jitter(delay: Duration, random: &mut fastrand::Rng) -> Duration {
    delay.mul_f64(0.5 + random.f64() / 2.0)
}

/// Waits that double from `first` to `longest`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The first wait.
    pub first: Duration,
    /// The longest one.
    pub longest: Duration,
}

impl RetryPolicy {
    /// The wait after failure number `failures` (from 1), with jitter.
    #[must_use]
    pub fn wait(&self, failures: u32, random: &mut fastrand::Rng) -> Duration {
        with_jitter(self.full_wait(failures), random)
    }

    fn full_wait(&self, failures: u32) -> Duration {
        let doubled = 2u32.saturating_pow(failures.saturating_sub(1).min(31));
        self.first.saturating_mul(doubled).min(self.longest)
    }
}

/// Delays between attempts that fail in a row.
#[derive(Clone, Copy, Debug)]
pub struct DoublingDelay {
    policy: RetryPolicy,
    failures: u32,
}

impl DoublingDelay {
    /// Begins with the first delay.
    #[must_use]
    pub const fn new(policy: RetryPolicy) -> Self {
        Self {
            policy,
            failures: 0,
        }
    }

    /// The delay that [`advance`](Self::advance) returns next.
    #[must_use]
    pub fn current(&self) -> Duration {
        self.policy.full_wait(self.failures.saturating_add(1))
    }

    /// The delay before the next attempt; the one after it is twice as long.
    pub fn advance(&mut self) -> Duration {
        let delay = self.current();
        self.failures = self.failures.saturating_add(1);
        delay
    }

    /// As [`advance`](Self::advance), with jitter.
    pub fn advance_with_jitter(&mut self, random: &mut fastrand::Rng) -> Duration {
        with_jitter(self.advance(), random)
    }

    /// An attempt succeeded: the next delay is the first one again.
    pub const fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_longest_until_reset() {
        let seconds = Duration::from_secs;
        let mut delay = DoublingDelay::new(RetryPolicy {
            first: seconds(1),
            longest: seconds(3),
        });
        assert_eq!(
            [delay.advance(), delay.advance(), delay.advance()],
            [seconds(1), seconds(2), seconds(3)]
        );
        delay.reset();
        assert_eq!(delay.current(), seconds(1));
    }

    #[test]
    fn waits_double_up_to_the_limit_with_jitter() {
        let policy = RetryPolicy {
            first: Duration::from_secs(1),
            longest: Duration::from_secs(60),
        };
        let mut random = fastrand::Rng::with_seed(1);
        for (failures, full) in [(1, 1), (2, 2), (3, 4), (6, 32), (7, 60), (u32::MAX, 60)] {
            let full = Duration::from_secs(full);
            let waits: Vec<_> = (0..100)
                .map(|_| policy.wait(failures, &mut random))
                .collect();
            assert!(waits.iter().all(|w| *w >= full / 2 && *w <= full));
            assert!(waits.iter().any(|w| *w != waits[0]));
        }
    }
}
