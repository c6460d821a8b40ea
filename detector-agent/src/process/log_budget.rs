//! Limits log lines whose cause a pod can repeat. The metrics count all.

use std::time::Duration;

use detector_engine::Timestamp;

/// Lines in a burst, then one per interval.
const LOG_BURST: u32 = 60;
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// A token bucket for the log: [`LOG_BURST`] lines, one more each [`LOG_INTERVAL`].
#[derive(Debug)]
pub(crate) struct LogBudget {
    left: u32,
    refilled_at: Timestamp,
}

impl LogBudget {
    pub(crate) fn new() -> Self {
        Self {
            left: LOG_BURST,
            refilled_at: Timestamp(0),
        }
    }

    /// Whether a line may be logged at `now`.
    pub(crate) fn take(&mut self, now: Timestamp) -> bool {
        let earned = now.since(self.refilled_at).as_secs() / LOG_INTERVAL.as_secs();
        if earned > 0 {
            let earned = u32::try_from(earned).unwrap_or(u32::MAX);
            self.left = self.left.saturating_add(earned).min(LOG_BURST);
            self.refilled_at = now;
        }
        let may_log = self.left > 0;
        self.left = self.left.saturating_sub(1);
        may_log
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endless_cause_is_logged_once_a_minute_after_a_burst() {
        let mut budget = LogBudget::new();
        let hour = (0..3600).map(|second| Timestamp(1) + Duration::from_secs(second));
        let logged = hour.filter(|now| budget.take(*now)).count();
        assert!((60..=120).contains(&logged), "{logged}");
    }
}
