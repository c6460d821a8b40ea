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

use super::slots::Client;

/// Requests of one source at once.
const BURST: u32 = 64;
/// Time until one more is answered.
const INTERVAL: Duration = Duration::from_millis(50);
const WINDOW: Duration = INTERVAL.saturating_mul(BURST);
const MAX_SOURCES: usize = 4_096;

/// When the budget of each source is full again. What a source has reserved in advance is bounded by its connections.
#[derive(Debug, Default)]
pub(super) struct RequestPace(Mutex<HashMap<IpAddr, Timestamp>>);

impl RequestPace {
    /// Takes one request from the budget of a client; how long it has to wait for it.
    pub(super) fn take(&self, client: Client, now: Timestamp) -> Duration {
        let Client::Other(source) = client else {
            return Duration::ZERO;
        };
        // A panic while it was held leaves budgets that are at worst too small.
        let mut full_at = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if full_at.len() >= MAX_SOURCES && !full_at.contains_key(&source) {
            full_at.retain(|_, at| *at > now);
            if full_at.len() >= MAX_SOURCES {
                return INTERVAL;
            }
        }
        let at = full_at.entry(source).or_insert(now);
        *at = (*at).max(now) + INTERVAL;
        at.since(now).saturating_sub(WINDOW)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::net::Ipv4Addr;

    use super::*;

    const NOW: Timestamp = Timestamp(1_000_000_000_000);

    fn other(n: u32) -> Client {
        Client::Other(Ipv4Addr::from(0x0a00_0000 + n).into())
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
        let mut waits = (0..1_000).map(|_| pace.take(Client::Node, NOW));
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
        let later = NOW + WINDOW;
        assert_eq!(pace.take(other(9_999), later), Duration::ZERO);
        assert_eq!(pace.0.lock().unwrap().len(), 1);
    }
}
