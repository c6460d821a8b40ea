//! When notifications are read in batches.
//!
//! A pod can cause tens of thousands of notifications a second, by changing its own addresses, routes or devices. Each would wake
//! the event loop, which costs several times what the notification does. Beyond a budget the loop therefore leaves them
//! queued for [`PAUSE`]. Records of the kernel programs are not delayed.

use std::time::Duration;

use detector_common::Budget;
use detector_engine::Timestamp;

use crate::observe::netlink::DrainedSocket;

/// Small beside the time in which a conflict has to be reported, and long enough for some fifty notifications of a flood.
const PAUSE: Duration = Duration::from_millis(3);
/// More than the start of some hundred pods causes.
const BUDGET: Budget = Budget::new(4_096, 1_024);

#[derive(Debug, Default)]
pub(super) struct NetlinkPace {
    full_at: u64,
    paused_until: Option<Timestamp>,
}

impl NetlinkPace {
    /// The socket was read. If it holds more, reading goes on without a pause.
    pub(super) fn drained(&mut self, drained: DrainedSocket, now: Timestamp) {
        let mut is_within = true;
        for _ in 0..drained.datagrams {
            let next = BUDGET.spend(self.full_at, now.0);
            is_within = next.is_some();
            self.full_at = next.unwrap_or(self.full_at);
        }
        let pauses = !is_within && !drained.more;
        self.paused_until = pauses.then(|| now + PAUSE);
    }

    /// Until when the socket is not read; `None` if it is.
    pub(super) fn paused_until(&self) -> Option<Timestamp> {
        self.paused_until
    }

    pub(super) fn is_paused(&self, now: Timestamp) -> bool {
        self.paused_until.is_some_and(|until| now < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pace: &mut NetlinkPace, datagrams: u32, more: bool, now: Timestamp) {
        let drained = DrainedSocket {
            datagrams,
            more,
            ..DrainedSocket::default()
        };
        pace.drained(drained, now);
    }

    #[test]
    fn flood_is_read_in_batches_until_it_ends() {
        let mut pace = NetlinkPace::default();
        let mut now = Timestamp(1_000_000_000_000);
        read(&mut pace, 4_096, false, now);
        assert!(!pace.is_paused(now));
        read(&mut pace, 1, false, now);
        assert_eq!(pace.paused_until(), Some(now + PAUSE));
        assert!(pace.is_paused(now));
        now = now + PAUSE;
        assert!(!pace.is_paused(now));
        // What is queued is read without a pause.
        read(&mut pace, 256, true, now);
        assert!(!pace.is_paused(now));
        read(&mut pace, 100, false, now);
        assert!(pace.is_paused(now));
        now = now + Duration::from_secs(1);
        read(&mut pace, 1_000, false, now);
        assert!(!pace.is_paused(now));
    }
}
