//! Which claimant of a conflict is the newest, as far as that is known.

use detector_engine::{ConflictKind, EvidenceKind};
use serde::{Deserialize, Serialize};

use super::{ClaimantData, ConflictData};
use crate::{Pod, WallTime};

/// How a claimant is known to be the newest of a conflict, best source first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[serde(rename_all = "snake_case")]
pub enum NewestBy {
    /// The agent saw its claim begin after it had seen those of all others.
    FirstSight,
    /// Its pod's sandbox was created last.
    Sandbox,
    /// Its pod was created last.
    Pod,
}

impl NewestBy {
    /// Its name in events.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::FirstSight => "first_sight",
            Self::Sandbox => "sandbox",
            Self::Pod => "pod",
        }
    }

    /// For people: completes "the newest claimant (…)".
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::FirstSight => "its claim began last",
            Self::Sandbox => "its sandbox was created last",
            Self::Pod => "it was created last",
        }
    }

    fn creation(self, pod: &Pod) -> Option<WallTime> {
        match self {
            Self::FirstSight => None,
            Self::Sandbox => pod.sandbox_created_at,
            Self::Pod => pod.created_at,
        }
    }
}

impl ConflictData {
    /// Marks the newest claimant by when the pods were created, if the agent did not see which one it is.
    ///
    /// A pod has its addresses from its creation on; when it began to claim one in frames alone, its age does not show.
    /// Times that are equal decide nothing: the Kubernetes API has them to the second.
    pub(super) fn mark_newest_by_creation(&mut self) {
        let has_address =
            |c: &ClaimantData| c.evidence.iter().any(|e| e.kind == EvidenceKind::Address);
        if self.is_resolved()
            || self.kind != ConflictKind::Duplicate
            || self.claimants_omitted > 0
            || self.present().any(|c| c.newest || !has_address(c))
        {
            return;
        }
        for by in [NewestBy::Sandbox, NewestBy::Pod] {
            let created = |c: &ClaimantData| by.creation(c.pod.as_deref()?);
            let times: Option<Vec<_>> = self.present().map(created).collect();
            let Some(times) = times else { continue };
            let last = times.iter().max().copied();
            if times.iter().filter(|time| Some(**time) == last).count() != 1 {
                continue;
            }
            let mut claimants = self.claimants.iter_mut();
            if let Some(newest) =
                claimants.find(|c| c.left.is_none() && created(c) == last && last.is_some())
            {
                newest.newest = true;
                newest.newest_by = Some(by);
            }
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

    use std::sync::Arc;

    use super::*;
    use crate::{Change, samples};

    fn time(text: &str) -> Option<WallTime> {
        Some(format!("2026-11-21T{text}Z").parse().unwrap())
    }

    /// Two pods with these times of creation: (sandbox, pod).
    fn conflict(created: [(Option<WallTime>, Option<WallTime>); 2]) -> ConflictData {
        let mut data = samples::event("1", Change::Raised, "c", "10.0.0.1").data;
        for (claimant, (sandbox, pod)) in data.claimants.iter_mut().zip(created) {
            let known = Arc::make_mut(claimant.pod.as_mut().unwrap());
            (known.sandbox_created_at, known.created_at) = (sandbox, pod);
        }
        data
    }

    fn newest(mut data: ConflictData) -> Option<(String, NewestBy)> {
        data.mark_newest_by_creation();
        let marked: Vec<_> = data.claimants.iter().filter(|c| c.newest).collect();
        assert!(marked.len() <= 1);
        marked
            .first()
            .map(|c| (c.device.clone(), c.newest_by.unwrap()))
    }

    #[test]
    fn sandboxes_decide_before_pods() {
        let (early, late) = (time("01:00:00"), time("01:00:44"));
        let by = |by| Some(("veth-b".to_owned(), by));
        let older = (early, late);
        assert_eq!(
            newest(conflict([older, (late, early)])),
            by(NewestBy::Sandbox)
        );
        let unknown = (None, early);
        assert_eq!(
            newest(conflict([unknown, (early, late)])),
            by(NewestBy::Pod)
        );
        assert_eq!(
            newest(conflict([(early, early), (early, late)])),
            by(NewestBy::Pod)
        );
    }

    #[test]
    fn equal_or_unknown_times_decide_nothing() {
        let at = time("01:00:00");
        assert_eq!(newest(conflict([(at, at), (at, at)])), None);
        assert_eq!(newest(conflict([(at, None), (None, at)])), None);
        let mut unknown = conflict([(at, None), (time("02:00:00"), None)]);
        unknown.claimants[0].pod = None;
        assert_eq!(newest(unknown), None);
    }

    #[test]
    fn age_of_a_pod_that_claims_in_frames_decides_nothing() {
        let mut spoofed = conflict([(time("01:00:00"), None), (time("02:00:00"), None)]);
        assert!(newest(spoofed.clone()).is_some());
        spoofed.claimants[0].evidence[0].kind = EvidenceKind::Arp;
        assert_eq!(newest(spoofed), None);
    }

    #[test]
    fn first_sight_takes_precedence() {
        let mut seen = conflict([(time("01:00:00"), None), (time("02:00:00"), None)]);
        seen.claimants[0].newest = true;
        seen.claimants[0].newest_by = Some(NewestBy::FirstSight);
        assert_eq!(
            newest(seen),
            Some(("veth-a".to_owned(), NewestBy::FirstSight))
        );
    }
}
