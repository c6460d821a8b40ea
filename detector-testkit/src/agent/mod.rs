//! A running `detector-agent`, seen from outside: its event lines with the time each was read, its log, its exit.
//!
//! A wait for events or log lines does not poll: it sleeps on a condition variable that the reader threads notify. The
//! error of a wait contains the last events and the end of the log.

mod command;
mod output;

use std::{
    process::{Child, ExitStatus},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    event::{Conflict, Event},
    netns::Netns,
    wait::Monitor,
};
use output::{Output, read_events, read_log};

pub(crate) use command::wait_child;
pub use command::{AgentCommand, LOOK_ARGS, Outcome, RUN_ARGS};
pub use output::EventLines;

/// Longest that a test waits for something that must happen. Generous, because the machine may be busy.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// An event line and when it was read.
#[derive(Clone, Debug)]
pub struct ReceivedEvent {
    /// When the line had been read from the agent's stdout.
    pub at: Instant,
    /// The parsed line.
    pub event: Event,
}

/// A running agent; killed on drop.
#[derive(Debug)]
pub struct Agent {
    child: Child,
    output: Arc<Monitor<Output>>,
}

impl Agent {
    /// Starts the agent in a namespace (a node's) and reads its stdout and stderr from then on.
    ///
    /// # Errors
    /// The binary cannot be started.
    pub fn start(netns: &Netns, command: &AgentCommand) -> Result<Self> {
        let mut child = command.spawn(netns)?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let agent = Self {
            child,
            output: Arc::default(),
        };
        if let (Some(stdout), Some(stderr)) = (stdout, stderr) {
            let output = Arc::clone(&agent.output);
            thread::spawn(move || read_events(stdout, &output));
            let output = Arc::clone(&agent.output);
            thread::spawn(move || read_log(stderr, &output));
        }
        Ok(agent)
    }

