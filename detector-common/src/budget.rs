//! The budget that keeps one noisy device from hiding the others.
//!
//! It is a token bucket kept as one point in time (the generic cell rate algorithm): the time at which the bucket would be
//! full again. One word of state needs no lock. Two CPUs that spend at the same instant may spend one token for two
//! claims; the bound is then the number of CPUs times too generous, never too strict, and no state is ever torn.

/// How much a device may spend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Nanoseconds one token takes to come back; zero means no limit.
    pub interval_ns: u64,
    /// Nanoseconds the whole bucket takes to fill: the burst times the interval.
    pub window_ns: u64,
}

/// A device's state, the value of the kernel's map of budgets by interface index.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceBudget {
    /// When the bucket for frames is full again, `CLOCK_MONOTONIC` nanoseconds.
    pub frames_full_at: u64,
    /// When the bucket for neighbour entries is full again.
    pub neighbours_full_at: u64,
    /// Frames' claims turned away.
    pub frames_turned_away: u64,
    /// Neighbour entries turned away.
    pub neighbours_turned_away: u64,
}

const _: () = assert!(size_of::<DeviceBudget>() == 32 && align_of::<DeviceBudget>() == 8);

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

    /// Spends one token at `now`: the bucket's new state, or `None` where it is empty.
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
    fn a_fresh_device_has_its_burst_and_then_the_rate() {
        let budget = Budget::new(512, 256);
        let mut state = 0;
        assert_eq!(spend_all(budget, &mut state, 5 * SECOND, 2000), 512);
        assert_eq!(spend_all(budget, &mut state, 5 * SECOND, 2000), 0);
        assert_eq!(spend_all(budget, &mut state, 6 * SECOND, 2000), 256);
        assert_eq!(spend_all(budget, &mut state, 100 * SECOND, 2000), 512);
    }

    #[test]
    fn a_rate_of_zero_is_no_limit() {
        let mut state = 0;
        assert_eq!(spend_all(Budget::new(0, 0), &mut state, SECOND, 2000), 2000);
    }
}
