//! When to retry: doubling waits with jitter, and `Retry-After`.

use std::time::{Duration, SystemTime};

use crate::process::timer::with_jitter;

/// The longest wait that a server may request; after it, the request is retried.
const RETRY_AFTER_LIMIT: Duration = Duration::from_secs(24 * 3600);

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
        let doubled = 2u32.saturating_pow(failures.saturating_sub(1).min(31));
        let full = self.first.saturating_mul(doubled).min(self.longest);
        with_jitter(full, random)
    }
}

/// The wait that a `Retry-After` header requests (RFC 9110 §10.2.3: seconds or a date), bounded by a day.
#[must_use]
pub fn retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    let wait = match value.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => httpdate::parse_http_date(value)
            .ok()?
            .duration_since(now)
            .unwrap_or_default(),
    };
    Some(wait.min(RETRY_AFTER_LIMIT))
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        let date = "Sun, 06 Nov 1994 08:49:57 GMT";
        assert_eq!(retry_after("120", now), Some(Duration::from_secs(120)));
        assert_eq!(retry_after(date, now), Some(Duration::from_secs(20)));
        assert_eq!(
            retry_after("Sun, 06 Nov 1994 08:49:00 GMT", now),
            Some(Duration::ZERO)
        );
        assert_eq!(retry_after("99999999999", now), Some(RETRY_AFTER_LIMIT));
        assert_eq!(retry_after("soon", now), None);
        assert_eq!(retry_after("-1", now), None);
    }
}
