//! What is known about other Nodes. Each is read once, not once per conflict: a podCIDR that two nodes have is a hundred conflicts.

use std::{collections::BTreeMap, time::Duration};

use detector_engine::Timestamp;

use super::{NodeState, objects::Party, pace::jitter};

/// How often the Node of the other side of an open conflict is read.
const POLL: Duration = Duration::from_secs(60);
/// A Node that no conflict has needed for this long is forgotten.
const UNUSED: Duration = Duration::from_secs(600);
/// Beyond this number of Nodes, unused ones are forgotten.
const MANY: usize = 256;

/// A Node as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NodeView {
    /// The Node does not exist.
    Gone,
    /// The agent may not read it.
    Unreadable,
    /// The Node exists.
    There(NodeState),
}

#[derive(Clone, Debug)]
struct TrackedNode {
    view: Option<ReadView>,
    next_poll: Timestamp,
    needed_at: Timestamp,
    is_in_flight: bool,
}

/// A view, and when its request was sent.
#[derive(Clone, Debug)]
struct ReadView {
    view: NodeView,
    sent: Timestamp,
    /// The number of its call.
    call: u64,
}

/// The Nodes of other claimants in open conflicts.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    entries: BTreeMap<String, TrackedNode>,
}

impl Nodes {
    /// Starts polling `node`.
    pub(super) fn poll(&mut self, node: &str, now: Timestamp, rng: &mut fastrand::Rng) {
        if let Some(entry) = self.entries.get_mut(node) {
            entry.needed_at = now;
            return;
        }
        if self.entries.len() >= MANY {
            self.entries
                .retain(|_, entry| entry.is_in_flight || now.since(entry.needed_at) < UNUSED);
        }
        let entry = TrackedNode {
            view: None,
            next_poll: now + jitter(POLL, rng),
            needed_at: now,
            is_in_flight: false,
        };
        self.entries.insert(node.to_owned(), entry);
    }

    /// When `node` is polled next; `None` while it is being read, and if it is not polled.
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
    pub(super) fn view_since(&self, node: &str, since: Timestamp) -> Option<&NodeView> {
        let read = self.entries.get(node)?.view.as_ref()?;
        (read.sent >= since).then_some(&read.view)
    }

    /// Whether `party` is void: its Node is gone or has booted again. Only a view that was requested with call `since` or later counts,
    /// so that an older view does not void what was registered after a boot.
    pub(super) fn is_void(&self, party: &Party, since: u64) -> bool {
        let read = self.entries.get(&party.node).and_then(|e| e.view.as_ref());
        match read {
            Some(read) if read.call >= since => match &read.view {
                NodeView::Gone => true,
                NodeView::Unreadable => false,
                NodeView::There(state) => {
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
        view: NodeView,
        (call, sent): (u64, Timestamp),
        now: Timestamp,
        rng: &mut fastrand::Rng,
    ) {
        if let Some(entry) = self.entries.get_mut(node) {
            entry.is_in_flight = false;
            entry.next_poll = now + jitter(POLL, rng);
            entry.view = Some(ReadView { view, sent, call });
        }
    }
}
