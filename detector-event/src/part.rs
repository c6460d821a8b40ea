//! The parts of an agent, as `/readyz` reports them.

use serde::{Deserialize, Serialize};

use crate::{WallTime, guidance::part_runbook_url};

/// What a part does for the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Feeds observations to the engine.
    Source,
    /// Looks up pods; detection works without it.
    Names,
    /// Provides IPAM allocations; detection works without it.
    Ipam,
    /// Compares addresses across nodes; detection on the node works without it.
    Fleet,
    /// Receives events.
    Sink,
}

/// State of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Not started yet.
    Starting,
    /// Works as intended.
    Works,
    /// Works in part.
    Degraded,
    /// Does not work.
    Failed,
    /// Disabled by the configuration.
    Off,
}

/// One part as served by `/readyz`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartReport {
    /// Display name.
    pub name: String,
    /// What it does for the agent.
    pub role: Role,
    /// Whether it works.
    pub state: State,
    /// One sentence of detail.
    pub detail: String,
    /// When it entered this state, RFC 3339.
    pub since: WallTime,
    /// The URL of the runbook, if it does not work and there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runbook_url: Option<String>,
}

impl PartReport {
    /// Whether it does not do what it should.
    #[must_use]
    pub fn is_impaired(&self) -> bool {
        matches!(self.state, State::Degraded | State::Failed)
    }

    /// Its name and detail.
    #[must_use]
    pub fn line(&self) -> String {
        format!("{}: {}", self.name, self.detail)
    }

    /// The report, with the link to its runbook if it is impaired.
    #[must_use]
    pub fn with_runbook(mut self) -> Self {
        if self.is_impaired() {
            self.runbook_url = part_runbook_url(self.role);
        }
        self
    }
}
