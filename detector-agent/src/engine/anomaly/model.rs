//! What the engine says about an anomaly: plain, owned data for reports.

use std::{fmt, net::IpAddr, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{
    super::{
        conflict::Claimant,
        observation::{Timestamp, Vlan},
    },
    pools::{PoolId, PoolSource},
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
    /// A live address that IPAM counts, or will soon count, as free: the next pod may get it.
    IpamDrift,
    /// An address that IPAM holds for a pod that is gone.
    IpamLeak,
    /// A pod asks for its gateway and gets no answer.
    GatewayUnresolved,
    /// The host's route for a claimed address leads to none of its claimants.
    RouteAstray,
}

impl AnomalyKind {
    /// Every kind.
    pub const ALL: [Self; 4] = [
        Self::IpamDrift,
        Self::IpamLeak,
        Self::GatewayUnresolved,
        Self::RouteAstray,
    ];

    /// The Contract's word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::IpamDrift => "ipam_drift",
            Self::IpamLeak => "ipam_leak",
            Self::GatewayUnresolved => "gateway_unresolved",
            Self::RouteAstray => "route_astray",
        }
    }
}

/// What exactly is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AnomalyCause {
    /// The books hold nothing for a live address.
    NotAllocated,
    /// A live address stands in the books twice, under two owners.
    TwoOwners,
    /// A live address is held under an owner that an earlier pod of the same name shares: its deletion frees the address.
    SharedOwner,
    /// The books hold an address that nobody uses.
    NoLiveOwner,
    /// The pod asked again and again and nothing answered.
    NoAnswer,
    /// The route leads to another device.
    OtherDevice,
    /// There was a route to a claimant, and there is none now.
    RouteGone,
}

impl AnomalyCause {
    /// Every cause.
    pub const ALL: [Self; 7] = [
        Self::NotAllocated,
        Self::TwoOwners,
        Self::SharedOwner,
        Self::NoLiveOwner,
        Self::NoAnswer,
        Self::OtherDevice,
        Self::RouteGone,
    ];

    /// One word for machines.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NotAllocated => "not_allocated",
            Self::TwoOwners => "two_owners",
            Self::SharedOwner => "shared_owner",
            Self::NoLiveOwner => "no_live_owner",
            Self::NoAnswer => "no_answer",
            Self::OtherDevice => "other_device",
            Self::RouteGone => "route_gone",
        }
    }
}

/// Why an anomaly is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ResolveReason {
    /// The books are right again.
    Allocated,
    /// IPAM gave the address free.
    Released,
    /// No pod holds the address any more.
    AddressGone,
    /// The address is in use again.
    InUse,
    /// The pod asks no more.
    Quiet,
    /// The device is gone.
    DeviceGone,
    /// The route leads to a claimant again.
    RouteRight,
    /// Nothing tells of it any more: its source is gone, or an agent that was started again does not see it.
    NotSeen,
}

impl ResolveReason {
    /// One word for machines.
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
            Self::NotSeen => "not_seen",
        }
    }
}

/// An anomaly as it is at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Anomaly {
    /// Its identity.
    pub id: AnomalyId,
    /// Its kind.
    pub kind: AnomalyKind,
    /// What exactly is wrong.
    pub cause: AnomalyCause,
    /// The address in question: of a gateway the one that is asked for.
    pub address: IpAddr,
    /// VLAN tags, of a gateway's question.
    pub vlan: Vlan,
    /// Who holds the address, or asks for it.
    pub holder: Option<Claimant>,
    /// Further devices that hold the address.
    pub also_on: Vec<String>,
    /// Whose books.
    pub source: Option<Arc<PoolSource>>,
    /// Whom the books hold the address for.
    pub owner: Option<Arc<str>>,
    /// One sentence for people.
    pub detail: String,
    /// When it was raised.
    pub raised_at: Timestamp,
    /// The time of the observation that decided it.
    pub decided_at: Timestamp,
    /// When it was over; `None` while it is active.
    pub resolved_at: Option<Timestamp>,
    /// Why it is over.
    pub resolve_reason: Option<ResolveReason>,
}

/// What follows about anomalies from an observation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnomalyEffect {
    /// One was found.
    Raised(Box<Anomaly>),
    /// One is over.
    Resolved(Box<Anomaly>),
    /// The books of this pool are too old to compare with: read them now, and say so even where nothing changed.
    ReadPool(PoolId),
}
