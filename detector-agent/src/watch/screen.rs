//! The table in a terminal and the details of one conflict: handling of keys and updates.

mod draw;

use std::{io, thread, time::Duration};

use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, KeyCode, KeyEventKind, KeyModifiers},
    widgets::TableState,
};
use tokio::{sync::mpsc, time::interval};

use super::{Update, view_model::ViewModel};
use crate::{
    agent_client::Overview,
    clock::WallTime,
    event::{ConflictData, text::Colour},
};

/// Shows the table until the user quits.
pub(super) async fn show(first: Overview, mut updates: mpsc::Receiver<Update>) -> io::Result<()> {
    let mut terminal = ratatui::try_init()?;
    let view = View::new(ViewModel::new(first));
    let result = run(&mut terminal, view, &mut updates).await;
    ratatui::restore();
    result
}

async fn run(
    terminal: &mut DefaultTerminal,
    mut view: View,
    updates: &mut mpsc::Receiver<Update>,
) -> io::Result<()> {
    let mut inputs = spawn_input_thread();
    let mut redraw = interval(Duration::from_secs(1));
    loop {
        terminal.draw(|frame| view.draw(frame, WallTime::now()))?;
        tokio::select! {
            update = updates.recv() => match update {
                Some(update) => {
                    view.apply(update);
                    // Draw once for a burst of updates.
                    while let Ok(update) = updates.try_recv() {
                        view.apply(update);
                    }
                }
                None => return Ok(()),
            },
            input = inputs.recv() => match input {
                Some(Input::Key(code, modifiers)) => {
                    if view.press(code, modifiers) == KeyOutcome::Quit {
                        return Ok(());
                    }
                }
                Some(Input::Resize) => {}
                None => return Ok(()),
            },
            _ = redraw.tick() => {}
        }
    }
}

enum Input {
    Key(KeyCode, KeyModifiers),
    Resize,
}

/// Starts a thread that reads terminal input until the receiver is dropped or the process exits.
fn spawn_input_thread() -> mpsc::Receiver<Input> {
    let (sender, inputs) = mpsc::channel(16);
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
            if sender.blocking_send(input).is_err() {
                return;
            }
        }
    });
    inputs
}

#[derive(Debug, PartialEq, Eq)]
enum KeyOutcome {
    Continue,
    Quit,
}

/// The view of a model: selection, scroll position and open details.
struct View {
    model: ViewModel,
    table: TableState,
    /// The conflict whose details are shown, and the scroll offset in lines.
    detail: Option<(Box<ConflictData>, u16)>,
    colour: Colour,
}

impl View {
    fn new(model: ViewModel) -> Self {
        Self {
            model,
            table: TableState::default().with_selected(0),
            detail: None,
            colour: Colour::for_output(&io::stdout()),
        }
    }

    /// Applies an update; the selection stays on its conflict.
    fn apply(&mut self, update: Update) {
        let selected = self.table.selected().and_then(|n| self.model.row(n));
        let selected = selected.map(|conflict| conflict.conflict_id);
        self.model.apply(update);
        let position = selected.and_then(|id| self.model.position(id));
        let last = self.model.len().saturating_sub(1);
        let fallback = self.table.selected().unwrap_or(0).min(last);
        self.table.select(Some(position.unwrap_or(fallback)));
        if let Some((shown, _)) = &mut self.detail {
            let position = self.model.position(shown.conflict_id);
            if let Some(newer) = position.and_then(|n| self.model.row(n)) {
                shown.clone_from(&Box::new(newer.clone()));
            }
        }
    }

    fn press(&mut self, code: KeyCode, modifiers: KeyModifiers) -> KeyOutcome {
        if code == KeyCode::Char('c') && modifiers.contains(KeyModifiers::CONTROL) {
            return KeyOutcome::Quit;
        }
        let last = self.model.len().saturating_sub(1);
        if let Some((_, scroll)) = &mut self.detail {
            match code {
                KeyCode::Esc | KeyCode::Enter | KeyCode::Backspace | KeyCode::Left => {
                    self.detail = None;
                }
                KeyCode::Char('q') => return KeyOutcome::Quit,
                KeyCode::Down | KeyCode::Char('j') => *scroll = scroll.saturating_add(1),
                KeyCode::Up | KeyCode::Char('k') => *scroll = scroll.saturating_sub(1),
                KeyCode::PageDown => *scroll = scroll.saturating_add(10),
                KeyCode::PageUp => *scroll = scroll.saturating_sub(10),
                KeyCode::Home => *scroll = 0,
                _ => {}
            }
            return KeyOutcome::Continue;
        }
        let selected = self.table.selected().unwrap_or(0);
        let target = match code {
            KeyCode::Char('q') | KeyCode::Esc => return KeyOutcome::Quit,
            KeyCode::Enter | KeyCode::Right => {
                let conflict = self.model.row(selected).cloned();
                self.detail = conflict.map(|conflict| (Box::new(conflict), 0));
                selected
            }
            KeyCode::Down | KeyCode::Char('j') => selected.saturating_add(1),
            KeyCode::Up | KeyCode::Char('k') => selected.saturating_sub(1),
            KeyCode::PageDown => selected.saturating_add(10),
            KeyCode::PageUp => selected.saturating_sub(10),
            KeyCode::Home => 0,
            KeyCode::End => last,
            _ => selected,
        };
        self.table.select(Some(target.min(last)));
        KeyOutcome::Continue
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
        View::new(ViewModel::new(Overview {
            node: "worker-1".to_owned(),
            ready: true,
            conflicts,
            resolved,
            anomalies: Vec::new(),
        }))
    }

    fn drawn(view: &mut View) -> String {
        let mut terminal = Terminal::new(TestBackend::new(100, 14)).unwrap();
        let now = "2026-01-02T03:04:35Z".parse().unwrap();
        terminal.draw(|frame| view.draw(frame, now)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn table_shows_conflicts_and_enter_shows_details() {
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
            table.contains("10.0.0.2") && table.contains("lasted 1 min 10 s"),
            "{table}"
        );
        assert_eq!(
            view.press(KeyCode::Enter, KeyModifiers::NONE),
            KeyOutcome::Continue
        );
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
            KeyOutcome::Quit
        );
    }

    #[test]
    fn selection_stays_on_its_conflict_and_disconnect_is_shown() {
        let mut view = view(vec![conflict("1", "10.0.0.1", "active")], Vec::new());
        let event = json!({
            "specversion": "1.0", "id": "x", "source": "s", "type": "io.ipconflict.conflict.raised",
            "subject": "10.0.0.9", "time": "2026-01-02T03:04:05.000000Z", "datacontenttype": "application/json",
            "data": conflict("9", "10.0.0.9", "active"),
        });
        view.apply(Update::Conflict(Box::new(
            serde_json::from_value(event).unwrap(),
        )));
        assert_eq!(view.table.selected(), Some(1));
        view.apply(Update::Disconnected(
            "the agent closed the stream".to_owned(),
        ));
        assert!(drawn(&mut view).contains("DISCONNECTED"));
    }

    #[test]
    fn empty_table_shows_a_message_and_ignores_keys() {
        let mut view = view(Vec::new(), Vec::new());
        for key in [
            KeyCode::Down,
            KeyCode::Enter,
            KeyCode::End,
            KeyCode::PageDown,
        ] {
            assert_eq!(view.press(key, KeyModifiers::NONE), KeyOutcome::Continue);
        }
        assert!(drawn(&mut view).contains("No IP address conflict."));
    }
}
