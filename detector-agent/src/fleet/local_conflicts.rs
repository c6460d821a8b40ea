//! Keeps the `IPConflict`s of the conflicts within this node equal to what the node has, and deletes those that are resolved, of the
//! conflicts between nodes as well, an hour after their end. Pure.
//!
//! ```text
//!             create            replace, when it differs or is over
//!  Absent ──────────────► Present ◄───┐
//!    ▲  ▲                 │  │ └──────┘
//!    │  └──── delete ─────┘  │ outdated, changed by others, failed
//!    └───── get: not found ── Unknown ── get: found ──► Present
//! ```
//!
//! Invariants:
//! - only objects that name this node alone are written, only these and resolved ones are deleted, and only what was read before is
//!   replaced or deleted;
//! - at most [`MAX_PUBLISHED`] open conflicts within this node and resolved ones are there, besides what is being written: an open one
//!   takes the place of the oldest resolved one, and what ends without a place is not kept;
//! - writes have a budget of their own, so that a pod whose conflicts come and go does not take the requests of the comparison
//!   between nodes, and causes at most one write every [`WRITE_INTERVAL`] in the long run;
//! - what an earlier run of the agent left is deleted once it is known what the node has.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use detector_engine::{ConflictScope, Timestamp};
use detector_event::WallTime;
use detector_fleet::{Outcome, Request, Stored, objects::ConflictSpec};

use super::conflict_selector::{ConflictUpdate, MAX_PUBLISHED};
use crate::process::token_bucket::TokenBucket;

/// Writes in a burst, then one each [`WRITE_INTERVAL`].
const WRITE_BURST: u32 = 128;
const WRITE_INTERVAL: Duration = Duration::from_secs(2);
/// How long a resolved one is kept.
const KEEP: Duration = Duration::from_secs(3_600);
/// The most objects that are followed: those of [`MAX_PUBLISHED`] conflicts, and what is still to be deleted.
const MAX_FOLLOWED: usize = 1024;
/// Time after which a request that the server refused is tried again.
const AFTER_REJECTION: Duration = Duration::from_secs(300);
/// The same of a request that failed; the pace of all requests slows down as well.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// The objects of the conflicts within this node, and the resolved ones that this agent has to delete.
#[derive(Debug)]
pub(super) struct LocalConflicts {
    node: String,
    entries: BTreeMap<String, Entry>,
    /// All that the node had at the start is known.
    is_complete: bool,
    /// What a list in progress has not had yet of what was known when it began.
    missing: BTreeSet<String>,
    writes: TokenBucket<Timestamp>,
}

#[derive(Debug)]
struct Entry {
    /// What is to be there; `None` for nothing.
    wanted: Option<Box<ConflictSpec>>,
    server: OnServer,
    /// A request was sent, and is not answered yet.
    is_in_flight: bool,
    /// What the last replacement had.
    replaced: Option<Box<ConflictSpec>>,
    /// The server accepted it without keeping anything of it, because its schema is of an earlier version.
    is_without_effect: bool,
    /// No request is sent before. Of a resolved one, when it is deleted.
    not_before: Timestamp,
}

/// What the server has.
#[derive(Debug, PartialEq)]
enum OnServer {
    Absent,
    Present(Box<Stored<ConflictSpec>>),
    /// It has to be read first.
    Unknown,
}

impl Entry {
    fn new(server: OnServer) -> Self {
        Self {
            wanted: None,
            server,
            is_in_flight: false,
            replaced: None,
            is_without_effect: false,
            not_before: Timestamp(0),
        }
    }

    /// What to send; `None` if nothing is to be done.
    fn request(&self, is_complete: bool) -> Option<Request> {
        match (&self.wanted, &self.server) {
            (_, OnServer::Unknown) => Some(Request::GetConflict),
            (Some(spec), OnServer::Absent) => Some(Request::CreateConflict((**spec).clone())),
            (Some(spec), OnServer::Present(stored))
                if stored.spec != **spec && !self.has_no_effect(spec) =>
            {
                let version = stored.version.clone();
                Some(Request::ReplaceConflict(version, (**spec).clone()))
            }
            (None, OnServer::Present(stored)) if is_complete || stored.spec.is_resolved() => {
                Some(Request::DeleteConflict(stored.version.clone()))
            }
            _ => None,
        }
    }

    /// Whether writing this has changed nothing.
    fn has_no_effect(&self, spec: &ConflictSpec) -> bool {
        self.is_without_effect && self.replaced.as_deref() == Some(spec)
    }

