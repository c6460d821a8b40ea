//! `ipconflict_conflict_info`: one series for each claimant of an active conflict, bounded.
//!
//! Invariants: the cost of an event grows with the claimants of its own conflict, not with the number of series; a
//! claimant beyond the bound is counted and takes the first place that becomes free; one that its conflict does not list
//! is only counted; a scrape holds the lock only to
//! copy references, so encoding never delays an event.

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

use super::address::AddressLabels;
use crate::engine::ConflictId;

/// Labels of one claimant of an active conflict.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ConflictInfo {
    /// The address, network and VLAN.
    #[prometheus(flatten)]
    pub address: AddressLabels,
    /// The conflict's kind.
    pub kind: &'static str,
    /// The claimant's device.
    pub device: String,
    /// The namespace of the claimant's pod, or empty.
    pub namespace: String,
    /// The claimant's pod, or empty.
    pub pod: String,
}

/// The series, as the registry collects them.
#[derive(Clone, Debug)]
pub(super) struct ConflictInfoSeries {
    table: Arc<Mutex<SeriesTable>>,
    limit: usize,
}

#[derive(Debug, Default)]
struct SeriesTable {
    conflicts: HashMap<ConflictId, ConflictSeries>,
    /// How many conflicts use each series: networks are distinguished by their names, which may be equal for a moment.
    series: HashMap<Arc<ConflictInfo>, usize>,
    /// Conflicts with claimants beyond the bound, the oldest first.
    waiting: BTreeMap<u64, ConflictId>,
    next_place: u64,
    /// Claimants of all conflicts without a series.
    overflow: usize,
}

/// One conflict's series.
#[derive(Debug, Default)]
struct ConflictSeries {
    shown: Vec<Arc<ConflictInfo>>,
    overflow: Vec<Arc<ConflictInfo>>,
    /// Claimants that the conflict does not list.
    unlisted: usize,
    /// Its key in `waiting`.
    place: Option<u64>,
}

impl ConflictSeries {
    fn without_series(&self) -> usize {
        self.overflow.len() + self.unlisted
    }
}

impl ConflictInfoSeries {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            table: Arc::default(),
            limit,
        }
    }

    fn lock(&self) -> MutexGuard<'_, SeriesTable> {
        // A panic while it was held leaves counts that are at worst too high.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces a conflict's series. `unlisted` claimants have none.
    pub(super) fn set(
        &self,
        conflict: ConflictId,
        series: impl Iterator<Item = ConflictInfo>,
        unlisted: usize,
    ) {
        let mut table = self.lock();
        let place = table.remove(conflict);
        let mut entry = ConflictSeries {
            place,
            unlisted,
            ..ConflictSeries::default()
        };
        for info in series {
            let info = Arc::new(info);
            if table.show(&info, self.limit) {
                entry.shown.push(info);
            } else {
                entry.overflow.push(info);
            }
        }
        table.insert(conflict, entry);
        table.fill(self.limit);
    }

    /// Removes a conflict's series.
    pub(super) fn remove(&self, conflict: ConflictId) {
        let mut table = self.lock();
        table.remove(conflict);
        table.fill(self.limit);
    }

    #[cfg(test)]
    pub(super) fn devices(&self) -> Vec<String> {
        let table = self.lock();
        table
            .series
            .keys()
            .map(|info| info.device.clone())
            .collect()
    }

    #[cfg(test)]
    fn shown(&self) -> (usize, usize) {
        let table = self.lock();
        (table.series.len(), table.overflow)
    }
}

impl SeriesTable {
    /// Removes a conflict's series; returns its place among the waiting conflicts.
    fn remove(&mut self, conflict: ConflictId) -> Option<u64> {
        let entry = self.conflicts.remove(&conflict)?;
        self.overflow -= entry.without_series();
        if let Some(place) = entry.place {
            self.waiting.remove(&place);
        }
        for info in entry.shown {
            if let Some(users) = self.series.get_mut(&info) {
                *users -= 1;
                if *users == 0 {
                    self.series.remove(&info);
                }
            }
        }
        entry.place
    }

    /// Adds one series; `false` at the bound.
    fn show(&mut self, info: &Arc<ConflictInfo>, limit: usize) -> bool {
        if let Some(users) = self.series.get_mut(info) {
            *users += 1;
        } else if self.series.len() < limit {
            self.series.insert(Arc::clone(info), 1);
        } else {
            return false;
        }
        true
    }

    fn insert(&mut self, conflict: ConflictId, mut entry: ConflictSeries) {
        self.overflow += entry.without_series();
        entry.place = (!entry.overflow.is_empty()).then(|| {
            let place = entry.place.unwrap_or(self.next_place);
            self.next_place += 1;
            self.waiting.insert(place, conflict);
            place
        });
        self.conflicts.insert(conflict, entry);
    }

