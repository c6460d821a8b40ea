//! The answers of an agent.

use detector_event::{AnomalyData, ConflictData, PartReport, Role, State};
use serde::Deserialize;

/// What is open on a node.
#[derive(Clone, Debug, Default)]
pub struct Overview {
    /// The node's name.
    pub node: String,
    /// Whether the agent has read the kernel state.
    pub ready: bool,
    /// The active conflicts, oldest first.
    pub conflicts: Vec<ConflictData>,
    /// The conflicts that were resolved recently.
    pub resolved: Vec<ConflictData>,
    /// The open anomalies.
    pub anomalies: Vec<AnomalyData>,
}

/// The response of `/readyz`.
#[derive(Clone, Debug, Deserialize)]
pub struct AgentStatus {
    /// Whether the agent has read the kernel state.
    pub ready: bool,
    /// The agent's version.
    #[serde(default)]
    pub version: String,
    /// Pod devices; `None` until they are known.
    #[serde(default)]
    pub devices: Option<usize>,
    /// The agent's parts.
    #[serde(default)]
    pub parts: Vec<PartReport>,
}

/// Why conflicts may exist that are not known.
#[derive(Debug)]
pub struct Gap {
    /// The gap in a few words.
    pub headline: &'static str,
    /// The reason.
    pub reason: String,
}

impl AgentStatus {
    /// Why conflicts may be unknown to the agent.
    #[must_use]
    pub fn gaps(&self) -> Vec<Gap> {
        let mut gaps = Vec::new();
        if !self.ready || self.devices.is_none() {
            gaps.push(Gap {
                headline: "the agent is not ready yet",
                reason: "the agent is not ready yet".to_owned(),
            });
        }
        let blind = self.parts.iter().filter(|part| {
            part.role == Role::Source && !matches!(part.state, State::Works | State::Off)
        });
        gaps.extend(blind.map(|part| Gap {
            headline: "no conflict known, but the agent does not see everything",
            reason: part.line(),
        }));
        gaps
    }
}

#[cfg(any(test, feature = "samples"))]
impl AgentStatus {
    /// An agent whose parts have these roles and states.
    #[must_use]
    pub fn sample(ready: bool, devices: Option<usize>, parts: &[(Role, State)]) -> Self {
        let part = |(role, state): &(Role, State)| PartReport {
            name: "part".to_owned(),
            role: *role,
            state: *state,
            detail: "detail".to_owned(),
            since: detector_event::WallTime::now(),
            runbook_url: None,
        };
        Self {
            ready,
            version: String::new(),
            devices,
            parts: parts.iter().map(part).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_that_does_not_see_everything_has_gaps() {
        use State::{Degraded, Failed, Off, Starting, Works};
        let seeing = [(Role::Source, Works), (Role::Source, Off)];
        assert!(
            AgentStatus::sample(true, Some(1), &seeing)
                .gaps()
                .is_empty()
        );
        assert_eq!(AgentStatus::sample(false, Some(1), &seeing).gaps().len(), 1);
        assert_eq!(AgentStatus::sample(true, None, &seeing).gaps().len(), 1);
        for state in [Degraded, Failed, Starting] {
            let blind = AgentStatus::sample(true, Some(1), &[(Role::Source, state)]);
            assert_eq!(blind.gaps().len(), 1, "{state:?}");
        }
        let sink_fails = AgentStatus::sample(true, Some(1), &[(Role::Sink, Failed)]);
        assert!(sink_fails.gaps().is_empty());
    }
}
