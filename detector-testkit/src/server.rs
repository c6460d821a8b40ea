//! A server program that runs for the duration of a test.

use std::{
    io::{BufRead as _, BufReader, Read},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use crate::netns::Netns;

/// A running program; killed on drop with its process group.
#[derive(Debug)]
pub struct ServerProcess {
    child: Child,
    lines: mpsc::Receiver<String>,
    output: Vec<String>,
}

impl ServerProcess {
    /// Starts it in a namespace. Its output is kept for error messages.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start(netns: &Netns, mut command: Command) -> Result<Self> {
        use std::os::unix::process::CommandExt as _;
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        let shown = format!("{command:?}");
        let mut child = netns.run_in(|| {
            command
                .spawn()
                .with_context(|| format!("starting {shown}; `cargo xtask setup` installs it"))
        })?;
        let (to, lines) = mpsc::sync_channel(10_000);
        for stream in [
            child
                .stdout
                .take()
                .map(|s| Box::new(s) as Box<dyn Read + Send>),
            child
                .stderr
                .take()
                .map(|s| Box::new(s) as Box<dyn Read + Send>),
        ]
        .into_iter()
        .flatten()
        {
            let to = to.clone();
            thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    // A full queue drops lines: the program must not block on its output.
                    let _ = to.try_send(line);
                }
            });
        }
        Ok(Self {
            child,
            lines,
            output: Vec::new(),
        })
    }

    /// Waits for a line that contains `text`.
    ///
    /// # Errors
    /// The program exits, or the deadline passes; the error contains its output.
    pub fn wait_line(&mut self, deadline: Duration, text: &str) -> Result<String> {
        let end = Instant::now() + deadline;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    self.output.push(line.clone());
                    if line.contains(text) {
                        return Ok(line);
                    }
                }
                Err(_) => bail!(
                    "no line with {text:?} within {deadline:?}; output:\n{}",
                    self.output.join("\n")
                ),
            }
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        use nix::{
            sys::signal::{Signal, killpg},
            unistd::Pid,
        };
        if let Ok(group) = i32::try_from(self.child.id()) {
            // Fails only if all of them have exited already.
            let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
        }
        let _ = self.child.wait();
    }
}
