//! Conflicts as text for a terminal, used by `check`, `watch` and `kubectl ipconflict`.
//!
//! Names of pods and devices are untrusted: they are shown [cleaned](mod@clean).

use std::{collections::BTreeSet, fmt::Write as _};

use detector_engine::{ConflictScope, EvidenceKind, LeaveReason};
use unicode_width::UnicodeWidthStr as _;

use super::{
    AnomalyData, ClaimantData, ConflictData, ContractName as _, DiagnosisData, Guidance,
    SubjectKind, clean,
    summary::{self, scoped_address},
};
use crate::WallTime;

/// If the kernel's answer where it would send a packet names no claimant.
pub const NO_RECEIVER: &str =
    "the node sends its traffic to none of them: no route or no neighbour entry leads to one";

/// Whether to use colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// Plain text.
    Off,
    /// ANSI sequences.
    On,
}

#[derive(Clone, Copy)]
pub(crate) enum Style {
    Alarm,
    Receiver,
    Heading,
    Soft,
}

impl Colour {
    /// Colour only on a terminal that supports it, and never if NO_COLOR is set (<https://no-color.org>).
    #[must_use]
    pub fn for_output(output: &impl std::io::IsTerminal) -> Self {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        if output.is_terminal() && !set("NO_COLOR") && !dumb {
            Self::On
        } else {
            Self::Off
        }
    }

    pub(crate) fn paint(self, style: Style, text: &str) -> String {
        let code = match style {
            Style::Alarm => "1;31",
            Style::Receiver => "1;36",
            Style::Heading => "2",
            Style::Soft => "2",
        };
        match self {
            Self::On => format!("\x1b[{code}m{text}\x1b[0m"),
            Self::Off => text.to_owned(),
        }
    }
}

/// The address, with its network unless that is `node`, and its VLAN.
#[must_use]
pub fn address(conflict: &ConflictData) -> String {
    clean(&scoped_address(conflict)).into_owned()
}

/// The claimant's pod, `the node`, or `unknown`; a table has the device in another column.
#[must_use]
pub fn pod(claimant: &ClaimantData) -> String {
    match &claimant.pod {
        Some(pod) => clean(&format!("{}/{}", pod.namespace, pod.name)).into_owned(),
        None if claimant.is_node => clean(&format!("the node ({})", claimant.node)).into_owned(),
        None => "unknown".to_owned(),
    }
}

/// The claimant in a line, in which nothing else names its device.
#[must_use]
pub fn claimant(scope: ConflictScope, claimant: &ClaimantData) -> String {
    clean(&summary::claimant(scope, claimant)).into_owned()
}

/// The anomaly's pod in parentheses; empty if it is unknown.
#[must_use]
pub fn pod_suffix(anomaly: &AnomalyData) -> String {
    let pod = anomaly.pod.as_ref();
    let text = pod.map(|pod| format!(" (pod {}/{})", pod.namespace, pod.name));
    clean(&text.unwrap_or_default()).into_owned()
}

/// The claimant's device, and the bridge it is a port of; in the fleet, its node.
#[must_use]
pub fn device(scope: ConflictScope, claimant: &ClaimantData) -> String {
    match &claimant.master {
        Some(master) => format!("{} on {}", clean(&claimant.device), clean(master)),
        None => clean(&summary::device(scope, claimant)).into_owned(),
    }
}

/// The claimant's evidence, each kind once.
#[must_use]
pub fn evidence(claimant: &ClaimantData) -> String {
    let mut kinds: Vec<String> = Vec::new();
    for one in &claimant.evidence {
        let name = match one.kind {
            EvidenceKind::Address => "assigned",
            EvidenceKind::Arp => "ARP",
            EvidenceKind::Ndp => "NDP",
            EvidenceKind::Neighbour => "neighbour",
        };
        let text = match &one.detail {
            Some(detail) => format!("{name} {detail}"),
            None => name.to_owned(),
        };
        let text = clean(&text).into_owned();
        if !kinds.contains(&text) {
            kinds.push(text);
        }
    }
    if kinds.is_empty() {
        "none".to_owned()
    } else {
        kinds.join(", ")
    }
}

/// Whether the node's traffic for the address goes to this claimant.
#[must_use]
pub fn receives_traffic(conflict: &ConflictData, claimant: &ClaimantData) -> bool {
    claimant.left.is_none() && conflict.traffic_goes_to.as_deref() == Some(claimant.device.as_str())
}

/// Why a claimant left: `left: device removed`.
#[must_use]
pub fn left(reason: LeaveReason) -> String {
    format!("left: {}", reason.name().replace('_', " "))
}

