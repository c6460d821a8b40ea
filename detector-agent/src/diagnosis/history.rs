//! What the agent saw of the allocations in pools: which there are, which went, and when.
//!
//! A pool is read as soon as inotify or a watch reports a change, so the time of a read is that of the deletion.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    mem,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use detector_engine::{
    Allocation, Completeness, Ipam, Pool, PoolId, PoolUpdate,
    diagnosis::{Known, Removal, RemovedItem, Source, UnixTime},
};
use detector_event::WallTime;

use super::files::{not_checked, unix};

/// Most deletions that are remembered, the newest.
const MAX_REMOVALS: usize = 4_096;
/// Longest time between two complete reads of a pool that is watched.
const WATCHED: Duration = Duration::from_mins(1);

/// What was seen since the agent started, or with a store since it was first started.
#[derive(Debug, Default)]
pub(crate) struct PoolHistory(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    /// Each pool as it was read last, even if not completely.
    newest: HashMap<PoolId, Arc<Pool>>,
    /// Each pool as it was read completely, and when.
    pools: HashMap<PoolId, (Arc<Pool>, UnixTime)>,
    memory: Memory,
    /// It changed since it was last stored.
    is_changed: bool,
}

/// What outlives a restart of the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Memory {
    /// The allocations in each place. Those from before the agent's start stay until what has the address was read.
    pub(super) allocations: BTreeMap<String, BTreeMap<IpAddr, SeenAllocation>>,
    /// Oldest first.
    pub(super) removals: VecDeque<SeenRemoval>,
}

/// An allocation, and when it was last seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SeenAllocation {
    /// The first and the second one.
    pub(super) owners: [Option<Arc<str>>; 2],
    pub(super) at: UnixTime,
}

/// What was deleted at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SeenRemoval {
    pub(super) place: String,
    pub(super) item: RemovedItem,
    /// Whose allocation it was.
    pub(super) owner: Option<Arc<str>>,
    /// When it was last seen.
    pub(super) seen: UnixTime,
    /// When it went; `None` if that was not watched.
    pub(super) at: Option<UnixTime>,
}

impl PoolHistory {
    /// A pool was read or removed.
    pub(crate) fn note(&self, update: &PoolUpdate) {
        let mut seen = self.lock();
        match update {
            PoolUpdate::Read(pool, _) => {
                seen.newest.insert(pool.id, Arc::clone(pool));
                if pool.completeness != Completeness::Unknown
                    && let Some(now) = unix(WallTime::now())
                {
                    seen.read(pool, now);
                }
            }
            PoolUpdate::Gone(id) => {
                seen.newest.remove(id);
                if let Some((pool, _)) = seen.pools.remove(id) {
                    seen.memory.allocations.remove(&pool.source.place);
                }
            }
            PoolUpdate::Found(_) => {}
        }
    }

    /// The pool of a network, preferably one that has allocated the address, as it was read last.
    pub(super) fn pool(&self, network: &str, address: IpAddr) -> Option<Arc<Pool>> {
        let seen = self.lock();
        let pools = seen.newest.values();
        let pools = pools.filter(|pool| pool.source.network == network);
        let best = pools.max_by_key(|pool| pool.allocated.contains_key(&address));
        best.map(Arc::clone)
    }

    /// The pool that has a record of the address because its plugin gave it to a pod, as it was read last.
    pub(super) fn by_lease(&self, address: IpAddr) -> Option<Arc<Pool>> {
        let seen = self.lock();
        let has_record = |pool: &&Arc<Pool>| {
            let mut parts = pool.parts.iter().flatten();
            parts.any(|part| part.range == (address..=address))
        };
        let mut pools = seen.by_lease();
        pools.find(has_record).map(Arc::clone)
    }

    /// Whether there are pools whose records are found by leases.
    pub(super) fn has_leases(&self) -> bool {
        self.lock().by_lease().next().is_some()
    }

    /// What was deleted at a place while it was watched.
    pub(super) fn at(&self, place: &str) -> Known<Vec<Removal>> {
        let seen = self.lock();
        if !seen.is_followed(place) {
            return not_checked(format!("deletions in {place}"), "it is not watched");
        }
        let here = seen.memory.removals.iter().filter(|r| r.place == place);
        let removals = here.filter_map(|removal| {
            let (item, at) = (removal.item, removal.at?);
            Some(Removal { item, at })
        });
        Known::Value(removals.collect(), Source::FileHistory(place.to_owned()))
    }

    /// The allocations of an address at a place that are gone; `None` if the place is not followed.
    pub(super) fn releases(&self, place: &str, address: IpAddr) -> Option<Vec<SeenRemoval>> {
        let seen = self.lock();
        let item = RemovedItem::Reservation(address);
        let is_ours = |removal: &&SeenRemoval| removal.place == place && removal.item == item;
        let ours = seen.memory.removals.iter().filter(is_ours).cloned();
        seen.is_followed(place).then(|| ours.collect())
    }

