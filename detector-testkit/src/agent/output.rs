//! What an agent writes, read line by line: events from stdout, the log from stderr.

use std::{
    collections::VecDeque,
    io::{BufRead as _, BufReader, Read},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::ReceivedEvent;
use crate::{contract::violations, event::Event, wait::Monitor};

/// Log lines kept for error messages.
const MAX_LOG_LINES: usize = 400;

/// Events kept; an agent that writes more fails the test.
const MAX_EVENTS: usize = 100_000;

/// Everything read so far.
#[derive(Debug, Default)]
pub(super) struct Output {
    pub(super) events: Vec<ReceivedEvent>,
    pub(super) log: VecDeque<String>,
    /// Of all lines, including those no longer kept.
    pub(super) log_bytes: u64,
    pub(super) ready: bool,
    /// Lines on stdout that are no event or violate the contract, with the reason.
    violations: Vec<String>,
    /// Its stdout is closed: no further event can arrive.
    pub(super) ended: bool,
}

impl Output {
    /// Fails if any line on stdout violated the event contract.
    pub(super) fn check_contract(&self) -> Result<()> {
        match self.violations.first() {
            Some(violation) => bail!("stdout violates the event contract: {violation}"),
            None => Ok(()),
        }
    }
}

/// Event lines of any stream, read and parsed by a thread as those of an agent are.
#[derive(Debug)]
pub struct EventLines {
    output: Arc<Monitor<Output>>,
}

impl EventLines {
    /// Reads the stream until it ends.
    #[must_use]
    pub fn read(stream: impl Read + Send + 'static) -> Self {
        let output = Arc::<Monitor<Output>>::default();
        let reader = Arc::clone(&output);
        thread::spawn(move || read_events(stream, &reader));
        Self { output }
    }

    /// The number of events so far.
    #[must_use]
    pub fn event_count(&self) -> usize {
        self.output.lock().events.len()
    }

    /// Waits for the event that follows the first `skip`.
    ///
    /// # Errors
    /// None arrives before the deadline, or a line violates the event contract.
    pub fn wait_event_after(&self, skip: usize, deadline: Duration) -> Result<ReceivedEvent> {
        self.output.wait(
            deadline,
            "an event line",
            |output| {
                let event = || output.events.get(skip).cloned();
                output.check_contract().map(|()| event()).transpose()
            },
            |output| format!("{} events so far", output.events.len()),
        )?
    }
}

pub(super) fn read_events(stdout: impl Read, output: &Monitor<Output>) {
    for line in BufReader::new(stdout).lines() {
        let at = Instant::now();
        let Ok(line) = line else { break };
        let parsed = parse(&line);
        output.update(|output| match parsed {
            Ok(event) if output.events.len() < MAX_EVENTS => {
                output.events.push(ReceivedEvent { at, event });
            }
            Ok(_) => output
                .violations
                .push(format!("more than {MAX_EVENTS} events")),
            Err(error) => output.violations.push(format!("{error:#} in {line}")),
        });
    }
    output.update(|output| output.ended = true);
}

fn parse(line: &str) -> Result<Event> {
    let value: Value = serde_json::from_str(line).context("not JSON")?;
    let violations = violations(&value);
    if !violations.is_empty() {
        bail!("{}", violations.join("; "));
    }
    serde_json::from_value(value).context("not an event")
}

pub(super) fn read_log(stderr: impl Read, output: &Monitor<Output>) {
    for line in BufReader::new(stderr).lines() {
        let Ok(line) = line else { break };
        output.update(|output| {
            output.ready |= is_ready_record(&line);
            if output.log.len() == MAX_LOG_LINES {
                output.log.pop_front();
            }
            output.log_bytes += line.len() as u64 + 1;
            output.log.push_back(line);
        });
    }
}

/// Whether a log line is a record whose message starts with `ready`; the message is in `fields` or at the top level.
fn is_ready_record(line: &str) -> bool {
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
    use super::is_ready_record;

    #[test]
    fn only_a_record_whose_message_starts_with_ready_is_ready() {
        assert!(is_ready_record(
            r#"{"level":"INFO","fields":{"message":"ready: 2 devices attached"}}"#
        ));
        assert!(is_ready_record(r#"{"level":"INFO","message":"ready"}"#));
        assert!(!is_ready_record(
            r#"{"level":"INFO","fields":{"message":"not ready"}}"#
        ));
        assert!(!is_ready_record("ready"));
    }
}
