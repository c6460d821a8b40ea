//! What is known of the conflicts, for the table: active ones, and the last that were resolved.

use super::{News, Present};
use crate::{engine::ConflictId, event::ConflictData};

/// Resolved conflicts kept.
const HISTORY: usize = 50;

/// How the connection is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Link {
    Live,
    Lost(String),
}

/// The state behind the table.
#[derive(Debug)]
pub(super) struct ViewModel {
    pub(super) node: String,
    pub(super) ready: bool,
    pub(super) link: Link,
    /// The newest first.
    active: Vec<ConflictData>,
    /// The newest first.
    resolved: Vec<ConflictData>,
}

impl ViewModel {
    pub(super) fn new(present: Present) -> Self {
        let mut board = Self {
            node: String::new(),
            ready: false,
            link: Link::Live,
            active: Vec::new(),
            resolved: Vec::new(),
        };
        board.take(present);
        board
    }

    fn take(&mut self, present: Present) {
        self.node = present.node;
        self.ready = present.ready;
        self.link = Link::Live;
        self.active = present.conflicts;
        self.active.reverse();
        self.resolved = present.resolved;
    }

    pub(super) fn apply(&mut self, news: News) {
        match news {
            News::Present(present) => self.take(*present),
            News::Lost(why) => self.link = Link::Lost(why),
            // The table shows conflicts; the lines and the status page show anomalies too.
            News::Anomaly(_) => self.link = Link::Live,
            News::Event(event) => {
                self.link = Link::Live;
                self.change(event.data);
            }
        }
    }

    fn change(&mut self, conflict: ConflictData) {
        let same = |known: &ConflictData| known.conflict_id == conflict.conflict_id;
        let known = self.active.iter().position(same);
        if conflict.is_resolved() {
            if let Some(known) = known {
                self.active.remove(known);
            }
            self.resolved.retain(|known| !same(known));
            self.resolved.insert(0, conflict);
            self.resolved.truncate(HISTORY);
        } else {
            match known.and_then(|known| self.active.get_mut(known)) {
                Some(known) => *known = conflict,
                None => self.active.insert(0, conflict),
            }
        }
    }

    pub(super) fn active(&self) -> usize {
        self.active.len()
    }

    /// Every row, active conflicts first.
    pub(super) fn rows(&self) -> impl Iterator<Item = &ConflictData> {
        self.active.iter().chain(&self.resolved)
    }

    pub(super) fn len(&self) -> usize {
        self.active.len() + self.resolved.len()
    }

    pub(super) fn row(&self, number: usize) -> Option<&ConflictData> {
        self.rows().nth(number)
    }

    /// Where a conflict stands now.
    pub(super) fn position(&self, id: ConflictId) -> Option<usize> {
        self.rows().position(|conflict| conflict.conflict_id == id)
    }
}
