//! IPAM's books against the addresses that pods hold, and when the two are worth comparing.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc, time::Duration};

use super::{
    super::{conflict::Claimant, lifecycle::Moment, settings::Bounds},
    lifecycle::{Anomalies, Key, News},
    model::{AnomalyCause, AnomalyEffect, AnomalyKind, ResolveReason},
    pools::{Allocation, ChangedAddresses, Completeness, Pool, PoolSource, PoolUpdate, Standing},
};

/// Completeness older than this are read again before something is raised by them.
const FRESH: Duration = Duration::from_secs(1);

impl Anomalies {
    pub(in crate::engine) fn has_pools(&self) -> bool {
        !self.pools.is_empty()
    }

    /// Whether anything was concluded, or is about to be, from books about an address. They may be gone by now.
    pub(in crate::engine) fn follows_books(&self, address: IpAddr) -> bool {
        let is_open = |kind| self.is_open(&Key::of(kind, address));
        is_open(AnomalyKind::IpamDrift)
            || is_open(AnomalyKind::IpamLeak)
            || self.missing.contains_key(&address)
            || self.idle.contains_key(&address)
    }

    /// Takes books over. Gives the addresses to look at; `None` for all.
    pub(in crate::engine) fn read(&mut self, news: PoolUpdate) -> Option<BTreeSet<IpAddr>> {
        match news {
            PoolUpdate::Read(pool, touched) => {
                self.asked.remove(&pool.id);
                let known = self.pools.put(pool);
                match touched {
                    ChangedAddresses::Only(addresses) if known.is_some() => {
                        let missing = self.missing.keys().copied();
                        Some(addresses.into_iter().chain(missing).collect())
                    }
                    _ => None,
                }
            }
            PoolUpdate::Gone(id) => {
                self.asked.remove(&id);
                self.pools.remove(id)?;
                None
            }
        }
    }

    /// Compares a live address with the books. `holders`: the pods that hold it, oldest first.
    pub(in crate::engine) fn drift(
        &mut self,
        address: IpAddr,
        holders: &[Claimant],
        at: Moment,
        bounds: &Bounds,
        said: &mut Vec<AnomalyEffect>,
    ) {
        let key = Key::of(AnomalyKind::IpamDrift, address);
        if holders.is_empty() {
            self.missing.remove(&address);
            self.resolve(&key, ResolveReason::AddressGone, at, said);
            return;
        }
        let news = match self.pools.standing(address, holders) {
            Standing::NoMatter => Err(ResolveReason::NotSeen),
            Standing::Held(pool, allocation) => {
                doubtful(address, pool, allocation).ok_or(ResolveReason::Allocated)
            }
            Standing::Free(_) if self.is_open(&key) => return,
            Standing::Free(pool) => {
                let pool = Arc::clone(pool);
                if !self.is_free_for_sure(&pool, address, holders, at, bounds, said) {
                    return;
                }
                Ok(free(address, &pool, holders))
            }
        };
        self.missing.remove(&address);
        match news {
            Ok(news) => {
                let holders = holders.to_vec();
                self.raise(key, News { holders, ..news }, at, bounds, said);
            }
            Err(because) => self.resolve(&key, because, at, said),
        }
    }

    /// Whether the books have lacked a live address for long enough, and were read late enough to be believed. Where
    /// they were not, they are asked for.
    fn is_free_for_sure(
        &mut self,
        pool: &Pool,
        address: IpAddr,
        holders: &[Claimant],
        at: Moment,
        bounds: &Bounds,
        said: &mut Vec<AnomalyEffect>,
    ) -> bool {
        let lost = pool.completeness == Completeness::Deleted;
        let grace = if lost {
            Duration::ZERO
        } else {
            self.rules.drift_grace
        };
        if !self.has_lasted(|a| &mut a.missing, address, grace, at.now, bounds) {
            return false;
        }
        // IPAM writes first and sets the address then: books that were read before it was seen say nothing of it.
        let seen = holders.iter().map(|h| h.since).min().unwrap_or(at.now);
        let stale = !lost && pool.read_at + FRESH < at.now;
        if pool.read_at > seen && !stale {
            return true;
        }
        if self.asked.insert(pool.id) {
            said.push(AnomalyEffect::ReadPool(pool.id));
        }
        false
    }

