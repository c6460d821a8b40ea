//! What the agent believes about an `IPClaim`, and the requests that bring it in line with what this node has.

use std::time::Duration;

use detector_engine::Timestamp;

use super::{
    Identity, LocalClaim, Mode, Outcome, Request, Stored, Subject, Version,
    conflict::{bound_party, is_name},
    objects::{ClaimSpec, Party},
    pace::jitter,
};

/// How often an own claim is verified. This heals what no watch reports: claims deleted by hand, a server restored from a backup.
const VERIFY_OWN: Duration = Duration::from_secs(7_200);
/// How soon a claim is verified that was taken over, or whose Node was replaced. The garbage collector deletes what belonged to a
/// deleted Node, even if the owner has been replaced since it looked (`attemptToDeleteItem` in pkg/controller/garbagecollector: the uid
/// is the precondition).
const VERIFY_TAKEN_OVER: Duration = Duration::from_secs(60);
/// How often a claim is read that another node holds, or that this node must not create.
const VERIFY_OTHER: Duration = Duration::from_secs(300);
/// How long a request without an answer may still take effect, with a margin over [`Outcome::Failed`].
const LATE: Duration = Duration::from_secs(75);

/// Who holds the `IPClaim`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// It has to be read.
    Unknown,
    /// There is none, as far as is known.
    Absent,
    /// This node.
    Us(Version, Box<Party>),
    /// Another node.
    Other(Version, Box<Party>),
    /// The object of this name is about another subject, or names no node.
    Unusable,
}

/// What the agent believes about the `IPClaim` of a subject.
#[derive(Clone, Debug)]
pub(super) struct ClaimBelief {
    pub(super) holder: Holder,
    /// The number of the next call when this holder became known.
    pub(super) known: u64,
    /// When this holder became known.
    pub(super) since: Timestamp,
    /// The version of the `IPConflict` that was known when the claim was last read: if they disagree, the claim is right.
    checked_for: Option<Version>,
    verify_at: Option<Timestamp>,
    /// This node's claim was another node's before, or belonged to a deleted Node: the garbage collector may still delete it.
    is_collectable: bool,
    /// A write whose outcome is not known may take effect until then.
    unsure_until: Option<Timestamp>,
    /// That write was sent by an earlier run: it matters only once this node has no claim on the subject.
    is_of_earlier_run: bool,
}

impl ClaimBelief {
    pub(super) fn new(holder: Holder) -> Self {
        Self {
            holder,
            known: 0,
            since: Timestamp::default(),
            checked_for: None,
            verify_at: None,
            is_collectable: false,
            unsure_until: None,
            is_of_earlier_run: false,
        }
    }

    /// The belief after a restart: the earlier run may have sent a request in its last moment.
    pub(super) fn restored(now: Timestamp) -> Self {
        Self {
            unsure_until: Some(now + LATE),
            is_of_earlier_run: true,
            ..Self::new(Holder::Unknown)
        }
    }

    /// Whether no claim in this node's name exists or may still appear.
    pub(super) fn is_released(&self) -> bool {
        self.unsure_until.is_none() && !matches!(self.holder, Holder::Unknown | Holder::Us(..))
    }

    /// Has it read again at once.
    pub(super) fn verify(&mut self, now: Timestamp) {
        self.verify_at = Some(now);
    }

    /// The Node that owned it is gone: it is read at once, and again when the garbage collector has had the time to delete it.
    pub(super) fn may_be_collected(&mut self, now: Timestamp) {
        self.is_collectable = true;
        self.verify(now);
    }

    pub(super) fn is_checked_for(&self, conflict: Option<&Version>) -> bool {
        conflict.is_none() || self.checked_for.as_ref() == conflict
    }

    /// When it is read next if nothing happens.
    pub(super) fn next_read(&self, local: Option<&LocalClaim>) -> Option<Timestamp> {
        let unsure = self
            .unsure_until
            .filter(|_| local.is_none() || !self.is_of_earlier_run);
        // A claim on a subject that this node does not have is not verified.
        let verify = self.verify_at.filter(|_| local.is_some());
        unsure.into_iter().chain(verify).min()
    }

