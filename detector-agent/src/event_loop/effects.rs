//! Applies the effects of the engine: events, jobs for the kernel worker, reads of IPAM pools.

use tracing::error;

use super::Core;
use crate::{
    engine::{Anomaly, AnomalyEffect, Conflict, Effect},
    event::Change,
    observe::worker::WorkerJob,
};

impl Core {
    /// Applies the pending effects, in order.
    pub(super) fn apply_effects(&mut self) {
        for effect in std::mem::take(&mut self.effects) {
            match effect {
                Effect::Raised(conflict) => self.report(Change::Raised, &conflict),
                Effect::Updated(conflict) => self.report(Change::Updated, &conflict),
                Effect::Resolved(conflict) => self.report(Change::Resolved, &conflict),
                Effect::Attach(device) => {
                    self.attaching += 1;
                    self.outputs.reporter.device_appeared(&device);
                    // A device found by a snapshot of the node has been read with it.
                    let token = (!self.resync.is_merging).then(|| self.start_snapshot());
                    self.send_job(WorkerJob::Attach(device, token));
                }
                Effect::Renamed(device) => self.outputs.reporter.device_appeared(&device),
                Effect::Detach(device) => {
                    self.attached.remove(&device.ifindex);
                    self.outputs
                        .reporter
                        .device_gone(device.ifindex, device.generation);
                    self.send_job(WorkerJob::Detach(device.ifindex));
                }
                Effect::Resync => self.request_resync("read_outdated"),
                Effect::Corrected(discrepancy) => self.report_discrepancy(&discrepancy),
                Effect::Anomaly(effect) => self.apply_anomaly_effect(effect),
            }
        }
    }

    fn apply_anomaly_effect(&mut self, effect: AnomalyEffect) {
        match effect {
            AnomalyEffect::Raised(anomaly) => self.report_anomaly(Change::Raised, &anomaly),
            AnomalyEffect::Resolved(anomaly) => self.report_anomaly(Change::Resolved, &anomaly),
            AnomalyEffect::ReadPool(pool) => {
                // If the IPAM watcher has ended, its allocations stay too old to raise anything.
                let _ = self.outputs.pool_reads.send(pool);
            }
        }
    }

    fn report(&mut self, change: Change, conflict: &Conflict) {
        self.outputs.reporter.report(change, conflict);
        if change != Change::Resolved {
            self.check_conflict(conflict);
        }
        if let Some(persistence) = &mut self.outputs.persistence {
            persistence.conflict_changed(&self.engine, conflict);
        }
    }

    fn report_anomaly(&mut self, change: Change, anomaly: &Anomaly) {
        self.outputs.reporter.report(change, anomaly);
        if let Some(persistence) = &mut self.outputs.persistence {
            persistence.anomalies_changed();
        }
    }

    pub(super) fn send_job(&mut self, job: WorkerJob) {
        if self.outputs.worker_jobs.send(job).is_err() {
            error!("kernel worker thread ended unexpectedly; stopping");
            self.stop();
        }
    }
}
