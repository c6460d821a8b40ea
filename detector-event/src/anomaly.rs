//! An anomaly in events, in the API and in `check`'s JSON; see docs/events.md.

use std::{net::IpAddr, sync::Arc, time::Duration};

use detector_engine::{
    Anomaly, AnomalyCause, AnomalyId, AnomalyKind, IfIndex, Ipam, ResolveReason,
};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

#[cfg(feature = "schema")]
use detector_engine::diagnosis::MAX_TIMELINE;

use super::{
    Guidance, SubjectKind, SubjectState, clean,
    guidance::Severity,
    names::{self, ContractName},
};
#[cfg(feature = "schema")]
use crate::schema;
use crate::{DiagnosisData, Moment, Pod, PodAnswer, TimelineEntry, WallTime};

/// Why an anomaly was resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResolvedBecause {
    /// The engine saw the end.
    Seen(ResolveReason),
    /// It ended while the agent was down, or the event was lost.
    Unseen,
    /// The gateway answered. Only in events that an earlier version stored.
    Answered,
}

impl ContractName for ResolvedBecause {
    const ALL: &'static [Self] = &[
        Self::Seen(ResolveReason::Allocated),
        Self::Seen(ResolveReason::Released),
        Self::Seen(ResolveReason::AddressGone),
        Self::Seen(ResolveReason::InUse),
        Self::Seen(ResolveReason::Quiet),
        Self::Seen(ResolveReason::DeviceGone),
        Self::Seen(ResolveReason::RouteRight),
        Self::Seen(ResolveReason::ContestsFew),
        Self::Seen(ResolveReason::RangeUnique),
        Self::Seen(ResolveReason::MacUnique),
        Self::Seen(ResolveReason::Usable),
        Self::Seen(ResolveReason::InConflict),
        Self::Seen(ResolveReason::NotSeen),
        Self::Unseen,
        Self::Answered,
    ];

    fn contract_name(self) -> &'static str {
        match self {
            Self::Seen(reason) => reason.name(),
            Self::Unseen => "unseen",
            Self::Answered => "answered",
        }
    }
}

/// A finding that is not a conflict yet, as events, the API and `check` show it. What does not apply to its kind is null.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(rename = "Anomaly")
)]
pub struct AnomalyData {
    /// The same from `raised` to `resolved`, restarts of the agent included.
    #[cfg_attr(feature = "schema", schemars(with = "schema::Id"))]
    pub anomaly_id: AnomalyId,
    /// The node's name.
    pub node: Arc<str>,
    /// The cluster's name, if it is configured.
    #[serde(default)]
    pub cluster: Option<String>,
    /// Which kind of anomaly it is.
    #[serde(with = "names::name")]
    #[cfg_attr(feature = "schema", schemars(with = "schema::Name<AnomalyKind>"))]
    pub kind: AnomalyKind,
    /// How urgent it is.
    #[serde(default, with = "names::name")]
    #[cfg_attr(feature = "schema", schemars(with = "schema::Name<Severity>"))]
    pub severity: Severity,
    /// What exactly is wrong.
    #[serde(with = "names::name")]
    #[cfg_attr(feature = "schema", schemars(with = "schema::Name<AnomalyCause>"))]
    pub cause: AnomalyCause,
    /// Whether it is active or resolved.
    pub state: SubjectState,
    /// The address concerned; the gateway's for an unresolved gateway, the first contested one for a sweep.
    pub address: IpAddr,
    /// The VLAN tag, the outer one of two.
    #[cfg_attr(feature = "schema", schemars(range(max = 4095)))]
    pub vlan: Option<u16>,
    /// The pod device that has the address, requests it, or contests it and others.
    pub device: Option<String>,
    /// That device's index.
    #[cfg_attr(feature = "schema", schemars(with = "Option<u32>"))]
    pub ifindex: Option<IfIndex>,
    /// That device's pod.
    pub pod: Option<Arc<Pod>>,
    /// Why `pod` is null although there is a device; for people.
    pub pod_unknown_because: Option<Arc<str>>,
    /// Further devices that have the address.
    #[serde(default)]
    pub also_on: Vec<String>,
    /// The IPAM whose allocations were compared.
    #[serde(default, with = "names::optional_name")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<schema::Name<Ipam>>"))]
    pub ipam: Option<Ipam>,
    /// The network's name in the CNI configuration.
    pub network: Option<String>,
    /// The data directory, file or resource that was read.
    pub source: Option<String>,
    /// The owner that the allocation names.
    pub owner: Option<String>,
    /// How many addresses the device contests; in the resolving event, the most at one time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contested: Option<usize>,
    /// For how many of them the node sends the traffic to the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diverted: Option<usize>,
    /// For how many of them the node sends the traffic to another claimant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<usize>,
    /// The addresses that it has contested for longest, bounded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    /// The range that several nodes have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub range: Option<IpNet>,
    /// The nodes that have the range; in the resolving event, those that had it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// One sentence; for people.
    pub detail: String,
    /// When it was raised.
    pub raised_at: WallTime,
    /// When it was resolved.
    pub resolved_at: Option<WallTime>,
    /// From `raised_at` to `resolved_at`, in seconds.
    #[serde(
        default,
        with = "names::optional_seconds",
        skip_serializing_if = "Option::is_none"
    )]
    #[cfg_attr(feature = "schema", schemars(with = "f64", range(min = 0)))]
    pub duration_seconds: Option<Duration>,
    /// Why it was resolved.
    #[serde(default, with = "names::optional_name")]
    #[cfg_attr(
        feature = "schema",
        schemars(with = "Option<schema::Name<ResolvedBecause>>")
    )]
    pub resolved_because: Option<ResolvedBecause>,
    /// Microseconds from the deciding observation to the creation of the event.
    pub latency_us: u64,
    /// Why it was raised; null until that was looked into.
    #[serde(default)]
    pub diagnosis: Option<Arc<DiagnosisData>>,
    /// What happened around it, oldest first. Absent in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = MAX_TIMELINE)))]
    pub timeline: Option<Arc<[TimelineEntry]>>,
    /// What to do, while it is active.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guidance: Option<Guidance>,
}

