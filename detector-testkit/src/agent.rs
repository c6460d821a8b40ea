//! A running `detector-agent`, seen from outside: its event lines with the time each was read, its log, its exit.
//!
//! A wait never polls: it sleeps on a condition variable that the reader threads wake. Whatever a wait gives up on, the
//! message holds the events and the end of the log, so that a failing test says why.

use std::{
    collections::VecDeque,
    ffi::OsString,
    io::{BufRead as _, BufReader, Read},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use crate::{contract::violations, event::Event, netns::Netns};

/// Longest that a test waits for something that must come. Generous: the machine may be busy.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Lines of the log kept for messages.
const LOG_LINES: usize = 400;
/// Events kept; a test that makes more is wrong.
const EVENTS: usize = 100_000;

/// How to start an agent.
#[derive(Clone, Debug)]
pub struct AgentCommand {
    binary: PathBuf,
    args: Vec<OsString>,
    env: Vec<(String, OsString)>,
}

/// An event line and when it was read.
#[derive(Clone, Debug)]
pub struct Received {
    /// When the reader had the line.
    pub at: Instant,
    /// What it said.
    pub event: Event,
}

/// What a command that ran to its end said.
#[derive(Debug)]
pub struct Outcome {
    /// How it ended.
    pub status: ExitStatus,
    /// All of stdout.
    pub stdout: String,
    /// All of stderr.
    pub stderr: String,
}

impl Outcome {
    /// The exit code.
    ///
    /// # Errors
    /// Where a signal ended it; the message holds what it wrote.
    pub fn code(&self) -> Result<i32> {
        self.status
            .code()
            .with_context(|| format!("{}: {}{}", self.status, self.stdout, self.stderr))
    }
}

impl AgentCommand {
    /// The agent of this path with these arguments; without variables of the caller's that would configure it.
    #[must_use]
    pub fn new<S: Into<OsString>>(
        binary: impl AsRef<Path>,
        args: impl IntoIterator<Item = S>,
    ) -> Self {
        Self {
            binary: binary.as_ref().to_owned(),
            args: args.into_iter().map(Into::into).collect(),
            env: vec![
                ("RUST_LOG".to_owned(), "info".into()),
                // The machine's own CNI configuration is none of a test's; `--ipam auto` looks at one that it names.
                ("IPCONFLICT_IPAM".to_owned(), "off".into()),
            ],
        }
    }

    /// `run` with events on stdout and the log as JSON, as [`Agent::start`] reads them.
    #[must_use]
    pub fn run(binary: impl AsRef<Path>) -> Self {
        Self::new(
            binary,
            [
                "run",
                "--events",
                "-",
                "--log-format",
                "json",
                "--node-name",
                "testkit",
            ],
        )
    }

    /// One more argument.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// One more environment variable.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    fn build(&self) -> Command {
        let mut command = Command::new(&self.binary);
        for (name, _) in std::env::vars_os() {
            let ours = name
                .to_str()
                .is_some_and(|name| name.starts_with("IPCONFLICT_") || name == "NODE_NAME");
            if ours {
                command.env_remove(name);
            }
        }
        command
            .args(&self.args)
            .envs(self.env.iter().map(|(name, value)| (name, value)));
        // A group of its own: Ctrl-C in the terminal is for the caller, who then ends the agent in an orderly way.
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        command
    }

    /// Runs it in a namespace to its end.
    ///
    /// # Errors
    /// Where it cannot be started, or has not ended at the deadline; it is killed then.
    pub fn run_to_end(&self, netns: &Netns, deadline: Duration) -> Result<Outcome> {
        let mut child = netns.run_in(|| {
            self.build()
                .spawn()
                .with_context(|| format!("starting {}", self.binary.display()))
        })?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let until = Instant::now() + deadline;
        thread::scope(|scope| {
            let stdout = scope.spawn(|| read_all(stdout));
            let stderr = scope.spawn(|| read_all(stderr));
            let status = wait_until(&mut child, until);
            if status.is_err() {
                child
                    .kill()
                    .and_then(|()| child.wait())
                    .context("killing it")?;
            }
            let text = |reader: thread::ScopedJoinHandle<'_, std::io::Result<String>>| {
                reader
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                    .context("reading its output")
            };
            let (stdout, stderr) = (text(stdout)?, text(stderr)?);
            let status =
                status.with_context(|| format!("{:?} wrote {stdout}{stderr}", self.args))?;
            Ok(Outcome {
                status,
                stdout,
                stderr,
            })
        })
    }
}

/// A running agent; killed on drop.
#[derive(Debug)]
pub struct Agent {
    child: Child,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    events: Vec<Received>,
    log: VecDeque<String>,
    ready: bool,
    /// Lines on stdout that are no event, or break the contract.
    bad: Vec<String>,
    /// Its stdout is closed: no event comes any more.
    ended: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!("its stdout stays open after its end");
            }
            state = self
                .shared
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
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
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(anyhow!(
                    "waited {deadline:?} in vain for {what}. {}",
                    self.story(&state)
                ));
            }
            state = self
                .shared
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
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

fn refuse_bad(state: &State) -> Result<()> {
    match state.bad.first() {
        Some(bad) => bail!("stdout breaks the event contract: {bad}"),
        None => Ok(()),
    }
}

fn read_events(stdout: impl Read, shared: &Shared) {
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

fn read_log(stderr: impl Read, shared: &Shared) {
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

fn read_all(stream: Option<impl Read>) -> std::io::Result<String> {
    let mut text = String::new();
    if let Some(mut stream) = stream {
        stream.read_to_string(&mut text)?;
    }
    Ok(text)
}

/// Waits for a child's end. There is no wait with a deadline in the standard library; it looks every millisecond.
fn wait_until(child: &mut Child, until: Instant) -> Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait().context("waiting for a process")? {
            return Ok(status);
        }
        if Instant::now() >= until {
            bail!("process {} has not ended by the deadline", child.id());
        }
        thread::sleep(Duration::from_millis(1));
    }
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
