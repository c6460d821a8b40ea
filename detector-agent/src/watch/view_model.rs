//! The state behind the table: active conflicts, and the most recently resolved ones.

use super::Update;
use crate::{agent_client::Overview, engine::ConflictId, event::ConflictData};

/// Maximum number of resolved conflicts.
const MAX_RESOLVED: usize = 50;

/// State of the connection to the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ConnectionState {
    Live,
    /// Lost, with the reason.
    Lost(String),
}

/// The state behind the table.
#[derive(Debug)]
pub(super) struct ViewModel {
    pub(super) node: String,
    pub(super) ready: bool,
    pub(super) connection: ConnectionState,
    /// Newest first.
    active: Vec<ConflictData>,
    /// Newest first.
    resolved: Vec<ConflictData>,
}

impl ViewModel {
    pub(super) fn new(overview: Overview) -> Self {
        let mut model = Self {
            node: String::new(),
            ready: false,
            connection: ConnectionState::Live,
            active: Vec::new(),
            resolved: Vec::new(),
        };
        model.replace(overview);
        model
    }

    fn replace(&mut self, overview: Overview) {
        self.node = overview.node;
        self.ready = overview.ready;
        self.connection = ConnectionState::Live;
        self.active = overview.conflicts;
        self.active.reverse();
        self.resolved = overview.resolved;
    }

    pub(super) fn apply(&mut self, update: Update) {
        match update {
            Update::Overview(overview) => self.replace(*overview),
            Update::Disconnected(reason) => self.connection = ConnectionState::Lost(reason),
            // The table shows conflicts only; line output and the status page show anomalies too.
            Update::Anomaly(_) => self.connection = ConnectionState::Live,
            Update::Conflict(event) => {
                self.connection = ConnectionState::Live;
                self.update(event.data);
            }
        }
    }

    fn update(&mut self, conflict: ConflictData) {
        let is_same = |known: &ConflictData| known.conflict_id == conflict.conflict_id;
        let index = self.active.iter().position(is_same);
        if conflict.is_resolved() {
            if let Some(index) = index {
                self.active.remove(index);
            }
            self.resolved.retain(|known| !is_same(known));
            self.resolved.insert(0, conflict);
            self.resolved.truncate(MAX_RESOLVED);
        } else {
            match index.and_then(|index| self.active.get_mut(index)) {
                Some(known) => *known = conflict,
                None => self.active.insert(0, conflict),
            }
        }
    }

    pub(super) fn active_count(&self) -> usize {
        self.active.len()
    }

    /// Every row, active conflicts first.
    pub(super) fn rows(&self) -> impl Iterator<Item = &ConflictData> {
        self.active.iter().chain(&self.resolved)
    }

    /// Number of rows.
    pub(super) fn len(&self) -> usize {
        self.active.len() + self.resolved.len()
    }

    pub(super) fn row(&self, index: usize) -> Option<&ConflictData> {
        self.rows().nth(index)
    }

    /// Current row index of a conflict.
    pub(super) fn position(&self, id: ConflictId) -> Option<usize> {
        self.rows().position(|conflict| conflict.conflict_id == id)
    }
}
