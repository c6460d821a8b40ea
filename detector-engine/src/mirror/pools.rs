//! IPAM pools, and what they know about an address.

use std::{collections::BTreeMap, net::IpAddr, ops::RangeInclusive, sync::Arc};

use crate::model::{
    Allocation, Claimant, Completeness, Coverage, Pool, PoolId, PoolPart, PoolRequest, PoolSource,
    Timestamp,
};

/// What the pools know about an address.
#[derive(Debug)]
pub(crate) enum AllocationState<'a> {
    /// No pool should know it, or that is not known.
    Unknown,
    /// It is allocated.
    Allocated(&'a Arc<Pool>, &'a Allocation),
    /// It is free, although this pool should know it.
    Free(&'a Arc<Pool>),
    /// The part of this pool that should know it was not read.
    Unread(PoolId),
}

/// All pools, as last read.
#[derive(Debug, Default)]
pub(crate) struct Pools {
    by_id: BTreeMap<PoolId, Arc<Pool>>,
}

impl Pools {
    pub(crate) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    pub(crate) fn put(&mut self, pool: Arc<Pool>) -> Option<Arc<Pool>> {
        self.by_id.insert(pool.id, pool)
    }

    pub(crate) fn remove(&mut self, id: PoolId) -> Option<Arc<Pool>> {
        self.by_id.remove(&id)
    }

    /// The state of an address that `holders` (at least one) hold.
    pub(crate) fn state_of(&self, address: IpAddr, holders: &[Claimant]) -> AllocationState<'_> {
        if let Some(allocated) = self.allocation_of(address) {
            return allocated;
        }
        let mut free: Option<&Arc<Pool>> = None;
        for pool in self.by_id.values() {
            if !pool.coverage.covers(address, holders) {
                continue;
            }
            if pool.completeness == Completeness::Unknown {
                return AllocationState::Unknown;
            }
            if pool.parts.is_some() && pool.parts_of(address).next().is_none() {
                return AllocationState::Unread(pool.id);
            }
            // Of several candidates, prefer one that had allocated it before.
            let allocated_before =
                |pool: &Pool| pool.coverage.previously_allocated.contains(&address);
            if free.is_none_or(|known| allocated_before(pool) && !allocated_before(known)) {
                free = Some(pool);
            }
        }
        free.map_or(AllocationState::Unknown, AllocationState::Free)
    }

    /// Whether the pool with this source was read, the part with the address included.
    pub(crate) fn has_read(&self, source: &PoolSource, address: IpAddr) -> bool {
        let mut pools = self.by_id.values();
        pools.any(|pool| {
            *pool.source == *source
                && pool.completeness != Completeness::Unknown
                && (pool.parts.is_none() || pool.parts_of(address).next().is_some())
        })
    }

    /// Requests for what the pools that are read in parts have of an address now.
    pub(crate) fn parts_with(&self, address: IpAddr) -> impl Iterator<Item = PoolRequest> + '_ {
        let pools = self.by_id.values();
        let pools = pools.filter(move |pool| pool.parts_of(address).next().is_some());
        pools.map(move |pool| PoolRequest {
            pool: pool.id,
            address,
        })
    }

    /// Every allocated address.
    pub(crate) fn allocated(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.by_id
            .values()
            .flat_map(|pool| pool.allocated.keys().copied())
    }

    /// The allocation of an address, in whichever pool has one.
    pub(crate) fn allocation_of(&self, address: IpAddr) -> Option<AllocationState<'_>> {
        self.by_id.values().find_map(|pool| {
            let allocation = pool.allocated.get(&address)?;
            Some(AllocationState::Allocated(pool, allocation))
        })
    }
}

impl Pool {
    /// The parts that have an address; blocks may overlap if their size was changed.
    fn parts_of(&self, address: IpAddr) -> impl Iterator<Item = &PoolPart> {
        let parts = self.parts.iter().flatten();
        parts.filter(move |part| {
            part.range.start().is_ipv4() == address.is_ipv4() && part.range.contains(&address)
        })
    }

    /// When the state of an address was surely the newest one.
    pub(crate) fn confirmed_at(&self, address: IpAddr) -> Option<Timestamp> {
        match &self.parts {
            None => Some(self.read_at),
            Some(_) => self
                .parts_of(address)
                .filter_map(|part| part.confirmed_at)
                .max(),
        }
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
