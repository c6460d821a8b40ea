//! What ended on all nodes.

use std::{cmp::Reverse, collections::HashSet};

use detector_event::{
    answers::HistoryList,
    counted,
    history::{MAX_ROWS, ended_headline, ended_table},
    row::Item,
    text::Colour,
};
use serde_json::{Value, json};

use super::{
    args::Output,
    ask::ClusterAnswers,
    report::{Report, append_reasons},
};

/// The most entries of a node in the JSON form.
const MAX_ENTRIES: usize = 1_000;

/// How many entries of each node are asked for.
pub(super) fn limit(output: Output) -> usize {
    match output {
        Output::Table => MAX_ROWS,
        Output::Json => MAX_ENTRIES,
    }
}

/// What all agents know of what ended.
pub(super) struct Ended {
    asked: ClusterAnswers,
    /// Newest first, each once: several nodes know a conflict between them.
    items: Vec<Item>,
    /// Some agents have older ones.
    has_more: bool,
}

impl Ended {
    pub(super) fn new(mut asked: ClusterAnswers) -> Self {
        let answers = asked
            .nodes
            .iter_mut()
            .filter_map(|n| n.answer.as_mut().ok());
        let lists: Vec<HistoryList> = answers.filter_map(|a| a.history.take()).collect();
        let has_more = lists.iter().any(|list| list.end.next.is_some());
        let mut items: Vec<Item> = lists.into_iter().flat_map(|list| list.history).collect();
        items.sort_by_key(|item| Reverse(item.period().1));
        let mut known = HashSet::new();
        items.retain(|item| known.insert(item.id()));
        Self {
            asked,
            items,
            has_more,
        }
    }
}

impl Report for Ended {
    fn json(&self) -> Value {
        let mut document = self.asked.json_with(self.asked.unanswered());
        document["history"] = json!(self.items);
        document["has_older"] = self.has_more.into();
        document
    }

    fn text(&self, _: Colour) -> String {
        let shown = &self.items[..self.items.len().min(MAX_ROWS)];
        let has_more = self.has_more || shown.len() < self.items.len();
        let nodes = counted(self.asked.total(), "node", "nodes");
        let answered = self.asked.answered();
        let found = ended_headline(shown, has_more);
        let mut text = format!("{found}; {answered} of {nodes} asked\n");
        append_reasons(&mut text, "incomplete", &self.asked.unanswered());
        self.asked.append_nodes_unknown(&mut text);
        ended_table(&mut text, shown);
        if has_more {
            text += "\nolder ones: -o json\n";
        }
        text
    }

    fn exit_code(&self) -> u8 {
        if self.asked.unanswered().is_empty() {
            0
        } else {
            2
        }
    }
}
