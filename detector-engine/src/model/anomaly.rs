//! Anomalies as the engine reports them: plain, owned data.

use std::{fmt, net::IpAddr, sync::Arc};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::model::{
    conflict::Claimant,
    observation::{Timestamp, Vlan},
    pool::{PoolRequest, PoolSource},
};

/// Identifies an anomaly for its whole life, also across restarts of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct AnomalyId(pub u128);

impl From<AnomalyId> for String {
    fn from(id: AnomalyId) -> Self {
        id.to_string()
    }
}

impl TryFrom<String> for AnomalyId {
    type Error = std::num::ParseIntError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        u128::from_str_radix(&text, 16).map(Self)
    }
}

impl fmt::Display for AnomalyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// What kind of anomaly it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AnomalyKind {
    /// A live address that IPAM considers, or will soon consider, free: the next pod may get it.
    IpamDrift,
    /// An address allocated to a pod that is gone.
    IpamLeak,
    /// A pod requests its gateway again and again, as it does if nothing answers.
    GatewayUnresolved,
    /// The host's route for a claimed address leads to none of its claimants.
    RouteAstray,
    /// A pod device contests many addresses of others.
    AddressSweep,
    /// Several nodes assign addresses from one range.
    PodCidrOverlap,
    /// A pod sends router advertisements.
    RogueRouter,
    /// Pods on several ports of one L2 domain have one hardware address.
    MacDuplicate,
    /// A pod's hardware address was learned on another port than its own.
    MacMoved,
    /// A pod has an address that failed duplicate address detection, and nothing conflicts with it any more.
    AddressUnusable,
}

impl AnomalyKind {
    /// Every kind.
    pub const ALL: [Self; 10] = [
        Self::IpamDrift,
        Self::IpamLeak,
        Self::GatewayUnresolved,
        Self::RouteAstray,
        Self::AddressSweep,
        Self::PodCidrOverlap,
        Self::RogueRouter,
        Self::MacDuplicate,
        Self::MacMoved,
        Self::AddressUnusable,
    ];

    /// The name used in events and metrics (`docs/events.md`).
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::IpamDrift => "ipam_drift",
            Self::IpamLeak => "ipam_leak",
            Self::GatewayUnresolved => "gateway_unresolved",
            Self::RouteAstray => "route_astray",
            Self::AddressSweep => "address_sweep",
            Self::PodCidrOverlap => "pod_cidr_overlap",
            Self::RogueRouter => "rogue_router",
            Self::MacDuplicate => "mac_duplicate",
            Self::MacMoved => "mac_moved",
            Self::AddressUnusable => "address_unusable",
        }
    }
}

/// Why an anomaly was raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AnomalyCause {
    /// A live address has no allocation.
    NotAllocated,
    /// A live address is allocated twice, to two owners.
    TwoOwners,
    /// A live address is allocated to an owner that an earlier pod of the same name shares:
    /// deleting that pod's record releases the address.
    SharedOwner,
    /// A live address is allocated to another pod than the one that has it.
    OwnedByAnother,
    /// No pod uses an allocated address.
    NoLiveOwner,
    /// The pod repeats its requests; whether they are answered is not known.
    RepeatedRequests,
    /// The host route leads to another device.
    OtherDevice,
    /// There was a host route to a claimant, and now there is none.
    RouteGone,
    /// The device contests many addresses in frames or neighbour entries.
    ContestsMany,
    /// The range is registered by several nodes.
    SeveralNodes,
    /// A router advertisement came in on a pod device.
    RouterAdvertisement,
    /// The hardware address is that of pods on several ports.
    SeveralPorts,
    /// The hardware address was learned on another port.
    LearnedElsewhere,
    /// Duplicate address detection failed.
    DadFailed,
}

impl AnomalyCause {
    /// Every cause.
    pub const ALL: [Self; 14] = [
        Self::NotAllocated,
        Self::TwoOwners,
        Self::SharedOwner,
        Self::OwnedByAnother,
        Self::NoLiveOwner,
        Self::RepeatedRequests,
        Self::OtherDevice,
        Self::RouteGone,
        Self::ContestsMany,
        Self::SeveralNodes,
        Self::RouterAdvertisement,
        Self::SeveralPorts,
        Self::LearnedElsewhere,
        Self::DadFailed,
    ];

