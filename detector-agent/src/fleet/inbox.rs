//! The way of the node's claims and conflicts from the event loop to the registration.
//!
//! Invariants: sending never waits; of each subject and object only the newest state is kept, so what waits is bounded by those that changed
//! since the registration last looked, which never waits for the API either.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use detector_engine::ConflictId;
use detector_fleet::{
    LocalClaim, Subject,
    objects::{ConflictCause, ConflictSpec},
};
use tokio::sync::Notify;

use super::ConflictUpdate;

/// The present state of a subject on this node. The node and the boot of the claim's party are filled in later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimUpdate {
    /// The subject.
    pub subject: Subject,
    /// The claim; `None` if this node has none any more.
    pub claim: Option<LocalClaim>,
}

/// The end of the way that the event loop has.
#[derive(Clone, Debug, Default)]
pub struct Inbox(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    received: Mutex<Received>,
    changed: Notify,
}

/// What came since the last look.
#[derive(Debug, Default)]
pub(super) struct Received {
    /// The newest state of each subject that changed.
    pub(super) claims: BTreeMap<Subject, Option<LocalClaim>>,
    /// The newest state of each object of a conflict within the node that changed, by name.
    pub(super) conflicts: BTreeMap<String, Option<Box<ConflictSpec>>>,
    /// The newest cause of each conflict between nodes about which one became known.
    pub(super) causes: BTreeMap<Subject, (ConflictId, ConflictCause)>,
    /// All claims and conflicts that the node had at the start have been sent, now or before.
    pub(super) is_complete: bool,
    /// No more will come.
    pub(super) is_closed: bool,
}

impl Inbox {
    /// Sends a changed state.
    pub fn send(&self, update: ClaimUpdate) {
        self.received().claims.insert(update.subject, update.claim);
        self.0.changed.notify_one();
    }

    /// Sends the changed state of a conflict within the node.
    pub fn send_conflict(&self, update: ConflictUpdate) {
        self.received().conflicts.insert(update.name, update.spec);
        self.0.changed.notify_one();
    }

    /// Sends why a conflict between nodes came about.
    pub fn send_cause(&self, subject: Subject, id: ConflictId, cause: ConflictCause) {
        self.received().causes.insert(subject, (id, cause));
        self.0.changed.notify_one();
    }

    /// All claims and conflicts that the node had at the start of the agent have been sent: what is registered beyond them may be
    /// removed.
    pub fn complete(&self) {
        self.received().is_complete = true;
        self.0.changed.notify_one();
    }

    /// The agent stops: nothing more is registered.
    pub fn close(&self) {
        self.received().is_closed = true;
        self.0.changed.notify_one();
    }

    /// Takes what came since the last call.
    pub(super) fn take(&self) -> Received {
        let mut received = self.received();
        Received {
            claims: std::mem::take(&mut received.claims),
            conflicts: std::mem::take(&mut received.conflicts),
            causes: std::mem::take(&mut received.causes),
            ..*received
        }
    }

    /// Waits until there is something to take.
    pub(super) async fn changed(&self) {
        self.0.changed.notified().await;
    }

    fn received(&self) -> MutexGuard<'_, Received> {
        // No code panics while holding the lock.
        let received = self.0.received.lock();
        received.unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use detector_engine::Timestamp;
    use detector_fleet::{Mode, objects::Party};

    use super::*;

    #[tokio::test]
    async fn only_the_newest_state_of_a_subject_waits() {
        let inbox = Inbox::default();
        let subject: Subject = "10.0.0.1".parse().unwrap();
        for began in 0..1000 {
            let claim = LocalClaim {
                party: Party::default(),
                began: Timestamp(began),
                terminating: false,
                rightful: None,
                mode: Mode::Register,
            };
            let claim = Some(claim);
            inbox.send(ClaimUpdate { subject, claim });
        }
        inbox.changed().await;
        let received = inbox.take();
        assert_eq!(received.claims.len(), 1);
        let began = received.claims[&subject].as_ref().map(|claim| claim.began);
        assert_eq!(began, Some(Timestamp(999)));
        assert!(!received.is_complete && !received.is_closed);
        inbox.complete();
        assert!(inbox.take().is_complete && inbox.take().is_complete);
        assert!(inbox.take().claims.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn every_input_wakes_the_registration() {
        let inbox = Inbox::default();
        let subject: Subject = "10.0.0.1".parse().unwrap();
        let claim = None;
        let name = String::new();
        let cause = detector_fleet::samples::cause();
        let sends: [&dyn Fn(); 5] = [
            &|| {
                inbox.send(ClaimUpdate {
                    subject,
                    claim: claim.clone(),
                })
            },
            &|| {
                inbox.send_conflict(ConflictUpdate {
                    name: name.clone(),
                    spec: None,
                })
            },
            &|| inbox.send_cause(subject, ConflictId(7), cause.clone()),
            &|| inbox.complete(),
            &|| inbox.close(),
        ];
        for send in sends {
            let minute = std::time::Duration::from_secs(60);
            let silence = tokio::time::timeout(minute, inbox.changed()).await;
            assert!(silence.is_err());
            send();
            tokio::time::timeout(minute, inbox.changed()).await.unwrap();
        }
        assert!(inbox.take().is_closed);
    }
}
