//! What a message or an alert for a person contains, whatever its receiver: the finding, what happens to traffic, what to do, and
//! where to read on.
//!
//! The texts contain names of pods and devices, which are untrusted: they are [cleaned](clean), and the format of the receiver
//! escapes markup.

mod anomalies;
mod conflicts;
mod storm;
#[cfg(test)]
mod tests;

use std::time::Duration;

use detector_event::{AnyEvent, Change, SubjectKind, WallTime, clean, guidance::Severity};

use self::{anomalies::AnomalyFacts, conflicts::ConflictFacts, storm::storm};
use crate::sinks::{
    digest::{Digest, Group, anomaly_group::AnomalyGroup, conflict_group::ConflictGroup},
    message::Message,
};

/// A message to a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::sinks) struct Notice {
    pub(in crate::sinks) change: Change,
    pub(in crate::sinks) severity: Severity,
    pub(in crate::sinks) kind: SubjectKind,
    /// What it is: `IP conflict`.
    pub(in crate::sinks) title: &'static str,
    /// What was found, with the pods' names.
    pub(in crate::sinks) finding: String,
    /// What happens to traffic; empty once it is over.
    pub(in crate::sinks) effect: String,
    /// Why it is there; empty if that is not known, and once it is over.
    pub(in crate::sinks) cause: String,
    /// What to do; empty once it is over.
    pub(in crate::sinks) next_step: String,
    /// What changed since the message before.
    pub(in crate::sinks) changed: Vec<String>,
    /// Further addresses or conflicts, one line each.
    pub(in crate::sinks) list: Vec<String>,
    /// Kind, confidence, time and id.
    pub(in crate::sinks) context: String,
    pub(in crate::sinks) node: String,
}

impl Notice {
    pub(in crate::sinks) fn new(message: &Message) -> Self {
        let notice = Self::with_names(message);
        let clean = |text: String| clean(&text).into_owned();
        Self {
            finding: clean(notice.finding),
            effect: clean(notice.effect),
            cause: clean(notice.cause),
            next_step: clean(notice.next_step),
            changed: notice.changed.into_iter().map(clean).collect(),
            list: notice.list.into_iter().map(clean).collect(),
            context: clean(notice.context),
            node: clean(notice.node),
            ..notice
        }
    }

    fn with_names(message: &Message) -> Self {
        match message {
            // Those that an earlier version of the agent stored.
            Message::Event(AnyEvent::Conflict(event)) => {
                let data = &event.data;
                let group = &ConflictGroup::new(data);
                let of = Facts::of_event(message, &data.node, data.raised_at, data.updated_at);
                ConflictFacts { group, of }.notice()
            }
            Message::Event(AnyEvent::Anomaly(event)) => {
                let data = &event.data;
                let mut group = AnomalyGroup::new(data);
                group.resolved_because = data.resolved_because;
                let group = &group;
                let until = data.resolved_at.unwrap_or(data.raised_at);
                let of = Facts::of_event(message, &data.node, data.raised_at, until);
                AnomalyFacts { group, of }.notice()
            }
            Message::Digest(digest) => match &digest.group {
                Some(Group::Conflicts(group)) => {
                    let of = Facts::of_digest(digest);
                    ConflictFacts { group, of }.notice()
                }
                Some(Group::Anomalies(group)) => {
                    let of = Facts::of_digest(digest);
                    AnomalyFacts { group, of }.notice()
                }
                None => storm(digest),
            },
        }
    }

    /// `IP conflict detected`.
    pub(in crate::sinks) fn heading(&self) -> String {
        let word = match self.change {
            Change::Raised => "detected",
            Change::Updated => "updated",
            Change::Resolved => "resolved",
        };
        format!("{} {word}", self.title)
    }
}

/// What is known of the members of a group as a whole.
struct Facts<'m> {
    change: Change,
    node: &'m str,
    /// How many members the message is about.
    count: usize,
    since: WallTime,
    lasted: Duration,
    changed: &'m [String],
    id: String,
}

impl<'m> Facts<'m> {
    fn of_digest(digest: &'m Digest) -> Self {
        let is_over = digest.change == Change::Resolved || digest.active == 0;
        Self {
            change: digest.change,
            node: &digest.node,
            count: if is_over { digest.total } else { digest.active },
            since: digest.since,
            lasted: digest.time.since(digest.since),
            changed: &digest.changed,
            id: digest.digest_id.to_string(),
        }
    }

    fn of_event(message: &Message, node: &'m str, since: WallTime, until: WallTime) -> Self {
        Self {
            change: message.change(),
            node,
            count: 1,
            since,
            lasted: until.since(since),
            changed: &[],
            id: message.subject_id().to_string(),
        }
    }

    fn is_resolved(&self) -> bool {
        self.change == Change::Resolved
    }

    /// How long it lasted, in whole seconds.
    fn lasted(&self) -> humantime::FormattedDuration {
        humantime::format_duration(Duration::from_secs(self.lasted.as_secs().max(1)))
    }
}