    /// Starts the agent and waits until it is ready.
    ///
    /// # Errors
    /// As [`Agent::start`] and [`Agent::wait_ready`].
    pub fn start_ready(netns: &Netns, command: &AgentCommand) -> Result<Self> {
        let agent = Self::start(netns, command)?;
        agent.wait_ready(DEADLINE)?;
        Ok(agent)
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the log record that reports readiness: programs attached, first snapshot complete.
    ///
    /// # Errors
    /// The agent exits first, or the deadline passes.
    pub fn wait_ready(&self, deadline: Duration) -> Result<()> {
        self.wait(deadline, "the agent to be ready", |output| {
            output.ready.then_some(())
        })
    }

    /// Waits for an event that `wanted` accepts; returns the first one since the agent's start.
    ///
    /// # Errors
    /// None arrives before the deadline, the agent exits, or a line on stdout violates the event contract.
    pub fn wait_event(
        &self,
        deadline: Duration,
        wanted: impl Fn(&Event) -> bool,
    ) -> Result<ReceivedEvent> {
        self.wait_event_after(0, deadline, wanted)
    }

    /// [`Agent::wait_event`] without the first `skip` events; see [`Agent::event_count`].
    ///
    /// # Errors
    /// As [`Agent::wait_event`].
    pub fn wait_event_after(
        &self,
        skip: usize,
        deadline: Duration,
        wanted: impl Fn(&Event) -> bool,
    ) -> Result<ReceivedEvent> {
        let mut checked = skip;
        self.wait(deadline, "an event", |output| {
            let found = output
                .events
                .iter()
                .skip(checked)
                .find(|received| wanted(&received.event))
                .cloned();
            checked = checked.max(output.events.len());
            found
        })
    }

    /// Waits for the event that raises a conflict on this address.
    ///
    /// # Errors
    /// As [`Agent::wait_event`].
    pub fn wait_raised(&self, address: &str) -> Result<Conflict> {
        let received = self.wait_event(DEADLINE, |event| event.raises(address))?;
        let conflict = received.event.conflict();
        conflict.context("the raising event contains no conflict")
    }

    /// Waits for an event that resolves a conflict on this address.
    ///
    /// # Errors
    /// As [`Agent::wait_event`].
    pub fn wait_resolved(&self, address: &str) -> Result<ReceivedEvent> {
        self.wait_event(DEADLINE, |event| event.resolves(address))
    }

    /// Waits until `enough` accepts all events so far, and returns them.
    ///
    /// # Errors
    /// As [`Agent::wait_event`].
    pub fn wait_until(
        &self,
        deadline: Duration,
        enough: impl Fn(&[ReceivedEvent]) -> bool,
    ) -> Result<Vec<ReceivedEvent>> {
        self.wait(deadline, "events", |output| {
            enough(&output.events).then(|| output.events.clone())
        })
    }

    /// Waits for a log line that contains `text`.
    ///
    /// # Errors
    /// As [`Agent::wait_event`].
    pub fn wait_log(&self, deadline: Duration, text: &str) -> Result<String> {
        let what = format!("a log line that contains {text:?}");
        self.wait(deadline, &what, |output| {
            output.log.iter().find(|line| line.contains(text)).cloned()
        })
    }

    /// All events so far, in the order they were read.
    #[must_use]
    pub fn events(&self) -> Vec<ReceivedEvent> {
        self.output.lock().events.clone()
    }

    /// The number of events so far.
    #[must_use]
    pub fn event_count(&self) -> usize {
        self.output.lock().events.len()
    }

    /// The last lines of its log.
    #[must_use]
    pub fn log(&self) -> String {
        self.output
            .lock()
            .log
            .iter()
            .fold(String::new(), |text, line| text + line + "\n")
    }

    /// The number of bytes it has logged.
    #[must_use]
    pub fn log_bytes(&self) -> u64 {
        self.output.lock().log_bytes
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// The process no longer exists.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id()).context("process id")?;
        kill(Pid::from_raw(pid), signal).with_context(|| format!("sending {signal} to the agent"))
    }

    /// Waits for its exit; returns the status and all its events, including those written last.
    ///
    /// # Errors
    /// The process, or its stdout, stays open beyond the deadline, or a line on stdout violates the event contract.
    pub fn wait_exit(&mut self, deadline: Duration) -> Result<(ExitStatus, Vec<ReceivedEvent>)> {
        let end = Instant::now() + deadline;
        let status = wait_child(&mut self.child, deadline)
            .with_context(|| self.describe(&self.output.lock()))?;
        let left = end.saturating_duration_since(Instant::now());
        self.output.wait(
            left,
            "the agent's stdout to be closed",
            |output| output.ended.then_some(()),
            |output| self.describe(output),
        )?;
        let output = self.output.lock();
        output.check_contract()?;
        Ok((status, output.events.clone()))
    }

    /// Sends SIGTERM, then waits as [`Agent::wait_exit`] does.
    ///
    /// # Errors
    /// As [`Agent::wait_exit`].
    pub fn terminate(&mut self, deadline: Duration) -> Result<(ExitStatus, Vec<ReceivedEvent>)> {
        self.signal(Signal::SIGTERM)?;
        self.wait_exit(deadline)
    }

    /// Sends SIGKILL and waits for its exit.
    ///
    /// # Errors
    /// The process no longer exists.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill().context("killing the agent")?;
        self.child.wait().context("waiting for the agent").map(drop)
    }

    fn wait<T>(
        &self,
        deadline: Duration,
        what: &str,
        mut check: impl FnMut(&Output) -> Option<T>,
    ) -> Result<T> {
        let waited = self.output.wait(
            deadline,
            what,
            |output| {
                if let Err(error) = output.check_contract() {
                    return Some(Err(error));
                }
                if let Some(found) = check(output) {
                    return Some(Ok(found));
                }
                output.ended.then(|| self.exited_early(what, output))
            },
            |output| self.describe(output),
        );
        waited?
    }

    fn exited_early<T>(&self, what: &str, output: &Output) -> Result<T> {
        bail!(
            "the agent exited while the test waited for {what}: {}",
            self.describe(output)
        )
    }

    /// The last events and log lines, for the reader of a failed test.
    fn describe(&self, output: &Output) -> String {
        let mut text = format!("events of agent {}:\n", self.child.id());
        for received in output.events.iter().rev().take(20).rev() {
            text += &format!(
                "  {} {} {}\n",
                received.event.kind, received.event.subject, received.event.data
            );
        }
        text += "end of its log:\n";
        for line in output.log.iter().rev().take(60).rev() {
            text += &format!("  {line}\n");
        }
        text
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Fails only if it has exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
