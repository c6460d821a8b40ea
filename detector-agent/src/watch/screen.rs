//! The table in a terminal, and the details of one conflict.

use std::{io, thread, time::Duration};

use jiff::Timestamp as Wall;
use ratatui::{
    DefaultTerminal, Frame,
    crossterm::event::{self, KeyCode, KeyEventKind, KeyModifiers},
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span},
    widgets::{Block, Cell, Paragraph, Row, Table, TableState, Wrap},
};
use tokio::{sync::mpsc, time::interval};

use super::{
    News, Present,
    board::{Board, Link},
};
use crate::report::{
    event::{ClaimantData, ConflictData},
    text::{self, Colour, clean},
};

/// Shows it until the person ends it.
pub(super) async fn show(first: Present, mut news: mpsc::Receiver<News>) -> io::Result<()> {
    let mut terminal = ratatui::try_init()?;
    let shown = live(&mut terminal, View::new(Board::new(first)), &mut news).await;
    ratatui::restore();
    shown
}

async fn live(
    terminal: &mut DefaultTerminal,
    mut view: View,
    news: &mut mpsc::Receiver<News>,
) -> io::Result<()> {
    let mut keys = keys();
    let mut second = interval(Duration::from_secs(1));
    loop {
        terminal.draw(|frame| view.draw(frame, Wall::now()))?;
        tokio::select! {
            some = news.recv() => match some {
                Some(some) => {
                    view.learn(some);
                    // A burst is drawn once.
                    while let Ok(more) = news.try_recv() {
                        view.learn(more);
                    }
                }
                None => return Ok(()),
            },
            key = keys.recv() => match key {
                Some(Input::Key(code, modifiers)) => {
                    if view.press(code, modifiers) == Then::End {
                        return Ok(());
                    }
                }
                Some(Input::Resize) => {}
                None => return Ok(()),
            },
            _ = second.tick() => {}
        }
    }
}

enum Input {
    Key(KeyCode, KeyModifiers),
    Resize,
}

/// Keys, from a thread that waits for them; it ends with the process.
fn keys() -> mpsc::Receiver<Input> {
    let (to, keys) = mpsc::channel(16);
    thread::spawn(move || {
        loop {
            let input = match event::read() {
                Ok(event::Event::Key(key)) if key.kind != KeyEventKind::Release => {
                    Input::Key(key.code, key.modifiers)
                }
                Ok(event::Event::Resize(..)) => Input::Resize,
                Ok(_) => continue,
                Err(_) => return,
            };
            if to.blocking_send(input).is_err() {
                return;
            }
        }
    });
    keys
}

#[derive(Debug, PartialEq, Eq)]
enum Then {
    GoOn,
    End,
}

/// What is shown of the board.
struct View {
    board: Board,
    table: TableState,
    /// The conflict whose details are shown, and how far they are scrolled.
    detail: Option<(Box<ConflictData>, u16)>,
    colour: Colour,
}

impl View {
    fn new(board: Board) -> Self {
        Self {
            board,
            table: TableState::default().with_selected(0),
            detail: None,
            colour: Colour::for_output(&io::stdout()),
        }
    }

    fn style(&self, colour: Color) -> Style {
        match self.colour {
            Colour::On => Style::new().fg(colour),
            Colour::Off => Style::new(),
        }
    }

    /// Keeps the selection on its conflict, wherever that moves.
    fn learn(&mut self, news: News) {
        let selected = self.table.selected().and_then(|n| self.board.row(n));
        let selected = selected.map(|conflict| conflict.conflict_id.clone());
        self.board.apply(news);
        let position = selected.and_then(|id| self.board.position(&id));
        let last = self.board.len().saturating_sub(1);
        let fallback = self.table.selected().unwrap_or(0).min(last);
        self.table.select(Some(position.unwrap_or(fallback)));
        if let Some((shown, _)) = &mut self.detail {
            let position = self.board.position(&shown.conflict_id);
            if let Some(newer) = position.and_then(|n| self.board.row(n)) {
                shown.clone_from(&Box::new(newer.clone()));
            }
        }
    }

