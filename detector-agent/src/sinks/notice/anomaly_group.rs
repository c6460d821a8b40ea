//! Anomalies of one kind.

use detector_event::{AnomalyData, summary::anomaly_subject};

use super::conflict_group::GroupCause;

/// Anomalies that a group lists; the others are counted.
const SUBJECTS: usize = 10;

/// What a person has to know of anomalies of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AnomalyGroup {
    /// The first one, with which a message about a single one is written.
    pub(super) shown: AnomalyData,
    /// What the first ones are about: `10.244.2.10 of default/a (veth1)`.
    pub(super) subjects: Vec<String>,
}

impl AnomalyGroup {
    /// A group of one anomaly.
    pub(super) fn new(first: &AnomalyData) -> Self {
        Self {
            shown: first.clone(),
            subjects: vec![anomaly_subject(first)],
        }
    }

    /// A group of these anomalies; `None` without any.
    pub(super) fn of<'a>(anomalies: impl IntoIterator<Item = &'a AnomalyData>) -> Option<Self> {
        let mut anomalies = anomalies.into_iter();
        let mut group = Self::new(anomalies.next()?);
        for anomaly in anomalies {
            group.add(anomaly);
        }
        Some(group)
    }

    /// Adds an anomaly.
    pub(super) fn add(&mut self, data: &AnomalyData) {
        if self.subjects.len() < SUBJECTS {
            self.subjects.push(anomaly_subject(data));
        }
    }

    /// Why the one that is shown was raised, if that is known.
    pub(super) fn cause(&self) -> Option<GroupCause> {
        GroupCause::of(self.shown.diagnosis.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use detector_event::samples;

    use super::*;

    #[test]
    fn the_list_is_bounded() {
        let mut group = AnomalyGroup::new(&samples::drift("10.0.0.1").data);
        for n in 2..=200 {
            group.add(&samples::drift(&format!("10.0.0.{n}")).data);
        }
        assert_eq!(group.subjects.len(), SUBJECTS);
    }
}
