//! When notifications are read in batches.
//!
//! A pod can cause tens of thousands of notifications a second, by changing its own addresses, routes or devices. Each would wake
//! the event loop, which costs several times what the notification does. Beyond a budget the loop therefore leaves them
//! queued for [`PAUSE`]. Records of the kernel programs are not delayed.

use std::time::Duration;

use detector_engine::Timestamp;

use crate::{observe::netlink::DrainedSocket, process::token_bucket::TokenBucket};

/// Short compared with the time within which a conflict has to be reported, and long enough for some fifty notifications of a flood.
const PAUSE: Duration = Duration::from_millis(3);
/// More than the start of some hundred pods causes.
const BURST: u32 = 4_096;
const PER_SECOND: u32 = 1_024;

#[derive(Debug)]
pub(super) struct NetlinkPace {
    budget: TokenBucket<Timestamp>,
    paused_until: Option<Timestamp>,
}

impl NetlinkPace {
    pub(super) fn new() -> Self {
        let interval = Duration::from_secs(1) / PER_SECOND;
        Self {
            budget: TokenBucket::new(BURST, interval, Timestamp(0)),
            paused_until: None,
        }
    }

    /// The socket was read. If it holds more, reading continues without a pause.
    pub(super) fn drained(&mut self, drained: DrainedSocket, now: Timestamp) {
        let mut is_within = true;
        for _ in 0..drained.datagrams {
            is_within = self.budget.try_take(now);
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
        let mut pace = NetlinkPace::new();
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
