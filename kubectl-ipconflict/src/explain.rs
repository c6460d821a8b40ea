//! Why the conflicts and anomalies of all nodes are there, node by node.

use std::{fmt::Write as _, net::IpAddr};

use detector_client::Overview;
use detector_event::{clean, explain::incidents, text::Colour};
use serde_json::{Value, json};

use super::{ask::ClusterAnswers, report::Report};

/// What all agents know, with diagnoses and timelines.
pub(super) struct Explained {
    /// All, or only what is about this one.
    address: Option<IpAddr>,
    asked: ClusterAnswers,
}

impl Explained {
    pub(super) fn new(address: Option<IpAddr>, asked: ClusterAnswers) -> Self {
        Self { address, asked }
    }

    fn overviews(&self) -> impl Iterator<Item = &Overview> {
        let answers = self.asked.nodes.iter();
        let answers = answers.filter_map(|node| node.answer.as_ref().ok());
        answers.map(|answer| &answer.overview)
    }

    fn conflicts(&self) -> usize {
        self.overviews().map(|found| found.conflicts.len()).sum()
    }
}

impl Report for Explained {
    fn json(&self) -> Value {
        let mut document = self.asked.json();
        let conflicts: Vec<_> = self
            .overviews()
            .flat_map(|found| &found.conflicts)
            .collect();
        let anomalies: Vec<_> = self
            .overviews()
            .flat_map(|found| &found.anomalies)
            .collect();
        document["conflicts"] = json!(conflicts);
        document["anomalies"] = json!(anomalies);
        document
    }

    fn text(&self, colour: Colour) -> String {
        let anomalies = self.overviews().map(|found| found.anomalies.len()).sum();
        let on = self.overviews().filter(|found| !found.conflicts.is_empty());
        let mut text = self
            .asked
            .first_line((self.conflicts(), anomalies), on.count())
            + "\n";
        self.asked.append_gaps(&mut text);
        for found in self.overviews() {
            let incidents = incidents(&found.conflicts, &found.anomalies);
            if incidents.is_empty() {
                continue;
            }
            // Writing to a string does not fail.
            let _ = writeln!(text, "\nnode {}", clean(&found.node));
            for incident in incidents {
                incident.append_to(&mut text, self.address, colour);
            }
        }
        text
    }

    fn exit_code(&self) -> u8 {
        self.asked.exit_code(self.conflicts())
    }
}
