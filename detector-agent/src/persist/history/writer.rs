//! The thread's side of the history.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use detector_event::AnyEvent;
use tracing::{error, info};

use super::{History, tables};
use crate::persist::store::StoreError;

/// The most entries that wait for a disk that cannot be written. Beyond it the oldest ones are dropped.
const UNSAVED: usize = 1024;
/// The time between a failure of the file and the next attempt.
const RETRY: Duration = Duration::from_secs(5);
/// How often entries that have become too old are removed.
const PRUNE: Duration = Duration::from_secs(60 * 60);

/// Writes the history, and keeps what could not be written for the next attempt.
#[derive(Debug)]
pub(in crate::persist) struct HistoryWriter {
    history: Arc<History>,
    unsaved: VecDeque<AnyEvent>,
    /// Why the last attempt failed.
    problem: Option<String>,
    next: Instant,
}

impl HistoryWriter {
    pub(in crate::persist) fn new(history: Arc<History>) -> Self {
        Self {
            history,
            unsaved: VecDeque::new(),
            problem: None,
            next: Instant::now(),
        }
    }

    /// Reads the newest entries into memory.
    pub(in crate::persist) fn load(&mut self) {
        if let Some(stored) = &self.history.stored {
            match stored.read(tables::recent) {
                Ok(events) => {
                    for event in events {
                        // One that ended meanwhile is newer.
                        let is_known = |entry: &AnyEvent| entry.subject_id() == event.subject_id();
                        if !self.history.lock().values().any(is_known) {
                            self.history.note(&event);
                        }
                    }
                }
                Err(problem) => self.failed(&problem),
            }
        }
    }

    /// Stores what ended; what is raised again is removed. Returns how many are lost.
    pub(in crate::persist) fn write(&mut self, events: Vec<AnyEvent>) -> u64 {
        let Some(stored) = &self.history.stored else {
            return 0;
        };
        self.unsaved.extend(events);
        let excess = self.unsaved.len().saturating_sub(UNSAVED);
        self.unsaved.drain(..excess);
        let mut lost = excess as u64;
        let written = stored.write(self.unsaved.iter_mut());
        // They have more than the sink knew.
        self.unsaved
            .iter()
            .for_each(|event| self.history.note(event));
        match written {
            Ok(too_large) => {
                lost += too_large;
                self.unsaved.clear();
                self.next = Instant::now() + PRUNE;
                if self.problem.take().is_some() {
                    info!("the history is stored in --state-dir again");
                }
            }
            Err(problem) => self.failed(&problem),
        }
        lost
    }

    /// When [`HistoryWriter::write`] must be called although nothing ended.
    pub(in crate::persist) fn next(&self) -> Instant {
        self.next
    }

    /// Why the history is not stored.
    pub(in crate::persist) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    fn failed(&mut self, problem: &StoreError) {
        if self.problem.is_none() {
            error!(
                retry_in = ?RETRY,
                "cannot store ended conflicts and anomalies: {problem}; detection is not affected"
            );
        }
        self.problem = Some(problem.to_string());
        self.next = Instant::now() + RETRY;
    }
}
