//! What an update changed: the parts of a conflict that differ from the previous event about it.

use std::hash::{Hash, Hasher as _};

use detector_engine::{ClaimantDigest, ConflictDigest, Reported};
use fnv::FnvHasher;
use serde::{Deserialize, Serialize};

use super::{ClaimantData, ConflictData};
use crate::{DiagnosisData, Pod};

/// A part of a conflict that an updating event names as changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[serde(rename_all = "snake_case")]
pub enum ChangedField {
    /// The kind of conflict.
    Kind,
    /// How certain the evidence is.
    Confidence,
    /// Which device receives the node's traffic for the address.
    TrafficGoesTo,
    /// A claimant joined or left, or its device was renamed.
    Claimants,
    /// What supports a claim; not when it was last seen.
    Evidence,
    /// The pod behind a claimant became known, or what is known of it changed.
    Pod,
    /// Which claimant is the newest, or how that is known.
    Newest,
    /// Which claimants are rightful, or to which pod IPAM has allocated the address.
    Rightful,
    /// The address sweep that it is part of.
    Sweep,
    /// Why it came about.
    Diagnosis,
}

impl ChangedField {
    /// Its name for people; `None` if they need not be notified of a change.
    #[must_use]
    pub fn for_people(self) -> Option<&'static str> {
        match self {
            Self::Kind => Some("kind"),
            Self::Confidence => Some("confidence"),
            Self::TrafficGoesTo => Some("receiver of the traffic"),
            Self::Claimants => Some("claimants"),
            Self::Pod => Some("pods"),
            Self::Newest => Some("newest claimant"),
            Self::Diagnosis => Some("cause"),
            Self::Evidence | Self::Rightful | Self::Sweep => None,
        }
    }

    /// The fields that differ between two events about a conflict.
    fn between(before: &ConflictDigest, now: &ConflictDigest) -> Vec<Self> {
        let same_claimant = |now: &&ClaimantDigest| {
            let mut before = before.claimants.iter();
            before
                .find(|before| before.identity == now.identity)
                .copied()
        };
        let remaining: Vec<_> = now
            .claimants
            .iter()
            .filter_map(|now| Some((same_claimant(&now)?, *now)))
            .collect();
        let joined_or_left = remaining.len() != before.claimants.len()
            || remaining.len() != now.claimants.len()
            || before.claimants_omitted != now.claimants_omitted;
        let differs = |part: fn(&ClaimantDigest) -> u64| {
            remaining
                .iter()
                .any(|(before, now)| part(before) != part(now))
        };
        let changed = [
            (Self::Kind, before.kind != now.kind),
            (Self::Confidence, before.confidence != now.confidence),
            (
                Self::TrafficGoesTo,
                before.traffic_goes_to != now.traffic_goes_to,
            ),
            (Self::Claimants, joined_or_left),
            (Self::Evidence, differs(|c| c.evidence)),
            (Self::Pod, remaining.iter().any(has_other_pod)),
            (Self::Newest, before.newest != now.newest),
            (Self::Rightful, remaining.iter().any(has_other_rights)),
            (Self::Sweep, before.sweep != now.sweep),
            (
                Self::Diagnosis,
                now.diagnosis != 0 && before.diagnosis != now.diagnosis,
            ),
        ];
        let changed = changed.into_iter().filter(|(_, is_changed)| *is_changed);
        changed.map(|(field, _)| field).collect()
    }
}

/// Whether another pod or more of it is known. Less is known after a restart until all sources have answered, which is no change.
fn has_other_pod((before, now): &(ClaimantDigest, ClaimantDigest)) -> bool {
    let is_less = now.pod_parts < before.pod_parts && now.pod_name == before.pod_name;
    now.pod_parts > 0 && before.pod != now.pod && !is_less
}

/// Whether records say something else about a claimant. After a restart nothing is known until the sources have answered.
fn has_other_rights((before, now): &(ClaimantDigest, ClaimantDigest)) -> bool {
    now.rightful != 0 && before.rightful != now.rightful
}

impl ConflictData {
    /// Names what differs from the last event about the conflict.
    pub fn compare_with(&mut self, last: &Reported) {
        self.changed = ChangedField::between(&last.digest, &self.digest());
    }

    /// What the next event about the conflict is compared with, and the API shows of this one.
    #[must_use]
    pub fn reported(&self) -> Reported {
        Reported {
            latency_us: self.latency_us,
            digest: self.digest(),
        }
    }

    fn digest(&self) -> ConflictDigest {
        let newest = self.claimants.iter().find(|c| c.newest().is_some());
        ConflictDigest {
            kind: hash(&self.kind.name()),
            confidence: hash(&self.confidence.name()),
            traffic_goes_to: hash(&self.traffic_goes_to),
            newest: hash(&newest.map(|c| (&c.device, c.newest().map(super::NewestBy::name)))),
            sweep: hash(&self.sweep),
            diagnosis: diagnosis_digest(self.diagnosis.as_deref()),
            claimants: self.claimants.iter().map(ClaimantData::digest).collect(),
            claimants_omitted: self.claimants_omitted,
        }
    }
}