    /// Looks whether an address in the books is anybody's.
    pub(in crate::engine) fn leak(
        &mut self,
        address: IpAddr,
        live: bool,
        blind: impl FnOnce() -> bool,
        at: Moment,
        bounds: &Bounds,
        said: &mut Vec<AnomalyEffect>,
    ) {
        let key = Key::of(AnomalyKind::IpamLeak, address);
        let Some(Standing::Held(pool, allocation)) = self.pools.held(address) else {
            self.idle.remove(&address);
            self.resolve(&key, ResolveReason::Released, at, said);
            return;
        };
        let over = if live {
            Some(ResolveReason::InUse)
        } else if !pool.can_detect_leaks || allocation.not_a_pod || blind() {
            Some(ResolveReason::NotSeen)
        } else {
            None
        };
        if let Some(over) = over {
            self.idle.remove(&address);
            self.resolve(&key, over, at, said);
            return;
        }
        if self.is_open(&key) {
            return;
        }
        let (source, owner) = (Arc::clone(&pool.source), allocation.owner.clone());
        let grace = self.rules.leak_after;
        if !self.has_lasted(|a| &mut a.idle, address, grace, at.now, bounds) {
            return;
        }
        let whom = owner
            .as_deref()
            .map(|owner| format!(" for {owner}"))
            .unwrap_or_default();
        let detail = format!(
            "{address} is held in {}{whom}, but no pod of this node has had it for {} s: the address is lost to the pool until it is released",
            place(&source),
            grace.as_secs()
        );
        let news = News {
            cause: AnomalyCause::NoLiveOwner,
            holders: Vec::new(),
            source: Some(source),
            owner,
            detail,
        };
        self.raise(key, news, at, bounds, said);
    }
}

/// What there is to tell of an address that the books hold, but not for its pod alone.
fn doubtful(address: IpAddr, pool: &Pool, allocation: &Allocation) -> Option<News> {
    let owner = allocation.owner.as_deref().unwrap_or("nobody");
    let place = place(&pool.source);
    let (cause, detail) = if let Some(second) = &allocation.second_owner {
        let detail = format!(
            "{address} stands twice in the books of {place}, for {owner} and for {second}: when one of them goes, the address is freed under the other"
        );
        (AnomalyCause::TwoOwners, detail)
    } else if allocation.owner_is_shared {
        let detail = format!(
            "{address} is held in {place} for {owner}, a name that an earlier pod shares: when that pod's record is deleted, the live address is freed"
        );
        (AnomalyCause::SharedOwner, detail)
    } else {
        return None;
    };
    Some(News {
        cause,
        holders: Vec::new(),
        source: Some(Arc::clone(&pool.source)),
        owner: allocation.owner.clone(),
        detail,
    })
}

/// What there is to tell of a live address that the books lack.
fn free(address: IpAddr, pool: &Pool, holders: &[Claimant]) -> News {
    let on = first_device(holders);
    let place = place(&pool.source);
    News {
        cause: AnomalyCause::NotAllocated,
        holders: Vec::new(),
        source: Some(Arc::clone(&pool.source)),
        owner: None,
        detail: format!(
            "{address} is in use on {on}, but {place} holds nothing for it: the next pod may be given the same address"
        ),
    }
}

/// The device that an anomaly's sentence names.
pub(super) fn first_device(holders: &[Claimant]) -> &str {
    holders.first().map_or("", |h| h.device.as_str())
}

fn place(source: &PoolSource) -> String {
    format!("{} ({})", source.ipam.name(), source.place)
}
