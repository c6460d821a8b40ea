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

/// Delays between attempts that double from `first` to `longest`.
#[derive(Clone, Copy, Debug)]
pub struct DoublingDelay {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl DoublingDelay {
    /// Starts at `first`.
    #[must_use]
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            longest,
            next: first,
        }
    }

    /// The delay that [`advance`](Self::advance) returns next.
    #[must_use]
    pub const fn current(&self) -> Duration {
        self.next
    }

    /// The delay before the next attempt; the one after it is twice as long.
    pub fn advance(&mut self) -> Duration {
        let delay = self.next;
        self.next = (delay * 2).min(self.longest);
        delay
    }

    /// As [`advance`](Self::advance), with jitter.
    pub fn advance_with_jitter(&mut self, random: &mut fastrand::Rng) -> Duration {
        with_jitter(self.advance(), random)
    }

    /// An attempt succeeded: the next delay is the first one again.
    pub const fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_longest_until_reset() {
        let seconds = Duration::from_secs;
        let mut delay = DoublingDelay::new(seconds(1), seconds(3));
        assert_eq!(
            [delay.advance(), delay.advance(), delay.advance()],
            [seconds(1), seconds(2), seconds(3)]
        );
        delay.reset();
        assert_eq!(delay.current(), seconds(1));
    }
}
