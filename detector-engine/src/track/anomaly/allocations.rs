//! Compares IPAM's allocations with the addresses that pods hold (`ipam_drift` and `ipam_leak`).

use std::{collections::BTreeSet, net::IpAddr, sync::Arc, time::Duration};

use crate::{
    mirror::pools::AllocationState,
    model::{
        Allocation, AnomalyCause, AnomalyEffect, AnomalyKind, ChangedAddresses, Claimant,
        Completeness, Pool, PoolId, PoolRequest, PoolSource, PoolUpdate, ResolveReason, sandbox_of,
    },
    track::{
        Step,
        anomaly::lifecycle::{Anomalies, AnomalyDetails, AnomalyKey},
    },
};

/// Allocations older than this are read again before something is raised by them.
const MAX_AGE: Duration = Duration::from_secs(1);
/// The most requests that wait for a read.
const MAX_PENDING: usize = 1024;

/// What the pools have about a live address.
enum Judgement {
    /// There is nothing wrong, or nothing is known.
    Resolved(ResolveReason),
    /// The part of this pool that should know the address was not read.
    Unread(PoolId),
    /// There is an allocation, whose owner is not known, or not known yet: `host-local` creates the file before it writes the
    /// owner into it.
    OwnerUnknown,
    /// The allocation has two owners, or one that it shares.
    Owners(AnomalyDetails),
    /// The allocation is another pod's.
    OwnedByAnother(Arc<Pool>, AnomalyDetails),
    /// There is no allocation.
    Free(Arc<Pool>),
}

impl Anomalies {
    pub(crate) fn has_pools(&self) -> bool {
        !self.pools.is_empty()
    }

    /// Whether an anomaly of this address is open or pending because of allocations, whether or not
    /// the pool still exists.
    pub(crate) fn tracks_allocation(&self, address: IpAddr) -> bool {
        let is_open = |kind| self.is_open(&AnomalyKey::of(kind, address));
        is_open(AnomalyKind::IpamDrift)
            || is_open(AnomalyKind::IpamLeak)
            || self.unallocated_since.contains_key(&address)
            || self.owned_by_another_since.contains_key(&address)
            || self.unused_since.contains_key(&address)
    }

    /// Stores a pool update. Returns the addresses to check; `None` for all.
    pub(crate) fn update_pool(&mut self, update: PoolUpdate) -> Option<BTreeSet<IpAddr>> {
        match update {
            PoolUpdate::Read(pool, changed) => {
                self.pending_reads.retain(|(id, _)| *id != pool.id);
                let known = self.pools.put(pool);
                match changed {
                    ChangedAddresses::Only(addresses) if known.is_some() => {
                        let pending = self.unallocated_since.keys();
                        let pending = pending.chain(self.owned_by_another_since.keys());
                        Some(addresses.into_iter().chain(pending.copied()).collect())
                    }
                    _ => None,
                }
            }
            PoolUpdate::Gone(id) => {
                self.pending_reads.retain(|(pool, _)| *pool != id);
                self.pools.remove(id)?;
                None
            }
            PoolUpdate::Found(_) => Some(BTreeSet::new()),
        }
    }

