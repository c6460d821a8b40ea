//! Label sets, and every value that a label which is no name may have. docs/metrics.md lists the same values (a test
//! compares them), and in debug builds a value that is missing here panics.

use detector_common::{DropReason, RecordKind, RejectReason};
use detector_engine::{
    AnomalyKind, ConflictKind, ConflictScope,
    diagnosis::{Cause, CauseConfidence},
};
use prometheus_client::encoding::EncodeLabelSet;

use super::AddressLabels;

/// Kinds of observations that the agent counts itself; the kernel programs count those of [`RecordKind`].
const OBSERVATION_KINDS: [&str; 11] = [
    "arp",
    "ndp",
    "neighbour",
    "question",
    "router",
    "link",
    "address",
    "host_address",
    "fdb",
    "route",
    "snapshot",
];

/// Reasons of drops that the agent counts itself; the kernel programs count those of [`DropReason`].
const DROP_REASONS: [&str; 13] = [
    "netlink_overrun",
    "netlink_undecodable",
    "ring_undecodable",
    "bound",
    "claims_per_device",
    "address_changes",
    "links",
    "kernel_entries",
    "open_conflicts",
    "open_anomalies",
    "route_lookup_failed",
    "unknown_device",
    "not_attached",
];

/// Values of `reason` in `ipconflict_resyncs_total`.
pub const RESYNC_REASONS: [&str; 12] = [
    "start",
    "ring_full",
    "neighbour_budget",
    "netlink_overrun",
    "reattached",
    "displaced",
    "read_failed",
    "self_check",
    "room",
    "late_bridge",
    "vlan_filtering",
    "read_outdated",
];

/// Values of `outcome` in `ipconflict_pod_lookups_total`.
pub const LOOKUP_OUTCOMES: [&str; 9] = [
    "named",
    "not_found",
    "missing",
    "refused",
    "foreign",
    "silent",
    "failing",
    "off",
    "untried",
];

/// Values of `outcome` in `ipconflict_deliveries_total`.
pub const DELIVERY_OUTCOMES: [&str; 14] = [
    "delivered",
    "failed",
    "rejected",
    "superseded",
    "dropped",
    "limited",
    "given_up",
    "disabled",
    "unusable",
    "unreadable",
    "stored",
    "store_failed",
    "refused",
    "orphaned",
];

/// Values of `verb` in `ipconflict_fleet_requests_total`.
pub const FLEET_VERBS: [&str; 5] = ["create", "get", "update", "delete", "watch"];

/// Values of `outcome` in `ipconflict_fleet_requests_total`.
pub const FLEET_OUTCOMES: [&str; 6] = [
    "ok",
    "not_found",
    "already_exists",
    "outdated",
    "rejected",
    "failed",
];

/// Values of `kind` in `ipconflict_observations_total`.
#[must_use]
pub fn observation_kinds() -> Vec<&'static str> {
    let known = RecordKind::ALL.map(known_kind);
    OBSERVATION_KINDS.into_iter().chain(known).collect()
}

/// The `kind` of repetitions, which are only counted in the kernel.
#[must_use]
pub fn known_kind(kind: RecordKind) -> &'static str {
    match kind {
        RecordKind::Arp => "arp_known",
        RecordKind::Ndp => "ndp_known",
        RecordKind::Neighbour => "neighbour_known",
    }
}

/// Values of `reason` in `ipconflict_observations_dropped_total`.
#[must_use]
pub fn drop_reasons() -> Vec<&'static str> {
    let kernel = DropReason::ALL.map(DropReason::label);
    kernel.into_iter().chain(DROP_REASONS).collect()
}

/// Values of `reason` in `ipconflict_frames_rejected_total`.
#[must_use]
pub fn reject_reasons() -> Vec<&'static str> {
    RejectReason::ALL.map(RejectReason::label).to_vec()
}

fn check(values: &[&str], value: &str) {
    debug_assert!(values.contains(&value), "undeclared label value `{value}`");
}

/// One label named `kind`.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct Kind {
    kind: &'static str,
}

impl Kind {
    /// Of an observation.
    #[must_use]
    pub fn observation(kind: &'static str) -> Self {
        if cfg!(debug_assertions) {
            check(&observation_kinds(), kind);
        }
        Self { kind }
    }
}

/// The kind and the scope of a conflict.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct KindAndScope {
    kind: &'static str,
    scope: &'static str,
}

