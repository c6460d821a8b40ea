//! The event loop's side of the history.

use std::sync::Arc;

use detector_event::{AnyEvent, Change};

use super::History;
use crate::{persist::handle::RequestQueue, sinks::EventSink};

/// Adds what ends to the history, and has the newest event of what is open stored, so that its end can be completed from it.
#[derive(Debug)]
pub struct HistorySink {
    history: Arc<History>,
    /// With `--state-dir`.
    requests: Option<RequestQueue>,
}

impl HistorySink {
    /// A sink that keeps the newest entries in memory.
    #[must_use]
    pub fn in_memory(history: Arc<History>) -> Self {
        Self {
            history,
            requests: None,
        }
    }

    pub(in crate::persist) fn stored(history: Arc<History>, requests: RequestQueue) -> Self {
        Self {
            history,
            requests: Some(requests),
        }
    }

    fn store(&self, event: &AnyEvent) {
        if let Some(requests) = &self.requests {
            requests.send_event(event.clone());
        }
    }
}

impl EventSink for HistorySink {
    fn on_event(&mut self, event: &AnyEvent) {
        if event.is_resolved() || event.change() == Change::Raised {
            self.history.note(event);
        }
        self.store(event);
    }

    /// Only its end: the agent of another node has the record that it is open.
    fn on_remote_event(&mut self, event: &AnyEvent) {
        if event.is_resolved() {
            self.on_event(event);
        }
    }
}
