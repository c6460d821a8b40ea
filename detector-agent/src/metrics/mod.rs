//! All metrics (see docs/metrics.md), updated from any thread; `conflict_info`, which needs a lock of its own, after the event
//! line is written.

mod address;
mod claims;
mod conflict_info;
mod process;

use std::sync::atomic::AtomicU64;

use prometheus_client::{
    encoding::{
        EncodeLabelSet,
        text::{encode_eof, encode_registry},
    },
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram, info::Info},
    registry::{Registry, Unit},
};

use crate::event::{AnyEvent, Change};
use conflict_info::ConflictInfoSeries;
use process::ProcessCollector;

pub use address::{AddressLabel, AddressLabels};
pub use claims::{ClaimInfo, ClaimSeries};
pub use conflict_info::ConflictInfo;

/// One label named `kind`.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct Kind {
    /// Its value.
    pub kind: &'static str,
}

/// One label named `reason`.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct Reason {
    /// Its value.
    pub reason: &'static str,
}

/// Labels of an outcome by source.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct Lookup {
    /// Which source of pods.
    pub via: &'static str,
    /// The outcome.
    pub outcome: &'static str,
}

/// Labels of a delivery.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct Delivery {
    /// Which sink.
    pub sink: String,
    /// The outcome.
    pub outcome: &'static str,
}

/// One label named `sink`.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct Sink {
    /// Its name.
    pub sink: String,
}

/// The most series of `ipconflict_conflict_info`; claimants beyond are counted.
const CONFLICT_INFO: usize = 1000;

/// A count as the value of a gauge.
#[must_use]
pub fn gauge_value(count: usize) -> i64 {
    count.try_into().unwrap_or(i64::MAX)
}

