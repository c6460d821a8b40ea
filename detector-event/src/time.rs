//! Wall-clock times for people, and their conversion from the kernel's monotonic times.

use std::{borrow::Cow, fmt, str::FromStr, time::Duration};

use detector_engine::Timestamp as Monotonic;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// A wall-clock time with microsecond resolution. Displayed and serialised as RFC 3339 in UTC with six digits
/// (`2026-11-21T01:02:03.123456Z`), so that times also sort as text; any RFC 3339 time is accepted when read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WallTime(Timestamp);

impl WallTime {
    /// The present time.
    #[must_use]
    pub fn now() -> Self {
        Timestamp::now().into()
    }

    /// Nanoseconds from the Unix epoch to the present time.
    #[must_use]
    pub fn unix_nanos_now() -> i128 {
        Timestamp::now().as_nanosecond()
    }

    /// The time this many nanoseconds after the Unix epoch; `None` for zero, which stands for unknown.
    #[must_use]
    pub fn from_unix_nanos(nanos: i64) -> Option<Self> {
        let nanos = i128::from(nanos);
        let time = Timestamp::from_nanosecond(nanos).ok();
        time.filter(|_| nanos != 0).map(Self::from)
    }

    /// The time `wait` after this one; this one if that is out of range.
    #[must_use]
    pub fn after(self, wait: Duration) -> Self {
        self.0.checked_add(wait).map_or(self, Self::from)
    }

    /// The time from `earlier` to this one; zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::try_from(self.0.duration_since(earlier.0)).unwrap_or_default()
    }

    /// Milliseconds since the Unix epoch.
    #[must_use]
    pub fn as_millisecond(self) -> i64 {
        self.0.as_millisecond()
    }

    /// Nanoseconds since the Unix epoch.
    #[must_use]
    pub fn as_unix_nanos(self) -> i128 {
        self.0.as_nanosecond()
    }

    /// Seconds since the Unix epoch.
    #[must_use]
    pub fn as_second(self) -> i64 {
        self.0.as_second()
    }

    /// UTC, to the second, for tables: `2026-11-21 01:02:03Z`.
    #[must_use]
    pub fn to_seconds_text(self) -> String {
        self.0.strftime("%F %TZ").to_string()
    }
}

impl From<Timestamp> for WallTime {
    /// Drops what is below a microsecond.
    fn from(time: Timestamp) -> Self {
        Self(Timestamp::from_microsecond(time.as_microsecond()).unwrap_or(time))
    }
}

impl fmt::Display for WallTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6}", self.0)
    }
}

impl FromStr for WallTime {
    type Err = jiff::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse::<Timestamp>().map(Self::from)
    }
}

impl Serialize for WallTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for WallTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

/// One moment on both clocks: converts monotonic times to wall-clock times.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    monotonic: Monotonic,
    wall: Timestamp,
}

impl Moment {
    /// The moment at which the monotonic clock shows `monotonic` and the wall clock is `offset` nanoseconds ahead of it.
    #[must_use]
    pub fn new(monotonic: Monotonic, offset: i64) -> Self {
        let wall = Timestamp::from_nanosecond(i128::from(monotonic.0) + i128::from(offset));
        Self {
            monotonic,
            wall: wall.unwrap_or_else(|_| Timestamp::now()),
        }
    }

    /// The monotonic time.
    #[must_use]
    pub fn monotonic(&self) -> Monotonic {
        self.monotonic
    }

    /// The wall-clock time of this moment.
    #[must_use]
    pub fn wall(&self) -> WallTime {
        self.wall.into()
    }

    /// The wall-clock time of a monotonic one, as the clock is set now.
    #[must_use]
    pub fn wall_at(&self, at: Monotonic) -> WallTime {
        let offset = i128::from(at.0) - i128::from(self.monotonic.0);
        let offset = SignedDuration::from_nanos(i64::try_from(offset).unwrap_or(0));
        self.wall.checked_add(offset).unwrap_or(self.wall).into()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn times_are_rfc3339_with_six_digits() {
        let moment = Moment::new(Monotonic(1_000_000_000), 1_763_686_923_123_456_789);
        let text = moment.wall_at(Monotonic(2_000_000_000)).to_string();
        assert_eq!(text, "2025-11-21T01:02:05.123456Z");
    }

    #[test]
    fn a_time_that_was_written_is_read_back() {
        let time = WallTime::now();
        let text = serde_json::to_string(&time).unwrap();
        assert_eq!(serde_json::from_str::<WallTime>(&text).unwrap(), time);
        let truncated = "2026-11-21T01:02:03.1234569Z".parse::<WallTime>().unwrap();
        assert_eq!(truncated.to_string(), "2026-11-21T01:02:03.123456Z");
    }
}
