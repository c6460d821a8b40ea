//! `ipconflict_conflict_info` and `ipconflict_anomaly_info`: one series for each claimant of an active conflict and for
//! each active anomaly, bounded.
//!
//! Invariants: the cost of an event grows with the series of its own subject (the conflict or the anomaly), not with the
//! number of all series; a series beyond the bound is counted and takes the first place that becomes free; a claimant
//! that its conflict does not list is only counted; a scrape holds the lock only to copy references, so encoding never
//! delays an event.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
};

/// A metric's name and HELP text.
#[derive(Clone, Copy, Debug)]
pub(super) struct MetricDescription {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
}

/// The series of subjects with IDs `K` and labels `L`, as the registry collects them.
#[derive(Clone, Debug)]
pub(super) struct InfoSeries<K, L> {
    table: Arc<Mutex<SeriesTable<K, L>>>,
    info: MetricDescription,
    overflow: MetricDescription,
    limit: usize,
}

#[derive(Debug)]
struct SeriesTable<K, L> {
    subjects: HashMap<K, SubjectSeries<L>>,
    /// How many subjects use each series: networks are distinguished by their names, which may be equal for a moment.
    series: HashMap<Arc<L>, usize>,
    /// Subjects with series beyond the bound, the oldest first.
    waiting: BTreeMap<u64, K>,
    next_place: u64,
    /// What has no series, of all subjects.
    overflow: usize,
}

/// One subject's series.
#[derive(Debug)]
struct SubjectSeries<L> {
    exported: Vec<Arc<L>>,
    overflow: Vec<Arc<L>>,
    /// Claimants that the conflict does not list.
    unlisted: usize,
    /// Its key in `waiting`.
    place: Option<u64>,
}

impl<L> SubjectSeries<L> {
    fn without_series(&self) -> usize {
        self.overflow.len() + self.unlisted
    }
}

impl<K: Copy + Eq + Hash, L: Eq + Hash> InfoSeries<K, L> {
    /// No series yet, and at most `limit`; `overflow` counts what has none.
    pub(super) fn new(info: MetricDescription, overflow: MetricDescription, limit: usize) -> Self {
        let table = SeriesTable {
            subjects: HashMap::new(),
            series: HashMap::new(),
            waiting: BTreeMap::new(),
            next_place: 0,
            overflow: 0,
        };
        Self {
            table: Arc::new(Mutex::new(table)),
            info,
            overflow,
            limit,
        }
    }

    fn lock(&self) -> MutexGuard<'_, SeriesTable<K, L>> {
        // A panic while it was held leaves counts that are at worst too high.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces a subject's series. `unlisted` claimants have none.
    pub(super) fn set(&self, subject: K, series: impl Iterator<Item = L>, unlisted: usize) {
        let mut table = self.lock();
        let place = table.remove(subject);
        let mut entry = SubjectSeries {
            exported: Vec::new(),
            overflow: Vec::new(),
            unlisted,
            place,
        };
        for info in series {
            let info = Arc::new(info);
            if table.add_series(&info, self.limit) {
                entry.exported.push(info);
            } else {
                entry.overflow.push(info);
            }
        }
        table.insert(subject, entry);
        table.fill(self.limit);
    }

    /// Removes a subject's series.
    pub(super) fn remove(&self, subject: K) {
        let mut table = self.lock();
        table.remove(subject);
        table.fill(self.limit);
    }

    #[cfg(test)]
    pub(super) fn labels(&self) -> Vec<Arc<L>> {
        self.lock().series.keys().cloned().collect()
    }

    #[cfg(test)]
    fn series_and_overflow(&self) -> (usize, usize) {
        let table = self.lock();
        (table.series.len(), table.overflow)
    }
}

