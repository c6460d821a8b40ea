//! All metrics (see docs/metrics.md), updated from any thread; the series of conflicts and anomalies, which need a lock of
//! their own, after the event line is written.

mod address;
mod claims;
mod info_series;
pub mod labels;
mod process;
mod swept;
mod text_format;

use std::sync::atomic::AtomicU64;

use detector_engine::{AnomalyId, ConflictId, ConflictScope};
use detector_event::{
    AnomalyData, AnyEvent, Change, ConflictData, DiagnosisData, Pod, SubjectId, WallTime, clean,
    summary,
};
use prometheus_client::{
    collector::Collector,
    encoding::text::{encode_eof, encode_registry},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram, info::Info},
    registry::{Registry, Unit},
};

use info_series::{InfoSeries, MetricDescription};
use process::ProcessCollector;
use swept::SweptConflicts;

pub use address::{AddressLabel, AddressLabels};
pub use claims::{ClaimInfo, ClaimSeries};
pub use labels::{
    AnomalyInfo, ConflictInfo, Delivery, Diagnosed, FleetRequest, Kind, KindAndScope, Lookup,
    Reason, Sink,
};
pub use text_format::to_prometheus_text;

/// What the names of the agent's own metrics begin with.
const PREFIX: &str = "ipconflict";