    fn press(&mut self, code: KeyCode, modifiers: KeyModifiers) -> Then {
        if code == KeyCode::Char('c') && modifiers.contains(KeyModifiers::CONTROL) {
            return Then::End;
        }
        let last = self.board.len().saturating_sub(1);
        if let Some((_, scroll)) = &mut self.detail {
            match code {
                KeyCode::Esc | KeyCode::Enter | KeyCode::Backspace | KeyCode::Left => {
                    self.detail = None;
                }
                KeyCode::Char('q') => return Then::End,
                KeyCode::Down | KeyCode::Char('j') => *scroll = scroll.saturating_add(1),
                KeyCode::Up | KeyCode::Char('k') => *scroll = scroll.saturating_sub(1),
                KeyCode::PageDown => *scroll = scroll.saturating_add(10),
                KeyCode::PageUp => *scroll = scroll.saturating_sub(10),
                KeyCode::Home => *scroll = 0,
                _ => {}
            }
            return Then::GoOn;
        }
        let now = self.table.selected().unwrap_or(0);
        let to = match code {
            KeyCode::Char('q') | KeyCode::Esc => return Then::End,
            KeyCode::Enter | KeyCode::Right => {
                let conflict = self.board.row(now).cloned();
                self.detail = conflict.map(|conflict| (Box::new(conflict), 0));
                now
            }
            KeyCode::Down | KeyCode::Char('j') => now.saturating_add(1),
            KeyCode::Up | KeyCode::Char('k') => now.saturating_sub(1),
            KeyCode::PageDown => now.saturating_add(10),
            KeyCode::PageUp => now.saturating_sub(10),
            KeyCode::Home => 0,
            KeyCode::End => last,
            _ => now,
        };
        self.table.select(Some(to.min(last)));
        Then::GoOn
    }

