//! Which conflicts and anomalies a sink gets.

use std::time::Duration;

use detector_engine::{AnomalyKind, Confidence};
use detector_event::{AnyEvent, ClaimantData, SubjectKind, WallTime};

/// Kinds that need no action: a sink gets them only if its filter names them.
pub const INFORMATION: [SubjectKind; 1] = [SubjectKind::Anomaly(AnomalyKind::IpamLeak)];

/// The conditions under which a sink gets a conflict or an anomaly. Once it got one event, it gets all that follow, up
/// to the resolving one, except updates of a conflict that is part of an address sweep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// Kinds to deliver; empty for all except [`INFORMATION`].
    pub kinds: Vec<SubjectKind>,
    /// Kubernetes namespaces: a claimant's pod (an anomaly's pod) must be in one of them; empty for all, including
    /// unknown pods.
    pub namespaces: Vec<String>,
    /// The least confidence of a conflict; an anomaly has none.
    pub confidence: Confidence,
    /// How long the conflict must have lasted.
    pub min_duration: Duration,
}

impl Default for Filter {
    fn default() -> Self {
        Self {
            kinds: Vec::new(),
            namespaces: Vec::new(),
            confidence: Confidence::Observed,
            min_duration: Duration::ZERO,
        }
    }
}

impl Filter {
    /// Whether the event's subject passes, regardless of how long it has lasted. A conflict that is part of an address
    /// sweep that the sink gets does not, until it outlasts the sweep or becomes certain.
    #[must_use]
    pub fn accepts(&self, event: &AnyEvent) -> bool {
        if self.gets_sweep_of(event) {
            return false;
        }
        let kind = if self.kinds.is_empty() {
            !INFORMATION.contains(&event.kind())
        } else {
            self.kinds.contains(&event.kind())
        };
        let confidence = match event {
            AnyEvent::Conflict(event) => event.data.confidence >= self.confidence,
            AnyEvent::Anomaly(_) => true,
        };
        let namespace = self.namespaces.is_empty()
            || (event.pods()).any(|pod| self.namespaces.contains(&pod.namespace));
        kind && confidence && namespace
    }

    /// Whether the event is about a conflict that is part of an address sweep, and the sink gets that sweep.
    #[must_use]
    pub fn gets_sweep_of(&self, event: &AnyEvent) -> bool {
        let AnyEvent::Conflict(event) = event else {
            return false;
        };
        let is_of_namespace = |claimant: &ClaimantData| {
            let mut pod = claimant.pod.iter();
            pod.any(|pod| self.namespaces.contains(&pod.namespace))
        };
        let sweep = SubjectKind::Anomaly(AnomalyKind::AddressSweep);
        event.data.sweep.is_some()
            && (self.kinds.is_empty() || self.kinds.contains(&sweep))
            && (self.namespaces.is_empty() || event.data.contesters().any(is_of_namespace))
    }

    /// How much longer the subject must last; zero if it has lasted long enough.
    #[must_use]
    pub fn time_left(&self, event: &AnyEvent, now: WallTime) -> Duration {
        if self.min_duration.is_zero() {
            return Duration::ZERO;
        }
        self.min_duration
            .saturating_sub(now.since(event.raised_at()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

    use std::sync::Arc;

    use detector_engine::{AnomalyId, ConflictKind, EvidenceKind};
    use detector_event::{ConflictData, ContractName as _, samples};

    use super::*;

    fn filter(kinds: &[SubjectKind], namespaces: &[&str]) -> Filter {
        Filter {
            kinds: kinds.to_vec(),
            namespaces: namespaces.iter().map(ToString::to_string).collect(),
            ..Filter::default()
        }
    }

    /// A pod of `shop` has the address; one of `lab` claims it in ARP and sweeps.
    fn swept() -> AnyEvent {
        let mut event = samples::raised("10.0.0.1");
        let ConflictData {
            claimants, sweep, ..
        } = &mut event.data;
        for (claimant, namespace) in claimants.iter_mut().zip(["shop", "lab"]) {
            let pod = claimant.pod.as_mut().unwrap();
            Arc::make_mut(pod).namespace = namespace.to_owned();
        }
        claimants[1].evidence[0].kind = EvidenceKind::Arp;
        *sweep = Some(AnomalyId(7));
        event.data.confidence = Confidence::Observed;
        event.into()
    }

    #[test]
    fn a_sink_that_gets_the_sweep_does_not_get_its_conflicts() {
        assert!(!filter(&[], &[]).accepts(&swept()));
        let kinds = SubjectKind::ALL;
        assert!(!filter(kinds, &[]).accepts(&swept()));
        assert!(!filter(&[], &["lab"]).accepts(&swept()));
    }

    #[test]
    fn a_sink_that_does_not_get_the_sweep_gets_its_conflicts() {
        let duplicates = [SubjectKind::Conflict(ConflictKind::Duplicate)];
        assert!(filter(&duplicates, &[]).accepts(&swept()));
        assert!(filter(&[], &["shop"]).accepts(&swept()));
        assert!(!filter(&[], &["other"]).accepts(&swept()));
    }
}
