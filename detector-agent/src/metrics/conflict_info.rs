//! `ipconflict_conflict_info`: a series for each side of an active conflict, bounded.
//!
//! Invariants: what an event costs grows with the sides of its own conflict, not with what else is shown; a side that
//! found no room is counted and gets the place of one that leaves; a scrape holds the lock only to copy references, so
//! it never makes an event wait for the text.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
};

/// Labels of one side of an active conflict.
#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub struct ConflictInfo {
    /// The address.
    pub address: String,
    /// The conflict's kind.
    pub kind: String,
    /// The claimant's device.
    pub device: String,
    /// The claimant's pod's namespace, or empty.
    pub namespace: String,
    /// The claimant's pod, or empty.
    pub pod: String,
}

/// The series, as the registry collects them.
#[derive(Clone, Debug)]
pub(super) struct Sides {
    state: Arc<Mutex<State>>,
    limit: usize,
}

#[derive(Debug, Default)]
struct State {
    conflicts: HashMap<String, Entry>,
    /// How often each is held: one pair of devices may be in conflict in two VLANs, and the labels do not name those.
    series: HashMap<Arc<ConflictInfo>, usize>,
    /// Conflicts with sides that found no room, the oldest first.
    waiting: BTreeMap<u64, String>,
    next_place: u64,
    beyond: usize,
}

#[derive(Debug, Default)]
struct Entry {
    shown: Vec<Arc<ConflictInfo>>,
    without_room: Vec<Arc<ConflictInfo>>,
    /// Its place among those that wait.
    place: Option<u64>,
}

impl Sides {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            state: Arc::default(),
            limit,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while it was held leaves counts that are at worst too high.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows these sides of a conflict in place of those it had; none where it is over.
    pub(super) fn set(&self, conflict: &str, sides: impl Iterator<Item = ConflictInfo>) {
        let mut state = self.lock();
        let place = state.forget(conflict);
        let mut entry = Entry {
            place,
            ..Entry::default()
        };
        for side in sides {
            let side = Arc::new(side);
            if state.show(&side, self.limit) {
                entry.shown.push(side);
            } else {
                entry.without_room.push(side);
            }
        }
        state.remember(conflict.to_owned(), entry);
        state.fill(self.limit);
    }

    #[cfg(test)]
    fn shown(&self) -> (usize, usize) {
        let state = self.lock();
        (state.series.len(), state.beyond)
    }
}

impl State {
    /// Lets go of a conflict's series; gives its place among those that wait.
    fn forget(&mut self, conflict: &str) -> Option<u64> {
        let entry = self.conflicts.remove(conflict)?;
        self.beyond -= entry.without_room.len();
        if let Some(place) = entry.place {
            self.waiting.remove(&place);
        }
        for side in entry.shown {
            if let Some(holders) = self.series.get_mut(&side) {
                *holders -= 1;
                if *holders == 0 {
                    self.series.remove(&side);
                }
            }
        }
        entry.place
    }

    fn show(&mut self, side: &Arc<ConflictInfo>, limit: usize) -> bool {
        if let Some(holders) = self.series.get_mut(side) {
            *holders += 1;
        } else if self.series.len() < limit {
            self.series.insert(Arc::clone(side), 1);
        } else {
            return false;
        }
        true
    }

    fn remember(&mut self, conflict: String, mut entry: Entry) {
        if entry.shown.is_empty() && entry.without_room.is_empty() {
            return;
        }
        self.beyond += entry.without_room.len();
        entry.place = (!entry.without_room.is_empty()).then(|| {
            let place = entry.place.unwrap_or(self.next_place);
            self.next_place += 1;
            self.waiting.insert(place, conflict.clone());
            place
        });
        self.conflicts.insert(conflict, entry);
    }

