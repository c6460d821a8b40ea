//! How often one block may be read besides its watch: when pods' addresses are in doubt, which a pod can cause.

use std::time::Duration;

use tokio::time::Instant;

/// Reads at once.
const BURST: u32 = 5;
/// Time after which one more is allowed.
const REFILL: Duration = Duration::from_secs(15);
/// Shortest time between two.
const MIN_GAP: Duration = Duration::from_secs(1);

/// The reads of one block.
#[derive(Debug)]
pub(super) struct ReadBudget {
    left: u32,
    refilled_at: Instant,
    next: Instant,
}

impl ReadBudget {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            left: BURST,
            refilled_at: now,
            next: now,
        }
    }

    /// When the next read is allowed.
    pub(super) fn next(&self) -> Instant {
        if self.left == 0 {
            self.next.max(self.refilled_at + REFILL)
        } else {
            self.next
        }
    }

    /// Whether to read now; if so, the read counts as begun.
    pub(super) fn try_begin(&mut self, now: Instant) -> bool {
        while self.left < BURST && self.refilled_at + REFILL <= now {
            self.left += 1;
            self.refilled_at += REFILL;
        }
        if self.left == BURST {
            self.refilled_at = now;
        }
        if self.left == 0 || now < self.next {
            return false;
        }
        self.left -= 1;
        self.next = now + MIN_GAP;
        true
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
