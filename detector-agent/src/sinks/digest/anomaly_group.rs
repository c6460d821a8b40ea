//! Anomalies of one kind that began within a minute.

use detector_event::{
    AnomalyData, ResolvedBecause, names,
    summary::{anomaly_subject, pod_name},
};
use serde::{Deserialize, Serialize};

use super::conflict_group::GroupCause;

/// Anomalies that a group lists; the others are counted.
const SUBJECTS: usize = 10;

/// What a person has to know of anomalies of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnomalyGroup {
    /// The oldest one that is active, with which a message about a single one is written.
    pub shown: AnomalyData,
    /// What the first ones are about: `10.244.2.10 of default/a (veth1)`.
    pub subjects: Vec<String>,
    /// Why the last one was resolved.
    #[serde(
        default,
        with = "names::optional_name",
        skip_serializing_if = "Option::is_none"
    )]
    pub resolved_because: Option<ResolvedBecause>,
}

impl AnomalyGroup {
    /// A group of one anomaly.
    #[must_use]
    pub fn new(first: &AnomalyData) -> Self {
        Self {
            shown: first.clone(),
            subjects: vec![anomaly_subject(first)],
            resolved_because: None,
        }
    }

    /// Adds an anomaly.
    pub fn add(&mut self, data: &AnomalyData) {
        if self.subjects.len() < SUBJECTS {
            self.subjects.push(anomaly_subject(data));
        }
    }

    /// Why the one that is shown was raised, if that is known.
    #[must_use]
    pub fn cause(&self) -> Option<GroupCause> {
        GroupCause::of(self.shown.diagnosis.as_deref())
    }

    /// Names the pod of a single anomaly, if it is unknown for the moment, as `before` did.
    pub fn keep_pods(&mut self, before: &Self) {
        let is_same = self.shown.anomaly_id == before.shown.anomaly_id;
        if is_same && self.shown.pod.is_none() {
            self.shown.pod.clone_from(&before.shown.pod);
            if let Some(subject) = self.subjects.first_mut() {
                *subject = anomaly_subject(&self.shown);
            }
        }
    }

    /// What a person should know of the difference to `before`, one sentence each: for the anomaly that both show, its cause,
    /// its pod, further devices, and twice as many addresses of a sweep.
    #[must_use]
    pub fn changes_since(&self, before: &Self) -> Vec<String> {
        let cause = GroupCause::change(self.cause().as_ref(), before.cause().as_ref());
        let (now, before) = (&self.shown, &before.shown);
        let mut changes = Vec::new();
        if now.anomaly_id != before.anomaly_id {
            return changes;
        }
        if now.cause != before.cause {
            changes.push(format!("{}: {}", now.address, now.detail));
        }
        if let (Some(device), Some(pod), true) = (&now.device, &now.pod, now.pod != before.pod) {
            changes.push(format!("{device} is the device of {}", pod_name(pod)));
        }
        for device in &now.also_on {
            if !before.also_on.contains(device) {
                changes.push(format!("{device} has the address as well"));
            }
        }
        if let (Some(contested), Some(least)) = (now.contested, before.contested)
            && contested >= least.saturating_mul(2)
        {
            changes.push(format!(
                "it claims {contested} addresses of others now, {least} before"
            ));
        }
        changes.extend(cause);
        changes
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

    use detector_engine::AnomalyCause;
    use detector_event::{WallTime, samples};

    use super::*;

    #[test]
    fn each_change_of_an_anomaly_is_named() {
        let mut before = samples::drift("10.0.0.1").data;
        let mut now = before.clone();
        before.pod = None;
        now.cause = AnomalyCause::TwoOwners;
        now.detail = "it is allocated twice".to_owned();
        now.also_on = vec!["veth-c".to_owned()];
        now.raised_at = WallTime::now();
        let [before, now] = [before, now].map(|data| AnomalyGroup::new(&data));
        assert_eq!(
            now.changes_since(&before),
            [
                "10.0.0.1: it is allocated twice",
                "veth-a is the device of default/a",
                "veth-c has the address as well",
            ]
        );
        let mut restarted = before.clone();
        restarted.keep_pods(&now);
        assert_eq!(restarted.subjects, now.subjects);
        let other = AnomalyGroup::new(&samples::drift("10.0.0.2").data);
        assert_eq!(now.changes_since(&other), [""; 0]);
    }

    #[test]
    fn the_list_is_bounded() {
        let mut group = AnomalyGroup::new(&samples::drift("10.0.0.1").data);
        for n in 2..=200 {
            group.add(&samples::drift(&format!("10.0.0.{n}")).data);
        }
        assert_eq!(group.subjects.len(), SUBJECTS);
    }
}
