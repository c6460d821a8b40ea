//! How often one part of a pool may be read besides its watch: when pods' addresses are in doubt, which a pod can cause.

use std::time::Duration;

use tokio::time::Instant;

use crate::process::token_bucket::TokenBucket;

/// Reads at once.
const BURST: u32 = 5;
/// Time after which one more is allowed.
const REFILL: Duration = Duration::from_secs(15);
/// Shortest time between two.
const MIN_GAP: Duration = Duration::from_secs(1);

/// The reads of one part.
#[derive(Debug)]
pub(super) struct ReadBudget {
    bucket: TokenBucket<Instant>,
    next: Instant,
}

impl ReadBudget {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            bucket: TokenBucket::new(BURST, REFILL, now),
            next: now,
        }
    }

    /// When the next read is allowed.
    pub(super) fn next(&self) -> Instant {
        self.next.max(self.bucket.next_at())
    }

    /// Whether to read now; if so, the read counts as begun.
    pub(super) fn try_begin(&mut self, now: Instant) -> bool {
        let may_begin = self.next <= now && self.bucket.try_take(now);
        if may_begin {
            self.next = now + MIN_GAP;
        }
        may_begin
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_reads_then_one_every_15_seconds() {
        let start = Instant::now();
        let mut budget = ReadBudget::new(start);
        let mut reads = 0;
        for second in 0..3600 {
            let now = start + Duration::from_secs(second);
            reads += u32::from(budget.try_begin(now));
            assert!(!budget.try_begin(now), "too soon");
            assert!(budget.next() > now);
        }
        assert_eq!(reads, 5 + 3599 / 15);
    }
}
