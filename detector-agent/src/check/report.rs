//! The result of a check as text and as JSON.

use std::{fmt::Write as _, net::IpAddr};

use detector_client::Gap;
use detector_event::{
    AnomalyData, ConflictData, ContractName as _, WallTime, clean,
    explain::{NAMED, incidents},
    guidance::costs_traffic,
    row::{self, Item, duration_text},
    text::{Colour, aligned, reasons},
};
use serde_json::{Value, json};

/// So many groups of findings are shown in full.
const DETAILED: usize = 3;
/// Of more groups, so many are listed.
const LISTED: usize = 12;
/// Width of the claimants in a table.
const CLAIMANTS: usize = 60;

/// What a single look cannot know about a conflict or an anomaly: ids and times.
const UNKNOWN_TO_A_LOOK: [&str; 9] = [
    "conflict_id",
    "anomaly_id",
    "sweep",
    "raised_at",
    "updated_at",
    "latency_us",
    "since",
    "first_seen",
    "last_seen",
];

/// Where findings come from.
#[derive(Debug)]
pub(super) enum Source {
    Agent {
        url: String,
        version: String,
    },
    /// One look at the kernel state, with the reason why no agent answered.
    Kernel {
        no_agent: String,
    },
}

/// What is known about the node.
#[derive(Debug)]
pub(crate) struct Findings {
    pub(crate) node: String,
    pub(super) checked_at: WallTime,
    /// The address that they are about, if only that was asked for.
    pub(super) address: Option<IpAddr>,
    pub(super) source: Source,
    /// Number of pod devices; `None` if the agent does not know them yet.
    pub(super) devices: Option<usize>,
    pub(super) gaps: Vec<Gap>,
    /// What the source never sees, as it is configured.
    pub(super) not_seen: Vec<String>,
    pub(crate) conflicts: Vec<ConflictData>,
    pub(crate) anomalies: Vec<AnomalyData>,
    /// The IPAM sources, with the result of reading each.
    pub(super) ipam: Vec<String>,
    /// Other parts of the agent that do not work, such as a webhook.
    pub(super) impaired: Vec<String>,
}

impl Findings {
    pub(crate) fn incomplete(&self) -> Option<String> {
        let reasons: Vec<&str> = self.gaps.iter().map(|gap| gap.reason.as_str()).collect();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }

    pub(crate) fn json(&self) -> Value {
        let (source, agent, no_agent) = match &self.source {
            Source::Agent { url, version } => {
                let agent = json!({ "url": url, "version": version });
                ("agent", Some(agent), None)
            }
            Source::Kernel { no_agent } => ("kernel", None, Some(no_agent)),
        };
        let mut document = json!({
            "node": self.node,
            "checked_at": self.checked_at,
            "source": source,
            "agent": agent,
            "no_agent_because": no_agent,
            "devices": self.devices,
            "incomplete": self.incomplete(),
            "not_seen": self.not_seen,
            "conflicts": self.conflicts,
            "anomalies": self.anomalies,
            "ipam": self.ipam,
            "impaired": self.impaired,
        });
        if matches!(self.source, Source::Kernel { .. }) {
            for list in ["conflicts", "anomalies"] {
                document.get_mut(list).map(remove_unknown);
            }
        }
        document
    }

    /// Where they come from.
    pub(crate) fn source_text(&self) -> String {
        let node = &self.node;
        match &self.source {
            Source::Agent { url, .. } => format!("the agent on {node} ({url})"),
            Source::Kernel { no_agent } => {
                format!("one look at the kernel state of {node}; {no_agent}")
            }
        }
    }

    /// The groups of findings, [`DETAILED`] of them in full, more as a line each, and of these at most [`LISTED`] unless `all`.
    pub(super) fn text(&self, all: bool, colour: Colour) -> String {
        let mut text = self.head();
        let groups = incidents(&self.conflicts, &self.anomalies);
        if groups.len() > DETAILED && !all {
            self.append_table(&mut text, &row::groups(&self.items()), LISTED);
            text += "\ndetails: check ADDRESS for one, check --all for all\n";
        } else {
            let named = if all { usize::MAX } else { NAMED };
            for group in groups {
                text.push('\n');
                group.append_listed(&mut text, named, self.now(), colour);
            }
        }
        self.append_tail(&mut text);
        text
    }

    /// A line for each finding.
    pub(super) fn wide(&self) -> String {
        let mut text = self.head();
        let items = self.items();
        let rows: Vec<_> = items.iter().map(|item| vec![item]).collect();
        self.append_table(&mut text, &rows, usize::MAX);
        self.append_tail(&mut text);
        text
    }

    /// In the order of their addresses.
    fn items(&self) -> Vec<Item> {
        let conflicts = self.conflicts.iter().cloned().map(Box::new);
        let anomalies = self.anomalies.iter().cloned().map(Box::new);
        let conflicts = conflicts.map(Item::Conflict);
        let mut items: Vec<_> = conflicts.chain(anomalies.map(Item::Anomaly)).collect();
        items.sort_by_key(Item::subject);
        items
    }

