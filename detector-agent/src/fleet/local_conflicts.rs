//! Keeps the `IPConflict`s of the conflicts within this node equal to what the node has. Pure.
//!
//! ```text
//!             create            replace, when it differs
//!  Absent ──────────────► Present ◄───┐
//!    ▲  ▲                 │  │ └──────┘
//!    │  └──── delete ─────┘  │ outdated, changed by others, failed
//!    └───── get: not found ── Unknown ── get: found ──► Present
//! ```
//!
//! Invariants:
//! - only objects that name this node alone are written or deleted, and only what was read before is replaced or deleted;
//! - writes have a budget of their own, so that a pod whose conflicts come and go does not take the requests of the comparison
//!   between nodes, and causes at most one write every [`WRITE_INTERVAL`] in the long run;
//! - what an earlier run of the agent left is deleted once it is known what the node has.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use detector_engine::{ConflictScope, Timestamp};
use detector_fleet::{Outcome, Request, Stored, objects::ConflictSpec};

use super::conflict_selector::ConflictUpdate;
use crate::process::token_bucket::TokenBucket;

/// Writes in a burst, then one each [`WRITE_INTERVAL`].
const WRITE_BURST: u32 = 128;
const WRITE_INTERVAL: Duration = Duration::from_secs(2);
/// The most objects that are followed: those of [`super::MAX_PUBLISHED`] conflicts, and what is still to be deleted.
const MAX_FOLLOWED: usize = 1024;
/// Time after which a request that the server refused is tried again.
const AFTER_REJECTION: Duration = Duration::from_secs(300);
/// The same of a request that failed; the pace of all requests slows down as well.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// The objects of the conflicts within this node.
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
    /// No request is sent before.
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
            not_before: Timestamp(0),
        }
    }

    /// What to send; `None` if nothing is to be done.
    fn request(&self, is_complete: bool) -> Option<Request> {
        match (&self.wanted, &self.server) {
            (_, OnServer::Unknown) => Some(Request::GetConflict),
            (Some(spec), OnServer::Absent) => Some(Request::CreateConflict((**spec).clone())),
            (Some(spec), OnServer::Present(stored)) if stored.spec != **spec => Some(
                Request::ReplaceConflict(stored.version.clone(), (**spec).clone()),
            ),
            (None, OnServer::Present(stored)) if is_complete => {
                Some(Request::DeleteConflict(stored.version.clone()))
            }
            _ => None,
        }
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
        if let Some(entry) = self.entries.get_mut(&update.name) {
            entry.wanted = update.spec;
        } else if update.spec.is_some() && self.entries.len() < MAX_FOLLOWED {
            let mut entry = Entry::new(OnServer::Absent);
            entry.wanted = update.spec;
            self.entries.insert(update.name, entry);
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

    /// An object was created or changed.
    pub(super) fn found(&mut self, name: String, stored: Stored<ConflictSpec>) {
        self.missing.remove(&name);
        self.forget_settled();
        if let Some(entry) = self.entries.get_mut(&name) {
            let is_known = match &entry.server {
                OnServer::Present(known) => known.version == stored.version,
                OnServer::Absent | OnServer::Unknown => false,
            };
            // The answer to a request in flight is newer.
            if !is_known && !entry.is_in_flight {
                entry.server = OnServer::Unknown;
            }
        } else if self.entries.len() < MAX_FOLLOWED {
            let entry = Entry::new(OnServer::Present(Box::new(stored)));
            self.entries.insert(name, entry);
        }
    }

    /// An object was deleted.
    pub(super) fn gone(&mut self, name: &str) {
        if let Some(entry) = self.entries.get_mut(name)
            && !entry.is_in_flight
            && entry.server != OnServer::Absent
        {
            entry.server = OnServer::Unknown;
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
    pub(super) fn answer(&mut self, now: Timestamp, name: &str, outcome: Outcome) {
        let Some(entry) = self.entries.get_mut(name) else {
            return;
        };
        entry.is_in_flight = false;
        match outcome {
            // Two conflicts of two nodes have the same name; the other one may be gone by then.
            Outcome::Conflict(stored) if !is_within(&stored.spec, &self.node) => {
                entry.server = OnServer::Unknown;
                entry.not_before = now + AFTER_REJECTION;
            }
            Outcome::Conflict(stored) => entry.server = OnServer::Present(Box::new(stored)),
            Outcome::Deleted | Outcome::NotFound => entry.server = OnServer::Absent,
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

/// Whether this is a conflict within `node`.
pub(super) fn is_within(spec: &ConflictSpec, node: &str) -> bool {
    let mut claimants = spec.claimants.iter();
    spec.scope == ConflictScope::Node
        && !spec.claimants.is_empty()
        && claimants.all(|claimant| claimant.party.node == node)
}

#[cfg(test)]
mod tests;