    /// The request that the claim alone needs.
    pub(super) fn request(
        &self,
        subject: Subject,
        local: Option<&LocalClaim>,
        now: Timestamp,
    ) -> Option<Request> {
        let registering = local.filter(|local| local.mode == Mode::Register);
        let spec = |local: &LocalClaim| ClaimSpec {
            address: subject,
            party: local.party.clone(),
        };
        if self.holder == Holder::Unknown || self.next_read(local).is_some_and(|at| at <= now) {
            return Some(Request::GetClaim);
        }
        match (&self.holder, registering) {
            (Holder::Absent, Some(local)) => Some(Request::CreateClaim(spec(local))),
            (Holder::Us(version, _), None) => Some(Request::DeleteClaim(version.clone())),
            (Holder::Us(version, party), Some(local)) if **party != local.party => {
                Some(Request::ReplaceClaim(version.clone(), spec(local)))
            }
            _ => None,
        }
    }

    /// The outcome of a request about the claim, sent when `conflict` was the version of the `IPConflict`.
    pub(super) fn answered(
        &mut self,
        sent: &AnsweredRequest<'_>,
        outcome: Outcome,
        rng: &mut fastrand::Rng,
    ) {
        let holder = match outcome {
            Outcome::Claim(stored) => holder_of(stored, sent.subject, sent.me),
            Outcome::NotFound | Outcome::Deleted => Holder::Absent,
            Outcome::Failed if sent.is_write => {
                self.unsure_until = Some(sent.now + LATE);
                self.is_of_earlier_run = false;
                Holder::Unknown
            }
            // Nothing was learnt; the next attempt follows.
            Outcome::Failed | Outcome::Rejected => return,
            Outcome::AlreadyExists
            | Outcome::Outdated
            | Outcome::Conflict(_)
            | Outcome::Node(_) => Holder::Unknown,
        };
        if holder != Holder::Unknown {
            self.checked_for = sent.conflict.cloned();
            if self.unsure_until.is_some_and(|until| until <= sent.sent) {
                self.unsure_until = None;
            }
        }
        let period = match holder {
            Holder::Us(..) if self.is_collectable => VERIFY_TAKEN_OVER,
            Holder::Us(..) => VERIFY_OWN,
            _ => VERIFY_OTHER,
        };
        match holder {
            Holder::Unknown => {}
            Holder::Other(..) => self.is_collectable = true,
            Holder::Us(..) | Holder::Absent | Holder::Unusable => self.is_collectable = false,
        }
        self.verify_at = Some(sent.now + jitter(period, rng));
        if !is_same_party(&self.holder, &holder) {
            self.known = sent.next_call;
            self.since = sent.now;
        }
        self.holder = holder;
    }
}

/// A request about a claim that was answered.
pub(super) struct AnsweredRequest<'a> {
    pub(super) subject: Subject,
    pub(super) me: &'a Identity,
    pub(super) is_write: bool,
    /// When it was sent.
    pub(super) sent: Timestamp,
    pub(super) now: Timestamp,
    pub(super) next_call: u64,
    pub(super) conflict: Option<&'a Version>,
}

fn holder_of(stored: Stored<ClaimSpec>, subject: Subject, me: &Identity) -> Holder {
    let mut party = Box::new(stored.spec.party);
    if stored.spec.address != subject || !is_name(&party.node) {
        return Holder::Unusable;
    }
    bound_party(&mut party);
    if party.node == me.node {
        Holder::Us(stored.version, party)
    } else {
        Holder::Other(stored.version, party)
    }
}

/// Whether the claim is of the same node and boot: a view of the Node that was read since then still counts.
fn is_same_party(a: &Holder, b: &Holder) -> bool {
    match (a, b) {
        (Holder::Other(_, a), Holder::Other(_, b)) => {
            (&a.node, &a.boot_id) == (&b.node, &b.boot_id)
        }
        _ => a == b,
    }
}
