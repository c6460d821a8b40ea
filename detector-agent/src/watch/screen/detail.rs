//! The details of one conflict or anomaly.

use detector_engine::ConflictScope;
use detector_event::{
    AnomalyData, ClaimantData, ConflictData, DiagnosisData, Guidance, clean, row::Item, text,
};
use ratatui::{
    style::{Modifier, Style},
    text::{Line, Span},
};

/// `highlight` is for the claimant that receives the traffic.
pub(super) fn lines(item: &Item, highlight: Style) -> Vec<Line<'static>> {
    let (from, until) = item.period();
    let period = match until {
        Some(end) => format!(
            "from {} to {}",
            from.to_seconds_text(),
            end.to_seconds_text()
        ),
        None => format!("since {}", from.to_seconds_text()),
    };
    let mut lines = Vec::new();
    match item {
        Item::Conflict(conflict) => conflict_lines(&mut lines, conflict, period, highlight),
        Item::Anomaly(anomaly) => anomaly_lines(&mut lines, anomaly, period),
    }
    lines
}

fn conflict_lines(
    lines: &mut Vec<Line<'static>>,
    conflict: &ConflictData,
    period: String,
    highlight: Style,
) {
    lines.push(Line::from(format!(
        "{}, {}, {}",
        conflict.kind.name(),
        conflict.confidence.name(),
        conflict.state.name()
    )));
    lines.push(Line::from(period));
    match (conflict.scope, &conflict.traffic_goes_to) {
        (ConflictScope::Fleet, _) => lines.push(Line::from("the claimants are on several nodes")),
        (ConflictScope::Node, None) => {
            lines.push(Line::from(text::NO_RECEIVER));
        }
        (ConflictScope::Node, Some(_)) => {}
    }
    cause_line(lines, conflict.diagnosis.as_deref());
    guidance_lines(lines, conflict.guidance.as_ref());
    for claimant in &conflict.claimants {
        lines.push(Line::default());
        claimant_lines(lines, conflict, claimant, highlight);
    }
}

fn claimant_lines(
    lines: &mut Vec<Line<'static>>,
    conflict: &ConflictData,
    claimant: &ClaimantData,
    highlight: Style,
) {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let dim = Style::new().add_modifier(Modifier::DIM);
    let is_receiver = text::receives_traffic(conflict, claimant);
    let pod = text::pod(claimant);
    let mut heading = vec![if is_receiver {
        Span::styled(format!("→ {pod}"), highlight.patch(bold))
    } else {
        Span::styled(format!("  {pod}"), bold)
    }];
    if is_receiver {
        heading.push(Span::raw("  receives the traffic"));
    }
    match (conflict.mark(claimant), claimant.newest()) {
        (Some("newest"), Some(newest)) => {
            heading.push(Span::raw(format!("  newest ({})", newest.text())));
        }
        (Some(mark), _) => heading.push(Span::raw(format!("  {mark}"))),
        (None, _) => {}
    }
    if let Some(reason) = claimant.left {
        heading.push(Span::raw(format!("  {}", text::left(reason))));
    }
    lines.push(Line::from(heading));
    if let Some(reason) = &claimant.pod_unknown_because {
        lines.push(Line::styled(format!("    {}", clean(reason)), dim));
    }
    let mac = claimant.mac.map(|mac| mac.to_string());
    lines.push(Line::from(format!(
        "    {}   MAC {}   since {}",
        text::device(conflict.scope, claimant),
        mac.as_deref().unwrap_or("unknown"),
        text::seconds_text(claimant.since)
    )));
    for evidence in &claimant.evidence {
        // Shown only if it differs from the claimant's MAC.
        let mac = evidence.mac.filter(|mac| Some(*mac) != claimant.mac);
        let detail = evidence.detail.as_ref().map(ToString::to_string);
        let detail = detail.unwrap_or_default();
        let line = format!(
            "    {:9} {:9}  first {}  last {}  {}",
            evidence.kind.name(),
            detail,
            text::seconds_text(evidence.first_seen),
            evidence.last_seen.to_seconds_text(),
            mac.map(|mac| mac.to_string()).unwrap_or_default()
        );
        lines.push(Line::styled(clean(&line).into_owned(), dim));
    }
}

fn anomaly_lines(lines: &mut Vec<Line<'static>>, anomaly: &AnomalyData, period: String) {
    let addresses: Vec<String> = anomaly.addresses.iter().map(ToString::to_string).collect();
    let pod = anomaly.pod.as_ref();
    let pod = pod.map(|pod| format!("{}/{}", pod.namespace, pod.name));
    let facts = [
        ("pod", pod),
        (
            "pod unknown",
            anomaly.pod_unknown_because.as_deref().map(str::to_owned),
        ),
        ("device", anomaly.device.clone()),
        (
            "also on",
            (!anomaly.also_on.is_empty()).then(|| anomaly.also_on.join(", ")),
        ),
        ("IPAM", anomaly.ipam.map(|ipam| ipam.name().to_owned())),
        ("network", anomaly.network.clone()),
        ("read from", anomaly.source.clone()),
        ("allocated to", anomaly.owner.clone()),
        (
            "contests",
            anomaly.contested.map(|n| format!("{n} addresses")),
        ),
        (
            "first of them",
            (!addresses.is_empty()).then(|| addresses.join(", ")),
        ),
    ];
    let title = format!("anomaly: {}", anomaly.kind.name());
    let detail = clean(&anomaly.detail).into_owned();
    lines.extend([title, period, detail].map(Line::from));
    cause_line(lines, anomaly.diagnosis.as_deref());
    guidance_lines(lines, anomaly.guidance.as_ref());
    lines.push(Line::default());
    for (name, value) in facts {
        if let Some(value) = value {
            lines.push(Line::from(format!("{name:13}  {}", clean(&value))));
        }
    }
}

/// The cause, if it is known.
fn cause_line(lines: &mut Vec<Line<'static>>, diagnosis: Option<&DiagnosisData>) {
    if let Some(cause) = diagnosis.and_then(DiagnosisData::cause_text) {
        lines.push(Line::from(format!("Cause: {}", clean(&cause))));
    }
}

/// The effect on traffic, the next step, and the runbook.
fn guidance_lines(lines: &mut Vec<Line<'static>>, guidance: Option<&Guidance>) {
    if let Some(guidance) = guidance {
        if let Some(effect) = &guidance.effect {
            lines.push(Line::from(format!("Effect: {}", clean(effect))));
        }
        let next = format!("Next: {}", clean(&guidance.next_step));
        lines.push(Line::from(next));
        lines.push(Line::from(clean(&guidance.runbook_url).into_owned()));
    }
}