    /// When the findings were read; one look knows no times.
    fn now(&self) -> Option<WallTime> {
        matches!(self.source, Source::Agent { .. }).then_some(self.checked_at)
    }

    fn append_table(&self, text: &mut String, groups: &[Vec<&Item>], limit: usize) {
        if groups.is_empty() {
            return;
        }
        let titles = [
            "ADDRESS",
            "KIND",
            "SEVERITY",
            "FOR",
            "CLAIMANTS (→ receives the traffic)",
        ];
        let row = |group: &Vec<&Item>| {
            let first = group.first()?;
            let lasted = self.now().map(|now| duration_text(first.period().0, now));
            Some(vec![
                row::group_address(group),
                first.kind().to_owned(),
                first.severity().contract_name().to_owned(),
                lasted.unwrap_or_else(|| "unknown".to_owned()),
                row::group_claimants(group, CLAIMANTS),
            ])
        };
        let rows = groups.iter().take(limit).filter_map(row);
        let titles = titles.map(str::to_owned).to_vec();
        let rows: Vec<_> = std::iter::once(titles).chain(rows).collect();
        text.push('\n');
        for line in aligned(&rows) {
            // Writing to a string does not fail, here and below.
            let _ = writeln!(text, "{line}");
        }
        let more: usize = groups.iter().skip(limit).map(Vec::len).sum();
        if more > 0 {
            let _ = writeln!(text, "and {more} more findings: check --all");
        }
    }

    /// The first line, where it comes from, and what it lacks.
    fn head(&self) -> String {
        let mut text = self.first_line();
        let mut line = |what: &str, value: &str| {
            let _ = writeln!(text, "{what}: {}", clean(value));
        };
        line("source", &self.source_text());
        for gap in &self.gaps {
            line("incomplete", &gap.reason);
        }
        for what in &self.not_seen {
            line("not seen", what);
        }
        for part in &self.impaired {
            line("not working", part);
        }
        text
    }

    fn append_tail(&self, text: &mut String) {
        let claimants = self
            .conflicts
            .iter()
            .flat_map(|conflict| &conflict.claimants);
        let mut lines: Vec<_> = reasons(claimants.filter(|claimant| !claimant.is_node))
            .into_iter()
            .map(|reason| format!("pod unknown: {reason}"))
            .collect();
        lines.extend(
            self.ipam
                .iter()
                .map(|summary| format!("ipam: {}", clean(summary))),
        );
        if !lines.is_empty() {
            let _ = writeln!(text, "\n{}", lines.join("\n"));
        }
    }

    /// At most 80 bytes, because node-problem-detector shows no more.
    fn first_line(&self) -> String {
        let devices = self.devices.unwrap_or_default();
        let mut line = match (&self.conflicts[..], self.gaps.first(), &self.source) {
            ([one], ..) => format!("1 IP address conflict: {}", one.address),
            ([first, ..], ..) => format!(
                "{} IP address conflicts, first {}",
                self.conflicts.len(),
                first.address
            ),
            ([], Some(gap), _) => format!("inconclusive: {}", gap.headline),
            ([], None, Source::Agent { .. }) => {
                format!("no IP address conflict on {}", pod_devices(devices))
            }
            ([], None, Source::Kernel { .. }) => format!(
                "no IP address conflict in one look at {}",
                pod_devices(devices)
            ),
        };
        let anomalies = anomalies_text(self.anomalies.len());
        let costs_traffic = self.anomalies.iter().any(|a| costs_traffic(a.kind));
        if let (Some(address), [], []) = (self.address, &self.conflicts[..], &self.gaps[..]) {
            return match (self.anomalies.len(), &self.source) {
                (1.., _) if costs_traffic => {
                    format!("{address}: {anomalies}, traffic may be lost\n")
                }
                (1.., _) => format!("{address}: no conflict, {anomalies}\n"),
                (0, Source::Kernel { .. }) => format!("{address}: no conflict (frames not seen)\n"),
                (0, Source::Agent { .. }) => format!("{address}: no conflict\n"),
            };
        }
        if self.conflicts.is_empty() && self.gaps.is_empty() {
            match self.source {
                // The exit code is 0.
                _ if costs_traffic => {
                    line =
                        format!("no IP address conflict, but {anomalies}: pods may lose traffic");
                }
                _ if !self.anomalies.is_empty() => line += &format!(", {anomalies}"),
                Source::Kernel { .. } => line += " (frames not seen)",
                Source::Agent { .. } => {}
            }
        }
        line + "\n"
    }
}

fn pod_devices(count: usize) -> String {
    match count {
        1 => "1 pod device".to_owned(),
        count => format!("{count} pod devices"),
    }
}