impl ClaimantData {
    fn digest(&self) -> ClaimantDigest {
        let left = self.left.map(detector_engine::LeaveReason::name);
        let evidence = self.evidence.iter();
        let evidence: Vec<_> = evidence
            .map(|e| {
                let detail = e.detail.as_ref().map(ToString::to_string);
                (e.kind.name(), e.mac.map(|mac| mac.0), detail)
            })
            .collect();
        ClaimantDigest {
            identity: hash(&(&self.device, self.ifindex, left)),
            evidence: hash(&evidence),
            pod: hash(&self.pod.as_deref().map(pod_parts)),
            pod_name: hash(&self.pod.as_deref().map(|pod| (&pod.namespace, &pod.name))),
            pod_parts: self.pod.as_deref().map_or(0, Pod::known_parts),
            rightful: match (self.rightful, self.allocated) {
                // As of a claimant that an earlier version stored.
                (None, None) => 0,
                records => hash(&records),
            },
        }
    }
}

/// The parts of a pod that events show.
fn pod_parts(pod: &Pod) -> impl Hash + '_ {
    (
        (&pod.namespace, &pod.name, &pod.uid, &pod.container_id),
        pod.via.name(),
        &pod.labels,
        pod.owner.as_ref().map(|owner| (&owner.kind, &owner.name)),
        pod.terminating,
    )
}

/// A hash of what is news about a diagnosis: its cause and confidence. The same in every run of the agent, so not of when the cause
/// began, which may be less exact after a restart. 0 if the cause is not known.
#[must_use]
pub fn diagnosis_digest(diagnosis: Option<&DiagnosisData>) -> u64 {
    match diagnosis {
        Some(diagnosis) if diagnosis.has_cause() => {
            hash(&(diagnosis.cause.name(), diagnosis.confidence.name()))
        }
        _ => 0,
    }
}

/// The same in every run of the agent.
fn hash(value: &impl Hash) -> u64 {
    let mut hasher = FnvHasher::default();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

    use std::sync::Arc;

    use detector_engine::{Confidence, EvidenceDetail};

    use super::*;
    use crate::{Change, NewestBy, samples};

    fn changed(change: impl FnOnce(&mut ConflictData)) -> Vec<ChangedField> {
        let before = samples::event("1", Change::Raised, "c", "10.0.0.1").data;
        let mut now = before.clone();
        change(&mut now);
        ChangedField::between(&before.digest(), &now.digest())
    }

    #[test]
    fn update_names_each_part_that_differs() {
        assert_eq!(changed(|_| {}), []);
        assert_eq!(
            changed(|c| {
                c.confidence = Confidence::Observed;
                c.traffic_goes_to = None;
            }),
            [ChangedField::Confidence, ChangedField::TrafficGoesTo]
        );
        assert_eq!(
            changed(|c| c.claimants.push(samples::claimant("veth-c", None))),
            [ChangedField::Claimants]
        );
        assert_eq!(
            changed(|c| c.claimants[1].left = Some(detector_engine::LeaveReason::Expired)),
            [ChangedField::Claimants]
        );
        assert_eq!(
            changed(|c| c.claimants[0].evidence[0].detail = Some(EvidenceDetail::Tentative)),
            [ChangedField::Evidence]
        );
        assert_eq!(
            changed(|c| pod_of(c).name = "another".to_owned()),
            [ChangedField::Pod]
        );
        assert_eq!(
            changed(|c| pod_of(c).uid = Some("uid".to_owned())),
            [ChangedField::Pod]
        );
        assert_eq!(
            changed(|c| {
                c.claimants[1].newest = true;
                c.claimants[1].newest_by = Some(NewestBy::Sandbox);
            }),
            [ChangedField::Newest]
        );
        assert_eq!(
            changed(|c| c.claimants[1].rightful = Some(true)),
            [ChangedField::Rightful]
        );
        assert_eq!(
            changed(|c| c.sweep = Some(detector_engine::AnomalyId(1))),
            [ChangedField::Sweep]
        );
    }

    fn pod_of(conflict: &mut ConflictData) -> &mut Pod {
        Arc::make_mut(conflict.claimants[0].pod.as_mut().unwrap())
    }

    #[test]
    fn claimant_of_which_less_is_known_is_no_change() {
        let mut before = samples::event("1", Change::Raised, "c", "10.0.0.1").data;
        before.claimants[0].rightful = Some(true);
        pod_of(&mut before).uid = Some("uid".to_owned());
        let now = |change: fn(&mut ConflictData)| {
            let mut now = before.clone();
            change(&mut now);
            ChangedField::between(&before.digest(), &now.digest())
        };
        assert_eq!(now(|c| c.claimants[0].pod = None), []);
        assert_eq!(now(|c| c.claimants[0].rightful = None), []);
        assert_eq!(now(|c| pod_of(c).uid = None), []);
        let other = now(|c| {
            let pod = pod_of(c);
            (pod.uid, pod.name) = (None, "another".to_owned());
        });
        assert_eq!(other, [ChangedField::Pod]);
    }

    #[test]
    fn times_alone_are_no_change() {
        let later = crate::WallTime::now();
        assert_eq!(
            changed(|c| {
                c.updated_at = later;
                c.claimants[0].evidence[0].last_seen = later;
            }),
            []
        );
    }

    #[test]
    fn digest_is_the_same_in_every_build() {
        assert_eq!(hash(&"duplicate"), 0x02bf_7e29_f723_1f8b);
    }
}
