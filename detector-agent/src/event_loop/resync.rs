//! Snapshots of the kernel's state: when the entire node is read, and when the start is complete.
//!
//! The node is read at the start and after every loss (a resync). The engine is stepped with
//! [`Observation::SnapshotStarted`] before the worker gets the job, so that it can tell which updates are newer than the
//! snapshot.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use detector_engine::{IfIndex, Observation, SnapshotToken, TimedObservation, Timestamp};
use tracing::{info, warn};

use super::{Core, device_jobs::DeviceJob};
use crate::{
    metrics::Reason,
    observe::{netlink::Omitted, worker::WorkerJob},
    process::{clock, log_budget::LogBudget},
};

/// Minimum time between the starts of two resyncs.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// Minimum time between two resyncs because of neighbour entries beyond a budget. A pod can cause them without end, and of what
/// another device claims nothing is lost then (`detector-ebpf/src/contested.rs`).
const NEIGHBOUR_INTERVAL: Duration = Duration::from_secs(10);

/// The reason of these resyncs.
const LOST_NEIGHBOURS: &str = "neighbour_budget";

/// Whether the start is complete; shared with the HTTP endpoints.
#[derive(Debug, Default)]
pub struct Readiness {
    ready: AtomicBool,
}

impl Readiness {
    /// The programs are attached and the first snapshot is merged.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    fn set(&self) {
        self.ready.store(true, Ordering::Release);
    }
}

/// The state of node snapshots. Snapshots of single devices are followed by the engine alone.
#[derive(Debug)]
pub(super) struct Resync {
    last_token: u64,
    /// Why the next resync is requested.
    requested: Option<&'static str>,
    /// The node snapshot that the worker is taking.
    pub(super) in_flight: Option<SnapshotToken>,
    started_at: Timestamp,
    /// Neighbour entries beyond a budget were lost since a resync started.
    has_lost_neighbours: bool,
    /// When the next resync may start because of them.
    next_for_neighbours: Timestamp,
    log_budget: LogBudget,
    /// The first node snapshot is merged.
    pub(super) has_merged_first: bool,
    /// A node snapshot is being merged right now: devices found by it need no snapshot of their own.
    pub(super) is_merging: bool,
}

impl Resync {
    /// Nothing is read yet; the first snapshot is requested.
    pub(super) fn new() -> Self {
        Self {
            last_token: 0,
            requested: Some("start"),
            in_flight: None,
            started_at: Timestamp(0),
            has_lost_neighbours: false,
            next_for_neighbours: Timestamp(0),
            log_budget: LogBudget::new(),
            has_merged_first: false,
            is_merging: false,
        }
    }

    /// Requests a resync. If one is requested already, its reason stays.
    pub(super) fn request(&mut self, reason: &'static str) {
        self.requested.get_or_insert(reason);
    }

    /// Neighbour entries were lost beyond a budget: requests a resync, now or once [`NEIGHBOUR_INTERVAL`] has passed.
    pub(super) fn neighbours_lost(&mut self) {
        self.has_lost_neighbours = true;
    }

    /// Why a resync will start, if one will.
    pub(super) fn pending(&self) -> Option<&'static str> {
        let neighbours = self.has_lost_neighbours.then_some(LOST_NEIGHBOURS);
        self.requested.or(neighbours)
    }

    /// The reason of a resync that must start now: one is requested, none is in flight, and the last one started at least
    /// [`MIN_INTERVAL`] ago.
    fn take_due(&mut self, now: Timestamp) -> Option<&'static str> {
        if self.has_lost_neighbours && now >= self.next_for_neighbours {
            self.request(LOST_NEIGHBOURS);
            self.next_for_neighbours = now + NEIGHBOUR_INTERVAL;
        }
        let is_too_soon = self.has_merged_first && now.since(self.started_at) < MIN_INTERVAL;
        if self.in_flight.is_some() || is_too_soon {
            return None;
        }
        let due = self.requested.take();
        self.has_lost_neighbours &= due.is_none();
        due
    }
}

impl Core {
    /// Informs the engine that a snapshot of the node or of a device starts.
    pub(super) fn start_snapshot(&mut self) -> SnapshotToken {
        self.start_snapshot_as(Observation::SnapshotStarted)
    }

    /// As `start_snapshot`, with the observation that informs the engine.
    pub(super) fn start_snapshot_as(
        &mut self,
        started: fn(SnapshotToken) -> Observation,
    ) -> SnapshotToken {
        self.resync.last_token += 1;
        let token = SnapshotToken(self.resync.last_token);
        let started = TimedObservation {
            at: clock::now(),
            observation: started(token),
        };
        self.engine.step(started.at, started, &mut self.effects);
        token
    }

    pub(super) fn start_resync_if_due(&mut self, now: Timestamp) {
        let Some(reason) = self.resync.take_due(now) else {
            return;
        };
        let resyncs = &self.outputs.metrics.resyncs;
        resyncs.get_or_create(&Reason::resync(reason)).inc();
        if self.resync.has_merged_first && self.resync.log_budget.take(now) {
            warn!(reason, "observations lost, resync started");
        }
        self.resync.started_at = now;
        let token = self.start_snapshot();
        self.resync.in_flight = Some(token);
        self.send_job(WorkerJob::ReadNode(token));
    }

