//! The rows of the table, and which columns a narrow terminal shows.
//!
//! Address and claimants are always shown, and the kind from 80 columns on. If not everything fits, columns whose value is the same
//! in all rows go first (the header shows their value instead), then the confidence, the duration and the kind.

use std::collections::BTreeSet;

use detector_event::{
    WallTime,
    guidance::Severity,
    row::{Item, duration_text, group_address, group_claimants, shorten_end},
};
use ratatui::{
    layout::Constraint,
    style::{Color, Modifier, Style},
    widgets::{Cell, Table},
};
use unicode_width::UnicodeWidthStr as _;

use crate::watch::view_model::Row;

/// Width between two columns.
const SPACING: usize = 2;
/// The claimants may need this much before another column is dropped.
const CLAIMANTS: usize = 56;

/// From this width on the kind is shown.
const KIND_FROM: usize = 80;
/// Lines that set the ended conflicts apart.
pub(super) const ENDED_HEADING: usize = 2;

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

/// The address of a row, with how many items it stands for.
fn address(row: &Row<'_>) -> String {
    let indent = if row.is_member { "  " } else { "" };
    format!("{indent}{}", group_address(&row.items))
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
    pub(super) fn new(rows: &[Row<'_>], width: usize, now: WallTime) -> Self {
        let items: Vec<&Item> = rows.iter().filter_map(Row::first).collect();
        let widest = |cells: &mut dyn Iterator<Item = String>| {
            cells.map(|cell| cell.width()).max().unwrap_or(0)
        };
        let address = widest(&mut rows.iter().map(address));
        // An IPv6 address fits; a long name of a network behind it is shortened.
        let address = address.max("ADDRESS".len()).min((width * 2 / 3).min(45));
        let natural = widest(
            &mut rows
                .iter()
                .map(|row| group_claimants(&row.items, usize::MAX)),
        );
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
            if column == Column::Kind && width >= KIND_FROM {
                continue;
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
    pub(super) fn shared(&self) -> Option<String> {
        (!self.shared.is_empty()).then(|| format!("all: {}", self.shared.join(", ")))
    }

    pub(super) fn table<'a>(
        &self,
        rows: &[Row<'_>],
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
        let is_ended = |row: &Row<'_>| row.first().is_some_and(Item::is_resolved);
        let first_ended = rows.iter().position(is_ended);
        let rows = rows.iter().enumerate().filter_map(|(n, row)| {
            let item = row.first()?;
            let values = self
                .columns
                .iter()
                .map(|(column, _)| column.value(item, now));
            let cells = std::iter::once(shorten_end(&address(row), self.address))
                .chain(values)
                .chain([group_claimants(&row.items, self.claimants)]);
            let drawn = if first_ended == Some(n) {
                let headings = std::iter::once("ENDED").chain(std::iter::repeat(""));
                let cells = headings
                    .zip(cells)
                    .map(|(heading, cell)| format!("{heading}\n{cell}"));
                ratatui::widgets::Row::new(cells.map(Cell::new).collect::<Vec<_>>())
                    .height(2)
                    .top_margin(1)
            } else {
                ratatui::widgets::Row::new(cells.map(Cell::new).collect::<Vec<_>>())
            };
            Some(drawn.style(match item {
                _ if item.is_resolved() => dim,
                item => match item.severity() {
                    Severity::Critical => style(Color::Red),
                    Severity::Warning => style(Color::Yellow),
                    Severity::Info => Style::new(),
                },
            }))
        });
        let widths = std::iter::once(self.address)
            .chain(self.columns.iter().map(|(_, width)| *width))
            .chain([self.claimants]);
        let widths =
            widths.map(|width| Constraint::Length(u16::try_from(width).unwrap_or(u16::MAX)));
        Table::new(rows.collect::<Vec<_>>(), widths.collect::<Vec<_>>())
            .header(ratatui::widgets::Row::new(heading).style(dim))
            .column_spacing(2)
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
    }
}
