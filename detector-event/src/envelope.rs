//! The CloudEvents 1.0 envelope (structured JSON) of every event; see docs/events.md.

use std::{net::IpAddr, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{
    anomaly::AnomalyData,
    conflict::ConflictData,
    names::{self, ContractName},
};
use crate::WallTime;
#[cfg(feature = "schema")]
use crate::schema;

/// What happened to a conflict or an anomaly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// It was detected.
    Raised,
    /// It changed.
    Updated,
    /// It ended.
    Resolved,
}

impl Change {
    /// Every change.
    pub const ALL: [Self; 3] = [Self::Raised, Self::Updated, Self::Resolved];

    /// The last word of the event type.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Raised => "raised",
            Self::Updated => "updated",
            Self::Resolved => "resolved",
        }
    }
}

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SubjectClass {
    /// A conflict.
    Conflict,
    /// An anomaly.
    Anomaly,
}

/// The CloudEvents `type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventType {
    /// What the event is about.
    pub subject: SubjectClass,
    /// What happened to it.
    pub change: Change,
}

impl EventType {
    const fn new(subject: SubjectClass, change: Change) -> Self {
        Self { subject, change }
    }

    /// The type of an event about a conflict.
    #[must_use]
    pub const fn conflict(change: Change) -> Self {
        Self::new(SubjectClass::Conflict, change)
    }

    /// The type of an event about an anomaly.
    #[must_use]
    pub const fn anomaly(change: Change) -> Self {
        Self::new(SubjectClass::Anomaly, change)
    }
}

impl ContractName for EventType {
    const ALL: &'static [Self] = &[
        Self::conflict(Change::Raised),
        Self::conflict(Change::Updated),
        Self::conflict(Change::Resolved),
        Self::anomaly(Change::Raised),
        Self::anomaly(Change::Updated),
        Self::anomaly(Change::Resolved),
    ];

    fn contract_name(self) -> &'static str {
        match (self.subject, self.change) {
            (SubjectClass::Conflict, Change::Raised) => "io.ipconflict.conflict.raised",
            (SubjectClass::Conflict, Change::Updated) => "io.ipconflict.conflict.updated",
            (SubjectClass::Conflict, Change::Resolved) => "io.ipconflict.conflict.resolved",
            (SubjectClass::Anomaly, Change::Raised) => "io.ipconflict.anomaly.raised",
            (SubjectClass::Anomaly, Change::Updated) => "io.ipconflict.anomaly.updated",
            (SubjectClass::Anomaly, Change::Resolved) => "io.ipconflict.anomaly.resolved",
        }
    }
}

/// The CloudEvents version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
pub enum SpecVersion {
    /// 1.0.
    #[serde(rename = "1.0")]
    V1,
}

/// The media type of `data`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
pub enum DataContentType {
    /// JSON.
    #[serde(rename = "application/json")]
    Json,
}

/// The state of a conflict or an anomaly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[serde(rename_all = "snake_case")]
pub enum SubjectState {
    /// It has not ended.
    Active,
    /// It ended.
    Resolved,
}

impl SubjectState {
    pub(super) fn of(is_resolved: bool) -> Self {
        if is_resolved {
            Self::Resolved
        } else {
            Self::Active
        }
    }

    /// As events show it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Resolved => "resolved",
        }
    }
}

/// A CloudEvent about a conflict or an anomaly.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(rename = "{D}Event")
)]
pub struct Event<D = ConflictData> {
    /// Always 1.0.
    pub specversion: SpecVersion,
    /// Unique among the node's events.
    pub id: String,
    /// `ip-conflict-detector/<node>`.
    pub source: Arc<str>,
    /// What the event is about, and what happened to it.
    #[serde(rename = "type", with = "names::name")]
    #[cfg_attr(feature = "schema", schemars(with = "schema::Name<EventType>"))]
    pub event_type: EventType,
    /// The address.
    pub subject: IpAddr,
    /// When the event was created.
    pub time: WallTime,
    /// Always JSON.
    pub datacontenttype: DataContentType,
    /// The conflict or the anomaly.
    pub data: D,
}

/// A CloudEvent about an anomaly.
pub type AnomalyEvent = Event<AnomalyData>;
