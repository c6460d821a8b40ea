//! Applies the effects of the engine: gauges, events, jobs for the kernel worker, reads of IPAM pools.

use std::net::IpAddr;

use detector_engine::{
    Anomaly, AnomalyEffect, AnomalyKind, BoundReached, Conflict, ConflictKind, Effect,
    RereadReason, Timestamp,
};
use detector_event::{Change, SubjectId};
use tracing::{error, warn};

use super::{Core, device_jobs::DeviceJob};
use crate::{metrics::gauge_value, observe::worker::WorkerJob, process::clock};

/// Called once for each device and bound, not for each drop.
fn log_bound(reached: &BoundReached) {
    let BoundReached {
        device,
        bound,
        limit,
    } = reached;
    let bound = bound.name();
    match device {
        Some(device) => warn!(
            device = device.name,
            bound,
            limit,
            "bound reached, further ones are dropped until there is room (docs/limits.md)"
        ),
        None => warn!(
            bound,
            limit, "bound reached, further ones are dropped until there is room (docs/limits.md)"
        ),
    }
}

impl Core {
    /// Applies the pending effects, in order.
    pub(super) fn apply_effects(&mut self) {
        let effects = std::mem::take(&mut self.effects);
        // First: a reader of an event finds it counted.
        self.set_active_gauges(&effects);
        for effect in effects {
            match effect {
                Effect::Raised(conflict) => self.report(Change::Raised, &conflict),
                Effect::Updated(conflict) => self.report(Change::Updated, &conflict),
                Effect::Resolved(conflict) => self.report(Change::Resolved, &conflict),
                Effect::Attach(device) => {
                    self.outputs.reporter.device_appeared(&device);
                    // A device found by a snapshot of the node has been read with it.
                    let reads = !self.resync.is_merging;
                    self.start_device_job(DeviceJob::Attach(device, reads));
                }
                Effect::Renamed(device) => {
                    self.outputs.reporter.device_appeared(&device);
                    // An attach under the old name may have failed, or may still be queued.
                    self.start_device_job(DeviceJob::Attach(device, false));
                }
                Effect::Detach { device, was_up } => {
                    self.attached.remove(&device.ifindex);
                    self.outputs
                        .reporter
                        .device_gone(device.ifindex, device.generation);
                    let ifindex = device.ifindex;
                    self.start_device_job(DeviceJob::Detach { ifindex, was_up });
                }
                Effect::Resync => self.request_resync("read_outdated"),
                Effect::Corrected(discrepancy) => self.report_discrepancy(&discrepancy),
                Effect::ReadDevice(device) => self.start_device_job(DeviceJob::Read(device)),
                Effect::ReadNode(reason) => self.request_resync(match reason {
                    RereadReason::Room => "room",
                    RereadReason::LateBridge => "late_bridge",
                    RereadReason::VlanFiltering => "vlan_filtering",
                }),
                Effect::BoundReached(reached) => log_bound(&reached),
                Effect::Anomaly(effect) => self.apply_anomaly_effect(effect),
            }
        }
    }

    /// Sets the gauges of what is open that `effects` changed.
    fn set_active_gauges(&self, effects: &[Effect]) {
        let is_conflict = |effect: &Effect| {
            matches!(
                effect,
                Effect::Raised(_) | Effect::Updated(_) | Effect::Resolved(_)
            )
        };
        let is_anomaly = |effect: &Effect| {
            matches!(
                effect,
                Effect::Anomaly(AnomalyEffect::Raised(_) | AnomalyEffect::Resolved(_))
            )
        };
        if effects.iter().any(is_conflict) {
            self.set_conflicts_active();
        }
        if effects.iter().any(is_anomaly) {
            self.set_anomalies_active();
        }
    }

    pub(super) fn set_conflicts_active(&self) {
        for (kind, gauge) in ConflictKind::ALL.into_iter().zip(&self.conflicts_active) {
            gauge.set(gauge_value(self.engine.view().open_conflicts(kind)));
        }
    }

