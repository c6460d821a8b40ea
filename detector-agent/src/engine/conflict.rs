//! What the engine says about a conflict: plain, owned data for reports.

use std::{fmt, net::IpAddr};

use serde::{Deserialize, Serialize};

use super::observation::{IfIndex, Mac, Peer, Timestamp, Vlan};

/// Identifies a conflict for its whole life, also across restarts of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct ConflictId(pub u128);

impl fmt::Display for ConflictId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl From<ConflictId> for String {
    fn from(id: ConflictId) -> Self {
        id.to_string()
    }
}

impl TryFrom<String> for ConflictId {
    type Error = std::num::ParseIntError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        u128::from_str_radix(&text, 16).map(Self)
    }
}

/// What kind of conflict it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ConflictKind {
    /// Two or more pod devices claim the address.
    Duplicate,
    /// A pod claims an address of the node itself.
    Host,
    /// An allowed shared address moves too often.
    Flapping,
}

impl ConflictKind {
    /// Every kind, in the order of the Contract.
    pub const ALL: [Self; 3] = [Self::Duplicate, Self::Host, Self::Flapping];

    /// The Contract's word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Duplicate => "duplicate",
            Self::Host => "host",
            Self::Flapping => "flapping",
        }
    }
}

/// How sure the evidence makes us.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Confidence {
    /// Claims were seen on the wire or in the neighbour table.
    Observed,
    /// Two claimants have the address assigned, or a permanent neighbour entry.
    Certain,
}

impl Confidence {
    /// The Contract's word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Observed => "observed",
            Self::Certain => "certain",
        }
    }
}

/// Who claims an address. Never the name alone: names are reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ClaimantId {
    /// The node itself.
    Host,
    /// A pod device, by index and generation.
    Device(IfIndex, u64),
    /// A hardware address behind a bridge that no port is known for.
    BehindBridge(IfIndex, Mac),
}

/// The kinds of evidence, in the Contract's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum EvidenceKind {
    /// Assigned inside the pod's namespace (or on the node itself).
    Address,
    /// An ARP frame the pod sent.
    Arp,
    /// A Neighbour Discovery frame the pod sent.
    Ndp,
    /// A valid entry of the kernel's neighbour table.
    Neighbour,
}

impl EvidenceKind {
    /// The Contract's word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Address => "address",
            Self::Arp => "arp",
            Self::Ndp => "ndp",
            Self::Neighbour => "neighbour",
        }
    }
}

/// One reason to believe a claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// Its kind.
    pub kind: EvidenceKind,
    /// When it was first seen.
    pub first_seen: Timestamp,
    /// When it was last seen. Frames repeated within 30 s are counted in the kernel only and do not move this.
    pub last_seen: Timestamp,
    /// The hardware address it gave.
    pub mac: Option<Mac>,
    /// More about it, such as the neighbour state.
    pub detail: Option<String>,
}

/// Why a claimant is no longer one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LeaveReason {
    /// Its device is gone.
    DeviceRemoved,
    /// The address was removed from it.
    AddressRemoved,
    /// Nothing supports the claim any more.
    Expired,
}

impl LeaveReason {
    /// The Contract's word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::DeviceRemoved => "device_removed",
            Self::AddressRemoved => "address_removed",
            Self::Expired => "expired",
        }
    }
}

/// One side of a conflict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claimant {
    /// Its identity.
    pub id: ClaimantId,
    /// The device's name when it was last looked at.
    pub device: String,
    /// The device's index.
    pub ifindex: IfIndex,
    /// The hardware address its newest evidence gives.
    pub mac: Option<Mac>,
    /// The bridge the device is a port of.
    pub master: Option<String>,
    /// The pod's end of the device, where known.
    pub peer: Option<Peer>,
    /// When the oldest of its evidence was first seen.
    pub since: Timestamp,
    /// Why it is a claimant; never empty for one that has not left.
    pub evidence: Vec<Evidence>,
    /// Set once it has left.
    pub left: Option<LeaveReason>,
}

/// A conflict as it is at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conflict {
    /// Its identity.
    pub id: ConflictId,
    /// The address in question.
    pub address: IpAddr,
    /// VLAN tags of the claims.
    pub vlan: Vlan,
    /// Its kind.
    pub kind: ConflictKind,
    /// How sure we are.
    pub confidence: Confidence,
    /// When it was raised.
    pub raised_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// When it was resolved; `None` while it is active.
    pub resolved_at: Option<Timestamp>,
    /// The kernel's time of the observation that decided the last change.
    pub decided_at: Timestamp,
    /// The claimant the node's routes send traffic to.
    pub traffic_goes_to: Option<String>,
    /// Who claims it, present ones first, then those that left (the newest of them, bounded).
    pub claimants: Vec<Claimant>,
    /// Claimants beyond the bound, not listed.
    pub claimants_omitted: usize,
}

impl Conflict {
    /// Claimants that have not left.
    pub fn present(&self) -> impl Iterator<Item = &Claimant> {
        self.claimants.iter().filter(|c| c.left.is_none())
    }
}
