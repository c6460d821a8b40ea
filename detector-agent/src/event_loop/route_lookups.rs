//! Asks the kernel for the routes of addresses in conflict: when, and how many at a time.
//!
//! Off the hot path: a conflict is reported with what the stored routes say, and an update corrects it. Whatever a pod does to
//! have its addresses looked up again, a batch is at most [`MAX_BATCH`] addresses (below a millisecond for the worker), and
//! one starts every [`INTERVAL`] at most.

use std::time::Duration;

use detector_engine::{Observation, TimedObservation, Timestamp};
use tracing::{debug, warn};

use super::Core;
use crate::{
    observe::{netlink::RouteLookup, worker::WorkerJob},
    process::clock,
};

/// Maximum number of addresses in one batch.
const MAX_BATCH: usize = 64;
/// Minimum time between the starts of two batches.
const INTERVAL: Duration = Duration::from_millis(100);
/// Pause after a failure.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// When the next batch may start.
#[derive(Debug, Default)]
pub(super) struct RouteLookupSchedule {
    is_in_flight: bool,
    not_before: Timestamp,
    /// The last batch failed.
    has_failed: bool,
}

impl RouteLookupSchedule {
    fn next(&self, has_lookups: bool) -> Option<Timestamp> {
        (has_lookups && !self.is_in_flight).then_some(self.not_before)
    }

    fn start(&mut self, now: Timestamp) {
        self.is_in_flight = true;
        self.not_before = now + INTERVAL;
    }

    fn finish(&mut self, now: Timestamp, has_failed: bool) {
        self.is_in_flight = false;
        self.has_failed = has_failed;
        if has_failed {
            self.not_before = now + RETRY_INTERVAL;
        }
    }
}

impl Core {
    /// When the next batch has to start.
    pub(super) fn next_route_lookups(&self) -> Option<Timestamp> {
        self.route_lookups
            .next(self.engine.view().has_route_lookups())
    }

    pub(super) fn start_route_lookups_if_due(&mut self, now: Timestamp) {
        if self.next_route_lookups().is_some_and(|at| at <= now) {
            self.route_lookups.start(now);
            let queries = self.engine.take_route_lookups(MAX_BATCH);
            self.send_job(WorkerJob::LookUpRoutes(queries));
        }
    }

    pub(super) fn finish_route_lookups(&mut self, lookup: RouteLookup) {
        let RouteLookup { answers, error } = lookup;
        if let Some(error) = &error {
            self.count_dropped("route_lookup_failed", 1);
            // Logged once, not with every retry.
            if self.route_lookups.has_failed {
                debug!(%error, "route lookup failed again");
            } else {
                warn!(%error, "route lookup failed, retrying; traffic_goes_to may be outdated");
            }
        }
        let at = clock::now();
        self.route_lookups.finish(at, error.is_some());
        self.step(TimedObservation {
            at,
            observation: Observation::RoutesLookedUp(answers),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_batch_is_in_flight_and_two_are_an_interval_apart() {
        let mut schedule = RouteLookupSchedule::default();
        let now = Timestamp(1) + INTERVAL;
        assert_eq!(schedule.next(false), None);
        assert!(schedule.next(true).is_some_and(|at| at <= now), "at once");
        schedule.start(now);
        assert_eq!(schedule.next(true), None);
        schedule.finish(now, false);
        assert_eq!(schedule.next(true), Some(now + INTERVAL));
        schedule.start(now);
        schedule.finish(now, true);
        assert_eq!(schedule.next(true), Some(now + RETRY_INTERVAL));
    }
}
