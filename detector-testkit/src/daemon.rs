//! A long-running program with its log in a file.

use std::{
    fs::{self, File},
    io::Write as _,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, bail};
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};

use crate::{agent::wait_child, wait::until};

/// How long a program may take to stop; containerd, kubelet and etcd take less than a second.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
/// The last lines of the log in an error message.
const LOG_LINES: usize = 20;

/// A running program with a process group of its own; stopped on drop.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    log: PathBuf,
}

impl Daemon {
    /// Starts it in the namespaces of the calling thread. Its output is appended to `log`.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start(mut command: Command, log: &Path) -> Result<Self> {
        let output = File::options()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("opening {}", log.display()))?;
        command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            // Ctrl-C in the terminal is for the process that stops them in order.
            .process_group(0);
        let program = command.get_program().to_owned();
        let child = command.spawn().with_context(|| {
            format!(
                "starting {}; `cargo xtask setup` installs it",
                program.display()
            )
        })?;
        Ok(Self {
            child,
            log: log.to_owned(),
        })
    }

    pub(crate) fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// The exit status, if it has exited.
    pub(crate) fn exit_status(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().context("waiting for a process")
    }

    /// Waits for a line of the log that contains `text`.
    ///
    /// # Errors
    /// The program exits, or the deadline passes; the error contains the end of the log.
    pub fn wait_line(&mut self, deadline: Duration, text: &str) -> Result<String> {
        until(deadline, format_args!("a line with {text:?}"), || {
            // Before the log is read: a program may write the line and exit.
            let exited = self.exit_status()?;
            let log = fs::read_to_string(&self.log)?;
            match (log.lines().find(|line| line.contains(text)), exited) {
                (Some(line), _) => Ok(Ok(line.to_owned())),
                (None, Some(status)) => Ok(Err(anyhow!("it exited: {status}"))),
                (None, None) => bail!("no such line"),
            }
        })
        .flatten()
        .with_context(|| self.log_tail())
    }

    /// The end of the log.
    pub(crate) fn log_tail(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        let tail = &lines[lines.len().saturating_sub(LOG_LINES)..];
        format!("{}:\n{}", self.log.display(), tail.join("\n"))
    }

    /// Ends it with SIGKILL, and waits for its end.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.signal(Signal::SIGKILL)?;
        self.child.wait().context("waiting for a process")?;
        Ok(())
    }

    /// Ends it with SIGTERM, after a timeout with SIGKILL, and waits for its end.
    pub(crate) fn stop(&mut self) -> Result<()> {
        self.signal(Signal::SIGTERM)?;
        if wait_child(&mut self.child, STOP_TIMEOUT).is_err() {
            self.kill()?;
        }
        Ok(())
    }

    /// Sends a signal to its process group, unless it has exited: then its id may be that of another process.
    fn signal(&mut self, signal: Signal) -> Result<()> {
        if self.exit_status()?.is_some() {
            return Ok(());
        }
        let group = Pid::from_raw(i32::try_from(self.child.id())?);
        killpg(group, signal).with_context(|| format!("sending {signal} to a process"))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            // `drop` cannot return an error.
            let _ = writeln!(
                std::io::stderr(),
                "{} was not stopped: {error:#}",
                self.log.display()
            );
        }
    }
}
