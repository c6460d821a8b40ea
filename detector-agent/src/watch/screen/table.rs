//! The rows of the table, and which columns a narrow terminal shows.
//!
//! Address and claimants are always shown. If not everything fits, columns whose value is the same in all rows go first
//! (the header shows their value instead), then the confidence, the duration and the kind.

use std::collections::BTreeSet;

use ratatui::{
    layout::Constraint,
    style::{Color, Modifier, Style},
    widgets::{Cell, Row, Table},
};
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use super::super::view_model::Item;
use crate::{
    clock::WallTime,
    event::{
        ClaimantData, ConflictData,
        text::{self, clean},
    },
};

/// Width between two columns.
const SPACING: usize = 2;
/// The claimants may need this much before another column is dropped.
const CLAIMANTS: usize = 56;
/// A name is shortened to no less than this; further claimants are counted instead.
const SHORTEST_NAME: usize = 12;

/// A column that may be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Confidence,
    Duration,
    Kind,
}

impl Column {
    /// In the order in which they are dropped.
    const ALL: [Self; 3] = [Self::Confidence, Self::Duration, Self::Kind];

    fn title(self) -> &'static str {
        match self {
            Self::Confidence => "CONFIDENCE",
            Self::Duration => "DURATION",
            Self::Kind => "KIND",
        }
    }

    fn value(self, item: &Item, now: WallTime) -> String {
        match self {
            Self::Confidence => item.confidence().to_owned(),
            Self::Kind => item.kind().to_owned(),
            Self::Duration => match item.period() {
                (from, Some(end)) => format!("lasted {}", duration_text(from, end)),
                (from, None) => duration_text(from, now),
            },
        }
    }
}

/// The columns that fit, with their widths.
pub(super) struct Layout {
    address: usize,
    /// From left to right.
    columns: Vec<(Column, usize)>,
    claimants: usize,
    /// The values of dropped columns that all rows share.
    shared: Vec<String>,
}

impl Layout {
    pub(super) fn new(items: &[&Item], width: usize, now: WallTime) -> Self {
        let widest = |cells: &mut dyn Iterator<Item = String>| {
            cells.map(|cell| cell.width()).max().unwrap_or(0)
        };
        let address = widest(&mut items.iter().map(|item| item.address()));
        // An IPv6 address fits; a long name of a network behind it is shortened.
        let address = address.max("ADDRESS".len()).min((width * 2 / 3).min(45));
        let natural = widest(&mut items.iter().map(|item| claimants(item, usize::MAX)));
        let wanted = natural.min(CLAIMANTS);
        let mut columns: Vec<(Column, usize)> =
            [Column::Kind, Column::Confidence, Column::Duration]
                .into_iter()
                .map(|column| {
                    let value = widest(&mut items.iter().map(|item| column.value(item, now)));
                    (column, value.max(column.title().len()))
                })
                .collect();
        let used = |columns: &[(Column, usize)]| {
            let others = columns.iter().map(|(_, width)| width + SPACING);
            address + SPACING + others.sum::<usize>()
        };
        let is_constant = |column: &Column| {
            let values: BTreeSet<String> =
                items.iter().map(|item| column.value(item, now)).collect();
            values.len() == 1
        };
        let constant = Column::ALL.into_iter().filter(is_constant);
        let mut shared = Vec::new();
        for (column, is_shared) in constant
            .map(|column| (column, true))
            .chain(Column::ALL.map(|column| (column, false)))
        {
            if used(&columns) + wanted <= width {
                break;
            }
            let before = columns.len();
            columns.retain(|(other, _)| *other != column);
            // The duration changes every second; it is no fact about all rows worth a line.
            if is_shared && columns.len() < before && column != Column::Duration {
                shared.extend(items.first().map(|item| column.value(item, now)));
            }
        }
        Self {
            address,
            claimants: width.saturating_sub(used(&columns)),
            columns,
            shared,
        }
    }

    /// What is the same in all rows and has no column: `all: duplicate, certain`.
    pub(super) fn shared(&self) -> String {
        if self.shared.is_empty() {
            return String::new();
        }
        format!("all: {}", self.shared.join(", "))
    }