    /// Continues with what an earlier agent has seen.
    pub(super) fn continue_from(&self, stored: Memory) {
        let mut seen = self.lock();
        let now = mem::replace(&mut seen.memory, stored);
        for (place, allocations) in now.allocations {
            let stored = seen.memory.allocations.insert(place.clone(), allocations);
            let mut pools = seen.pools.values();
            let read = pools.find(|(pool, _)| pool.source.place == place).cloned();
            if let Some((stored, (pool, at))) = stored.zip(read) {
                seen.compare(stored, &pool, None, at);
            }
        }
        for removal in now.removals {
            seen.remember(removal);
        }
    }

    /// What outlives the agent; `None` if it has not changed since the last time, unless it is wanted `anyway`.
    pub(super) fn take_changed(&self, anyway: bool) -> Option<Memory> {
        let mut seen = self.lock();
        let is_changed = mem::take(&mut seen.is_changed);
        (is_changed || anyway).then(|| seen.memory.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        // A panic while it was held leaves at worst a deletion that is not known.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_by_lease(pool: &Pool) -> bool {
    matches!(pool.source.ipam, Ipam::Whereabouts | Ipam::Spiderpool)
}

/// Whether the read of the pool covers the address.
fn covers(pool: &Pool, address: IpAddr) -> bool {
    let parts = pool.parts.as_ref();
    parts.is_none_or(|parts| parts.iter().any(|part| part.range.contains(&address)))
}

/// The owners of an allocation of a pod; `None` if there is none.
fn owners(pool: &Pool, address: IpAddr) -> Option<[Option<Arc<str>>; 2]> {
    let allocation = pool.allocated.get(&address);
    let allocation = allocation.filter(|allocation| !allocation.not_a_pod)?;
    let Allocation {
        owner,
        second_owner,
        ..
    } = allocation;
    Some([owner.clone(), second_owner.clone()])
}

impl Seen {
    fn is_followed(&self, place: &str) -> bool {
        let mut pools = self.pools.values();
        pools.any(|(pool, _)| pool.source.place == place)
    }

    fn by_lease(&self) -> impl Iterator<Item = &Arc<Pool>> {
        self.newest.values().filter(|pool| is_by_lease(pool))
    }

    /// A pool was read completely.
    fn read(&mut self, pool: &Arc<Pool>, now: UnixTime) {
        let last = self.pools.insert(pool.id, (Arc::clone(pool), now));
        if pool.completeness == Completeness::Deleted
            && let Some((before, seen)) = &last
            && before.completeness != Completeness::Deleted
        {
            self.remember(SeenRemoval {
                place: pool.source.place.clone(),
                item: RemovedItem::Directory,
                owner: None,
                seen: *seen,
                at: Some(now),
            });
        }
        // A lease that is gone does not show what the record holds.
        if is_by_lease(pool) {
            return;
        }
        let known = self.memory.allocations.remove(&pool.source.place);
        let last = last.map(|(_, at)| at);
        self.compare(known.unwrap_or_default(), pool, last, now);
    }

    /// Compares what is known of a place with a read of it; the read before was at `last`.
    fn compare(
        &mut self,
        known: BTreeMap<IpAddr, SeenAllocation>,
        pool: &Pool,
        last: Option<UnixTime>,
        now: UnixTime,
    ) {
        let place = &pool.source.place;
        let mut all = self.memory.allocations.remove(place).unwrap_or_default();
        for address in pool.allocated.keys() {
            if let Some(owners) = owners(pool, *address) {
                self.is_changed |= known.get(address).is_none_or(|k| k.owners != owners);
                all.insert(*address, SeenAllocation { owners, at: now });
            }
        }
        for (address, allocation) in known {
            let is_of_last_read = last == Some(allocation.at);
            if !covers(pool, address) {
                if !is_of_last_read {
                    all.entry(address).or_insert(allocation);
                }
                continue;
            }
            let is_watched = is_of_last_read && now <= allocation.at + WATCHED;
            let owners_now = all.get(&address).map(|now| now.owners.clone());
            // Only removals from pools with parts are compared by their owners. One that is not named is the same as long as there is one.
            let is_any = |owner: &Option<Arc<str>>| pool.parts.is_none() || owner.is_none();
            let is_there = |owner: &Option<Arc<str>>| {
                let mut now = owners_now.iter();
                now.any(|now| is_any(owner) || now.contains(owner))
            };
            let [first, second] = allocation.owners;
            for owner in [Some(first), second.map(Some)].into_iter().flatten() {
                if !is_there(&owner) {
                    self.remember(SeenRemoval {
                        place: place.clone(),
                        item: RemovedItem::Reservation(address),
                        owner,
                        seen: allocation.at,
                        at: is_watched.then_some(now),
                    });
                }
            }
        }
        self.memory.allocations.insert(place.clone(), all);
    }

    fn remember(&mut self, removal: SeenRemoval) {
        let removals = &mut self.memory.removals;
        removals.push_back(removal);
        let surplus = removals.len().saturating_sub(MAX_REMOVALS);
        removals.drain(..surplus);
        self.is_changed = true;
    }
}
