//! The budget that keeps one noisy device from hiding the others.
//!
//! A token bucket stored as one point in time (the generic cell rate algorithm): when the bucket would be full again. One
//! word of state needs no lock. Two CPUs that spend at the same instant may spend one token for two claims, so the limit
//! can be exceeded by a factor of at most the number of CPUs; it is never too strict, and the state is never torn.

/// How much a device may spend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Nanoseconds until one token is refilled; zero means no limit.
    pub interval_ns: u64,
    /// Nanoseconds until an empty bucket is full: the burst times the interval.
    pub window_ns: u64,
}

/// A device's state: the value of the kernel's map of budgets, keyed by interface index.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceBudget {
    /// When the bucket for frames is full again, `CLOCK_MONOTONIC` nanoseconds.
    pub frames_full_at: u64,
    /// When the bucket for neighbour entries is full again, `CLOCK_MONOTONIC` nanoseconds.
    pub neighbours_full_at: u64,
    /// When the bucket for contested claims is full again, `CLOCK_MONOTONIC` nanoseconds.
    pub contested_full_at: u64,
    /// Claims from frames beyond the budget: dropped, unless they were contested.
    pub frames_over_budget: u64,
    /// Neighbour entries of the device, or changed by its frames, beyond the budget: dropped, unless they were contested.
    pub neighbours_over_budget: u64,
}

const _: () = assert!(size_of::<DeviceBudget>() == 40 && align_of::<DeviceBudget>() == 8);

impl Budget {
    /// A budget of `burst` at once and `per_second` afterwards. Zero per second means no limit.
    #[must_use]
    pub const fn new(burst: u32, per_second: u32) -> Self {
        if per_second == 0 {
            return Self {
                interval_ns: 0,
                window_ns: 0,
            };
        }
        let interval_ns = 1_000_000_000 / per_second as u64;
        Self {
            interval_ns,
            window_ns: interval_ns * burst as u64,
        }
    }

    /// How much is refilled in a second; zero if there is no limit.
    #[must_use]
    pub const fn per_second(self) -> u64 {
        match self.interval_ns {
            0 => 0,
            interval => 1_000_000_000 / interval,
        }
    }

    /// Spends one token at `now`: the bucket's new state, or `None` if the bucket is empty.
    #[must_use]
    #[inline(always)]
    pub const fn spend(self, full_at: u64, now: u64) -> Option<u64> {
        let start = if full_at > now { full_at } else { now };
        let next = start.wrapping_add(self.interval_ns);
        if next.wrapping_sub(now) > self.window_ns {
            None
        } else {
            Some(next)
        }
    }

    /// Spends `tokens` at `now`, also more than are left: the bucket's new state. Such a debt is refilled first; debts do not add up.
    #[must_use]
    pub fn charge(self, full_at: u64, now: u64, tokens: u64) -> u64 {
        let left = full_at.clamp(now, now.saturating_add(self.window_ns));
        full_at.max(left.saturating_add(self.interval_ns.saturating_mul(tokens)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn spend_all(budget: Budget, state: &mut u64, now: u64, tries: u32) -> u32 {
        let mut spent = 0;
        for _ in 0..tries {
            if let Some(next) = budget.spend(*state, now) {
                *state = next;
                spent += 1;
            }
        }
        spent
    }

    #[test]
    fn new_device_gets_its_burst_then_the_rate() {
        let budget = Budget::new(512, 256);
        let mut state = 0;
        assert_eq!(spend_all(budget, &mut state, 5 * SECOND, 2000), 512);
        assert_eq!(spend_all(budget, &mut state, 5 * SECOND, 2000), 0);
        assert_eq!(spend_all(budget, &mut state, 6 * SECOND, 2000), 256);
        assert_eq!(spend_all(budget, &mut state, 100 * SECOND, 2000), 512);
    }

    #[test]
    fn charge_may_exceed_what_is_left_and_is_refilled_first() {
        let budget = Budget::new(512, 256);
        let mut state = budget.charge(0, 5 * SECOND, 12);
        assert_eq!(spend_all(budget, &mut state, 5 * SECOND, 2000), 500);
        for _ in 0..3 {
            state = budget.charge(state, 5 * SECOND, 256);
        }
        assert_eq!(spend_all(budget, &mut state, 6 * SECOND, 2000), 0);
        assert_eq!(spend_all(budget, &mut state, 7 * SECOND, 2000), 256);
    }

    #[test]
    fn zero_rate_means_no_limit() {
        let mut state = 0;
        assert_eq!(spend_all(Budget::new(0, 0), &mut state, SECOND, 2000), 2000);
    }
}
