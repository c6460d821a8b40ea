//! What is known of one incident. The collectors fill it, and the rules only read it.

mod claimant;
mod node;
mod not_checked;
mod pool;

use std::net::IpAddr;

pub use claimant::{
    Assignment, ClaimantFacts, CniResult, Controller, PodFacts, SandboxFacts, SandboxState,
};
pub use node::{
    DeviceSysctls, NodeAddress, NodeFacts, NodeRange, PluginEnd, PluginStart, PodCidrWriter,
    ResourceVersions, RouteFacts, RouteHolder,
};
pub use pool::{
    AllocationOwner, FileFacts, Filesystem, LivePods, LogLine, NetworkConfig, OwnedBy, PoolFacts,
    PoolState, Release, Removal, RemovedItem,
};

use crate::{
    diagnosis::known::{Known, UnixTime},
    model::{AnomalyKind, ConflictKind},
};

/// What is explained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FindingKind {
    /// A conflict.
    Conflict(ConflictKind),
    /// An anomaly.
    Anomaly(AnomalyKind),
}

/// The facts of one incident.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// What was found.
    pub finding: FindingKind,
    /// The address. For `gateway_unresolved` the address of the pod, not that of the gateway.
    pub address: IpAddr,
    /// The pods that claim the address; of an anomaly, those that hold it, or the one that asks for its gateway. The node itself is not
    /// listed.
    pub claimants: Vec<ClaimantFacts>,
    /// The index of the claimant that had the address last.
    pub newest: Known<usize>,
    /// The IPAM pool that the address belongs to.
    pub pool: Known<PoolFacts>,
    /// Further networks of this node whose ranges overlap with the pool's: of configurations, CNI results, Docker and Podman.
    pub overlapping_networks: Known<Vec<NetworkConfig>>,
    /// The node.
    pub node: NodeFacts,
    /// The assignment of the address to the node itself.
    pub node_address: Known<NodeAddress>,
    /// When the address last moved to another claimant by an announcement (gratuitous ARP, unsolicited NA).
    pub moved_at: Known<UnixTime>,
    /// The Nodes whose podCIDR has the address.
    pub nodes_with_range: Known<Vec<NodeRange>>,
    /// The resource versions of Calico's objects or of the API server, now and before.
    pub resource_versions: Known<ResourceVersions>,
    /// The node's route to the address.
    pub route: Known<RouteFacts>,
    /// The node's route to the gateway that the pod asks for.
    pub gateway_route: Known<RouteFacts>,
    /// The device on which the node itself has that gateway's address.
    pub gateway_on_node: Known<String>,
    /// The sysctls of the device that takes the pod's packets in: its own, or the bridge that it is a port of.
    pub sysctls: Known<DeviceSysctls>,
}
