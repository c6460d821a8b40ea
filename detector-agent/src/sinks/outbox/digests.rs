//! Digests: of many `certain` conflicts at once, a sink that notifies people gets the first few as messages of their own
//! and the others together.
//!
//! Invariants: a digest is raised once and resolved once, when its last conflict is over, also across restarts; a conflict
//! is either a message of its own or in one digest, from its raise to its end.

use redb::{ReadableTable, Table};
use serde::{Deserialize, Serialize};

use super::{
    batch::Batch,
    outbox_store::{DelayedDelivery, OutboxStore},
    tables::OpenRecord,
};
use crate::{
    clock::WallTime,
    engine::Confidence,
    event::{
        AnyEvent, Change, ConflictData, SubjectId,
        summary::{claimants, scoped_address},
    },
    persist::store::StoreError,
    sinks::{
        digest::{Digest, DigestEntry, DigestRules},
        message::Message,
    },
};

/// The most conflicts that one message lists.
const LISTED: usize = 10;

/// The state of one sink's digests.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct DigestState {
    /// When the last conflicts were sent as messages of their own, at most [`DigestRules::first`].
    own: Vec<WallTime>,
    open: Option<OpenDigest>,
}

/// A digest with a conflict that is active, or that the sink was not notified of.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct OpenDigest {
    id: SubjectId,
    node: String,
    since: WallTime,
    active: usize,
    total: usize,
    /// Since the last message.
    joined: usize,
    entries: Vec<DigestEntry>,
    is_raised: bool,
}

impl DigestState {
    /// Whether a conflict that is raised now is a message of its own.
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

    /// The digest that a message has to be sent about.
    pub(super) fn pending(&self) -> Option<SubjectId> {
        let open = self.open.as_ref()?;
        open.is_pending().then_some(open.id)
    }
}

impl OpenDigest {
    fn new(id: SubjectId, data: &ConflictData) -> Self {
        Self {
            id,
            node: data.node.clone(),
            since: data.raised_at,
            active: 0,
            total: 0,
            joined: 0,
            entries: Vec::new(),
            is_raised: false,
        }
    }

    fn is_pending(&self) -> bool {
        !self.is_raised || self.joined > 0
    }

    fn join(&mut self, data: &ConflictData) {
        self.active += 1;
        self.total += 1;
        self.joined += 1;
        if self.entries.len() < LISTED {
            self.entries.push(DigestEntry {
                address: scoped_address(data),
                claimants: claimants(data),
            });
        }
    }

    /// The next message; what it contains is not new any more.
    fn message(&mut self, change: Change, id: String, time: WallTime) -> Message {
        let digest = Digest {
            id,
            digest_id: self.id,
            change,
            node: self.node.clone(),
            time,
            since: self.since,
            active: self.active,
            total: self.total,
            joined: std::mem::take(&mut self.joined),
            entries: std::mem::take(&mut self.entries),
        };
        Message::Digest(digest.into())
    }
}

/// Reads a sink's state; that of a sink without digests so far is empty.
pub(super) fn read_state(
    table: &impl ReadableTable<&'static str, &'static [u8]>,
    sink: &str,
) -> Result<DigestState, StoreError> {
    let stored = table.get(sink)?;
    Ok(stored
        .and_then(|stored| serde_json::from_slice(stored.value()).ok())
        .unwrap_or_default())
}

/// Drops the state of sinks that get no digests any more; returns the messages that are to be sent.
pub(super) fn load(
    store: &OutboxStore,
    table: &mut Table<'_, &'static str, &'static [u8]>,
) -> Result<Vec<DelayedDelivery>, StoreError> {
    let get_digests = |name: &str| {
        let mut sinks = store.sinks().iter();
        sinks.any(|sink| sink.name == name && sink.digest.is_some())
    };
    table.retain(|name, _| get_digests(name))?;
    let mut delayed = Vec::new();
    for (sink, spec) in store.sinks().iter().enumerate() {
        if let (Some(rules), Some(subject)) =
            (spec.digest, read_state(table, &spec.name)?.pending())
        {
            delayed.push(DelayedDelivery {
                wait: rules.every,
                sink,
                subject,
            });
        }
    }
    Ok(delayed)
}

impl Batch<'_, '_> {
    /// Raises a subject at a sink: as a message of its own, or as part of a digest.
    pub(super) fn raise(
        &mut self,
        sink: usize,
        event: &AnyEvent,
        record: &mut OpenRecord,
    ) -> Result<(), StoreError> {
        let name = self.store.sinks[sink].name.clone();
        if self.joins_digest(sink, event)? {
            record.digest_sinks.insert(name.clone());
        } else {
            self.push(sink, event, Change::Raised)?;
        }
        record.notified_sinks.insert(name);
        Ok(())
    }