impl<K: Copy + Eq + Hash, L: Eq + Hash> SeriesTable<K, L> {
    /// Removes a subject's series; returns its place among those that wait.
    fn remove(&mut self, subject: K) -> Option<u64> {
        let entry = self.subjects.remove(&subject)?;
        self.overflow -= entry.without_series();
        if let Some(place) = entry.place {
            self.waiting.remove(&place);
        }
        for info in entry.exported {
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
    fn add_series(&mut self, info: &Arc<L>, limit: usize) -> bool {
        if let Some(users) = self.series.get_mut(info) {
            *users += 1;
        } else if self.series.len() < limit {
            self.series.insert(Arc::clone(info), 1);
        } else {
            return false;
        }
        true
    }

    fn insert(&mut self, subject: K, mut entry: SubjectSeries<L>) {
        self.overflow += entry.without_series();
        entry.place = (!entry.overflow.is_empty()).then(|| {
            let place = entry.place.unwrap_or(self.next_place);
            self.next_place += 1;
            self.waiting.insert(place, subject);
            place
        });
        self.subjects.insert(subject, entry);
    }

    /// Gives free places to waiting subjects.
    fn fill(&mut self, limit: usize) {
        while self.series.len() < limit {
            let Some((_, subject)) = self.waiting.pop_first() else {
                return;
            };
            let Some(mut entry) = self.subjects.remove(&subject) else {
                continue;
            };
            self.overflow -= entry.without_series();
            let mut overflow = Vec::new();
            for info in entry.overflow.drain(..) {
                if self.add_series(&info, limit) {
                    entry.exported.push(info);
                } else {
                    overflow.push(info);
                }
            }
            entry.overflow = overflow;
            self.insert(subject, entry);
        }
    }
}

impl<K, L> Collector for InfoSeries<K, L>
where
    K: Copy + Eq + Hash + fmt::Debug + Send + Sync + 'static,
    L: EncodeLabelSet + Eq + Hash + fmt::Debug + Send + Sync + 'static,
{
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (series, overflow) = {
            let table = self.lock();
            (
                table.series.keys().cloned().collect::<Vec<_>>(),
                table.overflow,
            )
        };
        let one = ConstGauge::new(1i64);
        let MetricDescription { name, help } = self.info;
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for info in &series {
            one.encode(family.encode_family(info.as_ref())?)?;
        }
        let overflow = ConstGauge::new(i64::try_from(overflow).unwrap_or(i64::MAX));
        let MetricDescription { name, help } = self.overflow;
        overflow.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
    }
}

#[cfg(test)]
mod tests {
    use detector_engine::{ConflictId, Network};

    use super::*;
    use crate::metrics::{AddressLabels, ConflictInfo};

    fn bounded(limit: usize) -> InfoSeries<ConflictId, ConflictInfo> {
        let described = |name| MetricDescription { name, help: "" };
        InfoSeries::new(described("info"), described("overflow"), limit)
    }

    fn info(address: u8, device: &str) -> ConflictInfo {
        let address = [10, 0, 0, address].into();
        ConflictInfo {
            address: AddressLabels::new(address, &Network::Node, (None, None)),
            kind: "duplicate",
            device: device.to_owned(),
            namespace: String::new(),
            pod: String::new(),
            sweep: String::new(),
            cause: "",
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
        let series = bounded(3);
        series.set(ONE, pair(1), 0);
        series.set(TWO, pair(2), 0);
        series.set(THREE, pair(3), 0);
        assert_eq!(series.series_and_overflow(), (3, 3));
        series.remove(ONE);
        assert_eq!(series.series_and_overflow(), (3, 1));
        series.remove(THREE);
        assert_eq!(series.series_and_overflow(), (2, 0));
        series.remove(TWO);
        assert_eq!(series.series_and_overflow(), (0, 0));
        assert!(series.lock().waiting.is_empty() && series.lock().subjects.is_empty());
    }

    #[test]
    fn an_update_replaces_the_series_of_its_conflict_only() {
        let series = bounded(10);
        series.set(ONE, pair(1), 0);
        series.set(TWO, pair(2), 0);
        series.set(ONE, [info(1, "c")].into_iter(), 0);
        assert_eq!(series.series_and_overflow(), (3, 0));
    }

    #[test]
    fn unlisted_claimants_are_counted_and_never_take_a_place() {
        let series = bounded(3);
        series.set(ONE, pair(1), 7);
        assert_eq!(series.series_and_overflow(), (2, 7));
        series.set(TWO, pair(2), 2);
        assert_eq!(series.series_and_overflow(), (3, 10));
        series.set(ONE, pair(1), 3);
        assert_eq!(series.series_and_overflow(), (3, 6));
        series.remove(ONE);
        assert_eq!(series.series_and_overflow(), (2, 2));
        series.remove(TWO);
        assert_eq!(series.series_and_overflow(), (0, 0));
    }

    #[test]
    fn equal_labels_of_two_conflicts_stay_until_both_are_resolved() {
        let series = bounded(10);
        series.set(ONE, pair(1), 0);
        series.set(TWO, pair(1), 0);
        assert_eq!(series.series_and_overflow(), (2, 0));
        series.remove(ONE);
        assert_eq!(series.series_and_overflow(), (2, 0));
        series.remove(TWO);
        assert_eq!(series.series_and_overflow(), (0, 0));
    }

    #[test]
    fn conflicts_that_come_and_go_beyond_the_bound_leave_nothing_behind() {
        let series = bounded(2);
        series.set(ONE, pair(1), 0);
        for number in 100..200 {
            let id = ConflictId(number);
            series.set(id, pair(2), 1);
            series.set(id, pair(3), 0);
            series.remove(id);
        }
        let table = series.lock();
        assert_eq!(
            (table.waiting.len(), table.subjects.len(), table.overflow),
            (0, 1, 0)
        );
    }
}
