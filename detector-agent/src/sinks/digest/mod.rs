//! One message about many conflicts or anomalies, for receivers that notify people.

pub mod anomaly_group;
pub mod conflict_group;

use std::time::Duration;

use detector_event::{AnyEvent, Change, SubjectId, WallTime, names};
use serde::{Deserialize, Serialize};

use self::{anomaly_group::AnomalyGroup, conflict_group::ConflictGroup};

/// When a sink gets digests instead of a message for each conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DigestRules {
    /// How many groups of `certain` conflicts with the same claimants are digests of their own
    pub first: usize,
    /// within this time; further ones are in one digest together. Anomalies of one kind are one group for this long.
    pub within: Duration,
    /// How long conflicts, anomalies and changes are collected for one message.
    pub every: Duration,
}

impl DigestRules {
    /// Enough for a mistake to be recognised, and not enough to drown the other messages of a channel.
    pub const FOR_PEOPLE: Self = Self {
        first: 3,
        within: Duration::from_secs(60),
        every: Duration::from_secs(10),
    };
}

/// Several conflicts or anomalies as one message: a group, or the rest of a storm of conflicts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digest {
    /// Unique; the same on every delivery.
    pub id: String,
    /// The same for all messages about these conflicts.
    pub digest_id: SubjectId,
    /// Whether the digest is new, has changed, or has ended with the last of its conflicts.
    #[serde(with = "names::name")]
    pub change: Change,
    /// The node's name.
    pub node: String,
    /// When the message was created.
    pub time: WallTime,
    /// When the first of them was raised.
    pub since: WallTime,
    /// How many of them are active.
    pub active: usize,
    /// How many there were.
    pub total: usize,
    /// How many are new in this message.
    pub joined: usize,
    /// Of a storm, the first of those that are new, one for the same claimants, bounded.
    pub entries: Vec<DigestEntry>,
    /// Of a group, what its members have in common; `None` for a storm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Group>,
    /// What changed since the message before, one sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<String>,
}

/// One conflict of a storm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DigestEntry {
    /// The address, with its network and VLAN.
    pub address: String,
    /// Who claims it.
    pub claimants: String,
}

/// Conflicts or anomalies that a person handles as one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Group {
    /// Conflicts with the same claimants.
    Conflicts(ConflictGroup),
    /// Anomalies of one kind.
    Anomalies(Box<AnomalyGroup>),
}

impl Group {
    /// A group of one.
    #[must_use]
    pub fn new(first: &AnyEvent) -> Self {
        match first {
            AnyEvent::Conflict(event) => Self::Conflicts(ConflictGroup::new(&event.data)),
            AnyEvent::Anomaly(event) => Self::Anomalies(Box::new(AnomalyGroup::new(&event.data))),
        }
    }

    /// A group of these events; `None` without any.
    pub fn of<'e>(events: impl IntoIterator<Item = &'e AnyEvent>) -> Option<Self> {
        let mut events = events.into_iter();
        let mut group = Self::new(events.next()?);
        for event in events {
            group.add(event);
        }
        Some(group)
    }

    /// Adds an event of the same sort; another is ignored.
    pub fn add(&mut self, event: &AnyEvent) {
        match (self, event) {
            (Self::Conflicts(group), AnyEvent::Conflict(event)) => group.add(&event.data),
            (Self::Anomalies(group), AnyEvent::Anomaly(event)) => group.add(&event.data),
            _ => {}
        }
    }

    /// Names pods that are unknown for the moment, as after a restart, as `before` did.
    pub fn keep_pods(&mut self, before: &Self) {
        match (self, before) {
            (Self::Conflicts(group), Self::Conflicts(before)) => group.keep_pods(before),
            (Self::Anomalies(group), Self::Anomalies(before)) => group.keep_pods(before),
            _ => {}
        }
    }

    /// What a person should know of the difference to `before`, one sentence each.
    #[must_use]
    pub fn changes_since(&self, before: &Self) -> Vec<String> {
        match (self, before) {
            (Self::Conflicts(group), Self::Conflicts(before)) => group.changes_since(before),
            (Self::Anomalies(group), Self::Anomalies(before)) => group.changes_since(before),
            _ => Vec::new(),
        }
    }

    /// The first of its addresses.
    #[must_use]
    pub fn first_address(&self) -> Option<String> {
        match self {
            Self::Conflicts(group) => group.addresses.first().cloned(),
            Self::Anomalies(group) => Some(group.shown.address.to_string()),
        }
    }
}
