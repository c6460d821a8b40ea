//! What the agent saw being deleted from pools, and when.
//!
//! A pool is read as soon as inotify reports a change of its directory, so the time of a read is that of the deletion.

use std::{
    collections::{HashMap, VecDeque},
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use detector_engine::{
    Completeness, Ipam, Pool, PoolId, PoolUpdate,
    diagnosis::{Known, Removal, RemovedItem, Source, UnixTime},
};
use detector_event::WallTime;

use super::files::{not_checked, unix};

/// Most deletions that are remembered, the newest.
const MAX_REMOVALS: usize = 4_096;

/// The deletions since the agent started.
#[derive(Debug, Default)]
pub(crate) struct PoolHistory(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    /// Each pool as it was read last, even if not completely.
    newest: HashMap<PoolId, Arc<Pool>>,
    /// Each pool as it was read completely.
    pools: HashMap<PoolId, Arc<Pool>>,
    /// The places of pools, and what was deleted there.
    removals: VecDeque<(String, Removal)>,
}

impl PoolHistory {
    /// A pool was read or removed.
    pub(crate) fn note(&self, update: &PoolUpdate) {
        let mut seen = self.lock();
        if let PoolUpdate::Read(pool, _) = update {
            seen.newest.insert(pool.id, Arc::clone(pool));
        }
        match update {
            PoolUpdate::Read(pool, _) if pool.completeness != Completeness::Unknown => {
                let before = seen.pools.insert(pool.id, Arc::clone(pool));
                if let (Some(before), Some(at)) = (before, unix(WallTime::now())) {
                    seen.add(&before, pool, at);
                }
            }
            PoolUpdate::Gone(id) => {
                seen.newest.remove(id);
                seen.pools.remove(id);
            }
            PoolUpdate::Read(..) | PoolUpdate::Found(_) => {}
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

    /// What was deleted at a place.
    pub(super) fn at(&self, place: &str) -> Known<Vec<Removal>> {
        let seen = self.lock();
        if !seen.pools.values().any(|pool| pool.source.place == place) {
            return not_checked(format!("deletions in {place}"), "it is not watched");
        }
        let here = seen.removals.iter().filter(|(known, _)| known == place);
        let removals = here.map(|(_, removal)| *removal).collect();
        Known::Value(removals, Source::FileHistory(place.to_owned()))
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        // A panic while it was held leaves at worst a deletion that is not known.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    fn by_lease(&self) -> impl Iterator<Item = &Arc<Pool>> {
        let is_by_lease =
            |pool: &&Arc<Pool>| matches!(pool.source.ipam, Ipam::Whereabouts | Ipam::Spiderpool);
        self.newest.values().filter(is_by_lease)
    }

    fn add(&mut self, before: &Pool, now: &Pool, at: UnixTime) {
        let gone = before
            .allocated
            .keys()
            .filter(|a| !now.allocated.contains_key(a));
        let gone = gone.map(|address| RemovedItem::Reservation(*address));
        let was_deleted = now.completeness == Completeness::Deleted
            && before.completeness != Completeness::Deleted;
        let whole = was_deleted.then_some(RemovedItem::Directory);
        for item in whole.into_iter().chain(gone) {
            self.removals
                .push_back((now.source.place.clone(), Removal { item, at }));
        }
        let surplus = self.removals.len().saturating_sub(MAX_REMOVALS);
        self.removals.drain(..surplus);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

    use std::{collections::BTreeMap, net::IpAddr, time::Duration};

    use detector_engine::{Allocation, ChangedAddresses, Coverage, PoolSource, Timestamp};

    use super::*;

    const PLACE: &str = "/var/lib/cni/networks/pods";

    fn read(completeness: Completeness, addresses: &[&str]) -> PoolUpdate {
        let allocated = addresses
            .iter()
            .map(|a| (a.parse().unwrap(), Allocation::default()));
        let pool = Pool {
            id: PoolId(1),
            source: Arc::new(PoolSource {
                ipam: Ipam::HostLocal,
                network: "pods".to_owned(),
                place: PLACE.to_owned(),
            }),
            coverage: Coverage::default(),
            completeness,
            allocated: allocated.collect::<BTreeMap<IpAddr, _>>(),
            can_detect_leaks: false,
            record_delay: Duration::ZERO,
            read_at: Timestamp(1),
            parts: None,
        };
        PoolUpdate::Read(Arc::new(pool), ChangedAddresses::All)
    }

    fn items(history: &PoolHistory) -> Vec<RemovedItem> {
        let removals = history.at(PLACE);
        removals.value().unwrap().iter().map(|r| r.item).collect()
    }

    #[test]
    fn release_and_wipe_are_told_apart() {
        let history = PoolHistory::default();
        assert!(history.at(PLACE).not_checked().is_some());
        let all = ["10.0.0.1", "10.0.0.2", "10.0.0.3"];
        history.note(&read(Completeness::Complete, &all));
        assert_eq!(items(&history), []);
        history.note(&read(Completeness::Complete, &all[1..]));
        let released = |address: &str| RemovedItem::Reservation(address.parse().unwrap());
        assert_eq!(items(&history), [released("10.0.0.1")]);
        // Nothing is known of what cannot be read.
        history.note(&read(Completeness::Unknown, &[]));
        history.note(&read(Completeness::Deleted, &[]));
        let expected = [
            released("10.0.0.1"),
            RemovedItem::Directory,
            released("10.0.0.2"),
            released("10.0.0.3"),
        ];
        assert_eq!(items(&history), expected);
    }

    #[test]
    fn history_is_bounded() {
        let history = PoolHistory::default();
        let address = |n: u16| format!("10.0.{}.{}", n / 256, n % 256);
        let many: Vec<_> = (0..5_000).map(address).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        history.note(&read(Completeness::Complete, &many));
        history.note(&read(Completeness::Complete, &[]));
        assert_eq!(items(&history).len(), MAX_REMOVALS);
    }
}
