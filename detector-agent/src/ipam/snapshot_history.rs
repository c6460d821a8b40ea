//! The last snapshot of one pool, and what a new one changes.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use detector_engine::{ChangedAddresses, Completeness, Timestamp};

/// An IPAM never releases this many addresses at once, and with them this share of all (4 of 5).
const MASS_LOSS: usize = 5;
/// Time after a mass loss in which further losses belong to it.
const MASS_LOSS_WINDOW: Duration = Duration::from_secs(5);

/// The addresses allocated in the last snapshot, each with what is known of it.
#[derive(Debug)]
pub(super) struct SnapshotHistory<V> {
    pub(super) allocated: BTreeMap<IpAddr, V>,
    /// Addresses that were allocated in an earlier snapshot and are not now.
    pub(super) previously_allocated: BTreeSet<IpAddr>,
    max_previous: usize,
    /// Completeness and place of the last snapshot.
    last: Option<(Completeness, String)>,
    mass_loss_until: Option<Timestamp>,
}

impl<V: PartialEq> SnapshotHistory<V> {
    /// Without a snapshot. Remembers at most `max_previous` addresses after their release.
    pub(super) fn new(max_previous: usize) -> Self {
        Self {
            allocated: BTreeMap::new(),
            previously_allocated: BTreeSet::new(),
            max_previous,
            last: None,
            mass_loss_until: None,
        }
    }

    /// Whether so many addresses disappeared that the allocations were deleted rather than released: in `allocated`,
    /// read at `read_at`, or in a snapshot shortly before. Call it before [`replace`](Self::replace).
    pub(super) fn detects_mass_loss<W>(
        &mut self,
        allocated: &BTreeMap<IpAddr, W>,
        read_at: Timestamp,
    ) -> bool {
        let missing = self
            .allocated
            .keys()
            .filter(|address| !allocated.contains_key(address))
            .count();
        if missing >= MASS_LOSS && missing * 5 >= self.allocated.len() * 4 {
            self.mass_loss_until = Some(read_at + MASS_LOSS_WINDOW);
        }
        self.mass_loss_until.is_some_and(|until| until > read_at)
    }

    /// Applies a new snapshot; returns the addresses that were added, removed or changed. `None`: the read failed, and
    /// the last snapshot stays.
    pub(super) fn replace(
        &mut self,
        allocated: Option<BTreeMap<IpAddr, V>>,
        completeness: Completeness,
        place: &str,
    ) -> ChangedAddresses {
        let mut changed = Vec::new();
        if let Some(allocated) = allocated {
            for address in self
                .allocated
                .keys()
                .filter(|address| !allocated.contains_key(address))
            {
                changed.push(*address);
                if self.previously_allocated.len() < self.max_previous {
                    self.previously_allocated.insert(*address);
                }
            }
            for (address, new) in &allocated {
                self.previously_allocated.remove(address);
                if self.allocated.get(address) != Some(new) {
                    changed.push(*address);
                }
            }
            self.allocated = allocated;
        }
        let now = (completeness, place.to_owned());
        if self.last.as_ref() == Some(&now) {
            return ChangedAddresses::Only(changed);
        }
        self.last = Some(now);
        ChangedAddresses::All
    }
}
