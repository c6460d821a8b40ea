//! The state of the digests of one sink, as it is stored.

use detector_engine::{AnomalyKind, Confidence};
use detector_event::{AnomalyData, AnyEvent, ConflictData, SubjectId, WallTime};
use serde::{Deserialize, Serialize};

use super::open_digest::{GroupKey, OpenDigest};
use crate::sinks::digest::DigestRules;

/// The most groups of conflicts of a sink that have a digest of their own, and the most groups of anomalies. Anomalies beyond
/// it join the newest group of their kind.
const GROUPS: usize = 32;

/// The state of one sink's digests.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct DigestState {
    /// When the last groups of `certain` conflicts were begun, at most [`DigestRules::first`].
    own: Vec<WallTime>,
    /// The digest of a storm.
    open: Option<OpenDigest>,
    /// Those of conflicts with the same claimants, and of anomalies of one kind.
    #[serde(default)]
    groups: Vec<OpenDigest>,
}

/// Which digest a conflict or an anomaly joins.
enum JoinedGroup {
    /// The group at this position.
    Open(usize),
    New(GroupKey),
    Storm,
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

    /// Adds a conflict or an anomaly to the digest of its group, or a conflict to that of the storm; a new digest gets the
    /// id `new`.
    pub(super) fn join(
        &mut self,
        event: &AnyEvent,
        rules: DigestRules,
        now: WallTime,
        new: SubjectId,
    ) -> &OpenDigest {
        let group = match event {
            AnyEvent::Conflict(conflict) => self.group_of_conflict(&conflict.data, rules, now),
            AnyEvent::Anomaly(anomaly) => self.group_of_anomaly(&anomaly.data, rules, now),
        };
        let digest = match group {
            JoinedGroup::Open(position) => &mut self.groups[position],
            JoinedGroup::New(key) => {
                self.groups.push(OpenDigest::new(new, event, Some(key)));
                let last = self.groups.len() - 1;
                &mut self.groups[last]
            }
            JoinedGroup::Storm => self
                .open
                .get_or_insert_with(|| OpenDigest::new(new, event, None)),
        };
        digest.join(event);
        digest
    }

    fn group_of_conflict(
        &mut self,
        data: &ConflictData,
        rules: DigestRules,
        now: WallTime,
    ) -> JoinedGroup {
        let key = GroupKey::of(data);
        let is_conflicts = |key: &GroupKey| matches!(key, GroupKey::Conflicts { .. });
        if let Some((position, _)) = self.keys().find(|(_, open)| **open == key) {
            JoinedGroup::Open(position)
        } else if self.keys().filter(|(_, key)| is_conflicts(key)).count() < GROUPS
            && (data.confidence == Confidence::Observed || self.has_room(rules, now))
        {
            JoinedGroup::New(key)
        } else {
            JoinedGroup::Storm
        }
    }

    /// Anomalies that begin within a minute of the first of their kind are one group. A sweep, which is one message for
    /// many conflicts itself, is a group of its own.
    fn group_of_anomaly(
        &self,
        data: &AnomalyData,
        rules: DigestRules,
        now: WallTime,
    ) -> JoinedGroup {
        let anomalies = |(position, key): (usize, &GroupKey)| match key {
            GroupKey::Anomalies { anomaly, begun } => Some((position, *anomaly, *begun)),
            GroupKey::Conflicts { .. } => None,
        };
        let is_full = self.keys().filter_map(anomalies).count() >= GROUPS;
        let is_recent = |begun: WallTime| begun <= now && now.since(begun) < rules.within;
        let mut open = self
            .keys()
            .filter_map(anomalies)
            .filter(|(_, kind, begun)| {
                let joins = data.kind != AnomalyKind::AddressSweep && is_recent(*begun);
                *kind == data.kind && (is_full || joins)
            });
        match open.next_back() {
            Some((position, ..)) => JoinedGroup::Open(position),
            None => JoinedGroup::New(GroupKey::Anomalies {
                anomaly: data.kind,
                begun: now,
            }),
        }
    }

    /// The groups' positions and keys, oldest first.
    fn keys(&self) -> impl DoubleEndedIterator<Item = (usize, &GroupKey)> {
        let groups = self.groups.iter().enumerate();
        groups.filter_map(|(position, digest)| Some((position, &digest.group.as_ref()?.key)))
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

    use std::time::Duration;

    use detector_event::samples;

    use super::*;

    /// As it was written before there were groups of anomalies.
    #[test]
    fn state_of_an_earlier_version_is_read() {
        let stored = r#"{
            "own": ["2026-11-22T10:00:00Z"],
            "open": {"id": "1", "node": "n", "since": "2026-11-22T10:00:00Z", "active": 2, "total": 2, "joined": 2,
                "entries": [{"address": "10.0.0.9", "claimants": "x and y"}], "is_raised": false},
            "groups": [{"id": "2", "node": "n", "since": "2026-11-22T10:00:00Z", "active": 1, "total": 1, "joined": 0,
                "entries": [], "is_raised": true, "is_changed": true,
                "group": {"key": {"kind": "duplicate", "devices": ["veth-a", "veth-b"]}, "sent": null,
                    "now": {"kind": "duplicate", "confidence": "certain", "claimants": [], "addresses": ["10.0.0.1"],
                        "receivers": {}}}}]}"#;
        let mut state: DigestState = serde_json::from_str(stored).unwrap();
        assert_eq!(state.pending().count(), 2);
        let conflict = samples::raised("10.0.0.2").into();
        let rules = DigestRules::FOR_PEOPLE;
        let joined = state.join(
            &conflict,
            rules,
            WallTime::now(),
            samples::subject_id("new"),
        );
        assert_eq!(joined.id, SubjectId::try_from("2".to_owned()).unwrap());
    }

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
