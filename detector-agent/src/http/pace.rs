//! How often a client that is not on the node is answered: requests cost processor time, which the agent shares with detection.
//!
//! Invariant: at most [`MAX_SOURCES`] sources are remembered, each until its budget is full again.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use detector_engine::Timestamp;

use super::slots::ConnectionSource;
use crate::process::token_bucket::TokenBucket;

/// Requests of one source at once.
const BURST: u32 = 64;
/// Time until one more is answered.
const INTERVAL: Duration = Duration::from_millis(50);
const MAX_SOURCES: usize = 4_096;

/// The budget of each source. What a source has reserved in advance is bounded by its connections.
#[derive(Debug, Default)]
pub(super) struct RequestPace(Mutex<HashMap<IpAddr, TokenBucket<Timestamp>>>);

impl RequestPace {
    /// Takes one request from the budget of a client; how long it has to wait for it.
    pub(super) fn take(&self, client: ConnectionSource, now: Timestamp) -> Duration {
        let ConnectionSource::Other(source) = client else {
            return Duration::ZERO;
        };
        // A panic while it was held leaves budgets that are at worst too small.
        let mut budgets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if budgets.len() >= MAX_SOURCES && !budgets.contains_key(&source) {
            budgets.retain(|_, budget| budget.full_at() > now);
            if budgets.len() >= MAX_SOURCES {
                return INTERVAL;
            }
        }
        let budget = budgets.entry(source);
        let budget = budget.or_insert_with(|| TokenBucket::new(BURST, INTERVAL, now));
        let wait = budget.next_at().since(now);
        budget.take(now);
        wait
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::net::Ipv4Addr;

    use super::*;

    const NOW: Timestamp = Timestamp(1_000_000_000_000);

    fn other(n: u32) -> ConnectionSource {
        ConnectionSource::Other(Ipv4Addr::from(0x0a00_0000 + n).into())
    }

    #[test]
    fn source_waits_once_its_burst_is_used_up_and_others_do_not() {
        let pace = RequestPace::default();
        let waits = (0..BURST + 2).map(|_| pace.take(other(1), NOW));
        let waits: Vec<_> = waits.filter(|wait| !wait.is_zero()).collect();
        assert_eq!(waits, [INTERVAL, INTERVAL * 2]);
        assert_eq!(pace.take(other(2), NOW), Duration::ZERO);
        assert_eq!(pace.take(other(1), NOW + INTERVAL * 3), Duration::ZERO);
    }

    #[test]
    fn node_never_waits() {
        let pace = RequestPace::default();
        let mut waits = (0..1_000).map(|_| pace.take(ConnectionSource::Node, NOW));
        assert!(waits.all(|wait| wait.is_zero()));
    }

    #[test]
    fn sources_are_bounded_and_idle_ones_are_forgotten() {
        let pace = RequestPace::default();
        for n in 0..10_000 {
            pace.take(other(n), NOW);
        }
        assert_eq!(pace.0.lock().unwrap().len(), MAX_SOURCES);
        assert_eq!(pace.take(other(9_999), NOW), INTERVAL);
        let later = NOW + INTERVAL * BURST;
        assert_eq!(pace.take(other(9_999), later), Duration::ZERO);
        assert_eq!(pace.0.lock().unwrap().len(), 1);
    }
}