    /// Gives free room to those that wait.
    fn fill(&mut self, limit: usize) {
        while self.series.len() < limit {
            let Some((_, conflict)) = self.waiting.pop_first() else {
                return;
            };
            let Some(mut entry) = self.conflicts.remove(&conflict) else {
                continue;
            };
            self.beyond -= entry.without_room.len();
            let mut left = Vec::new();
            for side in entry.without_room.drain(..) {
                if self.show(&side, limit) {
                    entry.shown.push(side);
                } else {
                    left.push(side);
                }
            }
            entry.without_room = left;
            self.remember(conflict, entry);
        }
    }
}

impl Collector for Sides {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (series, beyond) = {
            let state = self.lock();
            (
                state.series.keys().cloned().collect::<Vec<_>>(),
                state.beyond,
            )
        };
        let one = ConstGauge::new(1i64);
        let mut family = encoder.encode_descriptor(
            "conflict_info",
            "One side of an active conflict",
            None,
            MetricType::Gauge,
        )?;
        for side in &series {
            one.encode(family.encode_family(side.as_ref())?)?;
        }
        let beyond = ConstGauge::new(i64::try_from(beyond).unwrap_or(i64::MAX));
        beyond.encode(encoder.encode_descriptor(
            "conflict_info_overflow",
            "Sides of active conflicts beyond the bound of ipconflict_conflict_info",
            None,
            MetricType::Gauge,
        )?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(address: &str, device: &str) -> ConflictInfo {
        ConflictInfo {
            address: address.to_owned(),
            kind: "duplicate".to_owned(),
            device: device.to_owned(),
            namespace: String::new(),
            pod: String::new(),
        }
    }

    fn pair(address: &str) -> impl Iterator<Item = ConflictInfo> {
        [side(address, "a"), side(address, "b")].into_iter()
    }

    #[test]
    fn a_side_beyond_the_bound_is_counted_and_gets_the_place_of_one_that_leaves() {
        let sides = Sides::new(3);
        sides.set("one", pair("10.0.0.1"));
        sides.set("two", pair("10.0.0.2"));
        sides.set("three", pair("10.0.0.3"));
        assert_eq!(sides.shown(), (3, 3));
        sides.set("one", std::iter::empty());
        assert_eq!(sides.shown(), (3, 1));
        sides.set("three", std::iter::empty());
        assert_eq!(sides.shown(), (2, 0));
        sides.set("two", std::iter::empty());
        assert_eq!(sides.shown(), (0, 0));
        assert!(sides.lock().waiting.is_empty() && sides.lock().conflicts.is_empty());
    }

    #[test]
    fn an_update_replaces_the_sides_of_its_conflict_only() {
        let sides = Sides::new(10);
        sides.set("one", pair("10.0.0.1"));
        sides.set("two", pair("10.0.0.2"));
        sides.set("one", [side("10.0.0.1", "c")].into_iter());
        assert_eq!(sides.shown(), (3, 0));
    }

    #[test]
    fn the_same_labels_in_two_conflicts_stay_until_both_are_over() {
        let sides = Sides::new(10);
        sides.set("vlan 1", pair("10.0.0.1"));
        sides.set("vlan 2", pair("10.0.0.1"));
        assert_eq!(sides.shown(), (2, 0));
        sides.set("vlan 1", std::iter::empty());
        assert_eq!(sides.shown(), (2, 0));
        sides.set("vlan 2", std::iter::empty());
        assert_eq!(sides.shown(), (0, 0));
    }

    #[test]
    fn conflicts_that_come_and_go_beyond_the_bound_leave_nothing_behind() {
        let sides = Sides::new(2);
        sides.set("stays", pair("10.0.0.1"));
        for number in 0..100 {
            let id = format!("passing {number}");
            sides.set(&id, pair("10.0.0.2"));
            sides.set(&id, pair("10.0.0.3"));
            sides.set(&id, std::iter::empty());
        }
        let state = sides.lock();
        assert_eq!(
            (state.waiting.len(), state.conflicts.len(), state.beyond),
            (0, 1, 0)
        );
    }
}
