//! The state behind the table: active conflicts, open anomalies, and the most recently resolved conflicts.

use std::collections::HashSet;

use detector_client::Overview;
use detector_event::{
    SubjectId,
    guidance::Severity,
    row::{Item, few_groups},
};

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

/// What a table is sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    /// Sweeps, then the most severe, each newest first.
    #[default]
    Severity,
    Newest,
    Address,
}

impl Sort {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Severity => "severity",
            Self::Newest => "newest",
            Self::Address => "address",
        }
    }

    pub(super) fn next(self) -> Self {
        match self {
            Self::Severity => Self::Newest,
            Self::Newest => Self::Address,
            Self::Address => Self::Severity,
        }
    }
}

/// Which rows a table has, and in which order.
#[derive(Debug)]
pub(super) struct RowOptions {
    /// Words that every row has to contain.
    pub(super) filter: String,
    pub(super) sort: Sort,
    /// Items that belong together are one row.
    pub(super) is_grouped: bool,
    /// The first items of groups whose items have a row each.
    pub(super) expanded: HashSet<SubjectId>,
    pub(super) hides_ended: bool,
}

impl Default for RowOptions {
    fn default() -> Self {
        Self {
            filter: String::new(),
            sort: Sort::default(),
            is_grouped: true,
            expanded: HashSet::new(),
            hides_ended: false,
        }
    }
}

/// A row of the table.
#[derive(Debug)]
pub(super) struct Row<'a> {
    /// The items that it stands for, at least one.
    pub(super) items: Vec<&'a Item>,
    /// Whether it follows the first row of an expanded group.
    pub(super) is_member: bool,
}

impl<'a> Row<'a> {
    pub(super) fn first(&self) -> Option<&'a Item> {
        self.items.first().copied()
    }

    pub(super) fn contains(&self, id: SubjectId) -> bool {
        self.items.iter().any(|item| item.id() == id)
    }
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

    /// The rows of the open items that contain every word of the filter, then of the ended conflicts.
    pub(super) fn rows(&self, options: &RowOptions) -> Vec<Row<'_>> {
        let filter = options.filter.to_lowercase();
        let words: Vec<&str> = filter.split_whitespace().collect();
        let is_wanted = |item: &&Item| item.matches(&words);
        let open = self.active.iter().chain(&self.anomalies).filter(is_wanted);
        let mut groups: Vec<Vec<&Item>> = match options.is_grouped {
            true => few_groups(open),
            false => open.map(|item| vec![item]).collect(),
        };
        match options.sort {
            Sort::Severity => {}
            Sort::Newest => groups.sort_by_key(|group| {
                let raised = group.iter().map(|item| item.period().0).max();
                std::cmp::Reverse(raised)
            }),
            Sort::Address => {
                groups.sort_by_key(|group| group.iter().map(|item| item.subject()).min());
            }
        }
        let mut rows = Vec::new();
        for items in groups {
            let first = items.first().map(|item| item.id());
            if items.len() > 1 && first.is_some_and(|id| options.expanded.contains(&id)) {
                rows.extend(items.into_iter().enumerate().map(|(n, item)| Row {
                    items: vec![item],
                    is_member: n > 0,
                }));
            } else {
                rows.push(Row {
                    items,
                    is_member: false,
                });
            }
        }
        let ended = self.resolved.iter().filter(is_wanted);
        rows.extend(ended.filter(|_| !options.hides_ended).map(|item| Row {
            items: vec![item],
            is_member: false,
        }));
        rows
    }

    pub(super) fn find(&self, id: SubjectId) -> Option<&Item> {
        let all = self.active.iter().chain(&self.anomalies);
        all.chain(&self.resolved).find(|item| item.id() == id)
    }
}
