//! A conflict in events, in the API and in `check`'s JSON; see docs/events.md.

use std::{borrow::Cow, net::IpAddr, sync::Arc, time::Duration};

use detector_engine::{
    AnomalyId, Beginning, ClaimantId, Confidence, Conflict, ConflictId, ConflictKind,
    ConflictScope, EvidenceDetail, EvidenceKind, IfIndex, LeaveReason, Mac, Network,
};
use serde::{Deserialize, Serialize};

#[cfg(feature = "schema")]
use detector_engine::diagnosis::MAX_TIMELINE;

use super::{
    ChangedField, Guidance, NewestBy, SubjectKind, SubjectState, guidance::Severity, names,
    next_step::Rights,
};
#[cfg(feature = "schema")]
use crate::schema;
use crate::{DiagnosisData, Moment, Pod, PodAnswer, TimelineEntry, WallTime};

/// An address with more than one claimant, as events, the API and `check` show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(rename = "Conflict")
)]
pub struct ConflictData {
    /// The same from `raised` to `resolved`, restarts of the agent included.
    #[cfg_attr(feature = "schema", schemars(with = "schema::Id"))]
    pub conflict_id: ConflictId,
    /// The node's name.
    pub node: Arc<str>,
    /// The cluster's name, if it is configured.
    #[serde(default)]
    pub cluster: Option<String>,
    /// The address that is claimed.
    pub address: IpAddr,
    /// The network in which the address has to be unique.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(with = "schema::NetworkName"))]
    pub network: Network,
    /// The VLAN tag, the outer one of two.
    #[cfg_attr(feature = "schema", schemars(range(max = 4095)))]
    pub vlan: Option<u16>,
    /// The inner one of two VLAN tags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(max = 4095)))]
    pub inner_vlan: Option<u16>,
    /// Which kind of conflict it is.
    #[serde(with = "names::name")]
    #[cfg_attr(feature = "schema", schemars(with = "schema::Name<ConflictKind>"))]
    pub kind: ConflictKind,
    /// How urgent it is.
    #[serde(default, with = "names::name")]
    #[cfg_attr(feature = "schema", schemars(with = "schema::Name<Severity>"))]
    pub severity: Severity,
    /// Whether the claimants are on this node or on several nodes.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(with = "schema::Name<ConflictScope>"))]
    pub scope: ConflictScope,
    /// How certain the evidence is.
    #[serde(with = "names::name")]
    #[cfg_attr(feature = "schema", schemars(with = "schema::Name<Confidence>"))]
    pub confidence: Confidence,
    /// Whether it is active or resolved.
    pub state: SubjectState,
    /// When it was raised.
    pub raised_at: WallTime,
    /// When it last changed.
    pub updated_at: WallTime,
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
    /// In an updating event: what differs from the previous event about the conflict.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<ChangedField>,
    /// Microseconds from the kernel's timestamp of the deciding observation to the creation of the event.
    pub latency_us: u64,
    /// The device to which the node sends packets for the address.
    pub traffic_goes_to: Option<String>,
    /// The claimants; those that left follow with the reason.
    pub claimants: Vec<ClaimantData>,
    /// How many claimants are present beyond the bound of the list.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub claimants_omitted: usize,
    /// How often it began again within a minute of its end.
    #[serde(default, skip_serializing_if = "is_never")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub repeats: u32,
    /// When a conflict that has begun again ended; it is resolved unless it begins again soon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quiet_since: Option<WallTime>,
    /// The `anomaly_id` of the address sweep that the conflict is part of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "schema::Id"))]
    pub sweep: Option<AnomalyId>,
    /// Why it came about; null until that was looked into.
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

/// A device that claims the address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(rename = "Claimant")
)]
pub struct ClaimantData {
    /// The name of its node. Empty in events that an earlier version stored.
    #[serde(default)]
    pub node: Arc<str>,
    /// The node's end of the pod's interface, or one of the node's own.
    pub device: String,
    /// The device's index.
    #[cfg_attr(feature = "schema", schemars(with = "u32"))]
    pub ifindex: IfIndex,
    /// The MAC address of its newest evidence.
    #[serde(default, with = "names::optional_mac")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<schema::MacAddress>"))]
    pub mac: Option<Mac>,
    /// The bridge or other switch that the device is a port of.
    pub master: Option<String>,
    /// When the oldest of its evidence was first seen; null if it may be older than what the agent knows.
    pub since: Option<WallTime>,
    /// Why `since` is null; for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_unknown_because: Option<Cow<'static, str>>,
    /// Present and true if it is known to be the newest claimant; then `newest_by` is present as well.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub newest: bool,
    /// How that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newest_by: Option<NewestBy>,
    /// Present and true if it is the node itself, which has the address on `device`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_node: bool,
    /// Whether a record of the container runtime, the network plugin or IPAM gives the address to its pod. Absent if no record is
    /// known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rightful: Option<bool>,
    /// Whether IPAM has allocated the address to its pod. Absent if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocated: Option<bool>,
    /// Present and true if frames and neighbour entries are all that can show the claim, because the pod's stack is not the kernel's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub own_stack: bool,
    /// Its pod.
    pub pod: Option<Arc<Pod>>,
    /// Why `pod` is null; for people.
    pub pod_unknown_because: Option<Arc<str>>,
    /// What supports the claim.
    pub evidence: Vec<EvidenceData>,
    /// Why it is no longer a claimant.
    #[serde(
        default,
        with = "names::optional_name",
        skip_serializing_if = "Option::is_none"
    )]
    #[cfg_attr(feature = "schema", schemars(with = "schema::Name<LeaveReason>"))]
    pub left: Option<LeaveReason>,
}

