//! What follows from a step: events, and jobs for the worker and the reader of IPAM's books.

use tracing::error;

use super::EventLoop;
use crate::{
    clock,
    engine::{Anomaly, AnomalyEffect, ClaimantId, Conflict, Effect, IfIndex},
    event::Change,
    observe::worker::Job,
};

impl EventLoop {
    /// Does what the engine said, and empties the list.
    pub(super) fn apply_effects(&mut self) {
        for effect in std::mem::take(&mut self.effects) {
            match effect {
                Effect::Raised(conflict) => self.conflict(Change::Raised, &conflict),
                Effect::Updated(conflict) => self.conflict(Change::Updated, &conflict),
                Effect::Resolved(conflict) => self.conflict(Change::Resolved, &conflict),
                Effect::Attach(device) => {
                    self.attaching += 1;
                    self.parts.reporter.device_appeared(&device);
                    // A device found by a reading of everything has been read with it.
                    let token = (!self.readings.merging).then(|| self.begin_reading());
                    self.ask(Job::Attach(device, token));
                }
                Effect::Renamed(device) => self.parts.reporter.device_appeared(&device),
                Effect::Detach(device) => {
                    self.attached.remove(&device.ifindex);
                    self.parts
                        .reporter
                        .device_gone(device.ifindex, device.generation);
                    self.ask(Job::Detach(device.ifindex));
                }
                Effect::Resync => self.readings.want("read_outdated"),
                Effect::Anomaly(said) => self.about_anomaly(said),
            }
        }
    }

    fn about_anomaly(&mut self, said: AnomalyEffect) {
        match said {
            AnomalyEffect::Raised(anomaly) => self.anomaly(Change::Raised, &anomaly),
            AnomalyEffect::Resolved(anomaly) => self.anomaly(Change::Resolved, &anomaly),
            AnomalyEffect::ReadPool(pool) => {
                // Where the reader has ended, nothing is raised by books that are too old.
                let _ = self.parts.books.send(pool);
            }
        }
    }

    fn conflict(&mut self, change: Change, conflict: &Conflict) {
        self.parts.reporter.report(change, conflict);
        if let Some(persistence) = &mut self.parts.persistence {
            persistence.conflict_changed(&self.parts.engine, conflict);
        }
    }

    fn anomaly(&mut self, change: Change, anomaly: &Anomaly) {
        self.parts.reporter.report(change, anomaly);
        if let Some(persistence) = &mut self.parts.persistence {
            persistence.anomalies_changed();
        }
    }

    /// Gives the worker a job.
    pub(super) fn ask(&mut self, job: Job) {
        if self.parts.jobs.send(job).is_err() {
            error!("the thread that attaches and reads has ended; the agent stops");
            self.stopping = true;
        }
    }

    /// Tells the open conflicts of these devices again, now that their pods have names.
    pub(super) fn pods_known(&mut self, devices: &[(IfIndex, u64)]) {
        let now = clock::now();
        for conflict in self.parts.engine.conflicts(now) {
            let concerned = conflict.present().any(|c| {
                matches!(c.id, ClaimantId::Device(ifindex, generation) if devices.contains(&(ifindex, generation)))
            });
            if concerned {
                let conflict = Conflict {
                    updated_at: now,
                    decided_at: now,
                    ..conflict
                };
                self.parts.reporter.report(Change::Updated, &conflict);
            }
        }
    }
}