    /// Checks a live address for `ipam_drift`. `holders`: the pods that hold it, oldest first. `pod_of`: the name of the
    /// pod with a sandbox.
    pub(crate) fn check_drift<'p>(
        &mut self,
        address: IpAddr,
        holders: &[Claimant],
        pod_of: impl FnOnce(&str) -> Option<&'p str>,
        step: &mut Step<'_>,
    ) {
        let key = AnomalyKey::of(AnomalyKind::IpamDrift, address);
        if holders.is_empty() {
            self.unallocated_since.remove(&address);
            self.owned_by_another_since.remove(&address);
            self.resolve(&key, ResolveReason::AddressGone, step);
            return;
        }
        let judgement = self.judge(address, holders, pod_of);
        if !matches!(judgement, Judgement::Free(_)) {
            self.unallocated_since.remove(&address);
        }
        if !matches!(
            judgement,
            Judgement::OwnedByAnother(..) | Judgement::OwnerUnknown
        ) {
            self.owned_by_another_since.remove(&address);
        }
        let details = match judgement {
            Judgement::Resolved(ResolveReason::Allocated)
                if holders.iter().all(|h| h.allocated == Some(true)) =>
            {
                return self.end(&key, ResolveReason::Allocated, step);
            }
            Judgement::Resolved(reason) => return self.resolve(&key, reason, step),
            Judgement::Unread(pool) => {
                self.request_read(pool, true, address, step);
                return self.resolve(&key, ResolveReason::NotSeen, step);
            }
            Judgement::OwnerUnknown => {
                let grace = self.settings.anomalies.drift_grace;
                if !self.is_open(&key)
                    || self.has_lasted(|a| &mut a.owned_by_another_since, address, grace, step.now)
                {
                    self.owned_by_another_since.remove(&address);
                    self.resolve(&key, ResolveReason::Allocated, step);
                }
                return;
            }
            Judgement::Owners(details) => details,
            Judgement::OwnedByAnother(pool, details) => {
                // A pod that is being deleted has its address for a moment after IPAM released it.
                let grace = self.settings.anomalies.drift_grace;
                let is_certain = self.has_cause(&key, AnomalyCause::OwnedByAnother)
                    || self.has_lasted(|a| &mut a.owned_by_another_since, address, grace, step.now)
                        && self.is_recent(&pool, address, holders, step);
                if !is_certain {
                    return;
                }
                self.owned_by_another_since.remove(&address);
                details
            }
            Judgement::Free(_) if self.has_cause(&key, AnomalyCause::NotAllocated) => return,
            Judgement::Free(pool) => {
                let grace = match pool.completeness {
                    Completeness::Deleted => Duration::ZERO,
                    Completeness::Complete | Completeness::Unknown => {
                        self.settings.anomalies.drift_grace.max(pool.record_delay)
                    }
                };
                if !self.has_lasted(|a| &mut a.unallocated_since, address, grace, step.now)
                    || !self.is_recent(&pool, address, holders, step)
                {
                    return;
                }
                self.unallocated_since.remove(&address);
                not_allocated(address, &pool, holders)
            }
        };
        self.raise(key, details, step);
    }

    /// What the pools have about a live address.
    fn judge<'p>(
        &self,
        address: IpAddr,
        holders: &[Claimant],
        pod_of: impl FnOnce(&str) -> Option<&'p str>,
    ) -> Judgement {
        let (pool, allocation) = match self.pools.state_of(address, holders) {
            AllocationState::Unknown => return Judgement::Resolved(ResolveReason::NotSeen),
            AllocationState::Unread(pool) => return Judgement::Unread(pool),
            // No IPAM gave it out, and none is about to: a router advertised its prefix.
            AllocationState::Free(_) if holders.iter().all(Claimant::is_autoconfigured) => {
                return Judgement::Resolved(ResolveReason::NotSeen);
            }
            AllocationState::Free(pool) => return Judgement::Free(Arc::clone(pool)),
            AllocationState::Allocated(pool, allocation) => (pool, allocation),
        };
        if let Some(details) = owner_problem(address, pool, allocation, holders) {
            return Judgement::Owners(details);
        }
        if allocation.owner.is_none() {
            return Judgement::OwnerUnknown;
        }
        let others = holders.iter().filter(|h| h.allocated == Some(false));
        let others: Vec<_> = others.cloned().collect();
        if others.is_empty() {
            return Judgement::Resolved(ResolveReason::Allocated);
        }
        let details = owned_by_another(address, pool, allocation, others, pod_of);
        Judgement::OwnedByAnother(Arc::clone(pool), details)
    }

    /// Whether the allocations are recent enough to raise something by them. If they are too old, they are requested.
    fn is_recent(
        &mut self,
        pool: &Pool,
        address: IpAddr,
        holders: &[Claimant],
        step: &mut Step<'_>,
    ) -> bool {
        let is_deleted = pool.completeness == Completeness::Deleted;
        // IPAM records an allocation before the address is set: only allocations that were read
        // after the address was first seen count.
        let first_seen = holders.iter().map(|h| h.since).min().unwrap_or(step.now);
        let is_recent = pool.confirmed_at(address).is_some_and(|confirmed_at| {
            confirmed_at > first_seen && (is_deleted || confirmed_at + MAX_AGE >= step.now)
        });
        if !is_recent {
            self.request_read(pool.id, pool.parts.is_some(), address, step);
        }
        is_recent
    }

    /// Requests a pool, or if it has parts the one with an address, to be read now, unless that was requested since its
    /// last update.
    fn request_read(
        &mut self,
        pool: PoolId,
        has_parts: bool,
        address: IpAddr,
        step: &mut Step<'_>,
    ) {
        if self.pending_reads.len() < MAX_PENDING
            && self
                .pending_reads
                .insert((pool, has_parts.then_some(address)))
        {
            step.report_anomaly(AnomalyEffect::ReadPool(PoolRequest { pool, address }));
        }
    }

    /// Checks an allocated address for `ipam_leak`. `in_use`: a pod or the node has it;
    /// `has_unknown_addresses`: the addresses of some pod are unknown.
    pub(crate) fn check_leak(
        &mut self,
        address: IpAddr,
        in_use: bool,
        has_unknown_addresses: impl FnOnce() -> bool,
        step: &mut Step<'_>,
    ) {
        let key = AnomalyKey::of(AnomalyKind::IpamLeak, address);
        let Some(AllocationState::Allocated(pool, allocation)) = self.pools.allocation_of(address)
        else {
            self.unused_since.remove(&address);
            let known = self
                .restored(&key)
                .and_then(|known| known.source.as_deref());
            match known {
                Some(source) if self.pools.has_read(source, address) => {
                    self.end(&key, ResolveReason::Released, step);
                }
                _ => self.resolve(&key, ResolveReason::Released, step),
            }
            return;
        };
        if in_use {
            self.unused_since.remove(&address);
            self.end(&key, ResolveReason::InUse, step);
            return;
        }
        if !pool.can_detect_leaks || allocation.not_a_pod || has_unknown_addresses() {
            self.unused_since.remove(&address);
            self.resolve(&key, ResolveReason::NotSeen, step);
            return;
        }
        if self.is_open(&key) {
            return;
        }
        let (source, owner) = (Arc::clone(&pool.source), allocation.owner.clone());
        let grace = self.settings.anomalies.leak_after;
        if !self.has_lasted(|a| &mut a.unused_since, address, grace, step.now) {
            return;
        }
        let to_owner = owner
            .as_deref()
            .map(|owner| format!(" to {owner}"))
            .unwrap_or_default();
        let detail = format!(
            "{address} is allocated in {}{to_owner}, but no pod of this node has had it for {} s: the pool lacks the address until it is released",
            source_name(&source),
            grace.as_secs()
        );
        let details = AnomalyDetails {
            source: Some(source),
            owner,
            ..AnomalyDetails::new(AnomalyCause::NoLiveOwner, Vec::new(), detail)
        };
        self.raise(key, details, step);
    }
}

