//! Applies the answers of the server, which change beliefs and nothing else.

use detector_engine::Timestamp;

use super::{
    CallId, Outcome, Protocol, Request, Stored, Subject, Version,
    claim::{AnsweredRequest, Holder},
    conflict::sanitized,
    contest::Ask,
    entry::{Entry, Plan},
    nodes::NodeView,
    objects::ConflictSpec,
};

/// A request without an answer yet.
#[derive(Debug)]
pub(super) struct PendingCall {
    subject: Subject,
    kind: Kind,
    sent: Timestamp,
    /// The conflict that was known when it was sent.
    conflict: Option<Version>,
    /// The number of the question that it asks, and when the claim began for which it asks.
    ask: Option<(u32, Timestamp)>,
    drops_reporter: bool,
}

#[derive(Debug)]
enum Kind {
    ReadClaim,
    WriteClaim,
    ReadConflict,
    WriteConflict(Box<ConflictSpec>),
    DeleteConflict(String),
    Node(String),
}

impl PendingCall {
    pub(super) fn new(
        subject: Subject,
        entry: &Entry,
        plan: &Plan,
        request: &Request,
        now: Timestamp,
    ) -> Self {
        let kind = match request {
            Request::GetClaim => Kind::ReadClaim,
            Request::CreateClaim(_) | Request::ReplaceClaim(..) | Request::DeleteClaim(_) => {
                Kind::WriteClaim
            }
            Request::GetConflict => Kind::ReadConflict,
            Request::CreateConflict(spec) | Request::ReplaceConflict(_, spec) => {
                Kind::WriteConflict(Box::new(spec.clone()))
            }
            Request::DeleteConflict(version) => Kind::DeleteConflict(version.uid.clone()),
            Request::GetNode(node) => Kind::Node(node.clone()),
        };
        Self {
            subject,
            kind,
            sent: now,
            conflict: entry.conflict.version().cloned(),
            ask: plan.ask.zip(entry.local.as_ref().map(|local| local.began)),
            drops_reporter: plan.drops_reporter,
        }
    }

    /// It took effect: if it has removed the claimant that reported, this agent reports the end.
    fn take_over_report(&self, entry: &mut Entry) {
        if self.drops_reporter
            && let Some(reported) = &mut entry.reported
        {
            reported.is_reporter = true;
        }
    }
}

impl Protocol {
    /// The outcome of a call. Unknown ids are ignored.
    pub fn answer(&mut self, now: Timestamp, id: CallId, outcome: Outcome) {
        let Some(pending) = self.pending_calls.remove(&id) else {
            return;
        };
        let Some(entry) = self.entries.get_mut(&pending.subject) else {
            return;
        };
        entry.in_flight = None;
        match outcome {
            Outcome::Failed => entry.pace.failed(now, &mut self.rng),
            Outcome::Rejected => entry.pace.rejected(now, &mut self.rng),
            _ => entry.pace.answered(),
        }
        match &pending.kind {
            Kind::ReadClaim | Kind::WriteClaim => {
                let sent = AnsweredRequest {
                    subject: pending.subject,
                    me: &self.me,
                    is_write: matches!(pending.kind, Kind::WriteClaim),
                    sent: pending.sent,
                    now,
                    next_call: self.next_call,
                    conflict: pending.conflict.as_ref(),
                };
                entry.claim.answered(&sent, outcome, &mut self.rng);
                self.unusable += u64::from(entry.claim.holder == Holder::Unusable);
                self.refresh(pending.subject, now);
            }
            Kind::ReadConflict | Kind::WriteConflict(_) | Kind::DeleteConflict(_) => {
                self.conflict_answered(now, &pending, outcome);
            }
            Kind::Node(node) => {
                let view = match outcome {
                    Outcome::Node(state) => Some(NodeView::There(state)),
                    Outcome::NotFound => Some(NodeView::Gone),
                    Outcome::Rejected => {
                        entry.pace.answered();
                        Some(NodeView::Unreadable)
                    }
                    _ => None,
                };
                let node = node.clone();
                self.node_answered(now, &node, view, (id.0, pending.sent));
                self.refresh(pending.subject, now);
            }
        }
    }

    fn conflict_answered(&mut self, now: Timestamp, pending: &PendingCall, outcome: Outcome) {
        let subject = pending.subject;
        match outcome {
            Outcome::Conflict(stored) => match sanitized(stored, &subject) {
                Some(stored) if stored.spec.is_resolved() => {
                    self.update_conflict(subject, now, |entry, _| {
                        pending.take_over_report(entry);
                        entry.conflict.answered_resolved(stored.version);
                    });
                }
                Some(stored) => self.conflict_read(now, pending, stored),
                None => {
                    // The name belongs to an object about another subject.
                    self.unusable += 1;
                    if let Some(entry) = self.entries.get_mut(&subject) {
                        entry.pace.rejected(now, &mut self.rng);
                    }
                    self.update_conflict(subject, now, |entry, _| {
                        entry.conflict.gone(None);
                    });
                }
            },
            Outcome::Deleted | Outcome::NotFound => {
                self.update_conflict(subject, now, |entry, _| {
                    pending.take_over_report(entry);
                    match &pending.kind {
                        Kind::DeleteConflict(uid) => {
                            entry.conflict.gone(Some(uid));
                        }
                        // One that was watched meanwhile is newer than this answer.
                        _ if entry.conflict.version() == pending.conflict.as_ref() => {
                            entry.conflict.gone(None);
                        }
                        _ => {}
                    }
                });
            }
            Outcome::Rejected => {
                self.refresh(subject, now);
            }
            Outcome::Failed
            | Outcome::AlreadyExists
            | Outcome::Outdated
            | Outcome::Claim(_)
            | Outcome::Node(_) => {
                self.update_conflict(subject, now, |entry, _| {
                    let is_news = entry.conflict.version() != pending.conflict.as_ref();
                    entry.conflict.is_stale |= !is_news;
                });
            }
        }
    }

    fn conflict_read(
        &mut self,
        now: Timestamp,
        pending: &PendingCall,
        stored: Stored<ConflictSpec>,
    ) {
        let me = self.me.node.clone();
        self.update_conflict(pending.subject, now, |entry, call| {
            let asked = pending.ask.filter(|(number, _)| {
                let mut claimants = stored.spec.claimants.iter();
                claimants.any(|c| c.party.node == me && c.asked == *number)
            });
            if let Some((number, claim_began)) = asked {
                entry.contest.ask = Some(Box::new(Ask {
                    uid: stored.version.uid.clone(),
                    number,
                    claim_began,
                    sent: pending.sent,
                    answered: now,
                }));
            }
            pending.take_over_report(entry);
            if let Kind::WriteConflict(written) = &pending.kind
                && pending.conflict.as_ref() == Some(&stored.version)
            {
                entry.conflict.without_effect = Some(written.clone());
            }
            entry.conflict.answered(stored, call);
        });
    }

    fn node_answered(
        &mut self,
        now: Timestamp,
        node: &str,
        view: Option<NodeView>,
        call: (u64, Timestamp),
    ) {
        match view {
            Some(view) => self.nodes.answered(node, view, call, now, &mut self.rng),
            None => self.nodes.failed(node),
        }
        let concerned: Vec<_> = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.concerns(node))
            .map(|(subject, _)| *subject)
            .collect();
        for subject in concerned {
            self.refresh(subject, now);
        }
    }
}
