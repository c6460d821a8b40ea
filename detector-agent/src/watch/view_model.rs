//! The state behind the table: active conflicts, open anomalies, and the most recently resolved conflicts.

use detector_client::Overview;
use detector_event::{SubjectId, guidance::Severity, row::Item};

use super::Update;

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
    /// Newest first, as the other two.
    active: Vec<Item>,
    anomalies: Vec<Item>,
    resolved: Vec<Item>,
}

impl ViewModel {
    pub(super) fn new(overview: Overview) -> Self {
        let mut model = Self {
            node: String::new(),
            ready: false,
            connection: ConnectionState::Live,
            active: Vec::new(),
            anomalies: Vec::new(),
            resolved: Vec::new(),
        };
        model.replace(overview);
        model
    }

    fn replace(&mut self, overview: Overview) {
        let conflict = |conflict| Item::Conflict(Box::new(conflict));
        self.node = overview.node;
        self.ready = overview.ready;
        self.connection = ConnectionState::Live;
        self.active = overview.conflicts.into_iter().rev().map(conflict).collect();
        let anomalies = overview.anomalies.into_iter().rev();
        self.anomalies = anomalies.map(|a| Item::Anomaly(Box::new(a))).collect();
        self.resolved = overview.resolved.into_iter().map(conflict).collect();
    }

    pub(super) fn apply(&mut self, update: Update) {
        match update {
            Update::Overview(overview) => self.replace(*overview),
            Update::Disconnected(reason) => self.connection = ConnectionState::Lost(reason),
            Update::Anomaly(event) => self.update(Item::Anomaly(Box::new(event.data))),
            Update::Conflict(event) => self.update(Item::Conflict(Box::new(event.data))),
        }
    }

    fn update(&mut self, item: Item) {
        self.connection = ConnectionState::Live;
        let open = match &item {
            Item::Conflict(_) => &mut self.active,
            Item::Anomaly(_) => &mut self.anomalies,
        };
        let index = open.iter().position(|known| known.id() == item.id());
        if !item.is_resolved() {
            match index.and_then(|index| open.get_mut(index)) {
                Some(known) => *known = item,
                None => open.insert(0, item),
            }
            return;
        }
        if let Some(index) = index {
            open.remove(index);
        }
        if let Item::Conflict(_) = item {
            self.resolved.retain(|known| known.id() != item.id());
            self.resolved.insert(0, item);
            self.resolved.truncate(MAX_RESOLVED);
        }
    }

    /// How urgent the most urgent open item is.
    pub(super) fn severity(&self) -> Option<Severity> {
        let open = self.active.iter().chain(&self.anomalies);
        open.map(Item::severity).max()
    }

    pub(super) fn active_count(&self) -> usize {
        self.active.len()
    }

    pub(super) fn anomaly_count(&self) -> usize {
        self.anomalies.len()
    }

    /// Number of items, whatever the filter.
    pub(super) fn len(&self) -> usize {
        self.active.len() + self.anomalies.len() + self.resolved.len()
    }

    /// The items that contain every word of `filter`: active conflicts, anomalies, resolved conflicts.
    pub(super) fn items<'a>(&'a self, filter: &str) -> Vec<&'a Item> {
        let filter = filter.to_lowercase();
        let words: Vec<&str> = filter.split_whitespace().collect();
        let all = self.active.iter().chain(&self.anomalies);
        let all = all.chain(&self.resolved);
        all.filter(|item| item.matches(&words)).collect()
    }

    pub(super) fn find(&self, id: SubjectId) -> Option<&Item> {
        let all = self.active.iter().chain(&self.anomalies);
        all.chain(&self.resolved).find(|item| item.id() == id)
    }
}
