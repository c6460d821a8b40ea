//! Drawing of the screen.

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span},
    widgets::{Block, Cell, Paragraph, Row, Table, Wrap},
};

use super::{super::view_model::ConnectionState, View};
use crate::{
    clock::WallTime,
    event::{
        ClaimantData, ConflictData,
        text::{self, Colour, clean},
    },
};

impl View {
    fn style(&self, colour: Color) -> Style {
        match self.colour {
            Colour::On => Style::new().fg(colour),
            Colour::Off => Style::new(),
        }
    }

    pub(super) fn draw(&mut self, frame: &mut Frame<'_>, now: WallTime) {
        let [header, body, footer] = Layout::vertical([
            Constraint::Length(2),
            Constraint::Fill(1),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        self.draw_header(frame, header);
        if self.detail.is_some() {
            self.draw_detail(frame, body);
        } else if self.model.len() == 0 {
            let text = if self.model.ready {
                "No IP address conflict."
            } else {
                "The agent is starting; conflicts are not known yet."
            };
            frame.render_widget(Paragraph::new(text).centered(), body);
        } else {
            self.draw_table(frame, body, now);
        }
        let keys = if self.detail.is_some() {
            "esc back   ↑↓ scroll   q quit"
        } else {
            "↑↓ select   enter details   q quit"
        };
        frame.render_widget(
            Paragraph::new(keys).style(Style::new().add_modifier(Modifier::DIM)),
            footer,
        );
    }

    fn draw_header(&self, frame: &mut Frame<'_>, area: Rect) {
        let bold = Modifier::BOLD;
        let count = self.model.active_count();
        let (text, colour) = match count {
            0 if self.model.ready => ("no conflict".to_owned(), Color::Green),
            0 => ("starting".to_owned(), Color::Yellow),
            1 => ("1 address in conflict".to_owned(), Color::Red),
            count => (format!("{count} addresses in conflict"), Color::Red),
        };
        let (connection, connection_colour) = match &self.model.connection {
            ConnectionState::Live => ("live".to_owned(), Color::Green),
            ConnectionState::Lost(reason) => (
                format!("DISCONNECTED, data may be out of date: {}", clean(reason)),
                Color::Red,
            ),
        };
        let line = Line::from(vec![
            Span::styled("IP conflicts", Style::new().add_modifier(bold)),
            Span::raw(format!(" on {}   ", clean(&self.model.node))),
            Span::styled(text, self.style(colour).add_modifier(bold)),
            Span::raw("   "),
            Span::styled(connection, self.style(connection_colour)),
        ]);
        frame.render_widget(Paragraph::new(line), area);
    }

    fn draw_table(&mut self, frame: &mut Frame<'_>, area: Rect, now: WallTime) {
        let rows: Vec<Row<'_>> = self
            .model
            .rows()
            .map(|conflict| self.row(conflict, now))
            .collect();
        let addresses = self.model.rows().map(|c| text::address(c).len());
        let width = addresses.max().unwrap_or(0).clamp(9, 45);
        let widths = [
            Constraint::Length(u16::try_from(width).unwrap_or(45)),
            Constraint::Length(9),
            Constraint::Length(10),
            Constraint::Length(18),
            Constraint::Fill(1),
        ];
        let heading = Row::new([
            "ADDRESS",
            "KIND",
            "CONFIDENCE",
            "DURATION",
            "CLAIMANTS (→ receives the traffic)",
        ])
        .style(Style::new().add_modifier(Modifier::DIM));
        let table = Table::new(rows, widths)
            .header(heading)
            .column_spacing(2)
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        frame.render_stateful_widget(table, area, &mut self.table);
    }

    fn row<'a>(&self, conflict: &'a ConflictData, now: WallTime) -> Row<'a> {
        let duration = match conflict.resolved_at {
            Some(end) => format!("lasted {}", duration_text(conflict.raised_at, end)),
            None => duration_text(conflict.raised_at, now),
        };
        let claimants: Vec<String> = conflict
            .claimants
            .iter()
            .map(|c| claimant_label(conflict, c))
            .collect();
        let row = Row::new([
            Cell::new(text::address(conflict)),
            Cell::new(conflict.kind.name()),
            Cell::new(conflict.confidence.name()),
            Cell::new(duration),
            Cell::new(claimants.join("  ")),
        ]);
        if conflict.is_resolved() {
            row.style(Style::new().add_modifier(Modifier::DIM))
        } else {
            row.style(self.style(Color::Red))
        }
    }

    fn draw_detail(&self, frame: &mut Frame<'_>, area: Rect) {
        let Some((conflict, scroll)) = &self.detail else {
            return;
        };
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let dim = Style::new().add_modifier(Modifier::DIM);
        let mut lines = vec![
            Line::from(format!(
                "{}, {}, {}",
                conflict.kind.name(),
                conflict.confidence.name(),
                conflict.state.name()
            )),
            Line::from(match conflict.resolved_at {
                Some(end) => format!(
                    "from {} to {}",
                    conflict.raised_at.to_seconds_text(),
                    end.to_seconds_text()
                ),
                None => format!("since {}", conflict.raised_at.to_seconds_text()),
            }),
        ];
        if conflict.traffic_goes_to.is_none() {
            lines.push(Line::from("no route on this node leads to any claimant"));
        }
        for claimant in &conflict.claimants {
            lines.push(Line::default());
            let is_receiver = text::receives_traffic(conflict, claimant);
            let mut heading = vec![Span::styled(
                format!(
                    "{} {}",
                    if is_receiver { "→" } else { " " },
                    text::pod(claimant)
                ),
                if is_receiver {
                    self.style(Color::Cyan).patch(bold)
                } else {
                    bold
                },
            )];
            if is_receiver {
                heading.push(Span::raw("  receives the traffic"));
            }
            if claimant.newest().is_some() {
                heading.push(Span::raw("  newest"));
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
                text::device(claimant),
                mac.as_deref().unwrap_or("unknown"),
                seconds_text(claimant.since)
            )));
            for evidence in &claimant.evidence {
                // Shown only if it differs from the claimant's MAC.
                let mac = evidence.mac.filter(|mac| Some(*mac) != claimant.mac);
                lines.push(Line::styled(
                    clean(&format!(
                        "    {:9} {:9}  first {}  last {}  {}",
                        evidence.kind.name(),
                        evidence.detail.as_deref().unwrap_or_default(),
                        seconds_text(evidence.first_seen),
                        evidence.last_seen.to_seconds_text(),
                        mac.map(|mac| mac.to_string()).unwrap_or_default()
                    ))
                    .into_owned(),
                    dim,
                ));
            }
        }
        let block = Block::bordered().title(format!(" {} ", text::address(conflict)));
        let text = Paragraph::new(lines)
            .block(block)
            .wrap(Wrap { trim: false })
            .scroll((*scroll, 0));
        frame.render_widget(text, area);
    }
}

fn claimant_label(conflict: &ConflictData, claimant: &ClaimantData) -> String {
    let mark = if text::receives_traffic(conflict, claimant) {
        "→"
    } else {
        ""
    };
    match &claimant.pod {
        Some(_) => format!("{mark}{}", text::pod(claimant)),
        None => format!("{mark}{}", clean(&claimant.device)),
    }
}

/// A time in UTC, to the second.
fn seconds_text(time: Option<WallTime>) -> String {
    time.map_or_else(|| "unknown".to_owned(), WallTime::to_seconds_text)
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
