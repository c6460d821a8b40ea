//! Self-checks: fresh snapshots of single devices that are compared with the engine's state.
//!
//! Some devices are checked every few seconds, in turn, and the devices of a conflict right after it was reported as `certain`. The
//! report is not delayed until then: a dump takes longer than detection, and a wrong report is corrected by it. Checking every
//! such conflict, not only those from notifications that waited in the socket's queue, costs two dumps and needs no guess
//! about how long a notification has waited.

use std::{
    collections::{BTreeSet, HashSet},
    time::Duration,
};

use detector_engine::{
    ClaimantId, Confidence, Conflict, Discrepancy, IfIndex, Observation, PartValue, SnapshotToken,
    Timestamp,
};
use tracing::warn;

use super::Core;
use crate::{
    metrics::Reason,
    observe::worker::WorkerJob,
    process::{clock, log_budget::LogBudget, token_bucket::TokenBucket},
};

/// Devices checked in one turn. On an idle node a single check costs several times as much as one of many, because the processor's
/// caches no longer hold what it needs.
const DEVICES_IN_TURN: usize = 20;
/// Seconds from one turn to the next.
const TURN_SECONDS: u32 = 5;
/// Checks on request (of conflicts): at most this many at once, then this many per second. A pod that makes and ends conflicts
/// all the time must not keep the worker busy.
const REQUEST_BURST: u32 = 256;
const REQUESTS_PER_SECOND: u32 = 32;
/// Checks in flight at once, so that attaching to a new device never waits for many.
const MAX_IN_FLIGHT: usize = 4;
/// Bound on devices that wait for a check; the checks in turn reach the others.
const MAX_WAITING: usize = 4_096;

/// Which devices are checked, and when.
#[derive(Debug)]
pub(super) struct SelfChecks {
    waiting: BTreeSet<IfIndex>,
    in_flight: HashSet<SnapshotToken>,
    /// The device checked last in turn.
    last_in_turn: IfIndex,
    seconds_to_turn: u32,
    /// For checks on request.
    budget: TokenBucket<Timestamp>,
    log_budget: LogBudget,
}

impl SelfChecks {
    pub(super) fn new() -> Self {
        Self {
            waiting: BTreeSet::new(),
            in_flight: HashSet::new(),
            last_in_turn: 0,
            seconds_to_turn: TURN_SECONDS,
            budget: TokenBucket::new(
                REQUEST_BURST,
                Duration::from_secs(1) / REQUESTS_PER_SECOND,
                Timestamp(0),
            ),
            log_budget: LogBudget::new(),
        }
    }

    /// Whether this snapshot is a self-check's; it is in flight no longer.
    pub(super) fn finish(&mut self, token: SnapshotToken) -> bool {
        self.in_flight.remove(&token)
    }

    fn request(&mut self, ifindex: IfIndex) {
        if self.waiting.len() < MAX_WAITING {
            self.waiting.insert(ifindex);
        }
    }

    /// The next device to check, if one may be checked now.
    fn take(&mut self, now: Timestamp) -> Option<IfIndex> {
        let is_free = self.in_flight.len() < MAX_IN_FLIGHT && !self.waiting.is_empty();
        let may_start = is_free && self.budget.try_take(now);
        may_start.then(|| self.waiting.pop_first()).flatten()
    }

    /// A second has passed; `true` if it is time for the next devices in turn.
    fn second_passed(&mut self) -> bool {
        self.seconds_to_turn -= 1;
        let is_turn = self.seconds_to_turn == 0;
        if is_turn {
            self.seconds_to_turn = TURN_SECONDS;
        }
        is_turn
    }
}

impl Core {
    /// Once a second: checks the next devices, if it is their turn.
    pub(super) fn check_devices_in_turn(&mut self) {
        if !self.self_checks.second_passed() {
            return;
        }
        let last = self.self_checks.last_in_turn;
        for ifindex in self.engine.view().next_devices(last, DEVICES_IN_TURN) {
            self.self_checks.last_in_turn = ifindex;
            self.self_checks.request(ifindex);
        }
    }

    /// Requests checks of the devices of a conflict that is certain.
    pub(super) fn check_conflict(&mut self, conflict: &Conflict) {
        if conflict.confidence != Confidence::Certain {
            return;
        }
        let devices = conflict.present().filter_map(|claimant| match claimant.id {
            ClaimantId::Device(ifindex, _) => Some(ifindex),
            ClaimantId::Host | ClaimantId::BehindBridge(..) | ClaimantId::Registered(_) => None,
        });
        for ifindex in devices {
            self.self_checks.request(ifindex);
        }
    }

    /// Starts the requested checks, as far as the bounds allow.
    pub(super) fn start_self_checks(&mut self) {
        if !self.is_in_sync() {
            return;
        }
        let mut devices = Vec::new();
        let now = clock::now();
        while let Some(ifindex) = self.self_checks.take(now) {
            let Some(device) = self.engine.view().device(ifindex) else {
                continue;
            };
            let token = self.start_snapshot_as(Observation::SelfCheckStarted);
            self.self_checks.in_flight.insert(token);
            devices.push((device, token));
        }
        if !devices.is_empty() {
            self.send_job(WorkerJob::ReadDevices(devices));
        }
    }

    /// Whether the engine is expected to agree with the kernel: nothing was lost that a resync has not repaired.
    pub(super) fn is_in_sync(&self) -> bool {
        let resync = &self.resync;
        resync.has_merged_first && resync.pending().is_none() && resync.in_flight.is_none()
    }

    /// Counts and logs a difference that a self-check corrected.
    pub(super) fn report_discrepancy(&mut self, found: &Discrepancy) {
        let reason = "self_check";
        let resyncs = &self.outputs.metrics.resyncs;
        resyncs.get_or_create(&Reason::resync(reason)).inc();
        if !self.self_checks.log_budget.take(clock::now()) {
            return;
        }
        let text = |value: Option<PartValue>| value.map_or("none".to_owned(), |v| v.to_string());
        warn!(
            device = found.device,
            ifindex = found.ifindex,
            what = %found.part,
            agent = text(found.believed),
            kernel = text(found.kernel),
            "self-check corrected the agent's state; please report this with the lines before it"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_000_000_000_000);

    #[test]
    fn checks_on_request_are_bounded_in_flight_and_per_second() {
        let mut checks = SelfChecks::new();
        for ifindex in 1..=10_000 {
            checks.request(ifindex);
        }
        assert_eq!(checks.waiting.len(), MAX_WAITING);
        let mut started = 0;
        for _ in 0..10 {
            for token in 1_u64.. {
                if checks.take(NOW).is_none() {
                    break;
                }
                started += 1;
                if checks.in_flight.len() == MAX_IN_FLIGHT - 1 {
                    checks.in_flight.clear();
                } else {
                    checks.in_flight.insert(SnapshotToken(token));
                }
            }
            checks.in_flight.clear();
        }
        assert_eq!(started, REQUEST_BURST);
        assert!(checks.take(NOW + Duration::from_secs(1)).is_some());
        checks.in_flight = (0..MAX_IN_FLIGHT as u64).map(SnapshotToken).collect();
        let later = NOW + Duration::from_secs(60);
        assert_eq!(checks.take(later), None, "too many are in flight");
    }

    #[test]
    fn turn_comes_every_few_seconds() {
        let mut checks = SelfChecks::new();
        let turns: Vec<_> = (1..=3 * TURN_SECONDS)
            .filter(|_| checks.second_passed())
            .collect();
        assert_eq!(turns, [1, 2, 3].map(|turn| turn * TURN_SECONDS));
    }
}
