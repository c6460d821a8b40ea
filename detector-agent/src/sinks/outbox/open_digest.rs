//! One digest that is not over, as it is stored.

use detector_engine::{AnomalyKind, ConflictKind};
use detector_event::{
    AnyEvent, Change, ConflictData, SubjectId, WallTime, names,
    summary::{claimants, scoped_address},
};
use serde::{Deserialize, Serialize};

use crate::sinks::{
    digest::{Digest, DigestEntry, Group},
    message::Message,
};

/// The most conflicts of a storm that one message lists, each with other claimants.
const LISTED: usize = 10;

/// A digest with a conflict or an anomaly that is active, or that the sink was not notified of.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct OpenDigest {
    pub(super) id: SubjectId,
    node: String,
    since: WallTime,
    pub(super) active: usize,
    total: usize,
    /// Since the last message.
    joined: usize,
    entries: Vec<DigestEntry>,
    pub(super) is_raised: bool,
    /// What its members have in common.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) group: Option<GroupState>,
    /// A member changed since the last message.
    #[serde(default)]
    pub(super) is_changed: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct GroupState {
    pub(super) key: GroupKey,
    now: Group,
    /// As it was in the last message.
    sent: Option<Group>,
}

/// What decides which group a conflict or an anomaly joins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum GroupKey {
    /// Conflicts of one kind with the same claimants.
    Conflicts {
        #[serde(with = "names::name")]
        kind: ConflictKind,
        /// The claimants' devices.
        devices: Vec<String>,
    },
    /// Anomalies of one kind.
    Anomalies {
        #[serde(with = "names::name")]
        anomaly: AnomalyKind,
        /// When the sink got the first of them.
        begun: WallTime,
    },
}

impl GroupKey {
    pub(super) fn of(data: &ConflictData) -> Self {
        let mut devices: Vec<_> = data.present().map(|c| c.device.clone()).collect();
        devices.sort();
        Self::Conflicts {
            kind: data.kind,
            devices,
        }
    }
}

impl GroupState {
    /// What a person should know of the changes since the last message, with `joined` further members.
    fn changes(&self, joined: usize) -> Vec<String> {
        let more = match joined {
            0 => None,
            1 => Some("1 more address".to_owned()),
            joined => Some(format!("{joined} more addresses")),
        };
        let changes = self.sent.as_ref().map(|sent| self.now.changes_since(sent));
        more.into_iter()
            .chain(changes.unwrap_or_default())
            .collect()
    }
}

impl OpenDigest {
    pub(super) fn new(id: SubjectId, event: &AnyEvent, key: Option<GroupKey>) -> Self {
        let group = key.map(|key| GroupState {
            key,
            now: Group::new(event),
            sent: None,
        });
        Self {
            id,
            node: event.node().to_owned(),
            since: event.raised_at(),
            active: 0,
            total: 0,
            joined: 0,
            entries: Vec::new(),
            is_raised: false,
            group,
            is_changed: false,
        }
    }

    pub(super) fn is_group(&self) -> bool {
        self.group.is_some()
    }

    pub(super) fn is_pending(&self) -> bool {
        !self.is_raised || self.joined > 0 || self.is_changed
    }

    pub(super) fn join(&mut self, event: &AnyEvent) {
        self.active += 1;
        self.total += 1;
        self.joined += 1;
        match (&mut self.group, event) {
            // Should it end before its first message, this is what the message has.
            (Some(group), _) if self.total > 1 && !self.is_raised => group.now.add(event),
            (None, AnyEvent::Conflict(conflict)) if self.entries.len() < LISTED => {
                let claimants = claimants(&conflict.data);
                // One line for the same claimants, so that they leave room for others.
                if !self
                    .entries
                    .iter()
                    .any(|entry| entry.claimants == claimants)
                {
                    self.entries.push(DigestEntry {
                        address: scoped_address(&conflict.data),
                        claimants,
                    });
                }
            }
            _ => {}
        }
    }

    /// A member is over.
    pub(super) fn leave(&mut self, event: &AnyEvent) {
        self.active = self.active.saturating_sub(1);
        if let Some(GroupState {
            now: Group::Anomalies(group),
            ..
        }) = &mut self.group
            && let AnyEvent::Anomaly(anomaly) = event
        {
            group.resolved_because = anomaly.data.resolved_because;
        }
    }

    /// The message that is due, with `members`, the open ones of a group; `None` if nothing changed for a person.
    pub(super) fn next_message(
        &mut self,
        id: String,
        time: WallTime,
        members: &[AnyEvent],
    ) -> Option<Message> {
        self.is_changed = false;
        let mut active = self.active;
        let mut changed = Vec::new();
        if let Some(group) = &mut self.group {
            active = members.len();
            if let Some(mut now) = Group::of(members) {
                now.keep_pods(&group.now);
                group.now = now;
            }
            changed = group.changes(self.joined);
        }
        if self.is_raised && self.joined == 0 && changed.is_empty() {
            return None;
        }
        let change = if self.is_raised {
            Change::Updated
        } else {
            changed.clear();
            Change::Raised
        };
        self.is_raised = true;
        Some(self.message(change, id, time, active, changed))
    }

    /// The last message.
    pub(super) fn end_message(&mut self, id: String, time: WallTime) -> Message {
        self.message(Change::Resolved, id, time, 0, Vec::new())
    }

    /// What it contains is not new any more.
    fn message(
        &mut self,
        change: Change,
        id: String,
        time: WallTime,
        active: usize,
        changed: Vec<String>,
    ) -> Message {
        let group = self.group.as_mut().map(|group| {
            group.sent = Some(group.now.clone());
            group.now.clone()
        });
        let digest = Digest {
            id,
            digest_id: self.id,
            change,
            node: self.node.clone(),
            time,
            since: self.since,
            active,
            total: self.total,
            joined: std::mem::take(&mut self.joined),
            entries: std::mem::take(&mut self.entries),
            group,
            changed,
        };
        Message::Digest(digest.into())
    }
}
