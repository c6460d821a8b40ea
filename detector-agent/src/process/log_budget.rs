//! Limits log lines whose cause a pod can repeat. The metrics count all.

use std::time::Duration;

use detector_engine::Timestamp;

use super::token_bucket::TokenBucket;

/// Lines in a burst, then one per interval.
const LOG_BURST: u32 = 60;
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// A budget for the log: [`LOG_BURST`] lines, one more each [`LOG_INTERVAL`].
#[derive(Debug)]
pub(crate) struct LogBudget(TokenBucket<Timestamp>);

impl LogBudget {
    pub(crate) const fn new() -> Self {
        Self(TokenBucket::new(LOG_BURST, LOG_INTERVAL, Timestamp(0)))
    }

    /// Whether a line may be logged at `now`.
    pub(crate) fn take(&mut self, now: Timestamp) -> bool {
        self.0.try_take(now)
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
