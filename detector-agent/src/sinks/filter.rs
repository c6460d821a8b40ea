//! Which conflicts and anomalies a sink gets.

use std::time::Duration;

use crate::{
    clock::WallTime,
    engine::{AnomalyKind, Confidence},
    event::{AnyEvent, SubjectKind},
};

/// Kinds that need no action: a sink gets them only if its filter names them.
pub const INFORMATION: [SubjectKind; 1] = [SubjectKind::Anomaly(AnomalyKind::IpamLeak)];

/// The conditions under which a sink gets a conflict or an anomaly. Once it got one event, it gets all that follow, up
/// to the resolving one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// Kinds to deliver; empty for all except [`INFORMATION`].
    pub kinds: Vec<SubjectKind>,
    /// Kubernetes namespaces, one of which a claimant's pod (an anomaly's pod) must be in; empty for all, also if no
    /// pod is known.
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
    /// Whether the event's subject passes, regardless of how long it has lasted.
    #[must_use]
    pub fn accepts(&self, event: &AnyEvent) -> bool {
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
