//! How an agent is started, and commands that run to completion.

use std::{
    ffi::OsString,
    fs::File,
    io::{Read as _, Seek as _},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result};

use crate::{netns::Netns, wait::until};

/// Arguments of `run` with events on stdout and the log as JSON, as [`Agent::start`](super::Agent::start) reads them.
pub const RUN_ARGS: [&str; 7] = [
    "run",
    "--events",
    "-",
    "--log-format",
    "json",
    "--node-name",
    "testkit",
];

/// Arguments of a `check` that asks no agent and looks at the kernel state itself.
pub const LOOK_ARGS: [&str; 3] = ["check", "--url", "none"];

/// How to start an agent: binary, arguments, environment.
///
/// `CARGO_BIN_EXE_detector-agent` is set only while the integration tests of `detector-agent` are compiled, so each test
/// binary defines the path once, in its `main.rs`: `const AGENT: &str = env!("CARGO_BIN_EXE_detector-agent");`
#[derive(Clone, Debug)]
pub struct AgentCommand {
    binary: PathBuf,
    args: Vec<OsString>,
    env: Vec<(String, OsString)>,
}

/// Exit status and output of a command that ran to completion.
#[derive(Debug)]
pub struct Outcome {
    /// The exit status.
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
    /// A signal terminated the command; the error contains its output.
    pub fn code(&self) -> Result<i32> {
        self.status
            .code()
            .with_context(|| format!("{}: {}{}", self.status, self.stdout, self.stderr))
    }
}

impl AgentCommand {
    /// `run` as with [`RUN_ARGS`], on a node of this name.
    #[must_use]
    pub fn run_on(binary: impl AsRef<Path>, node: &str) -> Self {
        let mut args: [&str; RUN_ARGS.len()] = RUN_ARGS;
        args[RUN_ARGS.len() - 1] = node;
        Self::new(binary, args)
    }

    /// The agent at this path with these arguments. Environment variables of the caller that would configure the agent are
    /// removed.
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
                // `--ipam auto` would read the CNI configuration of the machine that runs the test.
                ("IPCONFLICT_IPAM".to_owned(), "off".into()),
            ],
        }
    }

    /// The agent at this path with [`RUN_ARGS`].
    #[must_use]
    pub fn run(binary: impl AsRef<Path>) -> Self {
        Self::new(binary, RUN_ARGS)
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<S: Into<OsString>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Adds an environment variable.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Starts it in a namespace with stdout and stderr piped.
    pub(super) fn spawn(&self, netns: &Netns) -> Result<Child> {
        self.start(netns, self.build())
    }

    fn start(&self, netns: &Netns, mut command: Command) -> Result<Child> {
        netns.run_in(|| {
            command
                .spawn()
                .with_context(|| format!("starting {}", self.binary.display()))
        })
    }

    fn build(&self) -> Command {
        let mut command = Command::new(&self.binary);
        for (name, _) in std::env::vars_os() {
            let configures_agent = name
                .to_str()
                .is_some_and(|name| name.starts_with("IPCONFLICT_") || name == "NODE_NAME");
            if configures_agent {
                command.env_remove(name);
            }
        }
        command
            .args(&self.args)
            .envs(self.env.iter().map(|(name, value)| (name, value)));
        // With a process group of its own the agent does not receive the terminal's SIGINT; the caller terminates it.
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        command
    }

    /// Runs it in a namespace to completion.
    ///
    /// # Errors
    /// The binary cannot be started, or it still runs at the deadline; then it is killed.
    pub fn run_to_end(&self, netns: &Netns, deadline: Duration) -> Result<Outcome> {
        let [stdout, stderr] = [tempfile::tempfile()?, tempfile::tempfile()?];
        let mut command = self.build();
        command
            .stdout(stdout.try_clone()?)
            .stderr(stderr.try_clone()?);
        let mut child = self.start(netns, command)?;
        let status = wait_child(&mut child, deadline);
        if status.is_err() {
            child
                .kill()
                .and_then(|()| child.wait())
                .context("killing it")?;
        }
        let (stdout, stderr) = (read_all(stdout)?, read_all(stderr)?);
        let status = status.with_context(|| format!("{:?} wrote {stdout}{stderr}", self.args))?;
        Ok(Outcome {
            status,
            stdout,
            stderr,
        })
    }
}

fn read_all(mut output: File) -> Result<String> {
    let mut text = String::new();
    output
        .rewind()
        .and_then(|()| output.read_to_string(&mut text))
        .context("reading the output of a command")?;
    Ok(text)
}

/// Waits for a child's exit; the standard library has no wait with a deadline.
pub(crate) fn wait_child(child: &mut Child, deadline: Duration) -> Result<ExitStatus> {
    let what = format!("process {} to exit", child.id());
    until(deadline, what, || {
        let status = child.try_wait().context("waiting for a process")?;
        status.context("it still runs")
    })
}