    /// Gives free places to waiting conflicts.
    fn fill(&mut self, limit: usize) {
        while self.series.len() < limit {
            let Some((_, conflict)) = self.waiting.pop_first() else {
                return;
            };
            let Some(mut entry) = self.conflicts.remove(&conflict) else {
                continue;
            };
            self.overflow -= entry.without_series();
            let mut overflow = Vec::new();
            for info in entry.overflow.drain(..) {
                if self.show(&info, limit) {
                    entry.shown.push(info);
                } else {
                    overflow.push(info);
                }
            }
            entry.overflow = overflow;
            self.insert(conflict, entry);
        }
    }
}

impl Collector for ConflictInfoSeries {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (series, overflow) = {
            let table = self.lock();
            (
                table.series.keys().cloned().collect::<Vec<_>>(),
                table.overflow,
            )
        };
        let one = ConstGauge::new(1i64);
        let mut family = encoder.encode_descriptor(
            "conflict_info",
            "One claimant of an active conflict",
            None,
            MetricType::Gauge,
        )?;
        for info in &series {
            one.encode(family.encode_family(info.as_ref())?)?;
        }
        let overflow = ConstGauge::new(i64::try_from(overflow).unwrap_or(i64::MAX));
        overflow.encode(encoder.encode_descriptor(
            "conflict_info_overflow",
            "Claimants of active conflicts without a series in ipconflict_conflict_info, because of its bound or of the bound on listed claimants",
            None,
            MetricType::Gauge,
        )?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Network;

    fn info(address: u8, device: &str) -> ConflictInfo {
        let address = [10, 0, 0, address].into();
        ConflictInfo {
            address: AddressLabels::new(address, &Network::Node, (None, None)),
            kind: "duplicate",
            device: device.to_owned(),
            namespace: String::new(),
            pod: String::new(),
        }
    }

    fn pair(address: u8) -> impl Iterator<Item = ConflictInfo> {
        [info(address, "a"), info(address, "b")].into_iter()
    }

    const ONE: ConflictId = ConflictId(1);
    const TWO: ConflictId = ConflictId(2);
    const THREE: ConflictId = ConflictId(3);

    #[test]
    fn a_claimant_beyond_the_bound_is_counted_and_takes_a_freed_place() {
        let series = ConflictInfoSeries::new(3);
        series.set(ONE, pair(1), 0);
        series.set(TWO, pair(2), 0);
        series.set(THREE, pair(3), 0);
        assert_eq!(series.shown(), (3, 3));
        series.remove(ONE);
        assert_eq!(series.shown(), (3, 1));
        series.remove(THREE);
        assert_eq!(series.shown(), (2, 0));
        series.remove(TWO);
        assert_eq!(series.shown(), (0, 0));
        assert!(series.lock().waiting.is_empty() && series.lock().conflicts.is_empty());
    }

    #[test]
    fn an_update_replaces_the_series_of_its_conflict_only() {
        let series = ConflictInfoSeries::new(10);
        series.set(ONE, pair(1), 0);
        series.set(TWO, pair(2), 0);
        series.set(ONE, [info(1, "c")].into_iter(), 0);
        assert_eq!(series.shown(), (3, 0));
    }

    #[test]
    fn unlisted_claimants_are_counted_and_never_take_a_place() {
        let series = ConflictInfoSeries::new(3);
        series.set(ONE, pair(1), 7);
        assert_eq!(series.shown(), (2, 7));
        series.set(TWO, pair(2), 2);
        assert_eq!(series.shown(), (3, 10));
        series.set(ONE, pair(1), 3);
        assert_eq!(series.shown(), (3, 6));
        series.remove(ONE);
        assert_eq!(series.shown(), (2, 2));
        series.remove(TWO);
        assert_eq!(series.shown(), (0, 0));
    }

    #[test]
    fn equal_labels_of_two_conflicts_stay_until_both_are_resolved() {
        let series = ConflictInfoSeries::new(10);
        series.set(ONE, pair(1), 0);
        series.set(TWO, pair(1), 0);
        assert_eq!(series.shown(), (2, 0));
        series.remove(ONE);
        assert_eq!(series.shown(), (2, 0));
        series.remove(TWO);
        assert_eq!(series.shown(), (0, 0));
    }

    #[test]
    fn conflicts_that_come_and_go_beyond_the_bound_leave_nothing_behind() {
        let series = ConflictInfoSeries::new(2);
        series.set(ONE, pair(1), 0);
        for number in 100..200 {
            let id = ConflictId(number);
            series.set(id, pair(2), 1);
            series.set(id, pair(3), 0);
            series.remove(id);
        }
        let table = series.lock();
        assert_eq!(
            (table.waiting.len(), table.conflicts.len(), table.overflow),
            (0, 1, 0)
        );
    }
}