/// Every metric. Cheap to share: each one is an atomic, or few of them.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Active conflicts.
    pub active: Family<Kind, Gauge>,
    /// Conflicts raised since the start.
    pub raised: Family<Kind, Counter>,
    /// From the kernel's timestamp to the event.
    pub latency: Histogram,
    /// Live claims of pod devices.
    pub claims: Gauge,
    /// Claimed addresses that the kernel programs do not know.
    pub claimed_overflow: Gauge,
    /// Pod devices the programs are attached to.
    pub attached: Gauge,
    /// Pod devices on which the program may miss frames.
    pub preempted: Gauge,
    /// Observations, by kind.
    pub observations: Family<Kind, Counter>,
    /// Observations lost, by reason.
    pub dropped: Family<Reason, Counter>,
    /// Malformed frames, by reason.
    pub rejected: Family<Reason, Counter>,
    /// Kernel log records that were suppressed.
    pub kernel_log_suppressed: Counter,
    /// Resyncs, by reason.
    pub resyncs: Family<Reason, Counter>,
    /// Active anomalies.
    pub anomalies: Family<Kind, Gauge>,
    /// Pod lookups.
    pub lookups: Family<Lookup, Counter>,
    /// Deliveries to sinks.
    pub deliveries: Family<Delivery, Counter>,
    /// Queued events, by sink; without the parked ones.
    pub pending: Family<Sink, Gauge>,
    /// Rejected events and those that wait behind them, by sink.
    pub parked: Family<Sink, Gauge>,
    conflict_info: ConflictInfoSeries,
    detail: bool,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// All metrics at zero.
    #[must_use]
    pub fn new() -> Self {
        Self::with_detail(true)
    }

    /// All metrics at zero. Without `detail` none of them names an address, a device or a pod: the claimants of
    /// conflicts are only counted, as if the bound of their series were zero.
    #[must_use]
    pub fn with_detail(detail: bool) -> Self {
        // The metrics of the process have standard names; all others have the prefix.
        let mut root = Registry::default();
        root.register_collector(Box::new(ProcessCollector::new()));
        let registry = root.sub_registry_with_prefix("ipconflict");
        let conflict_info = ConflictInfoSeries::new(CONFLICT_INFO);
        registry.register_collector(Box::new(conflict_info.clone()));
        macro_rules! metric {
            ($name:literal, $help:literal, $metric:expr) => {{
                let metric = $metric;
                registry.register($name, $help, metric.clone());
                metric
            }};
        }
        registry.register(
            "build",
            "The agent's version",
            Info::new([("version", env!("CARGO_PKG_VERSION"))]),
        );
        let latency = Histogram::new([
            20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 50e-3, 250e-3, 1.0,
        ]);
        registry.register_with_unit(
            "detection_latency",
            "Time from the kernel's timestamp of the deciding observation to the creation of the event",
            Unit::Seconds,
            latency.clone(),
        );
        let metrics = Self {
            active: metric!("conflicts_active", "Active conflicts", Family::default()),
            raised: metric!(
                "conflicts_raised",
                "Conflicts raised since the agent started",
                Family::default()
            ),
            claims: metric!(
                "claims",
                "Live claims of pod devices: one for each address, VLAN and device, without the node's own addresses",
                Gauge::default()
            ),
            claimed_overflow: metric!(
                "claimed_addresses_overflow",
                "Claimed addresses that the kernel programs do not know, because a bound is reached",
                Gauge::default()
            ),
            attached: metric!(
                "devices_attached",
                "Pod devices the programs are attached to",
                Gauge::default()
            ),
            preempted: metric!(
                "devices_preempted",
                "Pod devices on which another program's filter runs before the agent's, or the agent's cannot be reattached",
                Gauge::default()
            ),
            observations: metric!(
                "observations",
                "Observations received from the kernel",
                Family::default()
            ),
            dropped: metric!(
                "observations_dropped",
                "Lost observations",
                Family::default()
            ),
            rejected: metric!(
                "frames_rejected",
                "Malformed ARP and NDP frames",
                Family::default()
            ),
            kernel_log_suppressed: metric!(
                "kernel_log_suppressed",
                "Kernel log records (--kernel-log) suppressed by a rate limit or a full buffer",
                Counter::default()
            ),
            resyncs: metric!(
                "resyncs",
                "Snapshots of the kernel state taken after a loss",
                Family::default()
            ),
            anomalies: metric!("anomalies_active", "Active anomalies", Family::default()),
            lookups: metric!(
                "pod_lookups",
                "Lookups of the pod behind a device",
                Family::default()
            ),
            deliveries: metric!("deliveries", "Deliveries of events", Family::default()),
            pending: metric!(
                "outbox_pending",
                "Events waiting for delivery",
                Family::default()
            ),
            parked: metric!(
                "outbox_parked",
                "Events that the receiver rejected, and later ones of the same conflicts; they are tried again from time to time",
                Family::default()
            ),
            latency,
            conflict_info,
            detail,
            registry: root,
        };
        for kind in crate::engine::ConflictKind::ALL {
            drop(metrics.active.get_or_create(&Kind { kind: kind.name() }));
            drop(metrics.raised.get_or_create(&Kind { kind: kind.name() }));
        }
        for kind in crate::engine::AnomalyKind::ALL {
            drop(metrics.anomalies.get_or_create(&Kind { kind: kind.name() }));
        }
        metrics
    }

    /// Sets a counter to the value of one that is counted elsewhere (in the kernel).
    pub fn set_total(counter: &Counter<u64, AtomicU64>, total: u64) {
        counter.inc_by(total.saturating_sub(counter.get()));
    }

    /// Counts the outcome of events for a sink.
    pub fn count_deliveries(&self, sink: &str, outcome: &'static str, events: u64) {
        let labels = Delivery {
            sink: sink.to_owned(),
            outcome,
        };
        self.deliveries.get_or_create(&labels).inc_by(events);
    }

    /// Shows how many events wait for a sink, and how many are parked.
    pub fn show_queue(&self, sink: &str, pending: usize, parked: usize) {
        let labels = Sink {
            sink: sink.to_owned(),
        };
        self.pending
            .get_or_create(&labels)
            .set(gauge_value(pending));
        self.parked.get_or_create(&labels).set(gauge_value(parked));
    }

    /// Counts an event and shows its conflict in `ipconflict_conflict_info`. The latency histogram takes only raised
    /// conflicts: later changes have latencies of their own.
    pub fn count_event(&self, event: &AnyEvent) {
        let AnyEvent::Conflict(event) = event else {
            return;
        };
        let data = &event.data;
        if event.event_type.change == Change::Raised {
            let kind = data.kind.name();
            self.raised.get_or_create(&Kind { kind }).inc();
            #[allow(clippy::cast_precision_loss)] // microseconds up to 2^52 are exact
            self.latency.observe(data.latency_us as f64 / 1e6);
        }
        if data.is_resolved() {
            self.conflict_info.remove(data.conflict_id);
            return;
        }
        if !self.detail {
            let claimants = data.present().count() + data.claimants_omitted;
            self.conflict_info
                .set(data.conflict_id, std::iter::empty(), claimants);
            return;
        }
        // The receiver of the traffic gets a series first.
        let receiver = data.traffic_goes_to.as_deref();
        let mut present: Vec<_> = data.present().collect();
        present.sort_by_key(|claimant| Some(claimant.device.as_str()) != receiver);
        let vlan = (data.vlan, data.inner_vlan);
        let address = AddressLabels::new(data.address, &data.network, vlan);
        let series = present.into_iter().map(|claimant| {
            let pod = claimant.pod.as_ref();
            ConflictInfo {
                address: address.clone(),
                kind: data.kind.name(),
                device: claimant.device.clone(),
                namespace: pod.map(|p| p.namespace.clone()).unwrap_or_default(),
                pod: pod.map(|p| p.name.clone()).unwrap_or_default(),
            }
        });
        self.conflict_info
            .set(data.conflict_id, series, data.claimants_omitted);
    }

    /// Everything in the OpenMetrics text format, with the claims of this node if they are exported.
    ///
    /// # Errors
    /// Never in practice: writing to a string does not fail.
    pub fn encode(&self, claims: Option<ClaimSeries>) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        encode_registry(&mut text, &self.registry)?;
        if let Some(claims) = claims {
            claims.encode_into(&mut text)?;
        }
        encode_eof(&mut text)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests;