    /// The name used in events (`docs/events.md`).
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NotAllocated => "not_allocated",
            Self::TwoOwners => "two_owners",
            Self::SharedOwner => "shared_owner",
            Self::OwnedByAnother => "owned_by_another",
            Self::NoLiveOwner => "no_live_owner",
            Self::RepeatedRequests => "repeated_requests",
            Self::OtherDevice => "other_device",
            Self::RouteGone => "route_gone",
            Self::ContestsMany => "contests_many",
            Self::SeveralNodes => "several_nodes",
            Self::RouterAdvertisement => "router_advertisement",
            Self::SeveralPorts => "several_ports",
            Self::LearnedElsewhere => "learned_elsewhere",
            Self::DadFailed => "dad_failed",
        }
    }
}

/// Why an anomaly was resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ResolveReason {
    /// The address is correctly allocated again.
    Allocated,
    /// IPAM released the address.
    Released,
    /// No pod holds the address any more.
    AddressGone,
    /// The address is in use again.
    InUse,
    /// The pod stopped requesting, or advertising.
    Quiet,
    /// The device was removed.
    DeviceGone,
    /// The route leads to a claimant again.
    RouteRight,
    /// The device contests few addresses or none.
    ContestsFew,
    /// At most one node has the range.
    RangeUnique,
    /// At most one pod has the hardware address, and it is behind that pod's port.
    MacUnique,
    /// The pod can use the address.
    Usable,
    /// The address is in conflict.
    InConflict,
    /// It can no longer be judged: its pool is gone or unreadable, or an agent that was restarted
    /// does not find it again.
    NotSeen,
}

impl ResolveReason {
    /// The name used in events (`docs/events.md`).
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Allocated => "allocated",
            Self::Released => "released",
            Self::AddressGone => "address_gone",
            Self::InUse => "in_use",
            Self::Quiet => "quiet",
            Self::DeviceGone => "device_gone",
            Self::RouteRight => "route_right",
            Self::ContestsFew => "contests_few",
            Self::RangeUnique => "range_unique",
            Self::MacUnique => "mac_unique",
            Self::Usable => "usable",
            Self::InConflict => "in_conflict",
            Self::NotSeen => "not_seen",
        }
    }
}

/// The addresses that a device contests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contested {
    /// How many; of a resolved anomaly, the most at one time.
    pub count: usize,
    /// Those contested for longest, bounded.
    pub first: Vec<IpAddr>,
}

/// A range that several nodes assign addresses from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeOverlap {
    /// The range.
    pub range: IpNet,
    /// The names of the nodes; of a resolved anomaly, those that had it.
    pub nodes: Vec<String>,
}

/// An anomaly as it is at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Anomaly {
    /// Its identity.
    pub id: AnomalyId,
    /// Its kind.
    pub kind: AnomalyKind,
    /// Why it was raised.
    pub cause: AnomalyCause,
    /// The address; for `gateway_unresolved` the gateway, for `address_sweep` the first contested one; for
    /// `pod_cidr_overlap` the first one of the range; for `rogue_router` the router's link-local address;
    /// for `mac_duplicate` and `mac_moved` one of the pod's.
    pub address: IpAddr,
    /// VLAN tags of the frames; `gateway_unresolved` and `rogue_router` only.
    pub vlan: Vlan,
    /// The claimant that holds the address, requests the gateway, contests the addresses, or advertises itself.
    pub holder: Option<Claimant>,
    /// Further devices that hold the address or have the hardware address; for `mac_moved` the one that it was learned on.
    pub also_on: Vec<String>,
    /// The IPAM pool.
    pub source: Option<Arc<PoolSource>>,
    /// The owner of the allocation.
    pub owner: Option<Arc<str>>,
    /// One sentence of explanation.
    pub detail: String,
    /// What the device contests; `address_sweep` only.
    pub contested: Option<Contested>,
    /// The range and its nodes; `pod_cidr_overlap` only.
    pub overlap: Option<RangeOverlap>,
    /// When it was raised.
    pub raised_at: Timestamp,
    /// The timestamp of the observation that decided the last change.
    pub decided_at: Timestamp,
    /// The latency of the last event about it, in microseconds; `None` before the first one.
    pub reported_latency_us: Option<u64>,
    /// A hash of the diagnosis in the last event about it; 0 if it had none.
    pub reported_diagnosis: u64,
    /// When it was resolved; `None` while it is active.
    pub resolved_at: Option<Timestamp>,
    /// Why it was resolved.
    pub resolve_reason: Option<ResolveReason>,
}

/// What follows for anomalies from an observation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnomalyEffect {
    /// An anomaly was found.
    Raised(Box<Anomaly>),
    /// What a device contests changed, or its pod became known (`address_sweep`), or the cause or the owner changed.
    Updated(Box<Anomaly>),
    /// An anomaly was resolved.
    Resolved(Box<Anomaly>),
    /// The state of this pool, or of its part with the address, is unknown or too old to compare with: read it now, and
    /// send it even if it did not change.
    ReadPool(PoolRequest),
}
