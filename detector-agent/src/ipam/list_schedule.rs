//! When Calico's blocks are listed: a list covers the whole cluster, so it is too expensive for every new pod.

use std::time::Duration;

use tokio::time::Instant;

/// Time between regular lists. One more list in this time may be requested.
const PERIOD: Duration = Duration::from_secs(60);
/// Shortest time between two lists.
const MIN_GAP: Duration = Duration::from_secs(3);

/// Times of the last and of the next list.
#[derive(Debug, Default)]
pub(super) struct ListSchedule {
    last: Option<Instant>,
    /// The earliest time of a requested list.
    earliest_request: Option<Instant>,
    is_requested: bool,
}

impl ListSchedule {
    /// Requests a list as soon as the schedule allows.
    pub(super) fn request(&mut self) {
        self.is_requested = true;
    }

    /// When the requested list is due, if one is requested.
    pub(super) fn request_due(&self) -> Option<Instant> {
        self.earliest_request.filter(|_| self.is_requested)
    }

    /// Whether to list now; if so, the list counts as begun.
    pub(super) fn try_begin(&mut self, now: Instant) -> bool {
        let due = match (self.last, self.earliest_request) {
            (Some(_), Some(earliest)) if self.is_requested => earliest,
            (Some(last), _) => last + PERIOD,
            (None, _) => now,
        };
        if due > now {
            return false;
        }
        // After a requested list the next one must wait until a period has passed since the list before it.
        let previous = self.last.replace(now);
        let earliest = previous.map_or(now, |previous| previous + PERIOD);
        self.earliest_request = Some(earliest.max(now + MIN_GAP));
        self.is_requested = false;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_request_per_period_brings_a_list_forward() {
        let start = Instant::now();
        let mut schedule = ListSchedule::default();
        assert!(schedule.try_begin(start));
        assert!(!schedule.try_begin(start + MIN_GAP), "not requested");
        schedule.request();
        assert_eq!(schedule.request_due(), Some(start + MIN_GAP));
        assert!(!schedule.try_begin(start + MIN_GAP / 2), "too soon");
        assert!(schedule.try_begin(start + MIN_GAP));
        schedule.request();
        assert!(
            !schedule.try_begin(start + MIN_GAP * 2),
            "second in a period"
        );
        assert!(schedule.try_begin(start + PERIOD));
    }
}
