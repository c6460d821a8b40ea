//! What is done once a second, off the hot path: losses in the kernel, gauges, health, persistence.

use std::time::Duration;

use detector_engine::Timestamp;
use tracing::warn;

use super::Core;
use crate::{
    health::Situation,
    metrics::{Kind, Metrics, Reason, gauge_value, labels::known_kind},
    observe::{ebpf::CounterValues, worker::WorkerJob},
};

/// Time between two ticks.
const INTERVAL: Duration = Duration::from_secs(1);

impl Core {
    pub(super) fn tick(&mut self, now: Timestamp) {
        self.next_tick = now + INTERVAL;
        self.report_health(now);
        if let Some(persistence) = &mut self.outputs.persistence {
            persistence.tick(&self.engine, now);
        }
        self.check_devices_in_turn();
        self.read_kernel_counters();
        self.retry_claimed_if_due(now);
        self.recheck_fleet(now);
        self.set_engine_losses();
        self.set_gauges();
        if self.release_memory_at.take_if(|at| *at <= now).is_some() {
            self.send_job(WorkerJob::ReleaseMemory);
        }
        if self.outputs.readiness.is_ready() && self.fleet.is_restored() {
            let (engine, fleet) = (&self.engine, &self.fleet);
            self.outputs.reporter.catch_up(|| {
                let (mut conflicts, mut anomalies) = fleet.reported();
                conflicts.extend(engine.view().conflicts(now));
                anomalies.extend(engine.view().anomalies());
                (conflicts, anomalies)
            });
        }
    }

    fn report_health(&mut self, now: Timestamp) {
        let situation = Situation {
            devices: self.engine.view().device_count(),
            attached: self.attached.len(),
            attaching: self.device_jobs.attaching(),
            preempted: self.preempted,
            has_snapshot: self.resync.has_merged_first,
            snapshot_in_flight: self.resync.in_flight.is_some(),
            resync: self.resync.pending(),
        };
        self.outputs.health.update(now, &situation);
    }

    /// The kernel programs report losses only by their counters.
    fn read_kernel_counters(&mut self) {
        let Some(counters) = &self.kernel_counters else {
            return;
        };
        let values = match counters.read() {
            Ok(values) => values,
            Err(error) => {
                // Logged once, not every second.
                if !self.counters_failed {
                    warn!(%error, "kernel counters unreadable, losses in the kernel go unnoticed");
                }
                self.counters_failed = true;
                return;
            }
        };
        self.counters_failed = false;
        let before = self.kernel_counts.replace(values);
        // As in most seconds of an idle node.
        if before == Some(values) {
            return;
        }
        publish(&values, &self.outputs.metrics);
        let losses = values.losses();
        let before = before.map(|before| before.losses()).unwrap_or_default();
        if losses.ring_full > before.ring_full {
            self.request_resync("ring_full");
        }
        if losses.neighbour_budget > before.neighbour_budget {
            self.resync.neighbours_lost();
        }
        if losses.budget > before.budget || losses.neighbour_budget > before.neighbour_budget {
            self.read_budgets();
        }
    }

    fn set_engine_losses(&mut self) {
        let view = self.engine.view();
        let (drops, refused) = (view.drop_counters(), view.anomalies_refused());
        if self.published_drops.replace((drops, refused)) == Some((drops, refused)) {
            return;
        }
        for (reason, total) in [
            ("claims_per_device", drops.claims),
            ("address_changes", drops.address_changes),
            ("links", drops.links),
            ("kernel_entries", drops.kernel_entries),
            ("open_conflicts", drops.conflicts),
            ("open_anomalies", refused),
            ("unknown_device", drops.unknown_device),
        ] {
            let dropped = &self.outputs.metrics.dropped;
            Metrics::set_total(&dropped.get_or_create(&Reason::dropped(reason)), total);
        }
    }

    fn set_gauges(&self) {
        let (engine, metrics) = (&self.engine, &self.outputs.metrics);
        metrics.attached.set(gauge_value(self.attached.len()));
        metrics.preempted.set(gauge_value(self.preempted));
        metrics.claims.set(gauge_value(engine.view().claim_count()));
        let omitted = engine.view().claimed_addresses_omitted();
        metrics.claimed_overflow.set(gauge_value(omitted));
    }
}

/// Publishes the kernel programs' counters as metrics.
fn publish(values: &CounterValues, metrics: &Metrics) {
    // Only repetitions are counted in the kernel; a claim that was published is counted as an observation.
    for (kind, total) in values.known() {
        let kind = Kind::observation(known_kind(kind));
        Metrics::set_total(&metrics.observations.get_or_create(&kind), total);
    }
    for (reason, total) in values.dropped() {
        let dropped = metrics.dropped.get_or_create(&Reason::dropped(reason));
        Metrics::set_total(&dropped, total);
    }
    for (reason, total) in values.rejected() {
        let rejected = metrics.rejected.get_or_create(&Reason::rejected(reason));
        Metrics::set_total(&rejected, total);
    }
}
