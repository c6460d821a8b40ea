//! The two clocks: the kernel's monotonic one for decisions, the wall clock for people.

use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::Duration,
};

use detector_engine::Timestamp;
use detector_event::{Moment, WallTime};
use nix::time::{ClockId, clock_gettime};

/// Now, on the clock of `bpf_ktime_get_ns`.
#[must_use]
pub fn now() -> Timestamp {
    // CLOCK_MONOTONIC exists on every Linux; a failure would read as time zero, which only makes latencies long.
    let since_boot = clock_gettime(ClockId::CLOCK_MONOTONIC)
        .map(Duration::from)
        .unwrap_or_default();
    Timestamp(u64::try_from(since_boot.as_nanos()).unwrap_or(u64::MAX))
}

/// Nanoseconds from the monotonic clock's zero to the wall clock's; `i64::MIN` before the first use.
static OFFSET: AtomicI64 = AtomicI64::new(i64::MIN);

/// Continues with the offset of an earlier agent of this boot, so that its times are shown unchanged, unless the clock
/// was set since.
pub fn resume(offset: i64) {
    let seen = self::offset();
    if seen.abs_diff(offset) < CLOCK_WAS_SET.unsigned_abs() {
        OFFSET.store(offset, Ordering::Relaxed);
    }
}

/// Nanoseconds from the monotonic clock's zero to the wall clock's, as used for conversion now.
#[must_use]
pub fn offset() -> i64 {
    let _now = moment();
    OFFSET.load(Ordering::Relaxed)
}

/// Nanoseconds. A smaller difference is the time between reading the two clocks, a larger one a clock that was set.
const CLOCK_WAS_SET: i64 = 10_000_000;

/// The present moment. Until the clock is set, one monotonic time always converts to the same wall-clock time.
#[must_use]
pub fn moment() -> Moment {
    let monotonic = now();
    let seen = WallTime::unix_nanos_now().saturating_sub_unsigned(monotonic.0);
    let known = OFFSET.load(Ordering::Relaxed);
    let offset = if known.abs_diff(seen) < CLOCK_WAS_SET.unsigned_abs() {
        known
    } else {
        seen
    };
    OFFSET.store(offset, Ordering::Relaxed);
    Moment::new(monotonic, offset)
}
