//! How an agent is started, and one that runs to its end.

use std::{
    ffi::OsString,
    io::Read,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use crate::netns::Netns;

/// `run` with events on stdout and the log as JSON, as [`Agent::start`](super::Agent::start) reads them.
pub const RUN: [&str; 7] = [
    "run",
    "--events",
    "-",
    "--log-format",
    "json",
    "--node-name",
    "testkit",
];

/// How to start an agent.
#[derive(Clone, Debug)]
pub struct AgentCommand {
    pub(super) binary: PathBuf,
    args: Vec<OsString>,
    env: Vec<(String, OsString)>,
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

    /// The agent of this path with [`RUN`].
    #[must_use]
    pub fn run(binary: impl AsRef<Path>) -> Self {
        Self::new(binary, RUN)
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

    pub(super) fn build(&self) -> Command {
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

fn read_all(stream: Option<impl Read>) -> std::io::Result<String> {
    let mut text = String::new();
    if let Some(mut stream) = stream {
        stream.read_to_string(&mut text)?;
    }
    Ok(text)
}

/// Waits for a child's end. There is no wait with a deadline in the standard library; it looks every millisecond.
pub(super) fn wait_until(child: &mut Child, until: Instant) -> Result<ExitStatus> {
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