/// What supports a claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(rename = "Evidence")
)]
pub struct EvidenceData {
    /// What kind of evidence it is.
    #[serde(with = "names::name")]
    #[cfg_attr(feature = "schema", schemars(with = "schema::EvidenceName"))]
    pub kind: EvidenceKind,
    /// When it was first seen; null if it was there before the agent could see it.
    pub first_seen: Option<WallTime>,
    /// When it was last seen. Repetitions are counted in the kernel for up to 30 seconds without moving it.
    pub last_seen: WallTime,
    /// The MAC address in it.
    #[serde(default, with = "names::optional_mac")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<schema::MacAddress>"))]
    pub mac: Option<Mac>,
    /// More about it, such as the neighbour state.
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub detail: Option<EvidenceDetail>,
}

/// One device's claim of one address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(rename = "Claim")
)]
pub struct ClaimData {
    /// The address that is claimed.
    pub address: IpAddr,
    /// The network in which the address has to be unique.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(with = "schema::NetworkName"))]
    pub network: Network,
    /// The VLAN tag, the outer one of two.
    #[cfg_attr(feature = "schema", schemars(range(max = 4095)))]
    pub vlan: Option<u16>,
    /// The inner one of two VLAN tags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(max = 4095)))]
    pub inner_vlan: Option<u16>,
    /// The claimant, and what supports the claim.
    #[serde(flatten)]
    pub claimant: ClaimantData,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
fn is_zero(n: &usize) -> bool {
    *n == 0
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
fn is_never(n: &u32) -> bool {
    *n == 0
}

impl ConflictData {
    /// `conflict` as it is at `moment`, up to which the latency is measured. `pods` looks up a claimant's pod.
    #[must_use]
    pub fn new(
        node: &Arc<str>,
        moment: &Moment,
        conflict: &Conflict,
        pods: impl Fn(&detector_engine::Claimant) -> PodAnswer,
    ) -> Self {
        let latency = moment.monotonic().since(conflict.decided_at).as_micros();
        let raised_at = moment.wall_at(conflict.raised_at);
        let resolved_at = conflict.resolved_at.map(|at| moment.wall_at(at));
        let mut data = Self {
            conflict_id: conflict.id,
            node: Arc::clone(node),
            cluster: None,
            address: conflict.address,
            network: conflict.network.clone(),
            vlan: conflict.vlan.outer,
            inner_vlan: conflict.vlan.inner,
            kind: conflict.kind,
            severity: SubjectKind::Conflict(conflict.kind).severity(),
            scope: conflict.scope,
            confidence: conflict.confidence,
            state: SubjectState::of(conflict.resolved_at.is_some()),
            raised_at,
            updated_at: moment.wall_at(conflict.updated_at),
            resolved_at,
            duration_seconds: resolved_at.map(|at| at.since(raised_at)),
            changed: Vec::new(),
            latency_us: u64::try_from(latency).unwrap_or(u64::MAX),
            traffic_goes_to: conflict.traffic_goes_to.clone(),
            claimants: conflict
                .claimants
                .iter()
                .map(|c| ClaimantData::new(node, c, moment, pods(c)))
                .collect(),
            claimants_omitted: conflict.claimants_omitted,
            repeats: conflict.repeats,
            quiet_since: conflict.quiet_since.map(|at| moment.wall_at(at)),
            sweep: conflict.sweep,
            diagnosis: None,
            timeline: Some(Arc::default()),
            guidance: None,
        };
        data.mark_newest_by_creation();
        data.guidance = Guidance::of_conflict(&data);
        data
    }

    /// The claimants that have not left.
    pub fn present(&self) -> impl Iterator<Item = &ClaimantData> {
        self.claimants.iter().filter(|c| c.left.is_none())
    }

    /// The claimants that contest the address: all that are not rightful, if some are known to be; else those without certain
    /// evidence. If none has certain evidence, the first one counts as the owner, preferably one with a stack of its own.
    pub fn contesters(&self) -> impl Iterator<Item = &ClaimantData> {
        let is_rightful = |c: &ClaimantData| c.rightful == Some(true);
        let has_rightful = self.present().any(is_rightful);
        // The claimants are listed oldest first.
        let owner = self
            .present()
            .min_by_key(|c| (!c.is_certain(), !c.own_stack));
        let is_owner = move |c: &ClaimantData| owner.is_some_and(|owner| std::ptr::eq(owner, c));
        self.present().filter(move |c| {
            if has_rightful {
                !is_rightful(c)
            } else {
                !c.is_certain() && !is_owner(c)
            }
        })
    }

    /// The contesters that could have better evidence: frames are all that a pod with a stack of its own can show.
    pub fn suspects(&self) -> impl Iterator<Item = &ClaimantData> {
        self.contesters().filter(|c| !c.own_stack)
    }

    /// Which claimants are rightful, as far as is known.
    #[must_use]
    pub fn rights(&self) -> Rights {
        Rights::of(self.present().map(|c| c.rightful))
    }

    /// The newest claimant, and how that is known.
    #[must_use]
    pub fn newest(&self) -> Option<(&ClaimantData, NewestBy)> {
        self.present().find_map(|c| Some((c, c.newest()?)))
    }

    /// What distinguishes a present claimant from the others, for people: that it is rightful, or else that it is the newest.
    #[must_use]
    pub fn mark(&self, claimant: &ClaimantData) -> Option<&'static str> {
        let mark = match self.rights() {
            Rights::Known => (claimant.rightful == Some(true)).then_some("rightful"),
            Rights::Doubtful => (claimant.rightful == Some(false)).then_some("not rightful"),
            Rights::Equal => claimant.newest().map(|_| "newest"),
        };
        mark.filter(|_| claimant.left.is_none())
    }

    /// Whether the others lose the allocation or the route of the address with the newest claimant.
    #[must_use]
    pub fn newest_takes_address(&self) -> bool {
        self.newest().is_some_and(|(newest, _)| {
            newest.allocated == Some(true) || self.traffic_goes_to.as_ref() == Some(&newest.device)
        })
    }

    /// Whether it ended.
    #[must_use]
    pub fn is_resolved(&self) -> bool {
        self.state == SubjectState::Resolved
    }
}

impl ClaimantData {
    /// How it is known to be the newest of the claimants; `None` if it is not, or that is not known.
    #[must_use]
    pub fn newest(&self) -> Option<NewestBy> {
        self.newest_by.filter(|_| self.newest)
    }

