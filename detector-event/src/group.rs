//! Findings that a person reads as one: an address sweep with the conflicts that it stands for, findings of one cause, and findings
//! of the same claimants.

use std::collections::HashMap;

use detector_engine::{
    AnomalyId, AnomalyKind, Network,
    diagnosis::{Cause, CauseConfidence},
};

use crate::{Affected, AnomalyData, ConflictData, DiagnosisData, SubjectKind, WallTime};

/// Pods in one network, by their devices.
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct Pods<'a> {
    network: Option<&'a Network>,
    devices: Vec<&'a str>,
}

impl<'a> Pods<'a> {
    pub(crate) fn of_conflict(conflict: &'a ConflictData) -> Self {
        let devices = conflict.present().map(|claimant| claimant.device.as_str());
        let mut devices: Vec<_> = devices.collect();
        devices.sort_unstable();
        Self {
            network: Some(&conflict.network),
            devices,
        }
    }
}

/// What the findings of one group have in common. `page/groups.js` has the same rule.
#[derive(PartialEq, Eq, Hash)]
pub(crate) enum Key<'a> {
    /// An address sweep.
    Sweep(AnomalyId),
    /// A cause of many, that began at a known time; how many it affects may have grown since.
    Since(Cause, CauseConfidence, WallTime),
    /// A cause of many.
    Affects(Cause, CauseConfidence, Affected),
    /// A cause of one address: the others of the same pods.
    Pods(Cause, CauseConfidence, Pods<'a>),
    /// No known cause: others of that kind of the same pods.
    Unexplained(SubjectKind, Option<Cause>, Pods<'a>),
}

impl<'a> Key<'a> {
    pub(crate) fn of_conflict(conflict: &'a ConflictData) -> Self {
        match conflict.sweep {
            Some(sweep) => Self::Sweep(sweep),
            None => Self::new(
                SubjectKind::Conflict(conflict.kind),
                conflict.diagnosis.as_deref(),
                Pods::of_conflict(conflict),
            ),
        }
    }

    pub(crate) fn of_anomaly(anomaly: &'a AnomalyData) -> Self {
        match anomaly.kind {
            AnomalyKind::AddressSweep => Self::Sweep(anomaly.anomaly_id),
            kind => Self::new(
                SubjectKind::Anomaly(kind),
                anomaly.diagnosis.as_deref(),
                Pods {
                    network: None,
                    devices: anomaly.device.as_deref().into_iter().collect(),
                },
            ),
        }
    }

    fn new(kind: SubjectKind, diagnosis: Option<&DiagnosisData>, pods: Pods<'a>) -> Self {
        let Some(diagnosis) = diagnosis.filter(|diagnosis| diagnosis.has_cause()) else {
            let cause = diagnosis.map(|diagnosis| diagnosis.cause);
            return Self::Unexplained(kind, cause, pods);
        };
        let (cause, confidence) = (diagnosis.cause, diagnosis.confidence);
        match (diagnosis.affected.addresses, diagnosis.since) {
            (0 | 1, _) => Self::Pods(cause, confidence, pods),
            (_, Some(since)) => Self::Since(cause, confidence, since),
            (_, None) => Self::Affects(cause, confidence, diagnosis.affected),
        }
    }
}

/// The findings, those with the same key together, in the order of the first of each group.
pub(crate) fn fold<'a, T>(findings: impl IntoIterator<Item = (Key<'a>, T)>) -> Vec<Vec<T>> {
    let mut groups: Vec<Vec<T>> = Vec::new();
    let mut known: HashMap<Key<'a>, usize> = HashMap::new();
    for (key, finding) in findings {
        let index = *known.entry(key).or_insert(groups.len());
        match groups.get_mut(index) {
            Some(group) => group.push(finding),
            None => groups.push(vec![finding]),
        }
    }
    groups
}
