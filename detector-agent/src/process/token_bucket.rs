//! A token bucket: so many at once, and one more after each interval.

use std::{ops::Add, time::Duration};

use detector_engine::Timestamp;
use tokio::time::Instant;

/// A clock's time.
pub(crate) trait TimePoint: Copy + Ord + Add<Duration, Output = Self> {
    /// The time so long before.
    fn minus(self, duration: Duration) -> Self;
}

impl TimePoint for Timestamp {
    fn minus(self, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_sub(nanos))
    }
}

impl TimePoint for Instant {
    fn minus(self, duration: Duration) -> Self {
        // On Linux an instant can be before the boot.
        self.checked_sub(duration).unwrap_or(self)
    }
}

/// The bucket, as one point in time (the generic cell rate algorithm): when it would be full again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenBucket<T> {
    interval: Duration,
    burst: u32,
    full_at: T,
}

impl<T: TimePoint> TokenBucket<T> {
    /// A bucket of `burst` tokens (at least one), full from `now` on. One is added after each `interval`.
    pub(crate) const fn new(burst: u32, interval: Duration, now: T) -> Self {
        Self {
            interval,
            burst,
            full_at: now,
        }
    }

    /// When there is a token.
    pub(crate) fn next_at(&self) -> T {
        let others = self.interval * self.burst.saturating_sub(1);
        self.full_at.minus(others)
    }

    /// When all tokens are there.
    pub(crate) const fn full_at(&self) -> T {
        self.full_at
    }

    /// Takes a token; `false` if there is none.
    pub(crate) fn try_take(&mut self, now: T) -> bool {
        let has_token = self.next_at() <= now;
        if has_token {
            self.take(now);
        }
        has_token
    }

    /// Takes a token, also one that is only added later: at [`next_at`](Self::next_at) before this call.
    pub(crate) fn take(&mut self, now: T) {
        self.full_at = self.full_at.max(now) + self.interval;
    }

    /// Puts a token back.
    pub(crate) fn put_back(&mut self) {
        self.full_at = self.full_at.minus(self.interval);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn taken<T: TimePoint>(bucket: &mut TokenBucket<T>, now: T) -> usize {
        (0..100).filter(|_| bucket.try_take(now)).count()
    }

    fn is_used_up_and_refilled<T: TimePoint>(start: T) {
        let mut bucket = TokenBucket::new(25, 10 * SECOND, start);
        assert_eq!(taken(&mut bucket, start), 25);
        assert!(bucket.next_at() == start + 10 * SECOND);
        assert_eq!(taken(&mut bucket, start + 9 * SECOND), 0);
        assert_eq!(taken(&mut bucket, start + 25 * SECOND), 2);
        assert_eq!(taken(&mut bucket, start + 30 * SECOND), 1);
        assert_eq!(taken(&mut bucket, start + 3600 * SECOND), 25);
    }

    #[test]
    fn burst_is_followed_by_the_rate() {
        is_used_up_and_refilled(Timestamp(0));
        is_used_up_and_refilled(Instant::now());
    }

    #[test]
    fn token_that_is_put_back_can_be_taken_again() {
        let start = Timestamp(1_000_000_000_000);
        let mut bucket = TokenBucket::new(2, SECOND, start);
        for _ in 0..10 {
            assert!(bucket.try_take(start));
            bucket.put_back();
        }
        assert_eq!(taken(&mut bucket, start), 2);
    }
}