impl AnomalyData {
    /// `anomaly` as it is at `moment`, up to which the latency is measured. `pods` looks up the holder's pod.
    #[must_use]
    pub fn new(
        node: &Arc<str>,
        moment: &Moment,
        anomaly: &Anomaly,
        pods: impl Fn(&detector_engine::Claimant) -> PodAnswer,
    ) -> Self {
        let holder = anomaly.holder.as_ref();
        let (pod, pod_unknown_because) = match holder.map(pods) {
            Some(PodAnswer::Known(pod)) => (Some(pod), None),
            Some(PodAnswer::Unknown(because)) => (None, Some(because)),
            None => (None, None),
        };
        let source = anomaly.source.as_deref();
        let latency = moment.monotonic().since(anomaly.decided_at).as_micros();
        let raised_at = moment.wall_at(anomaly.raised_at);
        let resolved_at = anomaly.resolved_at.map(|at| moment.wall_at(at));
        let mut data = Self {
            anomaly_id: anomaly.id,
            node: Arc::clone(node),
            cluster: None,
            kind: anomaly.kind,
            severity: SubjectKind::Anomaly(anomaly.kind).severity(),
            cause: anomaly.cause,
            state: SubjectState::of(anomaly.resolved_at.is_some()),
            address: anomaly.address,
            vlan: anomaly.vlan.outer,
            device: holder.map(|h| h.device.clone()),
            ifindex: holder.map(|h| h.ifindex),
            pod,
            pod_unknown_because,
            also_on: anomaly.also_on.clone(),
            ipam: source.map(|s| s.ipam),
            network: source.map(|s| s.network.clone()),
            source: source.map(|s| s.place.clone()),
            owner: anomaly.owner.as_deref().map(str::to_owned),
            contested: anomaly.contested.as_ref().map(|c| c.count),
            diverted: anomaly.contested.as_ref().map(|c| c.diverted),
            kept: anomaly.contested.as_ref().map(|c| c.kept),
            addresses: (anomaly.contested.as_ref()).map_or_else(Vec::new, |c| c.first.clone()),
            range: anomaly.overlap.as_ref().map(|o| o.range),
            nodes: (anomaly.overlap.as_ref()).map_or_else(Vec::new, |o| o.nodes.clone()),
            detail: clean(&anomaly.detail).into_owned(),
            raised_at,
            resolved_at,
            duration_seconds: resolved_at.map(|at| at.since(raised_at)),
            resolved_because: anomaly.resolve_reason.map(ResolvedBecause::Seen),
            latency_us: u64::try_from(latency).unwrap_or(u64::MAX),
            diagnosis: None,
            timeline: Some(Arc::default()),
            guidance: None,
        };
        data.guidance = Guidance::of_anomaly(&data);
        data
    }

    /// Whether agents look for its cause.
    #[must_use]
    pub fn is_diagnosed(&self) -> bool {
        match self.kind {
            AnomalyKind::IpamDrift | AnomalyKind::GatewayUnresolved | AnomalyKind::RouteAstray => {
                self.device.is_some()
            }
            AnomalyKind::PodCidrOverlap => self.range.is_some(),
            _ => false,
        }
    }

    /// Whether it is about this address, or about one of the devices that have it (`holders`).
    #[must_use]
    pub fn is_about(&self, address: IpAddr, holders: &[IfIndex]) -> bool {
        self.address == address || self.ifindex.is_some_and(|held| holders.contains(&held))
    }

    /// Whether it ended.
    #[must_use]
    pub fn is_resolved(&self) -> bool {
        self.state == SubjectState::Resolved
    }
}