    pub(super) fn set_anomalies_active(&self) {
        for kind in AnomalyKind::ALL {
            let gauge = self.outputs.metrics.anomalies.get_or_create(&kind.into());
            let open = match kind {
                AnomalyKind::PodCidrOverlap => self.fleet.count_overlaps(),
                _ => self.engine.view().open_anomalies(kind),
            };
            gauge.set(gauge_value(open));
        }
    }

    fn apply_anomaly_effect(&mut self, effect: AnomalyEffect) {
        match effect {
            AnomalyEffect::Raised(anomaly) => self.report_anomaly(Change::Raised, &anomaly),
            AnomalyEffect::Updated(anomaly) => self.report_anomaly(Change::Updated, &anomaly),
            AnomalyEffect::Resolved(anomaly) => self.report_anomaly(Change::Resolved, &anomaly),
            AnomalyEffect::ReadPool(request) => {
                // If the IPAM watcher has ended, its allocations stay too old to raise anything.
                let _ = self.outputs.pool_reads.send(request);
            }
        }
    }

    /// Reports, if that is news, why an open conflict came about, or an anomaly was raised. That is no detection: the latency stays.
    pub(super) fn report_diagnosis(&mut self, id: SubjectId, address: IpAddr, is_news: bool) {
        let now = clock::now();
        let decided_at = |latency: u64| Timestamp(now.0.saturating_sub(latency));
        let conflicts = self.engine.view().conflicts_of(address, now);
        let conflict = conflicts.into_iter().find(|c| SubjectId::from(c.id) == id);
        if let Some(conflict) = conflict {
            if is_news {
                let diagnosed = Conflict {
                    updated_at: now,
                    decided_at: decided_at(conflict.latency()),
                    ..conflict
                };
                self.report(Change::Updated, &diagnosed);
            }
            return;
        }
        if self.report_fleet_diagnosis(id, is_news) {
            return;
        }
        let ids = self.engine.view().anomaly_ids();
        let mut ids = ids.into_iter().map(|(_, _, anomaly)| anomaly);
        let Some(anomaly) = ids.find(|anomaly| SubjectId::from(*anomaly) == id) else {
            // It ended meanwhile.
            self.outputs.reporter.forget_explanation(id);
            return;
        };
        if !is_news {
            return;
        }
        for anomaly in self.engine.view().anomalies_of(&[anomaly]) {
            // An event of the previous run may have contained it.
            if anomaly.reported_diagnosis == self.outputs.reporter.diagnosis_of(id) {
                continue;
            }
            let latency = anomaly.reported_latency_us.unwrap_or_default() * 1_000;
            let diagnosed = Anomaly {
                decided_at: decided_at(latency),
                ..anomaly
            };
            self.report_anomaly(Change::Updated, &diagnosed);
        }
    }

    fn report(&mut self, change: Change, conflict: &Conflict) {
        let last = self.engine.view().reported(conflict);
        if let Some(reported) = self
            .outputs
            .reporter
            .report_conflict(change, conflict, last)
        {
            self.engine.set_reported(conflict, reported);
        }
        if change != Change::Resolved {
            self.check_conflict(conflict);
        }
        if let Some(persistence) = &mut self.outputs.persistence {
            persistence.conflict_changed(&self.engine, conflict);
        }
        self.mark_conflict(conflict.address);
    }

    fn report_anomaly(&mut self, change: Change, anomaly: &Anomaly) {
        let (latency_us, diagnosis) = self.outputs.reporter.report_anomaly(change, anomaly);
        self.engine
            .set_reported_anomaly(anomaly, latency_us, diagnosis);
        if let Some(persistence) = &mut self.outputs.persistence {
            let mut stored = anomaly.clone();
            stored.reported_latency_us = Some(latency_us);
            stored.reported_diagnosis = diagnosis;
            persistence.anomaly_changed(stored);
        }
    }

    pub(super) fn send_job(&mut self, job: WorkerJob) {
        if !self.outputs.worker_jobs.send(job) {
            error!("kernel worker thread ended unexpectedly; stopping");
            self.stop();
        }
    }
}
