//! What is known of other Nodes. Read per node, not per conflict: a podCIDR that two nodes have is a hundred conflicts.

use std::{collections::BTreeMap, time::Duration};

use detector_engine::Timestamp;

use super::{NodeState, objects::Party, pace::jitter};

/// How often the Node of the other side of an open conflict is read.
const POLL: Duration = Duration::from_secs(60);
/// A Node that no conflict needed for so long is no longer remembered.
const UNUSED: Duration = Duration::from_secs(600);
/// Nodes beyond which those are dropped.
const MANY: usize = 256;

/// A Node as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum View {
    /// There is none.
    Gone,
    /// It cannot be read, by permission.
    Unreadable,
    /// It is there.
    There(NodeState),
}

#[derive(Clone, Debug)]
struct Entry {
    view: Option<Read>,
    next_poll: Timestamp,
    wanted: Timestamp,
    is_in_flight: bool,
}

/// A view, and when its request was sent.
#[derive(Clone, Debug)]
struct Read {
    view: View,
    sent: Timestamp,
    /// The number of its call.
    call: u64,
}

/// The Nodes of others in open conflicts.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    entries: BTreeMap<String, Entry>,
}

impl Nodes {
    /// Starts polling `node`.
    pub(super) fn want(&mut self, node: &str, now: Timestamp, rng: &mut fastrand::Rng) {
        if let Some(entry) = self.entries.get_mut(node) {
            entry.wanted = now;
            return;
        }
        if self.entries.len() >= MANY {
            self.entries
                .retain(|_, entry| entry.is_in_flight || now.since(entry.wanted) < UNUSED);
        }
        let entry = Entry {
            view: None,
            next_poll: now + jitter(POLL, rng),
            wanted: now,
            is_in_flight: false,
        };
        self.entries.insert(node.to_owned(), entry);
    }

    /// When `node` is to be read for the poll. `None` while it is being read, and of a node that is not wanted.
    pub(super) fn poll_at(&self, node: &str) -> Option<Timestamp> {
        let entry = self.entries.get(node)?;
        (!entry.is_in_flight).then_some(entry.next_poll)
    }

    /// Whether it is being read.
    pub(super) fn is_in_flight(&self, node: &str) -> bool {
        self.entries
            .get(node)
            .is_some_and(|entry| entry.is_in_flight)
    }

    /// The view that was requested at `since` or later.
    pub(super) fn view_since(&self, node: &str, since: Timestamp) -> Option<&View> {
        let read = self.entries.get(node)?.view.as_ref()?;
        (read.sent >= since).then_some(&read.view)
    }

    /// Whether `party` is no more: its Node is gone or has booted again. Only a view counts whose call is `since` or later, so that an
    /// older view does not condemn what was registered after a boot.
    pub(super) fn is_void(&self, party: &Party, since: u64) -> bool {
        let read = self.entries.get(&party.node).and_then(|e| e.view.as_ref());
        match read {
            Some(read) if read.call >= since => match &read.view {
                View::Gone => true,
                View::Unreadable => false,
                View::There(state) => {
                    !state.boot_id.is_empty()
                        && !party.boot_id.is_empty()
                        && state.boot_id != party.boot_id
                }
            },
            _ => false,
        }
    }

    pub(super) fn sent(&mut self, node: &str) {
        if let Some(entry) = self.entries.get_mut(node) {
            entry.is_in_flight = true;
        }
    }

    /// The read failed; the subject that asked repeats it.
    pub(super) fn failed(&mut self, node: &str) {
        if let Some(entry) = self.entries.get_mut(node) {
            entry.is_in_flight = false;
        }
    }

    pub(super) fn answered(
        &mut self,
        node: &str,
        view: View,
        (call, sent): (u64, Timestamp),
        now: Timestamp,
        rng: &mut fastrand::Rng,
    ) {
        if let Some(entry) = self.entries.get_mut(node) {
            entry.is_in_flight = false;
            entry.next_poll = now + jitter(POLL, rng);
            entry.view = Some(Read { view, sent, call });
        }
    }
}
