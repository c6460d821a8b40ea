//! The conflicts and anomalies of all nodes.

use std::{collections::BTreeSet, fmt::Write as _};

use detector_event::{
    WallTime, clean, counted,
    row::{Item, claimants, duration_text},
    text::{Colour, aligned},
};
use serde_json::Value;

use super::{ask::ClusterAnswers, report::Report};

/// Width of the claimants in the table; names beyond it are shortened or counted.
const CLAIMANTS: usize = 96;

/// What all agents know.
pub(super) struct Conflicts {
    asked: ClusterAnswers,
    /// Newest first.
    conflicts: Vec<Item>,
    /// Newest first.
    anomalies: Vec<Item>,
}

impl Conflicts {
    pub(super) fn new(mut asked: ClusterAnswers) -> Self {
        let (mut conflicts, mut anomalies) = (Vec::new(), Vec::new());
        for answer in asked
            .nodes
            .iter_mut()
            .filter_map(|node| node.answer.as_mut().ok())
        {
            let overview = &mut answer.overview;
            let found = overview.conflicts.drain(..).map(Box::new);
            conflicts.extend(found.map(Item::Conflict));
            let found = overview.anomalies.drain(..).map(Box::new);
            anomalies.extend(found.map(Item::Anomaly));
        }
        for list in [&mut conflicts, &mut anomalies] {
            list.sort_by_key(|item| std::cmp::Reverse(item.period().0));
        }
        Self {
            asked,
            conflicts,
            anomalies,
        }
    }

    fn append_table(&self, text: &mut String) {
        let now = WallTime::now();
        // An address sweep stands for its conflicts.
        let is_listed = |item: &&Item| !matches!(item, Item::Conflict(c) if c.sweep.is_some());
        let conflicts = self.conflicts.iter().filter(is_listed);
        let items: Vec<&Item> = conflicts.chain(&self.anomalies).collect();
        if !items.is_empty() {
            let titles = [
                "ADDRESS",
                "NODE",
                "KIND",
                "CONFIDENCE",
                "FOR",
                "CLAIMANTS (→ receives the traffic)",
            ];
            let row = |item: &&Item| {
                vec![
                    item.address(),
                    clean(item.node()).into_owned(),
                    item.kind().to_owned(),
                    item.confidence().to_owned(),
                    duration_text(item.period().0, now),
                    claimants(item, CLAIMANTS),
                ]
            };
            let titles = titles.map(str::to_owned).to_vec();
            let rows: Vec<_> = std::iter::once(titles)
                .chain(items.iter().map(row))
                .collect();
            text.push('\n');
            for line in aligned(&rows) {
                let _ = writeln!(text, "{line}");
            }
        }
        let swept = self.conflicts.len() - self.conflicts.iter().filter(is_listed).count();
        if swept > 0 {
            let conflicts = counted(swept, "conflict", "conflicts");
            let _ = writeln!(text, "and {conflicts} that are part of an address sweep");
        }
    }

    fn append_next(&self, text: &mut String) {
        let items = self.conflicts.iter().chain(&self.anomalies);
        let runbooks: BTreeSet<&str> = items
            .filter_map(|item| item.guidance())
            .map(|guidance| guidance.runbook_url.as_str())
            .collect();
        if let Some(first) = self.conflicts.first() {
            let address = first.subject();
            let _ = writeln!(
                text,
                "\nevidence and next step: kubectl ipconflict who-has {address}"
            );
        }
        for runbook in runbooks {
            let _ = writeln!(text, "runbook: {}", clean(runbook));
        }
    }
}

impl Report for Conflicts {
    fn json(&self) -> Value {
        let mut document = self.asked.json();
        let list = |items: &[Item]| items.iter().map(Item::to_json).collect::<Value>();
        document["conflicts"] = list(&self.conflicts);
        document["anomalies"] = list(&self.anomalies);
        document
    }

    fn text(&self, _: Colour) -> String {
        let on: BTreeSet<_> = self.conflicts.iter().map(Item::node).collect();
        let found = (self.conflicts.len(), self.anomalies.len());
        let mut text = self.asked.first_line(found, on.len()) + "\n";
        self.asked.append_gaps(&mut text);
        self.append_table(&mut text);
        self.append_next(&mut text);
        text
    }

    fn exit_code(&self) -> u8 {
        self.asked.exit_code(self.conflicts.len())
    }
}