    /// Sets what is to be there. An agent that was restarted does not know the causes yet that the objects have.
    fn want(&mut self, spec: Option<Box<ConflictSpec>>) {
        self.wanted = spec;
        self.keep_cause();
    }

    fn keep_cause(&mut self) {
        if let (Some(wanted), OnServer::Present(stored)) = (&mut self.wanted, &self.server) {
            wanted.keep_cause(&stored.spec);
        }
    }

    /// The server has this.
    fn present(&mut self, (now, wall): (Timestamp, WallTime), stored: Stored<ConflictSpec>) {
        if stored.spec.is_resolved() {
            self.end_resolving();
            if self.wanted.is_none() {
                // A clock that was set back keeps it for no longer.
                let ago = stored.spec.resolved_at.map_or(KEEP, |at| wall.since(at));
                self.not_before = now + KEEP.saturating_sub(ago);
            }
        }
        self.server = OnServer::Present(Box::new(stored));
        self.keep_cause();
    }

    /// It has to be read before anything else.
    fn unknown(&mut self) {
        if self.is_kept() {
            self.not_before = Timestamp(0);
        }
        self.server = OnServer::Unknown;
    }

    /// Nothing is left to be kept, or it is.
    fn end_resolving(&mut self) {
        self.wanted.take_if(|spec| spec.is_resolved());
    }

    /// Whether the server has a resolved one.
    fn is_kept(&self) -> bool {
        matches!(&self.server, OnServer::Present(stored) if stored.spec.is_resolved())
    }

    /// Whether it has a place: something is wanted, or kept and not due to be deleted.
    fn has_place(&self) -> bool {
        self.wanted.is_some() || self.is_kept() && self.not_before != Timestamp(0)
    }
}

impl LocalConflicts {
    /// Nothing is known of what the server has.
    pub(super) fn new(node: String) -> Self {
        Self {
            node,
            entries: BTreeMap::new(),
            is_complete: false,
            missing: BTreeSet::new(),
            writes: TokenBucket::new(WRITE_BURST, WRITE_INTERVAL, Timestamp(0)),
        }
    }

    /// Sets what is to be there. The claimants name this node.
    pub(super) fn set(&mut self, update: ConflictUpdate) {
        self.forget_settled();
        // It has one already.
        let has_place = self.places() <= MAX_PUBLISHED;
        let open = update.spec.as_ref().filter(|spec| !spec.is_resolved());
        if let Some(entry) = self.entries.get_mut(&update.name) {
            if open.is_some() && entry.is_kept() {
                // It has begun again.
                entry.not_before = Timestamp(0);
            }
            // What was never there is not kept.
            let may_be_there = entry.server != OnServer::Absent || entry.is_in_flight;
            let is_written = open.is_some() || may_be_there && has_place;
            entry.want(update.spec.filter(|_| is_written));
        } else if open.is_some() && self.entries.len() < MAX_FOLLOWED {
            let mut entry = Entry::new(OnServer::Absent);
            entry.wanted = update.spec;
            self.entries.insert(update.name, entry);
            self.make_room();
        }
    }

    /// Whether a conflict between nodes that ends is kept as resolved.
    pub(super) fn has_room(&self) -> bool {
        self.places() < MAX_PUBLISHED
    }

    fn places(&self) -> usize {
        self.entries.values().filter(|e| e.has_place()).count()
    }

    /// Has the oldest resolved one deleted if there are too many.
    fn make_room(&mut self) {
        if self.places() <= MAX_PUBLISHED {
            return;
        }
        let kept = self.entries.values_mut();
        let kept = kept.filter(|e| e.is_kept() && e.has_place() && e.wanted.is_none());
        if let Some(oldest) = kept.min_by_key(|entry| entry.not_before) {
            oldest.not_before = Timestamp(0);
        }
    }

    /// Forgets objects that neither are there nor should be.
    fn forget_settled(&mut self) {
        self.entries.retain(|_, entry| {
            entry.wanted.is_some() || entry.is_in_flight || entry.server != OnServer::Absent
        });
    }

    /// All that the node had at the start was set: what is there beyond that may be deleted.
    pub(super) fn complete(&mut self) {
        self.is_complete = true;
    }

    /// All objects of conflicts within this node that the server has follow.
    pub(super) fn list_begins(&mut self) {
        self.missing = self.entries.keys().cloned().collect();
    }

    /// They were found.
    pub(super) fn list_ends(&mut self) {
        for name in std::mem::take(&mut self.missing) {
            self.gone(&name);
        }
    }