    pub(super) fn table<'a>(
        &self,
        items: &[&Item],
        now: WallTime,
        style: impl Fn(Color) -> Style,
    ) -> Table<'a> {
        let dim = Style::new().add_modifier(Modifier::DIM);
        let title = shorten_end("CLAIMANTS (→ receives the traffic)", self.claimants);
        let titles = self.columns.iter().map(|(column, _)| column.title());
        let heading: Vec<String> = std::iter::once("ADDRESS")
            .chain(titles)
            .map(str::to_owned)
            .chain([title])
            .collect();
        let rows = items.iter().map(|item| {
            let values = self
                .columns
                .iter()
                .map(|(column, _)| column.value(item, now));
            let cells = std::iter::once(shorten_end(&item.address(), self.address))
                .chain(values)
                .chain([claimants(item, self.claimants)]);
            let row = Row::new(cells.map(Cell::new).collect::<Vec<_>>());
            row.style(match item {
                _ if item.is_resolved() => dim,
                Item::Conflict(_) => style(Color::Red),
                Item::Anomaly(_) => style(Color::Yellow),
            })
        });
        let widths = std::iter::once(self.address)
            .chain(self.columns.iter().map(|(_, width)| *width))
            .chain([self.claimants]);
        let widths =
            widths.map(|width| Constraint::Length(u16::try_from(width).unwrap_or(u16::MAX)));
        Table::new(rows.collect::<Vec<_>>(), widths.collect::<Vec<_>>())
            .header(Row::new(heading).style(dim))
            .column_spacing(2)
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
    }
}

/// The claimants of a conflict, or the pod and what is wrong with it, in at most `width` columns.
fn claimants(item: &Item, width: usize) -> String {
    match item {
        Item::Conflict(conflict) => conflict_claimants(conflict, width),
        Item::Anomaly(anomaly) => {
            let pod = anomaly.pod.as_ref();
            let pod = pod.map(|pod| format!("{}/{}", pod.namespace, pod.name));
            let who = pod.or_else(|| anomaly.device.clone());
            let who = who.map(|who| format!("{who}: ")).unwrap_or_default();
            shorten_end(&clean(&format!("{who}{}", anomaly.detail)), width)
        }
    }
}

/// Every name with its mark if they fit, else as many as fit shortened, the traffic's receiver always among them.
fn conflict_claimants(conflict: &ConflictData, width: usize) -> String {
    let mut shown: Vec<&ClaimantData> = conflict.claimants.iter().collect();
    let label = |claimant: &ClaimantData, width: usize| {
        let mark = if text::receives_traffic(conflict, claimant) {
            "→"
        } else {
            ""
        };
        let name = match &claimant.pod {
            Some(_) => text::pod(claimant),
            None => clean(&claimant.device).into_owned(),
        };
        let newest = if claimant.newest().is_some() {
            " (newest)"
        } else {
            ""
        };
        let width = width.saturating_sub(newest.len());
        format!("{mark}{}{newest}", shorten_middle(&name, width))
    };
    let all: Vec<String> = shown.iter().map(|c| label(c, usize::MAX)).collect();
    let all = all.join("  ");
    if all.width() <= width {
        return all;
    }
    let total = shown.len() + conflict.claimants_omitted;
    let more = |shown: usize| match total - shown {
        0 => String::new(),
        more => format!("  +{more}"),
    };
    let receiver = shown
        .iter()
        .position(|c| text::receives_traffic(conflict, c));
    let fits = |count: &usize| {
        // One column for the mark.
        let newest = shown.iter().any(|c| c.newest().is_some());
        let names = *count * (SHORTEST_NAME + SPACING) + 1 + usize::from(newest) * 9;
        names + more(*count).len() <= width + SPACING
    };
    let count = (1..=shown.len()).rev().find(fits).unwrap_or(1);
    if let Some(receiver) = receiver.filter(|receiver| *receiver >= count) {
        shown.swap(count - 1, receiver);
    }
    shown.truncate(count);
    let more = more(count);
    let room = width.saturating_sub(more.len() + (count - 1) * SPACING + 1);
    let labels: Vec<String> = shown.iter().map(|c| label(c, room / count)).collect();
    labels.join("  ") + &more
}

/// `text` in at most `width` columns, with an ellipsis for what its end loses.
pub(super) fn shorten_end(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut kept = first_columns(text.chars(), width.saturating_sub(1));
    kept.push('…');
    kept
}

/// `text` in at most `width` columns; names of pods of one controller differ at their end, so the middle is left out.
fn shorten_middle(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let room = width.saturating_sub(1);
    let end: String = first_columns(text.chars().rev(), room / 2);
    let end: String = end.chars().rev().collect();
    first_columns(text.chars(), room - room / 2) + "…" + &end
}

/// As many characters as fit in `width` columns.
fn first_columns(text: impl Iterator<Item = char>, width: usize) -> String {
    let mut used = 0;
    text.take_while(|c| {
        used += c.width().unwrap_or(0);
        used <= width
    })
    .collect()
}

/// The time between the two, in its two largest units.
fn duration_text(from: WallTime, to: WallTime) -> String {
    let seconds = to.since(from).as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}