    fn joins_digest(&mut self, sink: usize, event: &AnyEvent) -> Result<bool, StoreError> {
        let AnyEvent::Conflict(event) = event else {
            return Ok(false);
        };
        let rules = self.store.sinks[sink].digest;
        let Some(rules) = rules.filter(|_| event.data.confidence == Confidence::Certain) else {
            return Ok(false);
        };
        let mut state = self.digest_state(sink)?;
        let joins = !state.has_room(rules, self.now.wall);
        if joins {
            let next = self.changes.next_seq;
            let id = || SubjectId::of_digest(self.store.run, next);
            let digest = state
                .open
                .get_or_insert_with(|| OpenDigest::new(id(), &event.data));
            digest.join(&event.data);
            let subject = digest.id;
            self.changes.next_seq += 1;
            self.schedule_digest(sink, subject, rules);
        }
        self.put_digest_state(sink, &state)?;
        Ok(joins)
    }

    /// A conflict of the sink's digest is over.
    pub(super) fn leave_digest(&mut self, sink: usize) -> Result<(), StoreError> {
        let mut state = self.digest_state(sink)?;
        let Some(digest) = &mut state.open else {
            return Ok(());
        };
        digest.active = digest.active.saturating_sub(1);
        let is_pending = digest.is_pending();
        self.put_digest_state(sink, &state)?;
        if is_pending {
            // Its message is scheduled.
            return Ok(());
        }
        self.end_digest(sink)
    }

    /// Sends what is new in the digest, if `subject` is the sink's digest. `false` if it is not.
    pub(super) fn digest_due(
        &mut self,
        sink: usize,
        subject: SubjectId,
    ) -> Result<bool, StoreError> {
        if self
            .store
            .sinks
            .get(sink)
            .is_none_or(|s| s.digest.is_none())
        {
            return Ok(false);
        }
        let mut state = self.digest_state(sink)?;
        let Some(digest) = state.open.as_mut().filter(|digest| digest.id == subject) else {
            return Ok(false);
        };
        if digest.is_pending() {
            let change = if digest.is_raised {
                Change::Updated
            } else {
                Change::Raised
            };
            digest.is_raised = true;
            let message = digest.message(change, self.digest_event_id(), self.now.wall);
            // First, because making room may evict the digest's own messages.
            self.put_digest_state(sink, &state)?;
            self.push_message(sink, message)?;
        }
        self.end_digest(sink)?;
        Ok(true)
    }

    /// Resolves the digest if none of its conflicts is active.
    fn end_digest(&mut self, sink: usize) -> Result<(), StoreError> {
        let mut state = self.digest_state(sink)?;
        let ended = state
            .open
            .take_if(|open| open.active == 0 && open.is_raised);
        let Some(mut digest) = ended else {
            return Ok(());
        };
        self.put_digest_state(sink, &state)?;
        let message = digest.message(Change::Resolved, self.digest_event_id(), self.now.wall);
        self.push_message(sink, message)
    }

    /// The sink's undelivered message that raises `subject` was evicted, if that is its digest.
    pub(super) fn digest_evicted(
        &mut self,
        sink: usize,
        subject: SubjectId,
    ) -> Result<(), StoreError> {
        let Some(rules) = self.store.sinks[sink].digest else {
            return Ok(());
        };
        let mut state = self.digest_state(sink)?;
        if let Some(digest) = state.open.as_mut().filter(|digest| digest.id == subject) {
            digest.is_raised = false;
            self.put_digest_state(sink, &state)?;
            self.schedule_digest(sink, subject, rules);
        }
        Ok(())
    }

    fn schedule_digest(&mut self, sink: usize, subject: SubjectId, rules: DigestRules) {
        self.changes.delayed.push(DelayedDelivery {
            wait: rules.every,
            sink,
            subject,
        });
    }

    fn digest_event_id(&mut self) -> String {
        let serial = self.changes.next_seq;
        self.changes.next_seq += 1;
        format!("{:016x}-digest-{serial}", self.store.run)
    }

    fn digest_state(&self, sink: usize) -> Result<DigestState, StoreError> {
        read_state(&self.digests, &self.store.sinks[sink].name)
    }

    fn put_digest_state(&mut self, sink: usize, state: &DigestState) -> Result<(), StoreError> {
        let text = serde_json::to_vec(state).unwrap_or_default();
        let name = self.store.sinks[sink].name.as_str();
        self.digests.insert(name, text.as_slice())?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn three_conflicts_a_minute_are_messages_of_their_own() {
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