/// Which columns a table of claimants has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimants {
    /// Without times.
    Plain,
    /// With the time since when each claims the address.
    WithSince,
}

/// Appends one conflict: a heading and a table of its claimants, with the one that receives the traffic marked.
pub fn conflict_table(
    out: &mut String,
    conflict: &ConflictData,
    columns: Claimants,
    colour: Colour,
) {
    let heading = colour.paint(Style::Alarm, &address(conflict));
    // Writing to a string does not fail, here and below.
    let _ = writeln!(
        out,
        "{heading}  {}, {}, {}",
        conflict.kind.name(),
        conflict.confidence.name(),
        SubjectKind::Conflict(conflict.kind)
            .severity()
            .contract_name()
    );
    let claimants: Vec<&ClaimantData> = conflict.claimants.iter().collect();
    claimant_table(out, &claimants, Some(conflict), columns, colour);
    if conflict.claimants_omitted > 0 {
        let _ = writeln!(out, "    and {} more", conflict.claimants_omitted);
    }
    let note = match (conflict.scope, &conflict.traffic_goes_to) {
        (ConflictScope::Fleet, _) => "the claimants are on several nodes",
        (ConflictScope::Node, Some(_)) => "→ receives the node's traffic for the address",
        (ConflictScope::Node, None) => NO_RECEIVER,
    };
    let _ = writeln!(out, "  {}", colour.paint(Style::Soft, note));
}

/// Appends a table of claimants; `conflict` is the one that they are part of.
pub fn claimant_table(
    out: &mut String,
    claimants: &[&ClaimantData],
    conflict: Option<&ConflictData>,
    columns: Claimants,
    colour: Colour,
) {
    let is_receiver =
        |claimant: &ClaimantData| conflict.is_some_and(|c| receives_traffic(c, claimant));
    let scope = conflict.map_or(ConflictScope::Node, |c| c.scope);
    // Without any known pod the column is omitted; the reasons are listed elsewhere.
    let names_pods = claimants.iter().any(|c| c.pod.is_some() || c.is_node);
    let with_since = columns == Claimants::WithSince;
    let titles = [
        Some(""),
        names_pods.then_some("POD"),
        Some("DEVICE"),
        Some("MAC"),
        with_since.then_some("SINCE"),
        Some("EVIDENCE"),
    ];
    let mut rows: Vec<Vec<String>> =
        vec![titles.into_iter().flatten().map(str::to_owned).collect()];
    for claimant in claimants {
        let mark = if is_receiver(claimant) { "→" } else { "" };
        let mac = claimant
            .mac
            .map_or_else(|| "unknown".to_owned(), |mac| mac.to_string());
        let role = conflict.and_then(|conflict| conflict.mark(claimant));
        let role = role.map(|role| format!(" ({role})")).unwrap_or_default();
        let (mut pod, mut device) = (pod(claimant), device(scope, claimant));
        if claimant.pod.is_some() {
            pod += &role;
        } else {
            device += &*role;
        }
        let cells = [
            Some(mark.to_owned()),
            names_pods.then_some(pod),
            Some(device),
            Some(mac),
            with_since.then(|| seconds_text(claimant.since)),
            Some(match claimant.left {
                Some(reason) => left(reason),
                None => evidence(claimant),
            }),
        ];
        rows.push(cells.into_iter().flatten().collect());
    }
    for (number, line) in aligned(&rows).into_iter().enumerate() {
        let style = match number.checked_sub(1).and_then(|n| claimants.get(n)) {
            None => Some(Style::Heading),
            Some(claimant) if is_receiver(claimant) => Some(Style::Receiver),
            Some(claimant) if claimant.left.is_some() => Some(Style::Soft),
            Some(_) => None,
        };
        let line = style.map_or_else(|| line.clone(), |style| colour.paint(style, &line));
        let _ = writeln!(out, "  {line}");
    }
}

/// Appends what an anomaly is, and of whom.
pub(crate) fn anomaly_heading(out: &mut String, anomaly: &AnomalyData, colour: Colour) {
    let heading = colour.paint(Style::Alarm, anomaly.kind.name());
    let severity = SubjectKind::Anomaly(anomaly.kind).severity();
    let _ = writeln!(out, "{heading}  {}", severity.contract_name());
    let detail = clean(&anomaly.detail);
    let _ = writeln!(out, "  {detail}{}", pod_suffix(anomaly));
}

/// Appends one anomaly, with its cause, next step and runbook.
pub fn anomaly_lines(out: &mut String, anomaly: &AnomalyData) {
    anomaly_heading(out, anomaly, Colour::Off);
    cause_line(out, anomaly.diagnosis.as_deref());
    guidance_lines(out, anomaly.guidance.as_ref());
}

