//! A server program that runs for the length of a test.

use std::{
    io::{BufRead as _, BufReader, Read},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use crate::netns::Netns;

/// A running program; killed on drop, with the processes of its group.
#[derive(Debug)]
pub struct Server {
    child: Child,
    lines: mpsc::Receiver<String>,
    said: Vec<String>,
}

impl Server {
    /// Starts it in a namespace. What it writes is kept for messages.
    ///
    /// # Errors
    /// Where it cannot be started.
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
                    // Beyond the bound nobody looks any more; the program must not wait for us.
                    let _ = to.try_send(line);
                }
            });
        }
        Ok(Self {
            child,
            lines,
            said: Vec::new(),
        })
    }

    /// Waits for a line that holds `text`.
    ///
    /// # Errors
    /// Where it ends or the deadline passes before; the message holds what it said.
    pub fn wait_line(&mut self, deadline: Duration, text: &str) -> Result<String> {
        let end = Instant::now() + deadline;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    self.said.push(line.clone());
                    if line.contains(text) {
                        return Ok(line);
                    }
                }
                Err(_) => bail!(
                    "waited for {text:?} in vain; it said:\n{}",
                    self.said.join("\n")
                ),
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        use nix::{
            sys::signal::{Signal, killpg},
            unistd::Pid,
        };
        if let Ok(group) = i32::try_from(self.child.id()) {
            // Fails only where all of them have ended already.
            let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
        }
        let _ = self.child.wait();
    }
}
