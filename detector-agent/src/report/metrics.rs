//! The metrics of the Contract, ready to be counted from any thread without a lock on the way of an event.

use std::{
    collections::BTreeSet,
    sync::{Mutex, atomic::AtomicU64},
};

use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram, info::Info},
    registry::{Registry, Unit},
};

use super::event::{Change, ConflictData};

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
    /// Which source of pod names.
    pub via: &'static str,
    /// What came of it.
    pub outcome: &'static str,
}

/// Labels of a delivery.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct Delivery {
    /// Which sink.
    pub sink: String,
    /// What came of it.
    pub outcome: &'static str,
}

/// One label named `sink`.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct Sink {
    /// Its name.
    pub sink: String,
}

/// Labels of one side of an active conflict.
#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub struct ConflictInfo {
    /// The address.
    pub address: String,
    /// The conflict's kind.
    pub kind: String,
    /// The claimant's device.
    pub device: String,
    /// The claimant's pod's namespace, or empty.
    pub namespace: String,
    /// The claimant's pod, or empty.
    pub pod: String,
}

/// Series of `ipconflict_conflict_info` at most; what is beyond is counted.
const CONFLICT_INFO: usize = 1000;

/// Every metric of the Contract. Cheap to share: each one is an atomic, or few of them.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Active conflicts.
    pub active: Family<Kind, Gauge>,
    /// Conflicts raised since the start.
    pub raised: Family<Kind, Counter>,
    /// From the kernel's timestamp to the event.
    pub latency: Histogram,
    /// Claims known now.
    pub claims: Gauge,
    /// Pod devices the programs are attached to.
    pub attached: Gauge,
    /// Observations taken, by kind.
    pub observations: Family<Kind, Counter>,
    /// Observations lost, by reason.
    pub dropped: Family<Reason, Counter>,
    /// Malformed frames, by reason.
    pub rejected: Family<Reason, Counter>,
    /// Snapshots read anew, by reason.
    pub resyncs: Family<Reason, Counter>,
    /// Active anomalies.
    pub anomalies: Family<Kind, Gauge>,
    /// Look-ups of pods.
    pub lookups: Family<Lookup, Counter>,
    /// Deliveries to sinks.
    pub deliveries: Family<Delivery, Counter>,
    /// Events waiting to be delivered.
    pub pending: Family<Sink, Gauge>,
    info: Family<ConflictInfo, Gauge>,
    info_overflow: Gauge,
    shown: Mutex<BTreeSet<(String, ConflictInfo)>>,
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
        let mut registry = Registry::with_prefix("ipconflict");
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
            "From the kernel's timestamp of the deciding observation to the event",
            Unit::Seconds,
            latency.clone(),
        );
        let metrics = Self {
            active: metric!(
                "conflicts_active",
                "Conflicts that are active now",
                Family::default()
            ),
            raised: metric!(
                "conflicts_raised",
                "Conflicts raised since the agent started",
                Family::default()
            ),
            claims: metric!(
                "claims",
                "Claims known now, one for each address and device",
                Gauge::default()
            ),
            attached: metric!(
                "devices_attached",
                "Pod devices the programs are attached to",
                Gauge::default()
            ),
            observations: metric!(
                "observations",
                "Observations taken from the kernel",
                Family::default()
            ),
            dropped: metric!(
                "observations_dropped",
                "Observations that were lost",
                Family::default()
            ),
            rejected: metric!(
                "frames_rejected",
                "ARP and NDP frames that were malformed",
                Family::default()
            ),
            resyncs: metric!(
                "resyncs",
                "Times the whole state was read anew",
                Family::default()
            ),
            anomalies: metric!(
                "anomalies_active",
                "Anomalies that are active now",
                Family::default()
            ),
            lookups: metric!(
                "pod_lookups",
                "Look-ups of the pod behind a device",
                Family::default()
            ),
            deliveries: metric!("deliveries", "Deliveries of events", Family::default()),
            pending: metric!(
                "outbox_pending",
                "Events that wait to be delivered",
                Family::default()
            ),
            info: metric!(
                "conflict_info",
                "One side of an active conflict",
                Family::<ConflictInfo, Gauge>::default()
            ),
            info_overflow: metric!(
                "conflict_info_overflow",
                "Sides of active conflicts beyond the bound of ipconflict_conflict_info",
                Gauge::default()
            ),
            latency,
            shown: Mutex::default(),
            registry,
        };
        for kind in crate::detect::ConflictKind::ALL {
            drop(metrics.active.get_or_create(&Kind { kind: kind.name() }));
            drop(metrics.raised.get_or_create(&Kind { kind: kind.name() }));
        }
        metrics
    }

    /// Sets a counter that is kept elsewhere (in the kernel) to its present value.
    pub fn set_total(counter: &Counter<u64, AtomicU64>, total: u64) {
        counter.inc_by(total.saturating_sub(counter.get()));
    }

    /// Counts an event about a conflict. The histogram takes only what is raised: later changes have their own pace.
    pub fn conflict(&self, change: Change, data: &ConflictData, kind: &'static str) {
        if change == Change::Raised {
            self.raised.get_or_create(&Kind { kind }).inc();
            #[allow(clippy::cast_precision_loss)] // microseconds up to 2^52 are exact
            self.latency.observe(data.latency_us as f64 / 1e6);
        }
        self.show(change, data);
    }

    fn show(&self, change: Change, data: &ConflictData) {
        // A panic while it was held leaves a set that is still a set.
        let mut shown = self
            .shown
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let old: Vec<_> = shown
            .iter()
            .filter(|(id, _)| *id == data.conflict_id)
            .cloned()
            .collect();
        for entry in old {
            self.info.remove(&entry.1);
            shown.remove(&entry);
        }
        if change != Change::Resolved {
            for claimant in data.claimants.iter().filter(|c| c.left.is_none()) {
                let pod = claimant.pod.as_ref();
                let labels = ConflictInfo {
                    address: data.address.clone(),
                    kind: data.kind.clone(),
                    device: claimant.device.clone(),
                    namespace: pod.map(|p| p.namespace.clone()).unwrap_or_default(),
                    pod: pod.map(|p| p.name.clone()).unwrap_or_default(),
                };
                if shown.len() < CONFLICT_INFO {
                    self.info.get_or_create(&labels).set(1);
                }
                shown.insert((data.conflict_id.clone(), labels));
            }
        }
        let beyond = shown.len().saturating_sub(CONFLICT_INFO);
        self.info_overflow
            .set(i64::try_from(beyond).unwrap_or(i64::MAX));
    }

    /// Everything in the OpenMetrics text format.
    ///
    /// # Errors
    /// Never in practice: writing to a string does not fail.
    pub fn encode(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}
