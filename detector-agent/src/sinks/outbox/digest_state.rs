//! The state of the digests of one sink, as it is stored.

use serde::{Deserialize, Serialize};

use crate::{
    clock::WallTime,
    engine::{Confidence, ConflictKind},
    event::{
        Change, ConflictData, SubjectId, names,
        summary::{claimants, scoped_address},
    },
    sinks::{
        digest::{ConflictGroup, Digest, DigestEntry, DigestRules},
        message::Message,
    },
};

/// The most conflicts of a storm that one message lists.
const LISTED: usize = 10;
/// The most groups of a sink that have a digest of their own.
const GROUPS: usize = 32;

/// The state of one sink's digests.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct DigestState {
    /// When the last groups of `certain` conflicts were begun, at most [`DigestRules::first`].
    own: Vec<WallTime>,
    /// The digest of a storm.
    open: Option<OpenDigest>,
    /// Those of conflicts with the same claimants.
    #[serde(default)]
    groups: Vec<OpenDigest>,
}

/// A digest with a conflict that is active, or that the sink was not notified of.
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
    /// What its conflicts have in common.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    group: Option<GroupState>,
    /// A conflict changed since the last message.
    #[serde(default)]
    pub(super) is_changed: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct GroupState {
    key: GroupKey,
    now: ConflictGroup,
    /// As it was in the last message.
    sent: Option<ConflictGroup>,
}

/// What decides which group a conflict joins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct GroupKey {
    #[serde(with = "names::name")]
    kind: ConflictKind,
    /// The claimants' devices.
    devices: Vec<String>,
}

impl GroupKey {
    fn of(data: &ConflictData) -> Self {
        let mut devices: Vec<_> = data.present().map(|c| c.device.clone()).collect();
        devices.sort();
        Self {
            kind: data.kind,
            devices,
        }
    }
}

impl GroupState {
    /// What a person should know of the changes since the last message, with `joined` further conflicts.
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

impl DigestState {
    /// Whether a group that begins now has a digest of its own.
    fn has_room(&mut self, rules: DigestRules, now: WallTime) -> bool {
        // Times of a clock that was set back are not recent.
        let is_recent = |at: &WallTime| *at <= now && now.since(*at) < rules.within;
        self.own.retain(is_recent);
        let has_room = self.own.len() < rules.first;
        if has_room {
            self.own.push(now);
        }
        has_room
    }

    /// Adds a conflict to the digest of its group, or to that of the storm; a new digest gets the id `new`.
    pub(super) fn join(
        &mut self,
        data: &ConflictData,
        rules: DigestRules,
        now: WallTime,
        new: SubjectId,
    ) -> &OpenDigest {
        let key = GroupKey::of(data);
        let has_key = |digest: &OpenDigest| digest.group.as_ref().is_some_and(|g| g.key == key);
        let digest = if let Some(position) = self.groups.iter().position(has_key) {
            &mut self.groups[position]
        } else if self.groups.len() < GROUPS
            && (data.confidence == Confidence::Observed || self.has_room(rules, now))
        {
            self.groups.push(OpenDigest::new(new, data, Some(key)));
            let last = self.groups.len() - 1;
            &mut self.groups[last]
        } else {
            self.open
                .get_or_insert_with(|| OpenDigest::new(new, data, None))
        };
        digest.join(data);
        digest
    }

    /// The digest with this id, or without one that of the storm.
    pub(super) fn find(&mut self, id: Option<SubjectId>) -> Option<&mut OpenDigest> {
        let Some(id) = id else {
            return self.open.as_mut();
        };
        let mut all = self.open.iter_mut().chain(&mut self.groups);
        all.find(|digest| digest.id == id)
    }

    /// Removes a digest that is over.
    pub(super) fn remove(&mut self, id: SubjectId) -> Option<OpenDigest> {
        let position = self.groups.iter().position(|digest| digest.id == id);
        match position {
            Some(position) => Some(self.groups.remove(position)),
            None => self.open.take_if(|digest| digest.id == id),
        }
    }

    /// The digests that a message may have to be sent about.
    pub(super) fn pending(&self) -> impl Iterator<Item = SubjectId> {
        let all = self.open.iter().chain(&self.groups);
        all.filter(|digest| digest.is_pending())
            .map(|digest| digest.id)
    }
}

impl OpenDigest {
    fn new(id: SubjectId, data: &ConflictData, key: Option<GroupKey>) -> Self {
        let group = key.map(|key| GroupState {
            key,
            now: ConflictGroup::new(data),
            sent: None,
        });
        Self {
            id,
            node: data.node.clone(),
            since: data.raised_at,
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

    fn join(&mut self, data: &ConflictData) {
        self.active += 1;
        self.total += 1;
        self.joined += 1;
        match &mut self.group {
            // Should it end before its first message, this is what the message has.
            Some(group) if self.total > 1 && !self.is_raised => group.now.add(data),
            Some(_) => {}
            None if self.entries.len() < LISTED => self.entries.push(DigestEntry {
                address: scoped_address(data),
                claimants: claimants(data),
            }),
            None => {}
        }
    }

    /// The message that is due, with `members`, the open conflicts of a group; `None` if nothing changed for a person.
    pub(super) fn next_message<'c>(
        &mut self,
        id: String,
        time: WallTime,
        members: impl ExactSizeIterator<Item = &'c ConflictData>,
    ) -> Option<Message> {
        self.is_changed = false;
        let mut active = self.active;
        let mut changed = Vec::new();
        if let Some(group) = &mut self.group {
            active = members.len();
            if let Some(mut now) = ConflictGroup::of(members) {
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn three_groups_a_minute_have_digests_of_their_own() {
        let rules = DigestRules::FOR_PEOPLE;
        let begin = WallTime::now();
        let after = |secs| begin.after(Duration::from_secs(secs));
        let mut state = DigestState::default();
        let own: Vec<_> = [0, 1, 2, 3, 59, 60, 61, 62, 63]
            .map(|secs| state.has_room(rules, after(secs)))
            .into();
        let expected = [true, true, true, false, false, true, true, true, false];
        assert_eq!(own, expected);
        let set_back = WallTime::now();
        assert!(state.has_room(rules, set_back), "the clock was set back");
    }
}