    /// Whether the address is assigned to it, or the node has a `PERMANENT` neighbour entry.
    fn is_certain(&self) -> bool {
        let mut evidence = self.evidence.iter();
        evidence.any(|e| e.kind.is_certain(e.detail.as_ref()))
    }

    /// `claimant`, with its pod if that is known; on `node` unless it is known from the cluster's registry.
    #[must_use]
    pub fn new(
        node: &Arc<str>,
        claimant: &detector_engine::Claimant,
        moment: &Moment,
        pod: PodAnswer,
    ) -> Self {
        let (pod, pod_unknown_because) = match pod {
            PodAnswer::Known(pod) => (Some(pod), None),
            PodAnswer::Unknown(because) => (None, Some(because)),
        };
        let known = |at, beginning: Beginning| beginning.is_known().then(|| moment.wall_at(at));
        let registered = claimant.registered.as_deref();
        Self {
            node: registered.map_or_else(|| Arc::clone(node), |there| there.node.as_str().into()),
            device: claimant.device.clone(),
            ifindex: claimant.ifindex,
            mac: claimant.mac,
            master: claimant.master.clone(),
            since: known(claimant.since, claimant.beginning),
            since_unknown_because: claimant.beginning.unknown.map(|why| why.text().into()),
            newest: claimant.is_newest,
            newest_by: claimant.is_newest.then_some(NewestBy::FirstSight),
            is_node: claimant.id == ClaimantId::Host,
            rightful: claimant.rightful,
            allocated: claimant.allocated,
            own_stack: claimant.has_own_stack,
            pod,
            pod_unknown_because,
            evidence: claimant
                .evidence
                .iter()
                .map(|e| EvidenceData {
                    kind: e.kind,
                    first_seen: known(e.seen.first, e.seen.beginning),
                    last_seen: moment.wall_at(e.seen.last),
                    mac: e.mac,
                    detail: e.detail.clone(),
                })
                .collect(),
            left: claimant.left,
        }
    }
}
