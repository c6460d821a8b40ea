//! Digests: a sink that notifies people gets the conflicts with the same claimants as one message, those of a storm beyond the
//! first few groups as one, and anomalies of one kind that begin within a minute as one.
//!
//! Invariants: a digest is raised once and resolved once, when its last member is over, also across restarts; a conflict or an
//! anomaly is in one digest from its raise to its end. An update is sent only if a person should know what changed.

use detector_event::{AnyEvent, Change, SubjectId};
use redb::{ReadableTable, Table};

use super::{
    SinkSpec,
    batch::Batch,
    digest_state::DigestState,
    open_digest::OpenDigest,
    outbox_store::{DelayedDelivery, OutboxStore},
    tables::OpenRecord,
};
use crate::{persist::store::StoreError, sinks::digest::DigestRules};

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
    members: &mut Table<'_, (&'static str, &'static str, &'static str), ()>,
) -> Result<Vec<DelayedDelivery>, StoreError> {
    let get_digests = |name: &str| {
        let mut sinks = store.sinks().iter();
        sinks.any(|sink| sink.name == name && sink.digest.is_some())
    };
    table.retain(|name, _| get_digests(name))?;
    members.retain(|(name, ..), ()| get_digests(name))?;
    let mut delayed = Vec::new();
    for (sink, spec) in store.sinks().iter().enumerate() {
        let Some(rules) = spec.digest else { continue };
        for subject in read_state(table, &spec.name)?.pending() {
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
        match self.store.sinks[sink].digest {
            Some(rules) => self.join_digest(sink, rules, event, record)?,
            None => self.push(sink, event, Change::Raised)?,
        }
        let name = self.store.sinks[sink].name.clone();
        record.notified_sinks.insert(name);
        Ok(())
    }

    fn join_digest(
        &mut self,
        sink: usize,
        rules: DigestRules,
        event: &AnyEvent,
        record: &mut OpenRecord,
    ) -> Result<(), StoreError> {
        let mut state = self.digest_state(sink)?;
        let new = SubjectId::of_digest(self.store.run, self.changes.next_seq);
        self.changes.next_seq += 1;
        let digest = state.join(event, rules, self.now.wall, new);
        let (id, is_group) = (digest.id, digest.is_group());
        let name = self.store.sinks[sink].name.as_str();
        if is_group {
            record.groups.insert(name.to_owned(), id);
            let (group, subject) = (id.to_string(), event.subject_id().to_string());
            self.members
                .insert((name, group.as_str(), subject.as_str()), ())?;
        }
        record.digest_sinks.insert(name.to_owned());
        self.schedule_digest(sink, id, rules);
        self.put_digest_state(sink, &state)
    }

    /// A member of a group changed.
    pub(super) fn digest_changed(
        &mut self,
        sink: usize,
        subject: SubjectId,
    ) -> Result<(), StoreError> {
        self.send_digest_again(sink, subject, |digest| {
            !std::mem::replace(&mut digest.is_changed, true)
        })
    }

    /// The sink's undelivered message that raises `subject` was evicted, if that is a digest.
    pub(super) fn digest_evicted(
        &mut self,
        sink: usize,
        subject: SubjectId,
    ) -> Result<(), StoreError> {
        self.send_digest_again(sink, subject, |digest| {
            std::mem::replace(&mut digest.is_raised, false)
        })
    }

    /// Marks the digest and schedules a message about it, if `subject` is one of the sink's digests. `mark` returns whether
    /// it changed something that has to be stored.
    fn send_digest_again(
        &mut self,
        sink: usize,
        subject: SubjectId,
        mark: impl FnOnce(&mut OpenDigest) -> bool,
    ) -> Result<(), StoreError> {
        let Some(rules) = self.store.sinks[sink].digest else {
            return Ok(());
        };
        let mut state = self.digest_state(sink)?;
        if let Some(digest) = state.find(Some(subject)) {
            if mark(digest) {
                self.put_digest_state(sink, &state)?;
            }
            self.schedule_digest(sink, subject, rules);
        }
        Ok(())
    }

    /// A conflict or an anomaly is over that is in this group of the sink, or without one in the digest of its storm.
    pub(super) fn leave_digest(
        &mut self,
        sink: usize,
        event: &AnyEvent,
        group: Option<SubjectId>,
    ) -> Result<(), StoreError> {
        if let Some(group) = group {
            self.remove_member(sink, group, event.subject_id())?;
        }
        let mut state = self.digest_state(sink)?;
        let Some(digest) = state.find(group) else {
            return Ok(());
        };
        digest.leave(event);
        let (id, is_pending) = (digest.id, digest.is_pending());
        self.put_digest_state(sink, &state)?;
        if is_pending {
            // Its message is scheduled.
            return Ok(());
        }
        self.end_digest(sink, id)
    }

    /// Sends what is new in the digest, if `subject` is one of the sink's digests. `false` if it is not.
    pub(super) fn digest_due(
        &mut self,
        sink: usize,
        subject: SubjectId,
    ) -> Result<bool, StoreError> {
        let spec = self.store.sinks.get(sink);
        if spec.is_none_or(|spec| spec.digest.is_none()) {
            return Ok(false);
        }
        let mut state = self.digest_state(sink)?;
        let Some(digest) = state.find(Some(subject)) else {
            return Ok(false);
        };
        if digest.is_pending() {
            let members = self.members(sink, subject)?;
            if !digest.is_raised && members.active.is_empty() && !members.swept.is_empty() {
                state.remove(subject);
                self.put_digest_state(sink, &state)?;
                self.release(sink, subject, &members.swept)?;
                return Ok(true);
            }
            let id = self.digest_event_id();
            let message = digest.next_message(id, self.now.wall, &members.active);
            // First, because making room may evict the digest's own messages.
            self.put_digest_state(sink, &state)?;
            if let Some(message) = message {
                self.push_message(sink, message)?;
            }
        }
        self.end_digest(sink, subject)?;
        Ok(true)
    }

    /// Sends what is new in every digest.
    pub(super) fn digests_due(&mut self) -> Result<(), StoreError> {
        for sink in 0..self.store.sinks.len() {
            let pending: Vec<_> = self.digest_state(sink)?.pending().collect();
            for subject in pending {
                self.digest_due(sink, subject)?;
            }
        }
        Ok(())
    }

    /// Resolves the digest if none of its members is active.
    fn end_digest(&mut self, sink: usize, subject: SubjectId) -> Result<(), StoreError> {
        let mut state = self.digest_state(sink)?;
        let is_over = |digest: &mut OpenDigest| digest.active == 0 && digest.is_raised;
        if !state.find(Some(subject)).is_some_and(is_over) {
            return Ok(());
        }
        let Some(mut digest) = state.remove(subject) else {
            return Ok(());
        };
        self.put_digest_state(sink, &state)?;
        let message = digest.end_message(self.digest_event_id(), self.now.wall);
        self.push_message(sink, message)
    }

    /// The open members of a group, oldest first.
    fn members(&self, sink: usize, group: SubjectId) -> Result<Members, StoreError> {
        let SinkSpec { name, filter, .. } = &self.store.sinks[sink];
        let group = group.to_string();
        let (name, group) = (name.as_str(), group.as_str());
        let mut members = Members::default();
        // An id consists of hexadecimal digits.
        for item in self.members.range((name, group, "")..(name, group, "g"))? {
            let (key, _) = item?;
            let Ok(subject) = SubjectId::try_from(key.value().2.to_owned()) else {
                continue;
            };
            match self.record(subject)?.map(|record| record.event) {
                Some(event) if filter.gets_sweep_of(&event) => members.swept.push(subject),
                Some(event) => members.active.push(event),
                None => {}
            }
        }
        let age = |event: &AnyEvent| (event.raised_at(), event.address());
        members.active.sort_by_key(age);
        Ok(members)
    }

    /// Forgets that the sink was notified of these conflicts of a group: it gets their sweep instead.
    fn release(
        &mut self,
        sink: usize,
        group: SubjectId,
        conflicts: &[SubjectId],
    ) -> Result<(), StoreError> {
        for conflict in conflicts {
            self.remove_member(sink, group, *conflict)?;
            if let Some(mut record) = self.record(*conflict)? {
                record.release(&self.store.sinks[sink].name);
                self.put(*conflict, &record)?;
            }
        }
        Ok(())
    }

    fn remove_member(
        &mut self,
        sink: usize,
        group: SubjectId,
        member: SubjectId,
    ) -> Result<(), StoreError> {
        let name = self.store.sinks[sink].name.as_str();
        let (group, member) = (group.to_string(), member.to_string());
        self.members
            .remove((name, group.as_str(), member.as_str()))?;
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

/// The open members of a group.
#[derive(Debug, Default)]
struct Members {
    active: Vec<AnyEvent>,
    /// Those whose sweep the sink gets.
    swept: Vec<SubjectId>,
}
