//! Which conflicts a sink hears of.

use std::time::Duration;

use super::event::ConflictData;

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
    /// The Contract's words; empty for all kinds.
    pub kinds: Vec<String>,
    /// Kubernetes namespaces of which one claimant's pod must be; empty for all, also where no pod is known.
    pub namespaces: Vec<String>,
    /// The least confidence.
    pub confidence: Threshold,
    /// How long the conflict must have lasted.
    pub min_duration: Duration,
}

impl Filter {
    /// Whether the conflict may pass, leaving aside how long it has lasted.
    #[must_use]
    pub fn accepts(&self, data: &ConflictData) -> bool {
        let kind = self.kinds.is_empty() || self.kinds.contains(&data.kind);
        let confidence = self.confidence == Threshold::Observed || data.confidence == "certain";
        let namespace = self.namespaces.is_empty()
            || data
                .claimants
                .iter()
                .filter_map(|claimant| claimant.pod.as_ref())
                .any(|pod| self.namespaces.contains(&pod.namespace));
        kind && confidence && namespace
    }

    /// How much longer the conflict must last; zero where it has lasted long enough.
    #[must_use]
    pub fn time_left(&self, data: &ConflictData, now: jiff::Timestamp) -> Duration {
        if self.min_duration.is_zero() {
            return Duration::ZERO;
        }
        // A time that cannot be read counts as now: the sink hears of it later, not never.
        let raised: jiff::Timestamp = data.raised_at.parse().unwrap_or(now);
        let lasted = Duration::try_from(now.duration_since(raised)).unwrap_or_default();
        self.min_duration.saturating_sub(lasted)
    }
}
