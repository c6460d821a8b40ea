//! The table in a terminal, and the details of one conflict: what happens on a key and on news.

mod draw;

use std::{io, thread, time::Duration};

use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, KeyCode, KeyEventKind, KeyModifiers},
    widgets::TableState,
};
use tokio::{sync::mpsc, time::interval};

use super::{News, Present, view_model::ViewModel};
use crate::{
    clock::WallTime,
    event::{ConflictData, text::Colour},
};

/// Shows it until the person ends it.
pub(super) async fn show(first: Present, mut news: mpsc::Receiver<News>) -> io::Result<()> {
    let mut terminal = ratatui::try_init()?;
    let shown = live(&mut terminal, View::new(ViewModel::new(first)), &mut news).await;
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
        terminal.draw(|frame| view.draw(frame, WallTime::now()))?;
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
    board: ViewModel,
    table: TableState,
    /// The conflict whose details are shown, and how far they are scrolled.
    detail: Option<(Box<ConflictData>, u16)>,
    colour: Colour,
}

impl View {
    fn new(board: ViewModel) -> Self {
        Self {
            board,
            table: TableState::default().with_selected(0),
            detail: None,
            colour: Colour::for_output(&io::stdout()),
        }
    }

    /// Keeps the selection on its conflict, wherever that moves.
    fn learn(&mut self, news: News) {
        let selected = self.table.selected().and_then(|n| self.board.row(n));
        let selected = selected.map(|conflict| conflict.conflict_id);
        self.board.apply(news);
        let position = selected.and_then(|id| self.board.position(id));
        let last = self.board.len().saturating_sub(1);
        let fallback = self.table.selected().unwrap_or(0).min(last);
        self.table.select(Some(position.unwrap_or(fallback)));
        if let Some((shown, _)) = &mut self.detail {
            let position = self.board.position(shown.conflict_id);
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
        View::new(ViewModel::new(Present {
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
            "subject": "10.0.0.9", "time": "2026-01-02T03:04:05.000000Z", "datacontenttype": "application/json",
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
