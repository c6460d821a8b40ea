//! A long-running program of the cluster, with its log in a file.

use std::{
    fs::{self, File},
    io::Write as _,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::agent::wait_child;

/// How long a program may take to stop; kubelet and etcd take less than a second.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
/// The last lines of the log in an error message.
const LOG_LINES: usize = 20;

/// Stopped on drop.
#[derive(Debug)]
pub(crate) struct Daemon {
    child: Child,
    log: PathBuf,
}

impl Daemon {
    /// Starts it in the namespaces of the calling thread. Its output is appended to `log`.
    pub(crate) fn start(mut command: Command, log: &Path) -> Result<Self> {
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
        let child = command
            .spawn()
            .with_context(|| format!("starting {}", program.display()))?;
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
        self.child.kill().context("killing a process")?;
        self.child.wait().context("waiting for a process")?;
        Ok(())
    }

    /// Ends it with SIGTERM, after a timeout with SIGKILL, and waits for its end.
    pub(crate) fn stop(&mut self) -> Result<()> {
        if self.exit_status()?.is_some() {
            return Ok(());
        }
        kill(
            Pid::from_raw(i32::try_from(self.child.id())?),
            Signal::SIGTERM,
        )
        .context("stopping a process")?;
        if wait_child(&mut self.child, STOP_TIMEOUT).is_err() {
            self.kill()?;
        }
        Ok(())
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