/// Appends the cause, if it is known.
pub fn cause_line(out: &mut String, diagnosis: Option<&DiagnosisData>) {
    if let Some(cause) = diagnosis.and_then(DiagnosisData::cause_text) {
        let _ = writeln!(out, "  cause: {}", clean(&cause));
    }
}

/// Appends the effect on traffic, the next step and the runbook.
pub(crate) fn guidance_lines(out: &mut String, guidance: Option<&Guidance>) {
    if let Some(guidance) = guidance {
        if let Some(effect) = &guidance.effect {
            let _ = writeln!(out, "  effect: {}", clean(effect));
        }
        let _ = writeln!(out, "  next: {}", clean(&guidance.next_step));
        let _ = writeln!(out, "  runbook: {}", clean(&guidance.runbook_url));
    }
}

/// A time in UTC to the second, or `unknown`.
#[must_use]
pub fn seconds_text(time: Option<WallTime>) -> String {
    time.map_or_else(|| "unknown".to_owned(), WallTime::to_seconds_text)
}

/// Why pods are unknown, each reason once.
#[must_use]
pub fn reasons<'c>(claimants: impl Iterator<Item = &'c ClaimantData>) -> BTreeSet<String> {
    claimants
        .filter_map(|claimant| claimant.pod_unknown_because.as_deref())
        .map(|reason| clean(reason).into_owned())
        .collect()
}

/// Rows with every column as wide as its widest cell.
#[must_use]
pub fn aligned(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            let cells = rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.width()).max().unwrap_or(0)
        })
        .collect();
    rows.iter()
        .map(|row| {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                line.push_str(cell);
                line.extend(std::iter::repeat_n(' ', width - cell.width() + 2));
            }
            line.trim_end().to_owned()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use detector_engine::Network;

    use super::*;
    use crate::{Change, samples};

    fn claimant(device: &str, pod: Option<&str>) -> ClaimantData {
        samples::claimant(device, pod)
    }

    fn conflict(claimants: Vec<ClaimantData>) -> ConflictData {
        ConflictData {
            traffic_goes_to: Some("vethb".to_owned()),
            claimants,
            ..samples::event("1", Change::Raised, "1", "10.0.0.1").data
        }
    }

    #[test]
    fn claimants_are_aligned_and_the_traffic_receiver_is_marked() {
        let mut text = String::new();
        let claimants = vec![
            claimant("veth-long-name", Some("web-0")),
            claimant("vethb", None),
        ];
        conflict_table(
            &mut text,
            &conflict(claimants),
            Claimants::Plain,
            Colour::Off,
        );
        assert_eq!(
            text,
            "10.0.0.1  duplicate, certain, critical\n\
             \x20    POD            DEVICE          MAC                EVIDENCE\n\
             \x20    default/web-0  veth-long-name  02:00:00:00:00:01  assigned\n\
             \x20 →  unknown        vethb           02:00:00:00:00:01  assigned\n\
             \x20 → receives the node's traffic for the address\n"
        );
    }

    #[test]
    fn heading_names_a_network_other_than_the_nodes() {
        let mut text = String::new();
        let conflict = ConflictData {
            network: Network::Vrf("red".to_owned()),
            ..conflict(vec![claimant("vethb", None)])
        };
        conflict_table(&mut text, &conflict, Claimants::Plain, Colour::Off);
        assert!(
            text.starts_with("10.0.0.1 (vrf:red)  duplicate, certain, critical\n"),
            "{text}"
        );
    }

    #[test]
    fn names_cannot_steer_the_terminal() {
        let mut text = String::new();
        let conflict = ConflictData {
            network: Network::Bridge("br\x1b[2J\n".to_owned()),
            ..conflict(vec![claimant("\x1b[2Jveth\n", Some("web\x07\u{9b}1m"))])
        };
        conflict_table(&mut text, &conflict, Claimants::Plain, Colour::Off);
        assert!(
            !text.chars().any(|c| c.is_control() && c != '\n'),
            "{text:?}"
        );
        assert_eq!(text.lines().count(), 4);
    }

    #[test]
    fn colour_is_used_only_if_it_is_on() {
        for (colour, has) in [(Colour::On, true), (Colour::Off, false)] {
            let mut text = String::new();
            let conflict = conflict(vec![claimant("vethb", None)]);
            conflict_table(&mut text, &conflict, Claimants::WithSince, colour);
            assert_eq!(text.contains('\x1b'), has);
        }
    }
}
