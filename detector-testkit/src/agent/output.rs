//! What an agent writes, read as it comes: events from stdout, the log from stderr.

use std::{
    collections::VecDeque,
    io::{BufRead as _, BufReader, Read},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::Received;
use crate::{contract::violations, event::Event};

/// Lines of the log kept for messages.
const LOG_LINES: usize = 400;

/// Events kept; a test that makes more is wrong.
const EVENTS: usize = 100_000;

#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) state: Mutex<State>,
    pub(super) changed: Condvar,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) events: Vec<Received>,
    pub(super) log: VecDeque<String>,
    pub(super) ready: bool,
    /// Lines on stdout that are no event, or break the contract.
    bad: Vec<String>,
    /// Its stdout is closed: no event comes any more.
    pub(super) ended: bool,
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until something changes, or until then; says whether the time was over before.
    pub(super) fn wait_change<'s>(
        &self,
        state: MutexGuard<'s, State>,
        until: Instant,
    ) -> (MutexGuard<'s, State>, bool) {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return (state, true);
        }
        let waited = self.changed.wait_timeout(state, left);
        (waited.unwrap_or_else(PoisonError::into_inner).0, false)
    }
}

pub(super) fn refuse_bad(state: &State) -> Result<()> {
    match state.bad.first() {
        Some(bad) => bail!("stdout breaks the event contract: {bad}"),
        None => Ok(()),
    }
}

pub(super) fn read_events(stdout: impl Read, shared: &Shared) {
    for line in BufReader::new(stdout).lines() {
        let at = Instant::now();
        let Ok(line) = line else { break };
        let outcome = parse(&line);
        let mut state = shared.lock();
        match outcome {
            Ok(event) if state.events.len() < EVENTS => state.events.push(Received { at, event }),
            Ok(_) => state.bad.push(format!("more than {EVENTS} events")),
            Err(error) => state.bad.push(format!("{error:#} in {line}")),
        }
        shared.changed.notify_all();
    }
    shared.lock().ended = true;
    shared.changed.notify_all();
}

fn parse(line: &str) -> Result<Event> {
    let value: Value = serde_json::from_str(line).context("not JSON")?;
    let violations = violations(&value);
    if !violations.is_empty() {
        bail!("{}", violations.join("; "));
    }
    serde_json::from_value(value).context("not an event")
}

pub(super) fn read_log(stderr: impl Read, shared: &Shared) {
    for line in BufReader::new(stderr).lines() {
        let Ok(line) = line else { break };
        let mut state = shared.lock();
        state.ready |= says_ready(&line);
        if state.log.len() == LOG_LINES {
            state.log.pop_front();
        }
        state.log.push_back(line);
        shared.changed.notify_all();
    }
}

/// A record whose message starts with `ready`; the message stands in `fields`, or flat.
fn says_ready(line: &str) -> bool {
    let Ok(record) = serde_json::from_str::<Value>(line) else {
        return false;
    };
    let message = record
        .pointer("/fields/message")
        .or_else(|| record.get("message"));
    message
        .and_then(Value::as_str)
        .is_some_and(|message| message.starts_with("ready"))
}

#[cfg(test)]
mod tests {
    use super::says_ready;

    #[test]
    fn ready_is_a_message_not_a_word() {
        assert!(says_ready(
            r#"{"level":"INFO","fields":{"message":"ready: 2 devices attached"}}"#
        ));
        assert!(says_ready(r#"{"level":"INFO","message":"ready"}"#));
        assert!(!says_ready(
            r#"{"level":"INFO","fields":{"message":"not ready"}}"#
        ));
        assert!(!says_ready("ready"));
    }
}