    fn draw(&mut self, frame: &mut Frame<'_>, now: Wall) {
        let [head, body, foot] = Layout::vertical([
            Constraint::Length(2),
            Constraint::Fill(1),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        self.draw_head(frame, head);
        if self.detail.is_some() {
            self.draw_detail(frame, body);
        } else if self.board.len() == 0 {
            let text = if self.board.ready {
                "No IP address conflict."
            } else {
                "The agent is starting: it cannot tell yet."
            };
            frame.render_widget(Paragraph::new(text).centered(), body);
        } else {
            self.draw_table(frame, body, now);
        }
        let keys = if self.detail.is_some() {
            "esc back   ↑↓ scroll   q quit"
        } else {
            "↑↓ choose   enter details   q quit"
        };
        frame.render_widget(
            Paragraph::new(keys).style(Style::new().add_modifier(Modifier::DIM)),
            foot,
        );
    }

    fn draw_head(&self, frame: &mut Frame<'_>, area: Rect) {
        let bold = Modifier::BOLD;
        let count = self.board.active();
        let (text, colour) = match count {
            0 if self.board.ready => ("no conflict".to_owned(), Color::Green),
            0 => ("starting".to_owned(), Color::Yellow),
            1 => ("1 address in conflict".to_owned(), Color::Red),
            count => (format!("{count} addresses in conflict"), Color::Red),
        };
        let (link, link_colour) = match &self.board.link {
            Link::Live => ("live".to_owned(), Color::Green),
            Link::Lost(why) => (
                format!(
                    "DISCONNECTED, what is shown may be out of date: {}",
                    clean(why)
                ),
                Color::Red,
            ),
        };
        let line = Line::from(vec![
            Span::styled("IP conflicts", Style::new().add_modifier(bold)),
            Span::raw(format!(" on {}   ", clean(&self.board.node))),
            Span::styled(text, self.style(colour).add_modifier(bold)),
            Span::raw("   "),
            Span::styled(link, self.style(link_colour)),
        ]);
        frame.render_widget(Paragraph::new(line), area);
    }

    fn draw_table(&mut self, frame: &mut Frame<'_>, area: Rect, now: Wall) {
        let rows: Vec<Row<'_>> = self
            .board
            .rows()
            .map(|conflict| self.row(conflict, now))
            .collect();
        let addresses = self.board.rows().map(|c| text::address(c).len());
        let width = addresses.max().unwrap_or(0).clamp(9, 45);
        let widths = [
            Constraint::Length(u16::try_from(width).unwrap_or(45)),
            Constraint::Length(9),
            Constraint::Length(9),
            Constraint::Length(14),
            Constraint::Fill(1),
        ];
        let heading = Row::new([
            "ADDRESS",
            "KIND",
            "SURE",
            "FOR",
            "CLAIMANTS (→ receives the traffic)",
        ])
        .style(Style::new().add_modifier(Modifier::DIM));
        let table = Table::new(rows, widths)
            .header(heading)
            .column_spacing(2)
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        frame.render_stateful_widget(table, area, &mut self.table);
    }

    fn row<'a>(&self, conflict: &'a ConflictData, now: Wall) -> Row<'a> {
        let over = conflict.state == "resolved";
        let until = conflict.resolved_at.as_deref();
        let duration = match until {
            Some(until) => format!("was {}", span(&conflict.raised_at, until, now)),
            None => span(&conflict.raised_at, "", now),
        };
        let claimants: Vec<String> = conflict
            .claimants
            .iter()
            .map(|c| short(conflict, c))
            .collect();
        let row = Row::new([
            Cell::new(text::address(conflict)),
            Cell::new(clean(&conflict.kind)),
            Cell::new(clean(&conflict.confidence)),
            Cell::new(duration),
            Cell::new(claimants.join("  ")),
        ]);
        if over {
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
                clean(&conflict.kind),
                clean(&conflict.confidence),
                clean(&conflict.state)
            )),
            Line::from(match &conflict.resolved_at {
                Some(end) => format!(
                    "from {} to {}",
                    short_time(&conflict.raised_at),
                    short_time(end)
                ),
                None => format!("since {}", short_time(&conflict.raised_at)),
            }),
        ];
        if conflict.traffic_goes_to.is_none() {
            lines.push(Line::from("no route of this node leads to any of them"));
        }
        for claimant in &conflict.claimants {
            lines.push(Line::default());
            let winner = text::is_winner(conflict, claimant);
            let mut heading = vec![Span::styled(
                format!("{} {}", if winner { "→" } else { " " }, text::pod(claimant)),
                if winner {
                    self.style(Color::Cyan).patch(bold)
                } else {
                    bold
                },
            )];
            if winner {
                heading.push(Span::raw("  receives the traffic"));
            }
            if let Some(left) = &claimant.left {
                heading.push(Span::raw(format!(
                    "  left: {}",
                    clean(&left.replace('_', " "))
                )));
            }
            lines.push(Line::from(heading));
            if let Some(because) = &claimant.pod_unknown_because {
                lines.push(Line::styled(format!("    {}", clean(because)), dim));
            }
            let mac = claimant.mac.as_deref().unwrap_or("unknown");
            lines.push(Line::from(format!(
                "    {}   MAC {}   since {}",
                text::device(claimant),
                clean(mac),
                short_time(&claimant.since)
            )));
            for one in &claimant.evidence {
                // Said only where it is another one than the claimant's.
                let mac = one
                    .mac
                    .as_deref()
                    .filter(|mac| Some(*mac) != claimant.mac.as_deref());
                lines.push(Line::styled(
                    clean(&format!(
                        "    {:9} {:9}  first {}  last {}  {}",
                        one.kind,
                        one.detail.as_deref().unwrap_or_default(),
                        short_time(&one.first_seen),
                        short_time(&one.last_seen),
                        mac.unwrap_or_default()
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

fn short(conflict: &ConflictData, claimant: &ClaimantData) -> String {
    let mark = if text::is_winner(conflict, claimant) {
        "→"
    } else {
        ""
    };
    match &claimant.pod {
        Some(_) => format!("{mark}{}", text::pod(claimant)),
        None => format!("{mark}{}", clean(&claimant.device)),
    }
}

/// UTC, to the second.
fn short_time(rfc3339: &str) -> String {
    rfc3339.parse::<Wall>().map_or_else(
        |_| clean(rfc3339).into_owned(),
        |at| at.strftime("%F %TZ").to_string(),
    )
}

/// How long something lasted, to now where it has no end.
fn span(from: &str, to: &str, now: Wall) -> String {
    let Ok(from) = from.parse::<Wall>() else {
        return "?".to_owned();
    };
    let to = to.parse::<Wall>().unwrap_or(now);
    let seconds = to.duration_since(from).as_secs().max(0);
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test that cannot set itself up fails

    use ratatui::{Terminal, backend::TestBackend};
    use serde_json::json;

    use super::*;

    fn conflict(id: &str, address: &str, state: &str) -> ConflictData {
        let claimant = |device: &str| {
            json!({
                "device": device, "ifindex": 7, "mac": "02:00:00:00:00:01", "master": null,
                "since": "2026-01-02T03:04:05.000000Z",
                "pod": {"namespace": "default", "name": format!("web-{device}"), "uid": null, "container_id": null, "via": "cri"},
                "pod_unknown_because": null,
                "evidence": [{"kind": "address", "first_seen": "2026-01-02T03:04:05.000000Z",
                    "last_seen": "2026-01-02T03:04:05.000000Z", "mac": null, "detail": null}],
            })
        };
        serde_json::from_value(json!({
            "conflict_id": id, "node": "worker-1", "address": address, "vlan": null, "kind": "duplicate",
            "confidence": "certain", "state": state, "raised_at": "2026-01-02T03:04:05.000000Z",
            "updated_at": "2026-01-02T03:04:05.000000Z",
            "resolved_at": (state == "resolved").then_some("2026-01-02T03:05:15.000000Z"),
            "latency_us": 37, "traffic_goes_to": "a", "claimants": [claimant("a"), claimant("b")],
        }))
        .unwrap()
    }

    fn view(conflicts: Vec<ConflictData>, resolved: Vec<ConflictData>) -> View {
        View::new(Board::new(Present {
            node: "worker-1".to_owned(),
            ready: true,
            conflicts,
            resolved,
        }))
    }

    fn drawn(view: &mut View) -> String {
        let mut terminal = Terminal::new(TestBackend::new(100, 14)).unwrap();
        let now = "2026-01-02T03:04:35Z".parse().unwrap();
        terminal.draw(|frame| view.draw(frame, now)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn the_table_shows_active_and_resolved_conflicts_and_details_on_enter() {
        let mut view = view(
            vec![conflict("1", "10.0.0.1", "active")],
            vec![conflict("2", "10.0.0.2", "resolved")],
        );
        let table = drawn(&mut view);
        assert!(table.contains("1 address in conflict"), "{table}");
        assert!(
            table.contains("10.0.0.1") && table.contains("30 s"),
            "{table}"
        );
        assert!(table.contains("→default/web-a  default/web-b"), "{table}");
        assert!(
            table.contains("10.0.0.2") && table.contains("was 1 min 10 s"),
            "{table}"
        );
        assert_eq!(view.press(KeyCode::Enter, KeyModifiers::NONE), Then::GoOn);
        let detail = drawn(&mut view);
        assert!(
            detail.contains("→ default/web-a  receives the traffic"),
            "{detail}"
        );
        assert!(detail.contains("02:00:00:00:00:01"), "{detail}");
        view.press(KeyCode::Esc, KeyModifiers::NONE);
        assert!(drawn(&mut view).contains("CLAIMANTS"));
        assert_eq!(
            view.press(KeyCode::Char('q'), KeyModifiers::NONE),
            Then::End
        );
    }

    #[test]
    fn the_selection_stays_on_its_conflict_and_a_lost_agent_is_said() {
        let mut view = view(vec![conflict("1", "10.0.0.1", "active")], Vec::new());
        let event = json!({
            "specversion": "1.0", "id": "x", "source": "s", "type": "io.ipconflict.conflict.raised",
            "subject": "10.0.0.9", "time": "t", "datacontenttype": "application/json",
            "data": conflict("9", "10.0.0.9", "active"),
        });
        view.learn(News::Event(Box::new(
            serde_json::from_value(event).unwrap(),
        )));
        assert_eq!(view.table.selected(), Some(1));
        view.learn(News::Lost("the agent ended it".to_owned()));
        assert!(drawn(&mut view).contains("DISCONNECTED"));
    }

    #[test]
    fn without_conflicts_it_says_so_and_keys_do_no_harm() {
        let mut view = view(Vec::new(), Vec::new());
        for key in [
            KeyCode::Down,
            KeyCode::Enter,
            KeyCode::End,
            KeyCode::PageDown,
        ] {
            assert_eq!(view.press(key, KeyModifiers::NONE), Then::GoOn);
        }
        assert!(drawn(&mut view).contains("No IP address conflict."));
    }
}