    /// Reads a device on which the program was reattached: of what it missed, a snapshot shows the rest.
    pub(super) fn read_reattached(&mut self, ifindex: IfIndex) {
        let Some(device) = self.engine.view().device(ifindex) else {
            return;
        };
        let reason = "reattached";
        let resyncs = &self.outputs.metrics.resyncs;
        resyncs.get_or_create(&Reason::resync(reason)).inc();
        self.start_device_job(DeviceJob::Read(device));
    }

    /// Merges a snapshot of the node or of a device, or handles that it failed.
    pub(super) fn merge_snapshot(&mut self, mut snapshot: TimedObservation, omitted: Omitted) {
        let token = match &snapshot.observation {
            Observation::Snapshot(token, ..) | Observation::SnapshotFailed(token) => Some(*token),
            _ => None,
        };
        let self_check = token.filter(|token| self.self_checks.finish(*token));
        if let Some(token) = self_check
            && !self.is_in_sync()
        {
            // Differences are expected, and a resync repairs them.
            snapshot.observation = Observation::SnapshotFailed(token);
        }
        let is_node = token.is_some() && self.resync.in_flight == token;
        let has_failed = matches!(snapshot.observation, Observation::SnapshotFailed(_));
        if is_node {
            self.resync.in_flight = None;
        }
        self.resync.is_merging = is_node;
        self.step(snapshot);
        self.resync.is_merging = false;
        if let Some(token) = token {
            self.finish_read(token);
        }
        if is_node && !has_failed {
            // Corrects what a lost write left.
            let lost = Observation::ClaimedTableLost;
            self.step(TimedObservation::new(clock::now(), lost));
        }
        if omitted.over_bound > 0 {
            self.count_dropped("bound", omitted.over_bound);
        }
        if has_failed && self_check.is_none() {
            self.request_resync("read_failed");
        } else if is_node && !self.resync.has_merged_first {
            self.resync.has_merged_first = true;
            self.warn_about_unmatched_patterns();
            self.publish_restored_conflicts();
        }
        self.check_ready();
    }

    /// After the first node snapshot: the restored conflicts that still exist are persisted again and shown in the metrics.
    fn publish_restored_conflicts(&mut self) {
        let Some(persistence) = &mut self.outputs.persistence else {
            return;
        };
        persistence.request_full_list();
        // Those that continue have no event.
        self.set_conflicts_active();
        for conflict in self.engine.view().conflicts(clock::now()) {
            self.outputs.reporter.report_state(&conflict);
        }
    }

    fn warn_about_unmatched_patterns(&self) {
        let devices = self.engine.view().devices();
        let names = devices.iter().map(|device| device.name.as_str());
        for pattern in self.selector.unmatched(names) {
            warn!(
                pattern,
                "--interfaces pattern matches no device yet; devices that appear later are watched"
            );
        }
    }

    /// Sets readiness once the first node snapshot is merged and all of its devices are attached.
    pub(super) fn check_ready(&mut self) {
        let readiness = &self.outputs.readiness;
        if self.resync.has_merged_first
            && self.device_jobs.attaching() == 0
            && !readiness.is_ready()
        {
            readiness.set();
            // The testkit recognises the record by the start of its message.
            info!(devices = self.engine.view().device_count(), "ready");
            self.next_tick = Timestamp(0);
            // By then the snapshot and the jobs that followed from it are freed.
            self.release_memory_at = Some(clock::now() + MIN_INTERVAL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resync_waits_for_the_last_one_and_the_interval() {
        let mut resync = Resync::new();
        let start = Timestamp(1);
        assert_eq!(resync.take_due(start), Some("start"));
        assert_eq!(resync.take_due(start), None, "no other is requested");
        resync.in_flight = Some(SnapshotToken(1));
        resync.started_at = start;
        resync.request("ring_full");
        resync.request("netlink_overrun");
        assert_eq!(
            resync.take_due(start + MIN_INTERVAL),
            None,
            "one is in flight"
        );
        resync.in_flight = None;
        resync.has_merged_first = true;
        assert_eq!(resync.take_due(start), None, "too soon after the last");
        assert_eq!(resync.take_due(start + MIN_INTERVAL), Some("ring_full"));
    }

    #[test]
    fn a_flood_of_neighbour_entries_causes_few_resyncs_and_the_last_is_read() {
        let mut resync = Resync::new();
        let start = Timestamp(1);
        resync.requested = None;
        resync.has_merged_first = true;
        let mut now = start + MIN_INTERVAL;
        let mut resyncs = 0;
        let mut tick = |resync: &mut Resync, now| {
            if let Some(reason) = resync.take_due(now) {
                assert_eq!(reason, LOST_NEIGHBOURS);
                resync.started_at = now;
                resyncs += 1;
            }
        };
        for _ in 0..60 {
            resync.neighbours_lost();
            tick(&mut resync, now);
            now = now + MIN_INTERVAL;
        }
        assert!(resync.pending().is_some());
        now = now + NEIGHBOUR_INTERVAL;
        tick(&mut resync, now);
        assert_eq!(resync.pending(), None);
        assert_eq!(resyncs, 7);
    }

    #[test]
    fn any_resync_reads_the_neighbour_entries_that_were_lost_before() {
        let mut resync = Resync::new();
        resync.neighbours_lost();
        assert_eq!(resync.take_due(Timestamp(1)), Some("start"));
        assert_eq!(resync.pending(), None);
    }
}