fn anomalies_text(count: usize) -> String {
    match count {
        1 => "1 anomaly".to_owned(),
        count => format!("{count} anomalies"),
    }
}

/// Sets to `null` what a single look cannot know.
fn remove_unknown(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(remove_unknown),
        Value::Object(fields) => {
            for (name, value) in fields {
                if UNKNOWN_TO_A_LOOK.contains(&name.as_str()) {
                    *value = Value::Null;
                } else {
                    remove_unknown(value);
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use detector_engine::diagnosis::Cause;
    use detector_event::samples;

    use super::*;

    fn findings(source: Source) -> Findings {
        Findings {
            node: "n".to_owned(),
            address: None,
            checked_at: WallTime::now(),
            source,
            devices: Some(65_536),
            gaps: Vec::new(),
            not_seen: Vec::new(),
            conflicts: Vec::new(),
            anomalies: Vec::new(),
            ipam: Vec::new(),
            impaired: Vec::new(),
        }
    }

    fn agent() -> Source {
        Source::Agent {
            url: "http://127.0.0.1:9842".to_owned(),
            version: "1".to_owned(),
        }
    }

    fn kernel() -> Source {
        Source::Kernel {
            no_agent: "no agent answers".to_owned(),
        }
    }

    #[test]
    fn first_line_fits_80_bytes() {
        let conflict = || samples::raised("ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255").data;
        for source in [agent, kernel] {
            for conflicts in [Vec::new(), vec![conflict()], vec![conflict(); 65_536]] {
                let sweep = samples::sweep("10.0.0.1").data;
                let drift = samples::drift("10.0.0.1").data;
                for anomalies in [Vec::new(), vec![drift; 65_536], vec![sweep; 65_536]] {
                    let findings = Findings {
                        conflicts: conflicts.clone(),
                        anomalies,
                        ..findings(source())
                    };
                    let whole_line = findings.first_line();
                    let of_address = Findings {
                        address: Some(conflict().address),
                        ..findings
                    };
                    for line in [of_address.first_line(), whole_line] {
                        assert!(line.len() <= 81, "{line}: {}", line.len());
                    }
                }
            }
        }
    }

    #[test]
    fn drifts_of_one_cause_are_one_block() {
        let wiped = Arc::new(samples::diagnosis(Cause::IpamStateWiped, 218));
        let drift = |n: u8, diagnosis: Option<&Arc<_>>| AnomalyData {
            diagnosis: diagnosis.cloned(),
            ..samples::drift(&format!("10.0.0.{n}")).data
        };
        let mut anomalies: Vec<_> = (1..=218).map(|n| drift(n, Some(&wiped))).collect();
        anomalies.push(drift(219, None));
        let findings = Findings {
            anomalies,
            ..findings(agent())
        };
        let text = findings.text(false, Colour::Off);
        let blocks: Vec<_> = text.lines().filter(|line| line.contains("drift")).collect();
        assert_eq!(blocks.len(), 2, "{text}");
        assert!(
            blocks[0].starts_with("IPAM drift, 218 addresses: 10.0.0.1, 10.0.0.2, ")
                && blocks[0].ends_with(" and 208 more"),
            "{text}"
        );
        assert_eq!(
            text.matches("\n  cause: ipam_state_wiped (proven): ")
                .count(),
            1
        );
        assert!(text.lines().count() < 20, "{text}");
    }

    #[test]
    fn two_hundred_conflicts_fit_on_one_screen_unless_all_are_wanted() {
        let conflicts = (0..200).map(|n| {
            let mut conflict = samples::raised(&format!("10.0.0.{n}")).data;
            let device = format!("veth-{n}");
            conflict.claimants.push(samples::claimant(&device, None));
            conflict
        });
        let findings = Findings {
            conflicts: conflicts.collect(),
            ..findings(agent())
        };
        let text = findings.text(false, Colour::Off);
        assert!(text.lines().count() < 24, "{text}");
        assert!(
            text.contains("\nand 188 more findings: check --all\n"),
            "{text}"
        );
        let all = findings.text(true, Colour::Off);
        assert_eq!(all.matches("duplicate, certain, critical").count(), 200);
        assert_eq!(
            findings.wide().matches("  duplicate  critical  ").count(),
            200
        );
    }

    #[test]
    fn look_names_its_limits_in_the_first_line() {
        assert_eq!(
            findings(kernel()).first_line(),
            "no IP address conflict in one look at 65536 pod devices (frames not seen)\n"
        );
        assert_eq!(
            findings(agent()).first_line(),
            "no IP address conflict on 65536 pod devices\n"
        );
        let gap = Gap {
            headline: "the agent is not ready yet",
            reason: String::new(),
        };
        let unready = Findings {
            gaps: vec![gap],
            ..findings(agent())
        };
        assert_eq!(
            unready.first_line(),
            "inconclusive: the agent is not ready yet\n"
        );
    }
}
