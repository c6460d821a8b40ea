//! What ended as text for a terminal: for `check --history` and `kubectl ipconflict history`.

use std::fmt::Write as _;

use crate::{
    clean, counted,
    row::{Item, claimants, duration_text},
    text::{aligned, seconds_text},
};

/// The most rows of a table.
pub const MAX_ROWS: usize = 50;
/// Width of the claimants in the table.
const CLAIMANTS: usize = 60;

/// How many conflicts and anomalies ended, in a line; `has_more`: there are others beside these.
#[must_use]
pub fn ended_headline(items: &[Item], has_more: bool) -> String {
    let conflicts = items
        .iter()
        .filter(|item| matches!(item, Item::Conflict(_)));
    let conflicts = conflicts.count();
    let anomalies = items.len() - conflicts;
    let conflicts = counted(conflicts, "ended conflict", "ended conflicts");
    let anomalies = counted(anomalies, "ended anomaly", "ended anomalies");
    let newest = if has_more { "the newest: " } else { "" };
    match items {
        [] => "no ended conflict or anomaly is known".to_owned(),
        _ => format!("{newest}{conflicts}, {anomalies}"),
    }
}

/// Appends what ended, newest first, at most [`MAX_ROWS`].
pub fn ended_table(out: &mut String, items: &[Item]) {
    if items.is_empty() {
        return;
    }
    let titles = [
        "ENDED",
        "LASTED",
        "ADDRESS",
        "NODE",
        "KIND",
        "CAUSE",
        "CLAIMANTS",
    ];
    let row = |item: &Item| {
        let (raised_at, resolved_at) = item.period();
        let lasted = resolved_at.map(|at| duration_text(raised_at, at));
        let cause = item
            .diagnosis()
            .map_or("", |diagnosis| diagnosis.cause.name());
        vec![
            seconds_text(resolved_at),
            lasted.unwrap_or_default(),
            item.address(),
            clean(item.node()).into_owned(),
            item.kind().to_owned(),
            cause.to_owned(),
            claimants(item, CLAIMANTS),
        ]
    };
    let rows: Vec<_> = std::iter::once(titles.map(str::to_owned).to_vec())
        .chain(items.iter().take(MAX_ROWS).map(row))
        .collect();
    out.push('\n');
    for line in aligned(&rows) {
        // Writing to a string does not fail.
        let _ = writeln!(out, "{line}");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use detector_engine::diagnosis::Cause;

    use super::*;
    use crate::samples;

    #[test]
    fn table_shows_end_duration_and_cause_and_is_bounded() {
        let mut conflict = samples::resolved("10.0.0.1").data;
        conflict.diagnosis = Some(Arc::new(samples::diagnosis(Cause::IpamStateWiped, 1)));
        let conflict = Item::Conflict(Box::new(conflict));
        let items = vec![conflict; MAX_ROWS + 1];
        let mut text = ended_headline(&items, false) + "\n";
        ended_table(&mut text, &items);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), MAX_ROWS + 3);
        assert_eq!(lines[0], "51 ended conflicts, 0 ended anomalies");
        assert_eq!(
            lines[3],
            "2026-11-21 01:02:03Z  0 s     10.0.0.1  node-1  duplicate  ipam_state_wiped  →default/a  default/b"
        );
    }
}