/// An allocation that does not belong to the address's pod alone.
fn owner_problem(
    address: IpAddr,
    pool: &Pool,
    allocation: &Allocation,
    holders: &[Claimant],
) -> Option<AnomalyDetails> {
    let owner = allocation.owner.as_deref().unwrap_or("an unknown owner");
    let source = source_name(&pool.source);
    let (cause, detail) = if let Some(second) = &allocation.second_owner {
        let detail = format!(
            "{address} is allocated twice in {source}, to {owner} and to {second}: when one of them is deleted, the address is released while the other still has it"
        );
        (AnomalyCause::TwoOwners, detail)
    } else if allocation.owner_is_shared {
        let detail = format!(
            "{address} is allocated in {source} to {owner}, a name that an earlier pod shares: when that pod's record is deleted, the address is released while in use"
        );
        (AnomalyCause::SharedOwner, detail)
    } else {
        return None;
    };
    Some(AnomalyDetails {
        source: Some(Arc::clone(&pool.source)),
        owner: allocation.owner.clone(),
        ..AnomalyDetails::new(cause, holders.to_vec(), detail)
    })
}

/// A live address that is allocated to another pod than those in `others`, which have it.
fn owned_by_another<'p>(
    address: IpAddr,
    pool: &Pool,
    allocation: &Allocation,
    others: Vec<Claimant>,
    pod_of: impl FnOnce(&str) -> Option<&'p str>,
) -> AnomalyDetails {
    let on = first_device(&others);
    let source = source_name(&pool.source);
    let owner = allocation.owner.as_deref().unwrap_or_default();
    let owner = match sandbox_of(pool.source.ipam, owner) {
        Some(sandbox) => {
            pod_of(sandbox).map_or_else(|| format!("the sandbox {sandbox}"), str::to_owned)
        }
        None => owner.to_owned(),
    };
    let detail = format!(
        "{address} is in use on {on}, but {source} has allocated it to another pod: {owner}"
    );
    AnomalyDetails {
        source: Some(Arc::clone(&pool.source)),
        owner: allocation.owner.clone(),
        ..AnomalyDetails::new(AnomalyCause::OwnedByAnother, others, detail)
    }
}

/// A live address without an allocation.
fn not_allocated(address: IpAddr, pool: &Pool, holders: &[Claimant]) -> AnomalyDetails {
    let on = first_device(holders);
    let source = source_name(&pool.source);
    let detail = format!(
        "{address} is in use on {on}, but {source} has no allocation for it: the next pod may be given the same address"
    );
    AnomalyDetails {
        source: Some(Arc::clone(&pool.source)),
        ..AnomalyDetails::new(AnomalyCause::NotAllocated, holders.to_vec(), detail)
    }
}

/// The device named in an anomaly's sentence.
pub(super) fn first_device(holders: &[Claimant]) -> &str {
    holders.first().map_or("", |h| h.device.as_str())
}

fn source_name(source: &PoolSource) -> String {
    format!("{} ({})", source.ipam.name(), source.place)
}
