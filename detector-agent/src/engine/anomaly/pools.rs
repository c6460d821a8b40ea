//! IPAM's books, and what they say of a live address.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    ops::RangeInclusive,
    sync::Arc,
};

use super::super::{conflict::Claimant, observation::Timestamp};

/// Which IPAM keeps the books.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Ipam {
    /// The CNI plugin `host-local`.
    HostLocal,
    /// Calico's `IPAMBlocks`.
    Calico,
    /// The AWS VPC CNI's ipamd.
    Aws,
}

impl Ipam {
    /// Every IPAM that is known.
    pub const ALL: [Self; 3] = [Self::HostLocal, Self::Calico, Self::Aws];

    /// What people call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::HostLocal => "host-local",
            Self::Calico => "calico-ipam",
            Self::Aws => "aws-ipamd",
        }
    }
}

/// Whose books, and where they stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolSource {
    /// Which IPAM.
    pub ipam: Ipam,
    /// The network's name in the CNI configuration.
    pub network: String,
    /// The directory, file or resource.
    pub place: String,
}

/// Tells pools apart, for as long as the agent runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolId(pub u32);

/// Which live addresses a pool has to know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Addresses it hands out.
    pub ranges: Vec<RangeInclusive<IpAddr>>,
    /// Devices whose addresses all come from it, by the beginning of their names.
    pub device_prefixes: Vec<String>,
    /// Addresses it once held since the agent started.
    pub previously_allocated: BTreeSet<IpAddr>,
}

/// How complete the books are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completeness {
    /// They were read whole.
    Complete,
    /// They were read whole, and show that they were deleted rather than kept: what is missing was lost.
    Deleted,
    /// They cannot be read, or may be of no use: nothing is concluded from what they lack.
    Unknown,
}

/// What the books hold for an address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocation {
    /// For whom: a container's id, or a handle.
    pub owner: Option<Arc<str>>,
    /// Another owner that the same address is held for.
    pub second_owner: Option<Arc<str>>,
    /// The owner is only a pod's name, which a later pod may share.
    pub owner_is_shared: bool,
    /// It is held for something other than a pod of this node.
    pub not_a_pod: bool,
}

/// The books of one pool as they were read at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Its identity.
    pub id: PoolId,
    /// Whose books.
    pub source: Arc<PoolSource>,
    /// Which live addresses it has to know.
    pub coverage: Coverage,
    /// How complete they are.
    pub completeness: Completeness,
    /// What they hold.
    pub allocated: BTreeMap<IpAddr, Allocation>,
    /// Whether an address that no known device holds is nobody's: all its pods stand on devices that are followed.
    pub can_detect_leaks: bool,
    /// When the reading began.
    pub read_at: Timestamp,
}

/// Which addresses a reading may have changed something for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangedAddresses {
    /// Any.
    All,
    /// These.
    Only(Vec<IpAddr>),
}

/// What the readers of books tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolUpdate {
    /// Completeness were read.
    Read(Arc<Pool>, ChangedAddresses),
    /// There is no such pool any more.
    Gone(PoolId),
}

/// What the books say of a live address.
#[derive(Debug)]
pub(in crate::engine) enum AllocationState<'a> {
    /// No pool has to know it, or it cannot be told.
    Unknown,
    /// It is held.
    Allocated(&'a Pool, &'a Allocation),
    /// It is free, though this pool has to know it.
    Free(&'a Arc<Pool>),
}

/// All pools, as last read.
#[derive(Debug, Default)]
pub(in crate::engine) struct Pools {
    by_id: BTreeMap<PoolId, Arc<Pool>>,
}

impl Pools {
    pub(in crate::engine) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    pub(in crate::engine) fn put(&mut self, pool: Arc<Pool>) -> Option<Arc<Pool>> {
        self.by_id.insert(pool.id, pool)
    }

    pub(in crate::engine) fn remove(&mut self, id: PoolId) -> Option<Arc<Pool>> {
        self.by_id.remove(&id)
    }

    /// What the books say of an address that `holders` hold, who are not none.
    pub(in crate::engine) fn state_of(
        &self,
        address: IpAddr,
        holders: &[Claimant],
    ) -> AllocationState<'_> {
        if let Some(held) = self.allocation_of(address) {
            return held;
        }
        let mut free: Option<&Arc<Pool>> = None;
        for pool in self.by_id.values() {
            if !pool.coverage.covers(address, holders) {
                continue;
            }
            if pool.completeness == Completeness::Unknown {
                return AllocationState::Unknown;
            }
            // Of several that might have handed it out, the one that is known to have done so.
            let held_it = |pool: &Pool| pool.coverage.previously_allocated.contains(&address);
            if free.is_none_or(|known| held_it(pool) && !held_it(known)) {
                free = Some(pool);
            }
        }
        free.map_or(AllocationState::Unknown, AllocationState::Free)
    }

    /// Every address that stands in some books.
    pub(in crate::engine) fn allocated(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.by_id
            .values()
            .flat_map(|pool| pool.allocated.keys().copied())
    }

    /// Whoever holds it in its books.
    pub(in crate::engine) fn allocation_of(&self, address: IpAddr) -> Option<AllocationState<'_>> {
        self.by_id.values().find_map(|pool| {
            let allocation = pool.allocated.get(&address)?;
            Some(AllocationState::Allocated(pool, allocation))
        })
    }
}

impl Coverage {
    fn covers(&self, address: IpAddr, holders: &[Claimant]) -> bool {
        let same_family =
            |range: &&RangeInclusive<IpAddr>| range.start().is_ipv4() == address.is_ipv4();
        self.ranges
            .iter()
            .filter(same_family)
            .any(|range| range.contains(&address))
            || self.previously_allocated.contains(&address)
            || holders.iter().any(|holder| {
                self.device_prefixes
                    .iter()
                    .any(|prefix| holder.device.starts_with(prefix.as_str()))
            })
    }
}
