//! A running `detector-agent`, seen from outside: its event lines with the time each was read, its log, its exit.
//!
//! A wait never polls: it sleeps on a condition variable that the reader threads wake. Whatever a wait gives up on, the
//! message holds the events and the end of the log, so that a failing test says why.

mod command;
mod output;

use std::{
    process::{Child, ExitStatus},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    event::{Conflict, Event},
    netns::Netns,
};
use command::wait_until;
use output::{Shared, State, read_events, read_log, refuse_bad};

pub use command::{AgentCommand, Outcome, RUN};

/// Longest that a test waits for something that must come. Generous: the machine may be busy.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// An event line and when it was read.
#[derive(Clone, Debug)]
pub struct Received {
    /// When the reader had the line.
    pub at: Instant,
    /// What it said.
    pub event: Event,
}

/// A running agent; killed on drop.
#[derive(Debug)]
pub struct Agent {
    child: Child,
    shared: Arc<Shared>,
}

impl Agent {
    /// Starts it in a namespace (a node's) and reads its stdout and stderr from then on.
    ///
    /// # Errors
    /// Where it cannot be started.
    pub fn start(netns: &Netns, command: &AgentCommand) -> Result<Self> {
        let mut child = netns.run_in(|| {
            command
                .build()
                .spawn()
                .with_context(|| format!("starting {}", command.binary.display()))
        })?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let agent = Self {
            child,
            shared: Arc::default(),
        };
        if let (Some(stdout), Some(stderr)) = (stdout, stderr) {
            let shared = Arc::clone(&agent.shared);
            thread::spawn(move || read_events(stdout, &shared));
            let shared = Arc::clone(&agent.shared);
            thread::spawn(move || read_log(stderr, &shared));
        }
        Ok(agent)
    }

    /// Starts it and waits until it is ready.
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

    /// Waits for the log record whose message starts with `ready`: programs attached, first snapshot done.
    ///
    /// # Errors
    /// Where it ends before, or the deadline passes.
    pub fn wait_ready(&self, deadline: Duration) -> Result<()> {
        self.wait(deadline, "that it is ready", |state| {
            state.ready.then_some(())
        })
    }

    /// Waits for the first event, from the agent's start on, that `wanted` accepts.
    ///
    /// # Errors
    /// Where none comes before the deadline, the agent ends, or a line on stdout breaks the contract.
    pub fn wait_event(
        &self,
        deadline: Duration,
        wanted: impl Fn(&Event) -> bool,
    ) -> Result<Received> {
        self.wait_event_after(0, deadline, wanted)
    }

    /// The same from the event of this number on (counted from 0); see [`Agent::count`].
    ///
    /// # Errors
    /// As [`Agent::wait_event`].
    pub fn wait_event_after(
        &self,
        skip: usize,
        deadline: Duration,
        wanted: impl Fn(&Event) -> bool,
    ) -> Result<Received> {
        let mut looked_at = skip;
        self.wait(deadline, "an event", |state| {
            let found = state
                .events
                .iter()
                .skip(looked_at)
                .find(|received| wanted(&received.event))
                .cloned();
            looked_at = looked_at.max(state.events.len());
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
        conflict.context("a raising event holds a conflict")
    }

    /// Waits until `enough` accepts all the events so far.
    ///
    /// # Errors
    /// As [`Agent::wait_event`].
    pub fn wait_until(
        &self,
        deadline: Duration,
        enough: impl Fn(&[Received]) -> bool,
    ) -> Result<Vec<Received>> {
        self.wait(deadline, "events", |state| {
            enough(&state.events).then(|| state.events.clone())
        })
    }

    /// Waits for a log line that holds `text`.
    ///
    /// # Errors
    /// As [`Agent::wait_event`].
    pub fn wait_log(&self, deadline: Duration, text: &str) -> Result<String> {
        self.wait(deadline, &format!("a log line with {text:?}"), |state| {
            state.log.iter().find(|line| line.contains(text)).cloned()
        })
    }

    /// All events so far, in the order they came.
    #[must_use]
    pub fn events(&self) -> Vec<Received> {
        self.shared.lock().events.clone()
    }

    /// How many events came so far.
    #[must_use]
    pub fn count(&self) -> usize {
        self.shared.lock().events.len()
    }

    /// The end of its log.
    #[must_use]
    pub fn log(&self) -> String {
        self.shared
            .lock()
            .log
            .iter()
            .fold(String::new(), |text, line| text + line + "\n")
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// Where it has ended and was waited for.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id()).context("process id")?;
        kill(Pid::from_raw(pid), signal).with_context(|| format!("sending {signal} to the agent"))
    }

    /// Waits for its end; gives all its events, also those it wrote last.
    ///
    /// # Errors
    /// Where it still runs at the deadline.
    pub fn wait_exit(&mut self, deadline: Duration) -> Result<(ExitStatus, Vec<Received>)> {
        let until = Instant::now() + deadline;
        let status =
            wait_until(&mut self.child, until).with_context(|| self.story(&self.shared.lock()))?;
        let mut state = self.shared.lock();
        while !state.ended {
            let over;
            (state, over) = self.shared.wait_change(state, until);
            if over {
                bail!("its stdout stays open after its end");
            }
        }
        refuse_bad(&state)?;
        Ok((status, state.events.clone()))
    }

    /// SIGTERM, then [`Agent::wait_exit`].
    ///
    /// # Errors
    /// As [`Agent::wait_exit`].
    pub fn terminate(&mut self, deadline: Duration) -> Result<(ExitStatus, Vec<Received>)> {
        self.signal(Signal::SIGTERM)?;
        self.wait_exit(deadline)
    }

    /// SIGKILL, and waits for its end.
    ///
    /// # Errors
    /// Where it has ended before.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill().context("killing the agent")?;
        self.child.wait().context("waiting for the agent").map(drop)
    }

    fn wait<T>(
        &self,
        deadline: Duration,
        what: &str,
        mut look: impl FnMut(&State) -> Option<T>,
    ) -> Result<T> {
        let until = Instant::now() + deadline;
        let mut state = self.shared.lock();
        loop {
            refuse_bad(&state)?;
            if let Some(found) = look(&state) {
                return Ok(found);
            }
            if state.ended {
                return Err(anyhow!(
                    "the agent ended; waited for {what}. {}",
                    self.story(&state)
                ));
            }
            let over;
            (state, over) = self.shared.wait_change(state, until);
            if over {
                return Err(anyhow!(
                    "waited {deadline:?} in vain for {what}. {}",
                    self.story(&state)
                ));
            }
        }
    }

    /// What there is to know for the reader of a failed test.
    fn story(&self, state: &State) -> String {
        let mut story = format!("Events of agent {}:\n", self.child.id());
        for received in state.events.iter().rev().take(20).rev() {
            story += &format!(
                "  {} {} {}\n",
                received.event.kind, received.event.subject, received.event.data
            );
        }
        story += "End of its log:\n";
        for line in state.log.iter().rev().take(60).rev() {
            story += &format!("  {line}\n");
        }
        story
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Fails only where it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
