//! Anomalies as the engine reports them: plain, owned data.

use std::{net::IpAddr, sync::Arc};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::{
    model::{AnomalyId, Claimant, PoolRequest, PoolSource, Timestamp, Vlan},
    names::named,
};

named! {
    /// What kind of anomaly it is.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum AnomalyKind {
        /// A live address that IPAM considers, or will soon consider, free: the next pod may get it.
        IpamDrift = "ipam_drift",
        /// An address allocated to a pod that is gone.
        IpamLeak = "ipam_leak",
        /// A pod requests its gateway again and again, as it does if nothing answers.
        GatewayUnresolved = "gateway_unresolved",
        /// The host's route for a claimed address leads to none of its claimants.
        RouteAstray = "route_astray",
        /// A pod device contests many addresses of others.
        AddressSweep = "address_sweep",
        /// Several nodes assign addresses from one range.
        PodCidrOverlap = "pod_cidr_overlap",
        /// A pod sends router advertisements.
        RogueRouter = "rogue_router",
        /// Pods on several ports of one L2 domain have one hardware address.
        MacDuplicate = "mac_duplicate",
        /// A pod's hardware address was learned on another port than its own.
        MacMoved = "mac_moved",
        /// A pod has an address that failed duplicate address detection, and nothing conflicts with it any more.
        AddressUnusable = "address_unusable",
    }
}

named! {
    /// Why an anomaly was raised.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum AnomalyCause {
        /// A live address has no allocation.
        NotAllocated = "not_allocated",
        /// A live address is allocated twice, to two owners.
        TwoOwners = "two_owners",
        /// A live address is allocated to an owner that an earlier pod of the same name shares:
        /// deleting that pod's record releases the address.
        SharedOwner = "shared_owner",
        /// A live address is allocated to another pod than the one that has it.
        OwnedByAnother = "owned_by_another",
        /// No pod uses an allocated address.
        NoLiveOwner = "no_live_owner",
        /// The pod repeats its requests; whether they are answered is not known.
        RepeatedRequests = "repeated_requests",
        /// The host route leads to another device.
        OtherDevice = "other_device",
        /// There was a host route to a claimant, and now there is none.
        RouteGone = "route_gone",
        /// The device contests many addresses in frames or neighbour entries.
        ContestsMany = "contests_many",
        /// The range is registered by several nodes.
        SeveralNodes = "several_nodes",
        /// A router advertisement came in on a pod device.
        RouterAdvertisement = "router_advertisement",
        /// The hardware address is that of pods on several ports.
        SeveralPorts = "several_ports",
        /// The hardware address was learned on another port.
        LearnedElsewhere = "learned_elsewhere",
        /// Duplicate address detection failed.
        DadFailed = "dad_failed",
    }
}

named! {
    /// Why an anomaly was resolved.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum ResolveReason {
        /// The address is correctly allocated again.
        Allocated = "allocated",
        /// IPAM released the address.
        Released = "released",
        /// No pod holds the address any more.
        AddressGone = "address_gone",
        /// The address is in use again.
        InUse = "in_use",
        /// The pod stopped requesting, or advertising.
        Quiet = "quiet",
        /// The device was removed.
        DeviceGone = "device_gone",
        /// The route leads to a claimant again.
        RouteRight = "route_right",
        /// The device contests few addresses or none.
        ContestsFew = "contests_few",
        /// At most one node has the range.
        RangeUnique = "range_unique",
        /// At most one pod has the hardware address, and it is behind that pod's port.
        MacUnique = "mac_unique",
        /// The pod can use the address.
        Usable = "usable",
        /// The address is in conflict.
        InConflict = "in_conflict",
        /// It can no longer be judged: its pool is gone or unreadable, or an agent that was restarted
        /// does not find it again.
        NotSeen = "not_seen",
    }
}

/// The addresses that a device contests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contested {
    /// How many; of a resolved anomaly, the most at one time.
    pub count: usize,
    /// For how many of them the node sends the traffic to the device.
    #[serde(default)]
    pub diverted: usize,
    /// For how many of them it sends the traffic to another claimant.
    #[serde(default)]
    pub kept: usize,
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
