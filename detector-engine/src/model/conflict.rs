//! Conflicts as the engine reports them: plain, owned data.

use std::{net::IpAddr, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{
    model::{
        AnomalyId, Beginning, ConflictId, EvidenceDetail, IfIndex, Mac, Network, NudState, Peer,
        Seen, Timestamp, Vlan,
    },
    names::named,
};

named! {
    /// What kind of conflict it is.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
    pub enum ConflictKind {
        /// Devices of two or more pods claim the address.
        Duplicate = "duplicate",
        /// A pod claims an address of the node itself.
        Host = "host",
        /// An allowed address moves too often.
        Flapping = "flapping",
    }
}

named! {
    /// Where the claimants of a conflict are.
    #[derive(
        Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
    )]
    #[serde(rename_all = "lowercase")]
    pub enum ConflictScope {
        /// All on this node.
        #[default]
        Node = "node",
        /// On several nodes of the cluster.
        Fleet = "fleet",
    }
}

named! {
    /// How strong the evidence is (`docs/detection-rules.md`, section 7).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
    pub enum Confidence {
        /// Claims were seen on the wire or in the neighbour table.
        Observed = "observed",
        /// Two pods, or a pod and the node, have the address assigned or a permanent neighbour entry.
        Certain = "certain",
    }
}

/// Identifies a claimant. Never a device name alone: names are reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ClaimantId {
    /// The node itself.
    Host,
    /// A pod device, by index and generation.
    Device(IfIndex, u64),
    /// A hardware address behind a bridge whose port is unknown.
    BehindBridge(IfIndex, Mac),
    /// A claimant known from the cluster's registry, by a hash of its node and device.
    Registered(u64),
}

/// Identifies a device, by index and generation.
pub(crate) type DeviceKey = (IfIndex, u64);

impl ClaimantId {
    /// The pod device that it is, by index and generation.
    #[must_use]
    pub fn device(self) -> Option<(IfIndex, u64)> {
        match self {
            Self::Device(ifindex, generation) => Some((ifindex, generation)),
            Self::Host | Self::BehindBridge(..) | Self::Registered(_) => None,
        }
    }
}

named! {
    /// The kinds of evidence.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
    pub enum EvidenceKind {
        /// Assigned inside the pod's namespace (or on the node itself).
        Address = "address",
        /// An ARP frame the pod sent.
        Arp = "arp",
        /// A Neighbour Discovery frame the pod sent.
        Ndp = "ndp",
        /// A valid entry of the kernel's neighbour table.
        Neighbour = "neighbour",
    }
}

impl EvidenceKind {
    /// Whether evidence of this kind is certain: an assigned address, or a `PERMANENT` neighbour entry
    /// (`docs/detection-rules.md`, section 7).
    #[must_use]
    pub fn is_certain(self, detail: Option<&EvidenceDetail>) -> bool {
        match self {
            Self::Address => true,
            Self::Neighbour => detail == Some(&EvidenceDetail::State(NudState::Permanent)),
            Self::Arp | Self::Ndp => false,
        }
    }
}

/// One piece of evidence for a claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// Its kind.
    pub kind: EvidenceKind,
    /// When it was seen.
    #[serde(flatten)]
    pub seen: Seen,
    /// The hardware address in it.
    pub mac: Option<Mac>,
    /// Details, such as the neighbour state.
    pub detail: Option<EvidenceDetail>,
}

impl Evidence {
    /// Whether an internal interface of the pod has the address.
    #[must_use]
    pub fn is_on_internal_interface(&self) -> bool {
        matches!(self.detail, Some(EvidenceDetail::OnInterface(_)))
    }
}

named! {
    /// Why a claimant left.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
    pub enum LeaveReason {
        /// Its device was removed.
        DeviceRemoved = "device_removed",
        /// The address was removed from it.
        AddressRemoved = "address_removed",
        /// Nothing supports the claim any more.
        Expired = "expired",
    }
}

/// A device (or the node) that claims an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claimant {
    /// Its identity.
    pub id: ClaimantId,
    /// The device's name when the claim was last derived.
    pub device: String,
    /// The device's index.
    pub ifindex: IfIndex,
    /// The hardware address in its newest evidence.
    pub mac: Option<Mac>,
    /// The bridge the device is a port of.
    pub master: Option<String>,
    /// The pod's end of the device, if known.
    pub peer: Option<Peer>,
    /// When the oldest of its evidence was first seen.
    pub since: Timestamp,
    /// What is known of when the claim began.
    #[serde(default)]
    pub beginning: Beginning,
    /// Whether it certainly began after the claims of all others.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_newest: bool,
    /// Whether a record of the runtime, the network plugin or IPAM gives the address to its pod; `None` if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rightful: Option<bool>,
    /// Whether IPAM has allocated the address to its pod; `None` if no pool that was read knows the address, or its owner cannot be
    /// compared with the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocated: Option<bool>,
    /// Its pod's namespace is not authoritative for the address, so frames and neighbour entries are all that can show the claim.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_own_stack: bool,
    /// Evidence for the claim; never empty for a claimant that has not left.
    pub evidence: Vec<Evidence>,
    /// Why it left; `None` while it is present.
    pub left: Option<LeaveReason>,
    /// What the cluster's registry has about it; `None` if it is known from this node's kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registered: Option<Arc<RegisteredClaimant>>,
}

