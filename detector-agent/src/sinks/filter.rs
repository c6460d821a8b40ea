//! Which conflicts and anomalies a sink hears of.

use std::time::Duration;

use crate::event::AnyEvent;

/// Kinds that nobody has to act on: a sink gets them only where it asks for them by name.
pub const INFORMATION: [&str; 1] = ["ipam_leak"];

/// The least confidence a sink asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Threshold {
    /// Any.
    #[default]
    Observed,
    /// `certain` alone.
    Certain,
}

/// What must hold for a conflict before a sink hears of it. Once it has heard of it, it hears the rest, to the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// The Contract's words; empty for all kinds but those that are information alone ([`INFORMATION`]).
    pub kinds: Vec<String>,
    /// Kubernetes namespaces of which one claimant's pod (an anomaly's pod) must be; empty for all, also where no pod is known.
    pub namespaces: Vec<String>,
    /// The least confidence of a conflict; an anomaly has none.
    pub confidence: Threshold,
    /// How long the conflict must have lasted.
    pub min_duration: Duration,
}

impl Filter {
    /// Whether what the event tells of may pass, leaving aside how long it has lasted.
    #[must_use]
    pub fn accepts(&self, event: &AnyEvent) -> bool {
        let kind = if self.kinds.is_empty() {
            !INFORMATION.contains(&event.kind())
        } else {
            self.kinds.iter().any(|kind| kind == event.kind())
        };
        let confidence = match event {
            AnyEvent::Conflict(event) => {
                self.confidence == Threshold::Observed || event.data.confidence == "certain"
            }
            AnyEvent::Anomaly(_) => true,
        };
        let namespace = self.namespaces.is_empty()
            || (event.pods().iter()).any(|pod| self.namespaces.contains(&pod.namespace));
        kind && confidence && namespace
    }

    /// How much longer the conflict must last; zero where it has lasted long enough.
    #[must_use]
    pub fn time_left(&self, event: &AnyEvent, now: jiff::Timestamp) -> Duration {
        if self.min_duration.is_zero() {
            return Duration::ZERO;
        }
        // A time that cannot be read counts as now: the sink hears of it later, not never.
        let raised: jiff::Timestamp = event.raised_at().parse().unwrap_or(now);
        let lasted = Duration::try_from(now.duration_since(raised)).unwrap_or_default();
        self.min_duration.saturating_sub(lasted)
    }
}
