//! Wall-clock times for people, and their conversion from the kernel's monotonic times.

use std::{
    borrow::Cow,
    fmt,
    str::FromStr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use detector_engine::{Timestamp as Monotonic, serialize_ascii};
use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// A wall-clock time with microsecond resolution. Displayed and serialised as RFC 3339 in UTC with six digits
/// (`2026-11-21T01:02:03.123456Z`), so that times also sort as text; any RFC 3339 time is accepted when read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WallTime {
    /// Since the Unix epoch; between [`Timestamp::MIN`] and [`Timestamp::MAX`].
    micros: i64,
}

/// The digits of the numbers below 100.
const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[0; 2]; 100];
    let mut number = 0;
    while number < 100 {
        pairs[number as usize] = [b'0' + number / 10, b'0' + number % 10];
        number += 1;
    }
    pairs
};

impl WallTime {
    /// The present time.
    #[must_use]
    pub fn now() -> Self {
        Self::at_nanos(Self::unix_nanos_now())
    }

    /// Nanoseconds from the Unix epoch to the present time.
    #[must_use]
    pub fn unix_nanos_now() -> i64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        i64::try_from(since.unwrap_or_default().as_nanos()).unwrap_or(i64::MAX)
    }

    /// The time this many nanoseconds after the Unix epoch; `None` for zero, which stands for unknown.
    #[must_use]
    pub fn from_unix_nanos(nanos: i64) -> Option<Self> {
        (nanos != 0).then(|| Self::at_nanos(nanos))
    }

    fn at_nanos(nanos: i64) -> Self {
        Self {
            micros: nanos / 1_000,
        }
    }

    /// As text, if it is not before 1970: an event contains nine times, and jiff takes 900 instructions for each.
    fn common_text(self) -> Option<[u8; 27]> {
        let micros = u64::try_from(self.micros).ok()?;
        let (seconds, micros) = (micros / 1_000_000, (micros % 1_000_000) as u32);
        let (days, second) = ((seconds / 86_400) as u32, (seconds % 86_400) as u32);
        // Neri and Schneider, <https://doi.org/10.1002/spe.3172>, as in the kernel's `drivers/rtc/lib.c`: years begin in March, and no
        // step needs more than one division.
        let quarters = 4 * (days + 719_468) + 3;
        let (century, day) = (quarters / 146_097, quarters % 146_097 / 4);
        let scaled = 2_939_745 * u64::from(4 * day + 3);
        let (year, day) = ((scaled >> 32) as u32, scaled as u32 / 2_939_745 / 4);
        let scaled = 2_141 * day + 197_913;
        let (month, is_next_year) = (scaled >> 16, day >= 306);
        let day = (scaled & 0xffff) / 2_141 + 1;
        let month = if is_next_year { month - 12 } else { month };
        let year = 100 * century + year + u32::from(is_next_year);
        let mut text = *b"0000-00-00T00:00:00.000000Z";
        let mut put = |at: usize, number: u32| {
            text[at..at + 2].copy_from_slice(&PAIRS[number as usize]);
        };
        put(0, year / 100);
        put(2, year % 100);
        put(5, month);
        put(8, day);
        put(11, second / 3_600);
        put(14, second % 3_600 / 60);
        put(17, second % 60);
        put(20, micros / 10_000);
        put(22, micros / 100 % 100);
        put(24, micros % 100);
        Some(text)
    }

    fn timestamp(self) -> Timestamp {
        Timestamp::from_microsecond(self.micros).unwrap_or_default()
    }

    /// The time `wait` after this one; this one if that is out of range.
    #[must_use]
    pub fn after(self, wait: Duration) -> Self {
        let wait = i64::try_from(wait.as_micros()).unwrap_or(i64::MAX);
        let micros = self.micros.saturating_add(wait);
        if micros > Timestamp::MAX.as_microsecond() {
            return self;
        }
        Self { micros }
    }

    /// The time from `earlier` to this one; zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.micros - earlier.micros).unwrap_or(0))
    }

    /// Milliseconds since the Unix epoch.
    #[must_use]
    pub fn as_millisecond(self) -> i64 {
        self.micros / 1_000
    }

    /// Nanoseconds since the Unix epoch.
    #[must_use]
    pub fn as_unix_nanos(self) -> i128 {
        i128::from(self.micros) * 1_000
    }

    /// Seconds since the Unix epoch.
    #[must_use]
    pub fn as_second(self) -> i64 {
        self.micros / 1_000_000
    }

    /// UTC, to the second, for tables: `2026-11-21 01:02:03Z`.
    #[must_use]
    pub fn to_seconds_text(self) -> String {
        self.timestamp().strftime("%F %TZ").to_string()
    }
}

impl From<Timestamp> for WallTime {
    /// Drops what is below a microsecond.
    fn from(time: Timestamp) -> Self {
        Self {
            micros: time.as_microsecond(),
        }
    }
}

impl fmt::Display for WallTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.common_text() {
            Some(text) => f.write_str(str::from_utf8(&text).map_err(|_| fmt::Error)?),
            None => write!(f, "{:.6}", self.timestamp()),
        }
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
        match self.common_text() {
            Some(text) => serialize_ascii(&text, serializer),
            None => serializer.collect_str(self),
        }
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
    /// Nanoseconds by which the wall clock is ahead of the monotonic one.
    offset: i64,
}

impl Moment {
    /// The moment at which the monotonic clock shows `monotonic` and the wall clock is `offset` nanoseconds ahead of it.
    #[must_use]
    pub fn new(monotonic: Monotonic, offset: i64) -> Self {
        Self { monotonic, offset }
    }

    /// The monotonic time.
    #[must_use]
    pub fn monotonic(&self) -> Monotonic {
        self.monotonic
    }

    /// The wall-clock time of this moment.
    #[must_use]
    pub fn wall(&self) -> WallTime {
        self.wall_at(self.monotonic)
    }

    /// The wall-clock time of a monotonic one, as the clock is set now.
    #[must_use]
    pub fn wall_at(&self, at: Monotonic) -> WallTime {
        WallTime::at_nanos(self.offset.saturating_add_unsigned(at.0))
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
    fn times_of_all_years_are_written_as_jiff_does() {
        let year = 31_556_952_000_003;
        for n in -9_000..7_900_i64 {
            let time = Timestamp::from_microsecond(n * year).unwrap();
            assert_eq!(WallTime::from(time).to_string(), format!("{time:.6}"));
        }
        for time in [Timestamp::MIN, Timestamp::MAX] {
            assert_eq!(WallTime::from(time).to_string(), format!("{time:.6}"));
        }
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
