//! Drawing of the screen: header, body and footer.

use detector_event::{
    WallTime, clean,
    guidance::Severity,
    row::{Item, shorten_end},
    text::Colour,
};
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span},
    widgets::{Block, Paragraph, Wrap},
};

use super::{super::view_model::ConnectionState, Body, View, detail, table};

/// What the keys do, and what the table shows.
const HELP: &str = "\
↑ ↓ j k       select a row, or scroll the details
pgup pgdn     ten rows; home, end
enter         details of the row, or the rows of a group (+N); esc closes them
/             filter by address, pod, device, MAC or kind; esc clears it
s g h         sort, ungroup rows, hide ended ones
q             quit

→             the claimant that receives the node's traffic for the address
certain       two claimants have the address assigned, or a permanent neighbour entry
observed      claims seen in frames or in the neighbour table
anomaly       not a conflict yet: it can lead to one, or disrupts traffic already
lasted        an ended conflict";

impl View {
    pub(super) fn style(&self, colour: Color) -> Style {
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
        let mut note = String::new();
        let mut position = String::new();
        match &self.body {
            Body::Detail(item, scroll) => {
                let block = Block::bordered().title(format!(" {} ", item.address()));
                let text = Paragraph::new(detail::lines(item, self.style(Color::Cyan)))
                    .block(block)
                    .wrap(Wrap { trim: false })
                    .scroll((*scroll, 0));
                frame.render_widget(text, body);
            }
            Body::Help => {
                let block = Block::bordered().title(" Help ");
                let text = Paragraph::new(HELP).block(block).wrap(Wrap { trim: false });
                frame.render_widget(text, body);
            }
            Body::Table => (note, position) = self.draw_body(frame, body, now),
        }
        self.draw_header(frame, header, &note);
        self.draw_footer(frame, footer, &position);
    }

    /// Draws the table, or why there is none. Returns the values that all rows share and no column shows, and the position.
    fn draw_body(&mut self, frame: &mut Frame<'_>, area: Rect, now: WallTime) -> (String, String) {
        let rows = self.model.rows(&self.options);
        if rows.is_empty() {
            let text = match (self.model.len(), self.model.ready) {
                (1.., _) => "Nothing matches the filter.",
                (0, true) => "No IP address conflict.",
                (0, false) => "The agent is starting; conflicts are not known yet.",
            };
            frame.render_widget(Paragraph::new(text).centered(), area);
            return Default::default();
        }
        let (count, total) = (rows.len(), self.model.len());
        let layout = table::Layout::new(&rows, usize::from(area.width), now);
        let style = |colour| match self.colour {
            Colour::On => Style::new().fg(colour),
            Colour::Off => Style::new(),
        };
        let widget = layout.table(&rows, now, style);
        let mut notes = vec![format!("by {}", self.options.sort.name())];
        notes.extend(layout.shared());
        notes.extend(
            self.options
                .hides_ended
                .then(|| "ended ones hidden".to_owned()),
        );
        let note = notes.join("   ");
        let ended = rows
            .iter()
            .position(|row| row.first().is_some_and(Item::is_resolved));
        frame.render_stateful_widget(widget, area, &mut self.table);
        let first = self.table.offset() + 1;
        let lines = usize::from(area.height.saturating_sub(1));
        let is_heading_shown = ended.is_some_and(|at| (first..first + lines).contains(&(at + 1)));
        let lines = lines.saturating_sub(if is_heading_shown {
            table::ENDED_HEADING
        } else {
            0
        });
        let last = (self.table.offset() + lines).min(count);
        let mut position = format!("{first}–{last} of {count}");
        if count < total {
            position += &format!(" (all: {total})");
        }
        (note, position)
    }

    fn draw_header(&self, frame: &mut Frame<'_>, area: Rect, note: &str) {
        let bold = Modifier::BOLD;
        let (conflicts, anomalies) = (self.model.active_count(), self.model.anomaly_count());
        let mut text = match conflicts {
            0 if !self.model.ready => "starting".to_owned(),
            0 => "no conflict".to_owned(),
            1 => "1 address in conflict".to_owned(),
            count => format!("{count} addresses in conflict"),
        };
        let colour = match self.model.severity() {
            Some(Severity::Critical) => Color::Red,
            Some(Severity::Warning) => Color::Yellow,
            _ if !self.model.ready => Color::Yellow,
            _ => Color::Green,
        };
        match anomalies {
            0 => {}
            1 => text += ", 1 anomaly",
            count => text += &format!(", {count} anomalies"),
        }
        let dim = Style::new().add_modifier(Modifier::DIM);
        let (link, second) = match &self.model.connection {
            ConnectionState::Live => (
                Span::styled("live", self.style(Color::Green)),
                Line::styled(note.to_owned(), dim),
            ),
            ConnectionState::Lost(reason) => (
                Span::default(),
                Line::styled(
                    format!("DISCONNECTED, data may be out of date: {}", clean(reason)),
                    self.style(Color::Red).add_modifier(bold),
                ),
            ),
        };
        let first = Line::from(vec![
            Span::styled("IP conflicts", Style::new().add_modifier(bold)),
            Span::raw(format!(" on {}   ", clean(&self.model.node))),
            Span::styled(text, self.style(colour).add_modifier(bold)),
            Span::raw("   "),
            link,
        ]);
        frame.render_widget(Paragraph::new(vec![first, second]), area);
    }

    fn draw_footer(&self, frame: &mut Frame<'_>, area: Rect, position: &str) {
        let keys = match &self.body {
            _ if self.is_editing_filter => {
                format!("/{}▏  enter done   esc clear", self.options.filter)
            }
            Body::Detail(..) => "esc back   ↑↓ scroll   ? help   q quit".to_owned(),
            Body::Help => "any key back   q quit".to_owned(),
            Body::Table if self.options.filter.is_empty() => {
                "enter open  / filter  s sort  g groups  h ended  ? help  q quit".to_owned()
            }
            Body::Table => format!(
                "filter: {}   esc clear   ? help   q quit",
                self.options.filter
            ),
        };
        let width = u16::try_from(position.chars().count()).unwrap_or(u16::MAX);
        let [left, right] = Layout::horizontal([Constraint::Fill(1), Constraint::Length(width)])
            .spacing(2)
            .areas(area);
        let dim = Style::new().add_modifier(Modifier::DIM);
        let keys = Paragraph::new(shorten_end(&keys, usize::from(left.width)));
        frame.render_widget(keys.style(dim), left);
        frame.render_widget(Paragraph::new(position), right);
    }
}