/// The most series of `ipconflict_conflict_info`, of `ipconflict_anomaly_info` and of `ipconflict_alert_info`; what is beyond
/// is counted, except of the last.
pub const INFO_SERIES: usize = 1000;

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
    pub active: Family<KindAndScope, Gauge>,
    /// Conflicts raised since the start.
    pub raised: Family<Kind, Counter>,
    /// Conflicts resolved since the start.
    pub resolved: Family<Kind, Counter>,
    /// Anomalies raised since the start.
    pub anomalies_raised: Family<Kind, Counter>,
    /// Anomalies resolved since the start.
    pub anomalies_resolved: Family<Kind, Counter>,
    /// From the kernel's timestamp to the event.
    pub latency: Histogram,
    /// From the beginning of a claim on this node to the event about a conflict across nodes.
    pub fleet_latency: Histogram,
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
    /// Requests to the registry of addresses.
    pub fleet_requests: Family<FleetRequest, Counter>,
    /// What this node has registered there.
    pub fleet_claims: Gauge,
    /// Devices with addresses that are not looked up there.
    pub fleet_overflow: Gauge,
    /// 1 while addresses are not compared there, although they should be.
    pub fleet_blind: Gauge,
    /// Diagnoses, by cause.
    pub diagnoses: Family<Diagnosed, Counter>,
    /// From the raise of a conflict or an anomaly to its first diagnosis.
    pub diagnosis_time: Histogram,
    started: WallTime,
    swept: SweptConflicts,
    conflict_info: InfoSeries<ConflictId, ConflictInfo>,
    anomaly_info: InfoSeries<AnomalyId, AnomalyInfo>,
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
    /// conflicts and the anomalies are only counted, as if the bounds of their series were zero.
    #[must_use]
    pub fn with_detail(detail: bool) -> Self {
        // The metrics of the process have standard names; all others have the prefix.
        let mut root = Registry::default();
        root.register_collector(Box::new(ProcessCollector::new()));
        let registry = root.sub_registry_with_prefix(PREFIX);
        let conflict_info = InfoSeries::new(
            MetricDescription {
                name: "conflict_info",
                help: "Always 1, for each claimant of an active conflict.",
            },
            MetricDescription {
                name: "conflict_info_overflow",
                help: "Number of claimants of active conflicts without a series in ipconflict_conflict_info, because of its bound or of the bound on listed claimants.",
            },
            INFO_SERIES,
        );
        registry.register_collector(Box::new(conflict_info.clone()));
        let anomaly_info = InfoSeries::new(
            MetricDescription {
                name: "anomaly_info",
                help: "Always 1, for each active anomaly.",
            },
            MetricDescription {
                name: "anomaly_info_overflow",
                help: "Number of active anomalies without a series in ipconflict_anomaly_info, because of its bound.",
            },
            INFO_SERIES,
        );
        registry.register_collector(Box::new(anomaly_info.clone()));
        macro_rules! metric {
            ($name:literal, $help:literal, $metric:expr) => {{
                let metric = $metric;
                registry.register($name, $help, metric.clone());
                metric
            }};
        }
        registry.register(
            "build",
            "Always 1, with the agent's version as a label",
            Info::new([("version", env!("CARGO_PKG_VERSION"))]),
        );
        let swept = SweptConflicts::default();
        registry.register(
            "conflicts_swept",
            "Number of active conflicts that are part of an address sweep",
            swept.gauge.clone(),
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
        let fleet_latency = Histogram::new([
            5e-3, 10e-3, 20e-3, 50e-3, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 15.0, 30.0, 60.0,
        ]);
        registry.register_with_unit(
            "fleet_latency",
            "Time from the beginning of the claim on this node to the creation of the event about a conflict across nodes",
            Unit::Seconds,
            fleet_latency.clone(),
        );
        let diagnosis_time = Histogram::new([
            0.1, 0.3, 0.4, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0,
        ]);
        registry.register_with_unit(
            "diagnosis",
            "Time from the raise of a conflict or an anomaly to its first diagnosis",
            Unit::Seconds,
            diagnosis_time.clone(),
        );
        let metrics = Self {
            active: metric!(
                "conflicts_active",
                "Number of active conflicts",
                Family::default()
            ),
            raised: metric!(
                "conflicts_raised",
                "Total number of conflicts raised since the agent started",
                Family::default()
            ),
            resolved: metric!(
                "conflicts_resolved",
                "Total number of conflicts resolved since the agent started",
                Family::default()
            ),
            anomalies_raised: metric!(
                "anomalies_raised",
                "Total number of anomalies raised since the agent started",
                Family::default()
            ),
            anomalies_resolved: metric!(
                "anomalies_resolved",
                "Total number of anomalies resolved since the agent started",
                Family::default()
            ),
            claims: metric!(
                "claims",
                "Number of live claims of pod devices: one for each address, VLAN and device, without the node's own addresses",
                Gauge::default()
            ),
            claimed_overflow: metric!(
                "claimed_addresses_overflow",
                "Number of claimed addresses that the eBPF programs do not know, because a bound is reached",
                Gauge::default()
            ),
            attached: metric!(
                "devices_attached",
                "Number of pod devices that the eBPF program is attached to",
                Gauge::default()
            ),
            preempted: metric!(
                "devices_preempted",
                "Number of pod devices on which another program's filter runs before the agent's, or the agent's cannot be reattached",
                Gauge::default()
            ),
            observations: metric!(
                "observations",
                "Total number of observations received from the kernel",
                Family::default()
            ),
            dropped: metric!(
                "observations_dropped",
                "Total number of observations that were lost, or dropped at a bound",
                Family::default()
            ),
            rejected: metric!(
                "frames_rejected",
                "Total number of malformed ARP and NDP frames",
                Family::default()
            ),
            kernel_log_suppressed: metric!(
                "kernel_log_suppressed",
                "Total number of kernel log records (--kernel-log) suppressed by a rate limit or a full buffer",
                Counter::default()
            ),
            resyncs: metric!(
                "resyncs",
                "Total number of snapshots of the kernel state, most of them taken after a loss",
                Family::default()
            ),
            anomalies: metric!(
                "anomalies_active",
                "Number of active anomalies",
                Family::default()
            ),
            lookups: metric!(
                "pod_lookups",
                "Total number of lookups of the pod behind a device",
                Family::default()
            ),
            deliveries: metric!(
                "deliveries",
                "Total number of events and attempts at each sink, by outcome",
                Family::default()
            ),
            pending: metric!(
                "outbox_pending",
                "Number of events that wait for delivery, without the parked ones",
                Family::default()
            ),
            parked: metric!(
                "outbox_parked",
                "Number of events that the receiver rejected, and of later ones of the same conflicts, which are tried again from time to time",
                Family::default()
            ),
            fleet_requests: metric!(
                "fleet_requests",
                "Total number of requests to the Kubernetes API for the comparison of addresses across nodes, by outcome",
                Family::default()
            ),
            fleet_claims: metric!(
                "fleet_claims",
                "Number of addresses and ranges that this node has registered in the Kubernetes API",
                Gauge::default()
            ),
            fleet_overflow: metric!(
                "fleet_devices_overflow",
                "Number of pod devices with more addresses of their own than are compared with other nodes",
                Gauge::default()
            ),
            fleet_blind: metric!(
                "fleet_blind",
                "Whether the addresses of this node should be compared with other nodes and are not",
                Gauge::default()
            ),
            diagnoses: metric!(
                "diagnoses",
                "Total number of diagnoses of conflicts and anomalies, each counted again when it changes",
                Family::default()
            ),
            latency,
            fleet_latency,
            diagnosis_time,
            started: WallTime::now(),
            swept,
            conflict_info,
            anomaly_info,
            detail,
            registry: root,
        };
        for labels in KindAndScope::all() {
            drop(metrics.active.get_or_create(&labels));
            drop(metrics.swept.gauge.get_or_create(&labels));
        }
        for kind in detector_engine::ConflictKind::ALL {
            drop(metrics.raised.get_or_create(&kind.into()));
            drop(metrics.resolved.get_or_create(&kind.into()));
        }
        for kind in detector_engine::AnomalyKind::ALL {
            drop(metrics.anomalies.get_or_create(&kind.into()));
            drop(metrics.anomalies_raised.get_or_create(&kind.into()));
            drop(metrics.anomalies_resolved.get_or_create(&kind.into()));
        }
        metrics
    }

    /// Sets a counter to the value of one that is counted elsewhere (in the kernel).
    pub fn set_total(counter: &Counter<u64, AtomicU64>, total: u64) {
        counter.inc_by(total.saturating_sub(counter.get()));
    }

    /// Counts the outcome of events for a sink.
    pub fn count_deliveries(&self, sink: &str, outcome: &'static str, events: u64) {
        let labels = Delivery::new(sink, outcome);
        self.deliveries.get_or_create(&labels).inc_by(events);
    }

    /// Sets how many events wait for a sink, and how many are parked.
    pub fn set_queue(&self, sink: &str, pending: usize, parked: usize) {
        let labels = Sink {
            sink: sink.to_owned(),
        };
        self.pending
            .get_or_create(&labels)
            .set(gauge_value(pending));
        self.parked.get_or_create(&labels).set(gauge_value(parked));
    }

    /// Counts a diagnosis of what an event is about. Its time is measured if it is the first one, and not of what an earlier run of
    /// the agent raised.
    pub fn count_diagnosis(&self, event: &AnyEvent, diagnosis: &DiagnosisData, is_first: bool) {
        let labels = Diagnosed::new(diagnosis.cause, diagnosis.confidence);
        self.diagnoses.get_or_create(&labels).inc();
        let raised_at = match event {
            AnyEvent::Conflict(event) => event.data.raised_at,
            AnyEvent::Anomaly(event) => event.data.raised_at,
        };
        if is_first && raised_at >= self.started {
            let time = WallTime::now().since(raised_at);
            self.diagnosis_time.observe(time.as_secs_f64());
        }
    }

    /// These, and those of `collector`.
    #[must_use]
    pub fn with_collector(mut self, collector: impl Collector) -> Self {
        let registry = self.registry.sub_registry_with_prefix(PREFIX);
        registry.register_collector(Box::new(collector));
        self
    }

    /// Counts an event, and shows its conflict or anomaly in the series of active ones. The latency histogram takes only
    /// raised conflicts: later changes have latencies of their own.
    pub fn count_event(&self, event: &AnyEvent) {
        match event {
            AnyEvent::Conflict(event) => {
                let data = &event.data;
                let change = event.event_type.change;
                count_change(change, data.kind, &self.raised, &self.resolved);
                if change == Change::Raised {
                    let latency = match data.scope {
                        ConflictScope::Node => &self.latency,
                        ConflictScope::Fleet => &self.fleet_latency,
                    };
                    #[allow(clippy::cast_precision_loss)] // microseconds up to 2^52 are exact
                    latency.observe(data.latency_us as f64 / 1e6);
                }
                self.set_conflict_info(data);
            }
            AnyEvent::Anomaly(event) => {
                let (change, kind) = (event.event_type.change, event.data.kind);
                count_change(
                    change,
                    kind,
                    &self.anomalies_raised,
                    &self.anomalies_resolved,
                );
                self.set_anomaly_info(&event.data);
            }
        }
    }

    fn set_conflict_info(&self, data: &ConflictData) {
        self.swept.update(data);
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
        let sweep = data.sweep.map(|id| SubjectId::from(id).to_string());
        let sweep = sweep.unwrap_or_default();
        let cause = cause_label(data.diagnosis.as_deref());
        let series = present.into_iter().map(|claimant| {
            let (namespace, pod) = pod_labels(claimant.pod.as_deref());
            ConflictInfo {
                address: address.clone(),
                kind: data.kind.name(),
                device: clean(&summary::device(data.scope, claimant)).into_owned(),
                namespace,
                pod,
                sweep: sweep.clone(),
                cause,
            }
        });
        self.conflict_info
            .set(data.conflict_id, series, data.claimants_omitted);
    }

    fn set_anomaly_info(&self, data: &AnomalyData) {
        if data.is_resolved() {
            self.anomaly_info.remove(data.anomaly_id);
            return;
        }
        let series = self.detail.then(|| {
            let (namespace, pod) = pod_labels(data.pod.as_deref());
            AnomalyInfo {
                address: data.address.into(),
                vlan: data.vlan.map(|vlan| vlan.to_string()).unwrap_or_default(),
                kind: data.kind.name(),
                device: clean(data.device.as_deref().unwrap_or_default()).into_owned(),
                namespace,
                pod,
                cause: cause_label(data.diagnosis.as_deref()),
            }
        });
        let unlisted = usize::from(series.is_none());
        self.anomaly_info
            .set(data.anomaly_id, series.into_iter(), unlisted);
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

/// The labels `namespace` and `pod`.
/// Empty while the cause is not known.
fn cause_label(diagnosis: Option<&DiagnosisData>) -> &'static str {
    let known = diagnosis.filter(|diagnosis| diagnosis.has_cause());
    known.map_or("", |known| known.cause.name())
}

fn pod_labels(pod: Option<&Pod>) -> (String, String) {
    pod.map(|pod| (pod.namespace.clone(), pod.name.clone()))
        .unwrap_or_default()
}

fn count_change(
    change: Change,
    kind: impl Into<Kind>,
    raised: &Family<Kind, Counter>,
    resolved: &Family<Kind, Counter>,
) {
    let counter = match change {
        Change::Raised => raised,
        Change::Updated => return,
        Change::Resolved => resolved,
    };
    counter.get_or_create(&kind.into()).inc();
}

#[cfg(test)]
mod tests;
