//! When to retry: doubling waits with jitter, and `Retry-After`.

use std::time::{Duration, SystemTime};

pub use crate::process::timer::RetryPolicy;

/// The longest wait that a server may request; after it, the request is retried.
const RETRY_AFTER_LIMIT: Duration = Duration::from_secs(24 * 3600);

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
