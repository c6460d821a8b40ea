//! Fuzz entry points for responses of any content; see [`crate::fuzzing`].

use std::time::{Duration, SystemTime};

use super::retry::retry_after;

/// The longest wait that a server may request.
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Parses the value of a `Retry-After` header, at the Unix epoch and long after it.
pub fn retry_after_header(bytes: &[u8]) {
    let Ok(value) = std::str::from_utf8(bytes) else {
        return;
    };
    for now in [Duration::ZERO, Duration::from_secs(4_000_000_000)] {
        let wait = retry_after(value, SystemTime::UNIX_EPOCH + now);
        assert!(wait.is_none_or(|wait| wait <= DAY), "{value:?}: {wait:?}");
    }
}