impl KindAndScope {
    /// Of conflicts of this kind and scope.
    #[must_use]
    pub fn new(kind: ConflictKind, scope: ConflictScope) -> Self {
        Self {
            kind: kind.name(),
            scope: scope.name(),
        }
    }

    /// Every pair that a conflict can have: of the fleet there are only duplicates.
    pub fn all() -> impl Iterator<Item = Self> {
        let node = ConflictKind::ALL.map(|kind| Self::new(kind, ConflictScope::Node));
        let fleet = Self::new(ConflictKind::Duplicate, ConflictScope::Fleet);
        node.into_iter().chain([fleet])
    }
}

impl From<ConflictKind> for Kind {
    fn from(kind: ConflictKind) -> Self {
        Self { kind: kind.name() }
    }
}

impl From<AnomalyKind> for Kind {
    fn from(kind: AnomalyKind) -> Self {
        Self { kind: kind.name() }
    }
}

/// One label named `reason`.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct Reason {
    reason: &'static str,
}

impl Reason {
    /// Why observations were dropped.
    #[must_use]
    pub fn dropped(reason: &'static str) -> Self {
        if cfg!(debug_assertions) {
            check(&drop_reasons(), reason);
        }
        Self { reason }
    }

    /// Why a frame was rejected.
    #[must_use]
    pub fn rejected(reason: &'static str) -> Self {
        if cfg!(debug_assertions) {
            check(&reject_reasons(), reason);
        }
        Self { reason }
    }

    /// Why a snapshot was taken.
    #[must_use]
    pub fn resync(reason: &'static str) -> Self {
        check(&RESYNC_REASONS, reason);
        Self { reason }
    }
}

/// Labels of an outcome by source.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct Lookup {
    via: &'static str,
    outcome: &'static str,
}

impl Lookup {
    /// The outcome of lookups in the source `via`.
    #[must_use]
    pub fn new(via: detector_event::Via, outcome: &'static str) -> Self {
        check(&LOOKUP_OUTCOMES, outcome);
        Self {
            via: via.name(),
            outcome,
        }
    }
}

/// Labels of a diagnosis.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct Diagnosed {
    cause: &'static str,
    confidence: &'static str,
}

impl Diagnosed {
    /// A diagnosis of this cause.
    #[must_use]
    pub const fn new(cause: Cause, confidence: CauseConfidence) -> Self {
        Self {
            cause: cause.name(),
            confidence: confidence.name(),
        }
    }
}

/// Labels of a delivery.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct Delivery {
    sink: String,
    outcome: &'static str,
}

impl Delivery {
    /// The outcome of events at a sink.
    #[must_use]
    pub fn new(sink: &str, outcome: &'static str) -> Self {
        check(&DELIVERY_OUTCOMES, outcome);
        Self {
            sink: sink.to_owned(),
            outcome,
        }
    }
}

/// Labels of a request to the registry of addresses.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct FleetRequest {
    verb: &'static str,
    outcome: &'static str,
}

impl FleetRequest {
    /// The outcome of requests.
    #[must_use]
    pub fn new(verb: &'static str, outcome: &'static str) -> Self {
        check(&FLEET_VERBS, verb);
        check(&FLEET_OUTCOMES, outcome);
        Self { verb, outcome }
    }
}

/// One label named `sink`.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct Sink {
    /// Its name.
    pub sink: String,
}

/// Labels of one claimant of an active conflict.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ConflictInfo {
    /// The address, network and VLAN.
    #[prometheus(flatten)]
    pub address: AddressLabels,
    /// The conflict's kind.
    pub kind: &'static str,
    /// The claimant's device.
    pub device: String,
    /// The namespace of the claimant's pod, or empty.
    pub namespace: String,
    /// The claimant's pod, or empty.
    pub pod: String,
    /// The id of the address sweep that the conflict is part of, or empty.
    pub sweep: String,
    /// The cause, or empty while it is not known.
    pub cause: &'static str,
}

/// Labels of one active anomaly.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct AnomalyInfo {
    /// The address.
    pub address: super::AddressLabel,
    /// The VLAN (of two tags the outer one), or empty.
    pub vlan: String,
    /// The anomaly's kind.
    pub kind: &'static str,
    /// The device, or empty.
    pub device: String,
    /// The namespace of the device's pod, or empty.
    pub namespace: String,
    /// The device's pod, or empty.
    pub pod: String,
    /// The cause of its diagnosis, or empty while it is not known.
    pub cause: &'static str,
}
