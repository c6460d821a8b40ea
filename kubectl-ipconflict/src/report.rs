//! What all kinds of results share: which nodes were asked, and what is not known.

use std::{collections::BTreeMap, fmt::Write as _};

use detector_event::{PartReport, Role, clean, counted, text::Colour};
use serde_json::{Value, json};

use super::ask::{ClusterAnswers, NodeAnswer};

/// A result that can be printed.
pub(super) trait Report {
    fn json(&self) -> Value;
    fn text(&self, colour: Colour) -> String;
    fn exit_code(&self) -> u8;
}

impl ClusterAnswers {
    /// The nodes whose agent answered.
    pub(super) fn answered(&self) -> usize {
        self.nodes.iter().filter(|node| node.answer.is_ok()).count()
    }

    /// All nodes: asked, and without an agent.
    pub(super) fn total(&self) -> usize {
        self.nodes.len() + self.nodes_without.len()
    }

    /// The nodes without an answer, by the reason.
    pub(super) fn unanswered(&self) -> BTreeMap<String, Vec<&str>> {
        let mut unanswered: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for NodeAnswer { agent, answer } in &self.nodes {
            if let Err(reason) = answer {
                let reason = format!("could not be asked: {reason}");
                unanswered.entry(reason).or_default().push(&agent.node);
            }
        }
        for node in &self.nodes_without {
            let reason = "no agent runs there".to_owned();
            unanswered.entry(reason).or_default().push(node);
        }
        unanswered
    }

    /// Why conflicts may exist that are not known, with the nodes that each reason applies to.
    pub(super) fn gaps(&self) -> BTreeMap<String, Vec<&str>> {
        let mut gaps = self.unanswered();
        for NodeAnswer { agent, answer } in &self.nodes {
            // A node without pods is no gap; a cluster without pods is one.
            for gap in answer.iter().flat_map(|answer| answer.status.gaps()) {
                gaps.entry(gap.reason).or_default().push(&agent.node);
            }
        }
        if self.answered() > 0 && self.devices() == 0 {
            let answered = self.nodes.iter().filter(|node| node.answer.is_ok());
            let nodes = answered.map(|node| node.agent.node.as_str());
            gaps.insert("there is no pod device".to_owned(), nodes.collect());
        }
        gaps
    }

    /// The pod devices of all nodes.
    pub(super) fn devices(&self) -> usize {
        let answers = self
            .nodes
            .iter()
            .filter_map(|node| node.answer.as_ref().ok());
        answers.filter_map(|answer| answer.status.devices).sum()
    }

    /// The part of a first line about the nodes without a complete answer.
    pub(super) fn gap_headline(&self) -> Option<String> {
        let silent = self.total() - self.answered();
        let nodes = counted(self.total(), "node", "nodes");
        if silent > 0 {
            return Some(format!("{silent} of {nodes} could not be asked"));
        }
        let gaps = self.gaps();
        let mut seen_in_part: Vec<_> = gaps.values().flatten().collect();
        seen_in_part.sort_unstable();
        seen_in_part.dedup();
        (!gaps.is_empty()).then(|| {
            format!(
                "not everything is seen on {} of {nodes}",
                seen_in_part.len()
            )
        })
    }

    /// The first line of a result: how many conflicts and anomalies were found, and on how many nodes the conflicts are.
    pub(super) fn first_line(&self, (conflicts, anomalies): (usize, usize), on: usize) -> String {
        let nodes = counted(self.total(), "node", "nodes");
        let anomalies = match anomalies {
            0 => String::new(),
            count => format!(", {}", counted(count, "anomaly", "anomalies")),
        };
        match (conflicts, self.gap_headline()) {
            (0, Some(gap)) => format!("inconclusive: no conflict is known, but {gap}{anomalies}"),
            (0, None) => {
                let devices = counted(self.devices(), "pod device", "pod devices");
                format!("no IP address conflict on {devices} of {nodes}{anomalies}")
            }
            (count, _) => {
                let conflicts = counted(count, "IP address conflict", "IP address conflicts");
                format!("{conflicts} on {on} of {nodes}{anomalies}")
            }
        }
    }

    /// The exit code for this number of conflicts.
    pub(super) fn exit_code(&self, conflicts: usize) -> u8 {
        match (conflicts, self.gaps().is_empty()) {
            (0, true) => 0,
            (0, false) => 2,
            _ => 1,
        }
    }

    /// One line for each gap, and for what else does not work.
    pub(super) fn append_gaps(&self, text: &mut String) {
        append_reasons(text, "incomplete", &self.gaps());
        append_reasons(text, "not working", &self.impaired());
        self.append_nodes_unknown(text);
    }

    /// A line if nodes without an agent are not known.
    pub(super) fn append_nodes_unknown(&self, text: &mut String) {
        if let Some(reason) = &self.nodes_unknown {
            let _ = writeln!(
                text,
                "not seen: nodes without an agent; the nodes cannot be listed: {}",
                clean(reason)
            );
        }
    }

    /// Other parts of agents that do not work, such as a webhook, with the nodes.
    fn impaired(&self) -> BTreeMap<String, Vec<&str>> {
        let mut impaired: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for node in &self.nodes {
            let parts = node.answer.iter().flat_map(|answer| &answer.status.parts);
            let parts = parts.filter(|part| part.role != Role::Source && part.is_impaired());
            for part in parts.map(PartReport::line) {
                impaired.entry(part).or_default().push(&node.agent.node);
            }
        }
        impaired
    }

    /// The nodes, and what is not known.
    pub(super) fn json(&self) -> Value {
        self.json_with(self.gaps())
    }

    /// The same with these gaps.
    pub(super) fn json_with(&self, gaps: BTreeMap<String, Vec<&str>>) -> Value {
        let nodes: Vec<Value> = self.nodes.iter().map(node_json).collect();
        let incomplete: Vec<Value> = gaps
            .into_iter()
            .map(|(reason, nodes)| json!({ "reason": reason, "nodes": nodes }))
            .collect();
        json!({
            "checked_at": detector_event::WallTime::now(),
            "nodes": nodes,
            "nodes_without_agent": self.nodes_without,
            "nodes_unknown_because": self.nodes_unknown,
            "incomplete": incomplete,
        })
    }
}

/// One line for each reason, with its nodes.
pub(super) fn append_reasons(text: &mut String, what: &str, reasons: &BTreeMap<String, Vec<&str>>) {
    for (reason, nodes) in reasons {
        let count = counted(nodes.len(), "node", "nodes");
        let nodes = nodes.join(", ");
        // Writing to a string does not fail, here and below.
        let _ = writeln!(
            text,
            "{what}: {count} ({}): {}",
            clean(&nodes),
            clean(reason)
        );
    }
}

fn node_json(node: &NodeAnswer) -> Value {
    let status = node.answer.as_ref().ok().map(|answer| &answer.status);
    json!({
        "node": node.agent.node,
        "pod": { "namespace": node.agent.namespace, "name": node.agent.pod },
        "error": node.answer.as_ref().err(),
        "version": status.map(|status| &status.version),
        "ready": status.map(|status| status.ready),
        "devices": status.and_then(|status| status.devices),
    })
}
