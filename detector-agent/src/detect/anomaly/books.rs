//! IPAM's books against the addresses that pods hold, and when the two are worth comparing.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc, time::Duration};

use super::{
    super::{conflict::Claimant, lifecycle::Moment, settings::Bounds},
    lifecycle::{Anomalies, Key, News, note},
    model::{AnomalyKind, Cause, OverReason, Said},
    pools::{Books, PoolNews, PoolSource, Standing, Touched},
};

/// Books older than this are read again before something is raised by them.
const FRESH: Duration = Duration::from_secs(1);

impl Anomalies {
    pub(in crate::detect) fn has_pools(&self) -> bool {
        !self.pools.is_empty()
    }

    /// Takes books over. Gives the addresses to look at; `None` for all.
    pub(in crate::detect) fn read(&mut self, news: PoolNews) -> Option<BTreeSet<IpAddr>> {
        match news {
            PoolNews::Read(pool, touched) => {
                self.asked.remove(&pool.id);
                let known = self.pools.put(pool);
                match touched {
                    Touched::These(addresses) if known.is_some() => {
                        let missing = self.missing.keys().copied();
                        Some(addresses.into_iter().chain(missing).collect())
                    }
                    _ => None,
                }
            }
            PoolNews::Gone(id) => {
                self.asked.remove(&id);
                self.pools.remove(id)?;
                None
            }
        }
    }

    /// Compares a live address with the books. `holders`: the pods that hold it, oldest first.
    pub(in crate::detect) fn drift(
        &mut self,
        address: IpAddr,
        holders: &[Claimant],
        at: Moment,
        bounds: &Bounds,
        said: &mut Vec<Said>,
    ) {
        let key = Key::of(AnomalyKind::IpamDrift, address);
        if holders.is_empty() {
            self.missing.remove(&address);
            self.resolve(&key, OverReason::AddressGone, at, said);
            return;
        }
        let news = match self.pools.standing(address, holders) {
            Standing::NoMatter => {
                self.missing.remove(&address);
                self.resolve(&key, OverReason::NotSeen, at, said);
                return;
            }
            Standing::Held(pool, allocation) => {
                let cause = if allocation.second_owner.is_some() {
                    Cause::TwoOwners
                } else if allocation.owner_is_shared {
                    Cause::SharedOwner
                } else {
                    self.missing.remove(&address);
                    self.resolve(&key, OverReason::Allocated, at, said);
                    return;
                };
                let owner = allocation.owner.clone();
                let second = allocation.second_owner.as_deref().unwrap_or_default();
                let shown = owner.as_deref().unwrap_or("nobody");
                let place = place(&pool.source);
                let detail = match cause {
                    Cause::TwoOwners => format!(
                        "{address} stands twice in the books of {place}, for {shown} and for {second}: when one of them goes, the address is freed under the other"
                    ),
                    _ => format!(
                        "{address} is held in {place} for {shown}, a name that an earlier pod shares: when that pod's record is deleted, the live address is freed"
                    ),
                };
                self.missing.remove(&address);
                (cause, Arc::clone(&pool.source), owner, detail)
            }
            Standing::Free(pool) => {
                if self.is_open(&key) {
                    return;
                }
                let (id, books, read_at) = (pool.id, pool.books, pool.read_at);
                let source = Arc::clone(&pool.source);
                let Some(since) = note(&mut self.missing, address, at.now, bounds) else {
                    self.refused += 1;
                    return;
                };
                // IPAM writes first and sets the address then: books that were read before it was seen say nothing of it.
                let seen = holders.iter().map(|h| h.since).min().unwrap_or(at.now);
                let due = match books {
                    Books::Lost => since,
                    _ => since + self.rules.drift_grace,
                };
                let stale = books != Books::Lost && read_at + FRESH < at.now;
                if at.now < due {
                    self.expiry.look_at(address, due);
                    return;
                }
                if read_at <= seen || stale {
                    if self.asked.insert(id) {
                        said.push(Said::ReadBooks(id));
                    }
                    return;
                }
                self.missing.remove(&address);
                let on = holders
                    .first()
                    .map(|h| h.device.as_str())
                    .unwrap_or_default();
                let place = place(&source);
                let detail = format!(
                    "{address} is in use on {on}, but {place} holds nothing for it: the next pod may be given the same address"
                );
                (Cause::NotAllocated, source, None, detail)
            }
        };
        let (cause, source, owner, detail) = news;
        let news = News {
            cause,
            holders: holders.to_vec(),
            source: Some(source),
            owner,
            detail,
        };
        self.raise(key, news, at, bounds, said);
    }

    /// Looks whether an address in the books is anybody's.
    pub(in crate::detect) fn leak(
        &mut self,
        address: IpAddr,
        live: bool,
        blind: impl FnOnce() -> bool,
        at: Moment,
        bounds: &Bounds,
        said: &mut Vec<Said>,
    ) {
        let key = Key::of(AnomalyKind::IpamLeak, address);
        let Some(Standing::Held(pool, allocation)) = self.pools.held(address) else {
            self.idle.remove(&address);
            self.resolve(&key, OverReason::Released, at, said);
            return;
        };
        let over = if live {
            Some(OverReason::InUse)
        } else if !pool.tells_leaks || allocation.not_a_pod || blind() {
            Some(OverReason::NotSeen)
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
        let Some(since) = note(&mut self.idle, address, at.now, bounds) else {
            self.refused += 1;
            return;
        };
        let due = since + self.rules.leak_after;
        if at.now < due {
            self.expiry.look_at(address, due);
            return;
        }
        let whom = owner
            .as_deref()
            .map(|owner| format!(" for {owner}"))
            .unwrap_or_default();
        let detail = format!(
            "{address} is held in {}{whom}, but no pod of this node has had it for {} s: the address is lost to the pool until it is released",
            place(&source),
            self.rules.leak_after.as_secs()
        );
        let news = News {
            cause: Cause::NoLiveOwner,
            holders: Vec::new(),
            source: Some(source),
            owner,
            detail,
        };
        self.raise(key, news, at, bounds, said);
    }
}

fn place(source: &PoolSource) -> String {
    format!("{} ({})", source.ipam.name(), source.place)
}
