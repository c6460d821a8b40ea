//! What is looked at once a second, never on the way of an event: losses in the kernel, gauges, health, what is kept.

use std::time::Duration;

use tracing::warn;

use super::EventLoop;
use crate::{
    engine::{AnomalyKind, ConflictKind, Timestamp},
    health::Situation,
    metrics::{Kind, Metrics, Reason},
    observe::ebpf::CounterValues,
};

/// How often.
const EVERY: Duration = Duration::from_secs(1);

impl EventLoop {
    pub(super) fn tick(&mut self, now: Timestamp) {
        self.next_housekeeping = now + EVERY;
        self.tell_health(now);
        if let Some(persistence) = &mut self.parts.persistence {
            persistence.tick(&self.parts.engine, now);
        }
        self.look_for_losses_in_the_kernel();
        self.set_engine_losses();
        self.set_gauges();
        if self.parts.readiness.is_ready() {
            let engine = &self.parts.engine;
            self.parts
                .reporter
                .catch_up(|| (engine.conflicts(now), engine.anomalies()));
        }
    }

    fn tell_health(&mut self, now: Timestamp) {
        let situation = Situation {
            devices: self.parts.engine.devices().len(),
            attached: self.attached.len(),
            attaching: self.attaching,
            has_snapshot: self.readings.first_done,
            snapshot_in_flight: self.readings.under_way.is_some(),
            resync: self.readings.wanted,
        };
        self.parts.health.update(now, &situation);
    }

    /// The kernel programs cannot say that they lost something; their counters do.
    fn look_for_losses_in_the_kernel(&mut self) {
        let Some((_, counters)) = &self.parts.ring else {
            return;
        };
        let counts = match counters.read() {
            Ok(counts) => counts,
            Err(error) => {
                // AnomalyEffect once, not every second.
                if !self.counters_in_trouble {
                    warn!("{error}; until they can, what the programs lose is not noticed");
                }
                self.counters_in_trouble = true;
                return;
            }
        };
        self.counters_in_trouble = false;
        publish(&counts, &self.parts.metrics);
        let lost = counts.losses();
        if lost.ring_full > self.lost_in_kernel.ring_full {
            self.readings.want("ring_full");
        } else if lost.neighbour_budget > self.lost_in_kernel.neighbour_budget {
            self.readings.want("neighbour_budget");
        }
        self.lost_in_kernel = lost;
    }

    fn set_engine_losses(&self) {
        let engine = &self.parts.engine;
        let losses = engine.drop_counters();
        for (reason, total) in [
            ("claims_per_device", losses.claims),
            ("links", losses.links),
            ("kernel_entries", losses.kernel_entries),
            ("open_conflicts", losses.conflicts),
            ("open_anomalies", engine.anomalies_refused()),
            ("unknown_device", losses.unknown_device),
        ] {
            let dropped = &self.parts.metrics.dropped;
            Metrics::set_total(&dropped.get_or_create(&Reason { reason }), total);
        }
    }

    fn set_gauges(&self) {
        let (engine, metrics) = (&self.parts.engine, &self.parts.metrics);
        for kind in ConflictKind::ALL {
            let label = Kind { kind: kind.name() };
            let gauge = metrics.active.get_or_create(&label);
            gauge.set(gauge_value(engine.open_conflicts(kind)));
        }
        for kind in AnomalyKind::ALL {
            let label = Kind { kind: kind.name() };
            let gauge = metrics.anomalies.get_or_create(&label);
            gauge.set(gauge_value(engine.open_anomalies(kind)));
        }
        metrics.attached.set(gauge_value(self.attached.len()));
        metrics.claims.set(gauge_value(engine.address_count()));
    }
}

fn gauge_value(count: usize) -> i64 {
    count.try_into().unwrap_or(i64::MAX)
}

/// The kernel programs' counters as metrics.
fn publish(counts: &CounterValues, metrics: &Metrics) {
    // Claims by frames are counted where they are seen first; what was published comes up as an observation.
    for (kind, total) in counts.known() {
        let kind = match kind {
            "arp" => "arp_known",
            "ndp" => "ndp_known",
            _ => "neighbour_known",
        };
        Metrics::set_total(&metrics.observations.get_or_create(&Kind { kind }), total);
    }
    for (reason, total) in counts.dropped() {
        Metrics::set_total(&metrics.dropped.get_or_create(&Reason { reason }), total);
    }
    for (reason, total) in counts.rejected() {
        Metrics::set_total(&metrics.rejected.get_or_create(&Reason { reason }), total);
    }
}
