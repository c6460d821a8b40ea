//! What is known of an IPAM pool and of the allocation of the address.

use std::{net::IpAddr, ops::RangeInclusive};

use crate::diagnosis::known::{Known, UnixTime};

/// A pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolFacts {
    /// Its network.
    pub network: NetworkConfig,
    /// The directory, file or resource with its state.
    pub place: String,
    /// The owners of the address. Absent if it is not allocated.
    pub owners: Known<Vec<AllocationOwner>>,
    /// The pods that have addresses from it.
    pub live_pods: Known<LivePods>,
    /// The allocations of the address that the agent has seen and that are gone.
    pub releases: Known<Vec<Release>>,
    /// What is particular to its IPAM.
    pub state: PoolState,
}

/// A network, as its CNI configuration has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkConfig {
    /// Its name.
    pub name: String,
    /// `ipam.type`; the type of the plugin if that has its own IPAM.
    pub ipam: String,
    /// `ipam.dataDir`, or the plugin's default; `None` if the state is not in files.
    pub data_dir: Option<String>,
    /// The ranges it assigns from; empty if the configuration names none.
    pub ranges: Vec<RangeInclusive<IpAddr>>,
}

impl NetworkConfig {
    /// Whether the configuration names a range with this address.
    #[must_use]
    pub fn assigns(&self, address: IpAddr) -> bool {
        self.ranges.iter().any(|range| range.contains(&address))
    }

    /// Whether a range of one overlaps with a range of the other.
    #[must_use]
    pub fn shares_range_with(&self, other: &Self) -> bool {
        self.ranges.iter().any(|a| {
            let mut others = other.ranges.iter();
            others.any(|b| a.start() <= b.end() && b.start() <= a.end())
        })
    }
}

/// An owner of an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocationOwner {
    /// As IPAM names it.
    pub name: String,
    /// Who that is.
    pub is: OwnedBy,
    /// Whether it is only `namespace.pod`, which a later pod of that name shares.
    pub is_pod_name: bool,
    /// When IPAM recorded it.
    pub allocated_at: Option<UnixTime>,
}

/// An allocation that the agent has seen and that is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// Whose it was.
    pub of: OwnedBy,
    /// When it was last seen.
    pub seen: UnixTime,
    /// When it went; `None` if that was not watched.
    pub at: Option<UnixTime>,
}

/// Who the owner of an allocation is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnedBy {
    /// These claimants, by index; several if it is only a pod's name.
    Claimants(Vec<usize>),
    /// The node.
    Node,
    /// Something else.
    Other,
    /// It cannot be compared with the claimants.
    NotComparable,
}

/// The running pods whose addresses the records of the runtime or the network plugin place in the pool. What pods assign to themselves
/// is not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LivePods {
    /// How many.
    pub total: usize,
    /// How many of them have no allocation of their own.
    pub without_allocation: usize,
    /// How many addresses of the pool these have.
    pub addresses_without_allocation: usize,
}

/// What is particular to an IPAM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolState {
    /// `host-local`: files.
    HostLocal {
        /// The directory of the network.
        directory: Known<FileFacts>,
        /// Its `lock`.
        lock: Known<FileFacts>,
        /// The file system of the directory.
        filesystem: Known<Filesystem>,
        /// What the agent saw being deleted there.
        removals: Known<Vec<Removal>>,
    },
    /// Calico: a block.
    Calico {
        /// Its `creationTimestamp`.
        block_created: Known<UnixTime>,
        /// `secondary.node` of the allocation.
        secondary_node: Known<String>,
    },
    /// The AWS VPC CNI's ipamd.
    Aws {
        /// The start of ipamd that wrote its file.
        started: Known<UnixTime>,
        /// The line of its log that says why allocations are missing.
        log_line: Known<LogLine>,
    },
    /// Objects of the API server that name a pod before its plugin returns the address to it.
    ByLease,
    /// Another IPAM; only its allocations are known.
    Other,
}

/// A file or directory that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileFacts {
    /// Its birth time; `None` if the file system has none.
    pub born: Option<UnixTime>,
}

/// Whether a file system survives a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filesystem {
    /// It is in memory.
    Tmpfs,
    /// The writable layer of a container.
    Overlay,
    /// Any other: on a disk.
    Disk,
}

/// A deletion that the agent saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removal {
    /// What was deleted.
    pub item: RemovedItem,
    /// When.
    pub at: UnixTime,
}

/// What was deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovedItem {
    /// The directory.
    Directory,
    /// Its `lock`.
    Lock,
    /// The reservation of an address.
    Reservation(IpAddr),
}

/// A line of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// The message.
    pub text: String,
    /// When it was written.
    pub at: UnixTime,
}
