//! This node's own Node. If it is deleted, or deleted and made again, the claims that it owns are garbage-collected while the pods live.

use std::time::Duration;

use super::{NodeState, pace::jitter};
use crate::engine::Timestamp;

const PERIOD: Duration = Duration::from_secs(300);

#[derive(Debug, Default)]
pub(super) struct OwnNode {
    /// `None` until it was read once.
    next: Option<Timestamp>,
    is_in_flight: bool,
    /// `metadata.uid`; `None` if it does not exist.
    uid: Option<Option<String>>,
}

impl OwnNode {
    /// When it is read next, if anything is registered.
    pub(super) fn next(&self, is_needed: bool) -> Option<Timestamp> {
        self.next.filter(|_| is_needed && !self.is_in_flight)
    }

    /// Whether it is to be read now, if anything is registered. The first time is at once: later views are compared with that one.
    pub(super) fn is_due(&self, now: Timestamp) -> bool {
        self.next.is_none_or(|next| next <= now) && !self.is_in_flight
    }

    pub(super) fn sent(&mut self) {
        self.is_in_flight = true;
    }

    /// It was read; `None`: there is none. Returns whether it is another one than before.
    pub(super) fn answered(
        &mut self,
        state: Option<NodeState>,
        now: Timestamp,
        rng: &mut fastrand::Rng,
    ) -> bool {
        self.postpone(now, rng);
        let uid = state.map(|state| state.uid);
        let is_gone = uid.is_none();
        let before = self.uid.replace(uid);
        match before {
            // The first view: only a Node that is missing is news.
            None => is_gone,
            Some(before) => before != *self.uid.as_ref().unwrap_or(&None),
        }
    }

    /// It was due, and nothing is registered.
    pub(super) fn skip(&mut self, now: Timestamp, rng: &mut fastrand::Rng) {
        if self.next.is_some() {
            self.postpone(now, rng);
        }
    }

    /// It was not read.
    pub(super) fn postpone(&mut self, now: Timestamp, rng: &mut fastrand::Rng) {
        self.is_in_flight = false;
        self.next = Some(now + jitter(PERIOD, rng));
    }
}
