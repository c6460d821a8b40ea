//! The two clocks: the kernel's monotonic one for decisions, the wall clock for people.

use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp as Wall};
use nix::time::{ClockId, clock_gettime};

use crate::engine::Timestamp;

/// Now, on the clock of `bpf_ktime_get_ns`.
#[must_use]
pub fn now() -> Timestamp {
    // CLOCK_MONOTONIC is there on every Linux; a failure would read as time zero, which only makes latencies long.
    let since_boot = clock_gettime(ClockId::CLOCK_MONOTONIC)
        .map(Duration::from)
        .unwrap_or_default();
    Timestamp(u64::try_from(since_boot.as_nanos()).unwrap_or(u64::MAX))
}

/// One moment on both clocks: turns monotonic times into wall-clock ones.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    monotonic: Timestamp,
    wall: Wall,
}

/// Nanoseconds from the monotonic clock's zero to the wall clock's; `i64::MIN` before the first look.
static OFFSET: AtomicI64 = AtomicI64::new(i64::MIN);

/// Takes over the offset that an earlier agent of this boot showed its times with, unless the clock was set since.
pub fn resume(offset: i64) {
    let seen = self::offset();
    if seen.abs_diff(offset) < CLOCK_WAS_SET.unsigned_abs() {
        OFFSET.store(offset, Ordering::Relaxed);
    }
}

/// Nanoseconds from the monotonic clock's zero to the wall clock's, as times are shown now.
#[must_use]
pub fn offset() -> i64 {
    let _now = Moment::now();
    OFFSET.load(Ordering::Relaxed)
}

/// A difference smaller than this is how long it takes to look at two clocks, a larger one is a clock that was set.
const CLOCK_WAS_SET: i64 = 10_000_000;

impl Moment {
    /// The present one. As long as nobody sets the clock, one monotonic time is always shown as the same wall-clock time.
    #[must_use]
    pub fn now() -> Self {
        let monotonic = now();
        let seen = Wall::now().as_nanosecond() - i128::from(monotonic.0);
        let seen = i64::try_from(seen).unwrap_or(0);
        let known = OFFSET.load(Ordering::Relaxed);
        let offset = if known.abs_diff(seen) < CLOCK_WAS_SET.unsigned_abs() {
            known
        } else {
            seen
        };
        OFFSET.store(offset, Ordering::Relaxed);
        let wall = Wall::from_nanosecond(i128::from(monotonic.0) + i128::from(offset));
        Self {
            monotonic,
            wall: wall.unwrap_or_else(|_| Wall::now()),
        }
    }

    /// The monotonic side.
    #[must_use]
    pub fn monotonic(&self) -> Timestamp {
        self.monotonic
    }

    /// The wall-clock time of a monotonic one, as the clock is set now.
    #[must_use]
    pub fn wall(&self, at: Timestamp) -> Wall {
        let offset = i128::from(at.0) - i128::from(self.monotonic.0);
        let offset = SignedDuration::from_nanos(i64::try_from(offset).unwrap_or(0));
        self.wall.checked_add(offset).unwrap_or(self.wall)
    }

    /// RFC 3339, UTC, with the microseconds that have passed in full.
    #[must_use]
    pub fn rfc3339(&self, at: Timestamp) -> String {
        format!("{:.6}", self.wall(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rfc3339_with_six_digits() {
        let text = Moment::now().rfc3339(now());
        assert_eq!(text.len(), "2026-11-21T01:02:03.123456Z".len(), "{text}");
        assert!(text.ends_with('Z'));
    }
}
