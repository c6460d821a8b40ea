//! IPAM pools, as their sources report them.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    ops::RangeInclusive,
    sync::Arc,
    time::Duration,
};

use crate::{
    model::{Observation, TimedObservation, Timestamp},
    names::named,
};

named! {
    /// The kind of IPAM.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Ipam {
        /// The CNI plugin `host-local`.
        HostLocal = "host-local",
        /// Calico's `IPAMBlocks`.
        Calico = "calico-ipam",
        /// The AWS VPC CNI's ipamd.
        Aws = "aws-ipamd",
        /// Cilium's endpoints.
        Cilium = "cilium",
        /// Azure's CNS.
        Azure = "azure-cns",
        /// Kube-OVN's `IP` objects.
        KubeOvn = "kube-ovn",
        /// The reservations and pools of whereabouts.
        Whereabouts = "whereabouts",
        /// Spiderpool's pools.
        Spiderpool = "spiderpool",
    }
}

/// An IPAM source and where its state is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolSource {
    /// Which IPAM.
    pub ipam: Ipam,
    /// The network's name in the CNI configuration.
    pub network: String,
    /// The directory, file or resource.
    pub place: String,
}

/// Identifies a pool while the agent runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolId(pub u32);

/// The live addresses that a pool should know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Address ranges it allocates from.
    pub ranges: Vec<RangeInclusive<IpAddr>>,
    /// Name prefixes of devices whose addresses all come from it.
    pub device_prefixes: Vec<String>,
    /// Addresses it had allocated earlier: while the agent ran, or as what its plugin returned shows.
    pub previously_allocated: BTreeSet<IpAddr>,
}

/// How complete the allocations of a pool are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completeness {
    /// All of them were read.
    Complete,
    /// All of them were read, and they were deleted as a whole rather than released one by one.
    Deleted,
    /// They cannot be read, or may be incomplete: a missing allocation means nothing.
    Unknown,
}

/// The allocation of an address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocation {
    /// Its owner: a container id, a handle, or a pod as `namespace/name`.
    pub owner: Option<Arc<str>>,
    /// A second owner of the same address.
    pub second_owner: Option<Arc<str>>,
    /// The owner is only a pod's name, which a later pod may share.
    pub owner_is_shared: bool,
    /// It belongs to something other than a pod of this node.
    pub not_a_pod: bool,
}

/// The allocations of one pool as read at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Its identity.
    pub id: PoolId,
    /// Its source.
    pub source: Arc<PoolSource>,
    /// The live addresses it should know.
    pub coverage: Coverage,
    /// How complete the allocations are.
    pub completeness: Completeness,
    /// The allocations by address.
    pub allocated: BTreeMap<IpAddr, Allocation>,
    /// Whether an allocation that no known device uses is a leak: all pods of the pool are on
    /// devices that the agent tracks.
    pub can_detect_leaks: bool,
    /// How long after a pod got its address the allocation may still be missing; zero if IPAM records it first.
    pub record_delay: Duration,
    /// When reading began.
    pub read_at: Timestamp,
    /// The parts that were read, of a pool that is not read as a whole.
    pub parts: Option<Vec<PoolPart>>,
}

/// A part of a pool, such as a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolPart {
    /// Its addresses.
    pub range: RangeInclusive<IpAddr>,
    /// When the last read began that surely had its newest state; `None` if there was none.
    pub confirmed_at: Option<Timestamp>,
}

/// A request to read the part of a pool that has an address, or the whole pool if it has no parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PoolRequest {
    /// The pool.
    pub pool: PoolId,
    /// The address.
    pub address: IpAddr,
}

/// The addresses that a read may have changed something for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangedAddresses {
    /// Any.
    All,
    /// Only these.
    Only(Vec<IpAddr>),
}

/// An update from the IPAM watcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolUpdate {
    /// A pool was read.
    Read(Arc<Pool>, ChangedAddresses),
    /// The pool no longer exists.
    Gone(PoolId),
    /// The first search for pools is over, and these were found but not read yet. Nothing follows for the engine.
    Found(BTreeSet<PoolId>),
}

impl PoolUpdate {
    /// Its observation, made now; of a pool that was read, made when that was.
    #[must_use]
    pub fn observed(self, now: Timestamp) -> TimedObservation {
        let at = match &self {
            Self::Read(pool, _) => pool.read_at,
            Self::Gone(_) | Self::Found(_) => now,
        };
        TimedObservation::new(at, Observation::Pool(self))
    }
}
