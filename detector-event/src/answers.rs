//! The answers of the API; see docs/events.md.

use serde::{Deserialize, Serialize};

use crate::{AnomalyData, ClaimData, ConflictData, WallTime, row::Item};

/// What each answer begins with.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AnswerHead {
    /// The node's name.
    pub node: String,
    /// When the answer began.
    pub at: WallTime,
    /// Whether the start is complete; before, lists may be incomplete.
    pub ready: bool,
}

/// What each list ends with.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AnswerEnd {
    /// The `cursor` of the next page; null on the last one.
    pub next: Option<String>,
    /// With `reasons=once`: each reason of an unknown pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_unknown_reasons: Option<Vec<String>>,
}

/// Conflicts.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ConflictList {
    /// What each answer begins with.
    #[serde(flatten)]
    pub head: AnswerHead,
    /// The active ones that the parameters select, the one raised first at the front.
    pub conflicts: Vec<ConflictData>,
    /// Those of the newest 50 of the history that the parameters select, newest first; on the last page.
    pub resolved: Vec<ConflictData>,
    /// What each list ends with.
    #[serde(flatten)]
    pub end: AnswerEnd,
}

/// Active anomalies.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AnomalyList {
    /// What each answer begins with.
    #[serde(flatten)]
    pub head: AnswerHead,
    /// Those that the parameters select.
    pub anomalies: Vec<AnomalyData>,
    /// What each list ends with.
    #[serde(flatten)]
    pub end: AnswerEnd,
}

/// Claims.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ClaimList {
    /// What each answer begins with.
    #[serde(flatten)]
    pub head: AnswerHead,
    /// Those that the parameters select.
    pub claims: Vec<ClaimData>,
    /// What each list ends with.
    #[serde(flatten)]
    pub end: AnswerEnd,
}

/// Conflicts and anomalies that ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HistoryList {
    /// What each answer begins with.
    #[serde(flatten)]
    pub head: AnswerHead,
    /// Those that the parameters select, the one that ended last at the front.
    pub history: Vec<Item>,
    /// What each list ends with.
    #[serde(flatten)]
    pub end: AnswerEnd,
}

/// One conflict.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OneConflict {
    /// What each answer begins with.
    #[serde(flatten)]
    pub head: AnswerHead,
    /// The conflict.
    pub conflict: ConflictData,
}

/// One anomaly.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OneAnomaly {
    /// What each answer begins with.
    #[serde(flatten)]
    pub head: AnswerHead,
    /// The anomaly.
    pub anomaly: AnomalyData,
}

/// Why there is no answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(rename = "Error")
)]
pub struct ErrorAnswer {
    /// One sentence.
    pub error: String,
}
