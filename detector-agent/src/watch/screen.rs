//! The table in a terminal and the details of one item: handling of keys and updates.

mod detail;
mod draw;
mod table;
#[cfg(test)]
mod tests;

use std::{io, thread, time::Duration};

use detector_client::Overview;
use detector_event::{WallTime, row::Item, text::Colour};
use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, KeyCode, KeyEventKind, KeyModifiers},
    widgets::TableState,
};
use tokio::{sync::mpsc, time::interval};

use super::{
    Update,
    view_model::{Row, RowOptions, ViewModel},
};

/// Longest filter, in characters.
const MAX_FILTER: usize = 100;

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

/// What the body of the screen shows.
enum Body {
    Table,
    /// The details of an item, and the scroll offset in lines.
    Detail(Item, u16),
    Help,
}

/// The view of a model: selection, scroll position, rows and open details.
struct View {
    model: ViewModel,
    table: TableState,
    body: Body,
    options: RowOptions,
    /// Keys go to the filter.
    is_editing_filter: bool,
    colour: Colour,
}

impl View {
    fn new(model: ViewModel) -> Self {
        Self {
            model,
            table: TableState::default().with_selected(0),
            body: Body::Table,
            options: RowOptions::default(),
            is_editing_filter: false,
            colour: Colour::for_output(&io::stdout()),
        }
    }

    /// Applies an update; the selection stays on its item.
    fn apply(&mut self, update: Update) {
        self.keep_selection(|view| view.model.apply(update));
        if let Body::Detail(shown, _) = &mut self.body
            && let Some(newer) = self.model.find(shown.id())
        {
            shown.clone_from(newer);
        }
    }

    fn rows(&self) -> Vec<Row<'_>> {
        self.model.rows(&self.options)
    }

    /// The first item of the selected row, and how many further ones it stands for.
    fn selected(&self) -> Option<(&Item, usize)> {
        let rows = self.rows();
        let row = rows.get(self.table.selected()?)?;
        Some((row.first()?, row.items.len() - 1))
    }

    /// Changes the rows; the selection stays on its item if that is still shown.
    fn keep_selection(&mut self, change: impl FnOnce(&mut Self)) {
        let selected = self.selected().map(|(item, _)| item.id());
        change(self);
        let rows = self.rows();
        let position = selected.and_then(|id| rows.iter().position(|row| row.contains(id)));
        let fallback = self.table.selected().unwrap_or(0);
        let last = rows.len().saturating_sub(1);
        self.table
            .select(Some(position.unwrap_or(fallback.min(last))));
    }

    /// Changes which rows there are.
    fn set(&mut self, change: impl FnOnce(&mut RowOptions)) {
        self.keep_selection(|view| change(&mut view.options));
    }

    fn press(&mut self, code: KeyCode, modifiers: KeyModifiers) -> KeyOutcome {
        if code == KeyCode::Char('c') && modifiers.contains(KeyModifiers::CONTROL) {
            return KeyOutcome::Quit;
        }
        if self.is_editing_filter {
            self.edit_filter(code);
            return KeyOutcome::Continue;
        }
        match &mut self.body {
            _ if code == KeyCode::Char('q') => return KeyOutcome::Quit,
            Body::Help => self.body = Body::Table,
            Body::Detail(_, scroll) => match code {
                KeyCode::Esc | KeyCode::Enter | KeyCode::Backspace | KeyCode::Left => {
                    self.body = Body::Table;
                }
                KeyCode::Char('?') => self.body = Body::Help,
                KeyCode::Down | KeyCode::Char('j') => *scroll = scroll.saturating_add(1),
                KeyCode::Up | KeyCode::Char('k') => *scroll = scroll.saturating_sub(1),
                KeyCode::PageDown => *scroll = scroll.saturating_add(10),
                KeyCode::PageUp => *scroll = scroll.saturating_sub(10),
                KeyCode::Home => *scroll = 0,
                _ => {}
            },
            Body::Table => return self.press_in_table(code),
        }
        KeyOutcome::Continue
    }

    fn edit_filter(&mut self, code: KeyCode) {
        let mut filter = self.options.filter.clone();
        match code {
            KeyCode::Enter => self.is_editing_filter = false,
            KeyCode::Esc => {
                self.is_editing_filter = false;
                filter.clear();
            }
            KeyCode::Backspace => drop(filter.pop()),
            KeyCode::Char(c) if !c.is_control() && filter.chars().count() < MAX_FILTER => {
                filter.push(c);
            }
            _ => {}
        }
        self.set(|options| options.filter = filter);
    }

    fn press_in_table(&mut self, code: KeyCode) -> KeyOutcome {
        let last = self.rows().len().saturating_sub(1);
        let selected = self.table.selected().unwrap_or(0);
        let target = match code {
            KeyCode::Esc if !self.options.filter.is_empty() => {
                self.set(|options| options.filter.clear());
                return KeyOutcome::Continue;
            }
            KeyCode::Esc if !self.options.expanded.is_empty() => {
                self.set(|options| options.expanded.clear());
                return KeyOutcome::Continue;
            }
            KeyCode::Esc => return KeyOutcome::Quit,
            KeyCode::Enter | KeyCode::Right => {
                match self.selected().map(|(item, more)| (item.clone(), more)) {
                    Some((item, 0)) => self.body = Body::Detail(item, 0),
                    Some((item, _)) => {
                        self.set(|options| {
                            options.expanded.insert(item.id());
                        });
                    }
                    None => {}
                }
                selected
            }
            KeyCode::Char('g') => {
                self.set(|options| {
                    options.is_grouped = !options.is_grouped;
                    options.expanded.clear();
                });
                return KeyOutcome::Continue;
            }
            KeyCode::Char('h') => {
                self.set(|options| options.hides_ended = !options.hides_ended);
                return KeyOutcome::Continue;
            }
            KeyCode::Char('s') => {
                self.set(|options| options.sort = options.sort.next());
                return KeyOutcome::Continue;
            }
            KeyCode::Char('/') => {
                self.is_editing_filter = true;
                selected
            }
            KeyCode::Char('?') => {
                self.body = Body::Help;
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