impl Claimant {
    /// A claimant without evidence, of whose claim no record is known.
    #[must_use]
    pub fn new(id: ClaimantId, device: String, ifindex: IfIndex, since: Timestamp) -> Self {
        Self {
            id,
            device,
            ifindex,
            mac: None,
            master: None,
            peer: None,
            since,
            beginning: Beginning::default(),
            is_newest: false,
            rightful: None,
            allocated: None,
            has_own_stack: false,
            evidence: Vec::new(),
            left: None,
            registered: None,
        }
    }
}

/// A claimant as the cluster's registry has it. Of a range it is the node, without a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegisteredClaimant {
    /// The node's name.
    pub node: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name; empty if there is none.
    pub pod: String,
    /// The pod's uid.
    pub pod_uid: Option<String>,
    /// The pod's sandbox.
    pub container_id: Option<String>,
}

/// A conflict as it is at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conflict {
    /// Its identity.
    pub id: ConflictId,
    /// The contested address.
    pub address: IpAddr,
    /// The network in which it is contested.
    #[serde(default)]
    pub network: Network,
    /// VLAN tags of the claims.
    pub vlan: Vlan,
    /// Its kind.
    pub kind: ConflictKind,
    /// Where its claimants are.
    #[serde(default)]
    pub scope: ConflictScope,
    /// How strong the evidence is.
    pub confidence: Confidence,
    /// When it was raised.
    pub raised_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// When it was resolved; `None` while it is active.
    pub resolved_at: Option<Timestamp>,
    /// The kernel's timestamp of the observation that decided the last change.
    pub decided_at: Timestamp,
    /// The device name of the claimant that receives the node's traffic.
    pub traffic_goes_to: Option<String>,
    /// Present claimants first, then those that left (the newest, bounded by
    /// `Bounds::claimants_per_conflict`).
    pub claimants: Vec<Claimant>,
    /// How many present claimants are not listed because of the bound.
    pub claimants_omitted: usize,
    /// How often it began again within a minute of its end.
    #[serde(default)]
    pub repeats: u32,
    /// Of one that has begun again: since when it has been over; `None` while it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quiet_since: Option<Timestamp>,
    /// The address sweep that it is part of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sweep: Option<AnomalyId>,
    /// The last event about it; `None` before the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reported: Option<Reported>,
}

/// What the last event about a conflict contained. The engine only stores it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reported {
    /// Its latency in microseconds.
    pub latency_us: u64,
    /// What the next event is compared with.
    #[serde(default)]
    pub digest: ConflictDigest,
}

/// Hashes of the parts of an event about a conflict.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConflictDigest {
    /// Of the kind.
    pub kind: u64,
    /// Of the confidence.
    pub confidence: u64,
    /// Of the device that receives the traffic.
    pub traffic_goes_to: u64,
    /// Of the newest claimant and how that is known.
    pub newest: u64,
    /// Of the sweep's id.
    pub sweep: u64,
    /// Of the diagnosis; 0 if there was none.
    pub diagnosis: u64,
    /// Of the listed claimants.
    pub claimants: Vec<ClaimantDigest>,
    /// How many claimants are not listed.
    pub claimants_omitted: usize,
}

/// Hashes of the parts of a claimant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClaimantDigest {
    /// Of its device and why it left.
    pub identity: u64,
    /// Of its evidence without times.
    pub evidence: u64,
    /// Of its pod.
    pub pod: u64,
    /// Of the pod's name alone.
    pub pod_name: u64,
    /// How much was known of the pod; 0 if nothing was.
    pub pod_parts: u8,
    /// Of what records have about the claim.
    pub rightful: u64,
}

impl Conflict {
    /// From the timestamp of the observation that decided the last change to the change, in nanoseconds.
    #[must_use]
    pub fn latency(&self) -> u64 {
        self.updated_at.0.saturating_sub(self.decided_at.0)
    }

    /// Claimants that have not left.
    pub fn present(&self) -> impl Iterator<Item = &Claimant> {
        self.claimants.iter().filter(|c| c.left.is_none())
    }
}