    /// An object was created or changed: of a conflict within this node, or a resolved one that this agent wrote. `now` is the time as
    /// both clocks have it.
    pub(super) fn found(
        &mut self,
        now: (Timestamp, WallTime),
        name: String,
        stored: Stored<ConflictSpec>,
    ) {
        self.missing.remove(&name);
        self.forget_settled();
        if let Some(entry) = self.entries.get_mut(&name) {
            let is_known = match &entry.server {
                OnServer::Present(known) => known.version == stored.version,
                OnServer::Absent | OnServer::Unknown => false,
            };
            // The answer to a request in flight is newer.
            if !is_known && !entry.is_in_flight {
                entry.unknown();
            }
        } else if self.entries.len() < MAX_FOLLOWED {
            let mut entry = Entry::new(OnServer::Unknown);
            entry.present(now, stored);
            self.entries.insert(name, entry);
        }
    }

    /// An object was deleted.
    pub(super) fn gone(&mut self, name: &str) {
        if let Some(entry) = self.entries.get_mut(name)
            && !entry.is_in_flight
            && entry.server != OnServer::Absent
        {
            entry.unknown();
        }
    }

    /// The next request and the name of its object. It counts as sent.
    pub(super) fn next_request(&mut self, now: Timestamp) -> Option<(String, Request)> {
        let is_complete = self.is_complete;
        let may_write = self.writes.next_at() <= now;
        let due = self.entries.iter_mut().find_map(|(name, entry)| {
            if entry.is_in_flight || entry.not_before > now {
                return None;
            }
            let request = entry.request(is_complete)?;
            if request != Request::GetConflict && !may_write {
                return None;
            }
            entry.is_in_flight = true;
            if let Request::ReplaceConflict(_, spec) = &request {
                entry.replaced = Some(Box::new(spec.clone()));
            }
            Some((name.clone(), request))
        });
        if due
            .as_ref()
            .is_some_and(|(_, request)| *request != Request::GetConflict)
        {
            self.writes.take(now);
        }
        due
    }

    /// When [`LocalConflicts::next_request`] has something, if nothing changes.
    pub(super) fn next_due(&self) -> Option<Timestamp> {
        let waiting = self.entries.values().filter(|entry| !entry.is_in_flight);
        let due = waiting.filter_map(|entry| {
            let request = entry.request(self.is_complete)?;
            Some(match request {
                Request::GetConflict => entry.not_before,
                _ => entry.not_before.max(self.writes.next_at()),
            })
        });
        due.min()
    }

    /// The end of a request.
    pub(super) fn answer(
        &mut self,
        (now, wall): (Timestamp, WallTime),
        name: &str,
        outcome: Outcome,
    ) {
        let Some(entry) = self.entries.get_mut(name) else {
            return;
        };
        entry.is_in_flight = false;
        match outcome {
            Outcome::Conflict(stored) if is_own(&stored.spec, &self.node) => {
                // Of what is known to be there, only a replacement is answered with the object.
                entry.is_without_effect = matches!(&entry.server,
                    OnServer::Present(before) if before.version == stored.version);
                entry.present((now, wall), stored);
            }
            // Two conflicts of two nodes have the same name; the other one may be gone by then.
            Outcome::Conflict(_) if entry.wanted.is_some() => {
                entry.server = OnServer::Unknown;
                entry.not_before = now + AFTER_REJECTION;
            }
            Outcome::Conflict(_) | Outcome::Deleted | Outcome::NotFound => {
                entry.server = OnServer::Absent;
                entry.end_resolving();
            }
            Outcome::AlreadyExists | Outcome::Outdated => entry.server = OnServer::Unknown,
            Outcome::Rejected => entry.not_before = now + AFTER_REJECTION,
            // It may have taken effect.
            Outcome::Failed | Outcome::Claim(_) | Outcome::Node(_) => {
                entry.server = OnServer::Unknown;
                entry.not_before = now + AFTER_FAILURE;
            }
        }
    }
}

/// Whether the agent of `node` may delete it: a conflict within this node, or a resolved one between nodes.
fn is_own(spec: &ConflictSpec, node: &str) -> bool {
    is_within(spec, node) || spec.scope == ConflictScope::Fleet && spec.is_resolved()
}

/// Whether this is a conflict within `node`.
pub(super) fn is_within(spec: &ConflictSpec, node: &str) -> bool {
    let mut claimants = spec.claimants.iter();
    spec.scope == ConflictScope::Node
        && !spec.claimants.is_empty()
        && claimants.all(|claimant| claimant.party.node == node)
}

#[cfg(test)]
mod tests;
