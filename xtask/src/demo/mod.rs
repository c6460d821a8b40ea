//! `run --demo`: raises and resolves one conflict in network namespaces.
//!
//! Every resource is owned by a value that removes it on drop: at the end, on an error and while a
//! panic unwinds. Ctrl-C only sets a flag that all waits check, so that the drops still run.

mod describe;

use std::{
    io::{self, IsTerminal as _},
    os::fd::AsFd as _,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use detector_testkit::{Agent, AgentCommand, Node, PodSpec, ReceivedEvent};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGTERM};

use crate::{
    build::{self, Profile},
    host, setup,
    stdout::print_line,
    workspace::Workspace,
};

/// The address that both pods claim.
const ADDRESS: &str = "10.244.2.10";
/// The pods' devices in the node's namespace.
const FIRST: &str = "vethfirst";
const SECOND: &str = "vethsecond";

/// Limit for the agent to become ready.
const START_LIMIT: Duration = Duration::from_secs(20);
/// Limit for an event to arrive.
const EVENT_LIMIT: Duration = Duration::from_secs(5);
/// Limit for the agent to stop.
const STOP_LIMIT: Duration = Duration::from_secs(5);
/// How often a wait checks for Ctrl-C.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// When the second pod is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DemoMode {
    /// When the user presses Enter.
    Interactive,
    /// As soon as the conflict was shown.
    Unattended,
}

impl DemoMode {
    /// Interactive only if stdin is a terminal and `once` is not set.
    pub(crate) fn new(once: bool) -> Self {
        if once || !io::stdin().is_terminal() {
            Self::Unattended
        } else {
            Self::Interactive
        }
    }
}

/// Announces the demo, builds the agent and shows the conflict.
///
/// # Errors
/// The user is not root, a build failed, an event did not arrive in time, or Ctrl-C was pressed
/// before the conflict was shown.
pub(crate) fn run(workspace: &Workspace, mode: DemoMode, profile: Profile) -> Result<()> {
    print_line(format_args!(
        "Demo: two pods claim {ADDRESS} on a node simulated with network namespaces, and the agent reports the \
         conflict. Everything is removed at the end. Needs root."
    ))?;
    host::require_root("the demo creates network namespaces and loads eBPF programs")?;
    setup::ensure(workspace, &[setup::BUILD])?;
    let agent = build::agent(workspace, profile)?;
    if profile == Profile::Debug {
        print_line(
            "\nThe agent is not optimised, so that it is built sooner: it takes about ten times as long for an event as one built \
             with `--release`.",
        )?;
    }

    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .context("could not install a signal handler")?;
    }
    let result = show_conflict(&agent, mode, &stop);
    if stop.load(Ordering::Relaxed) {
        print_line("Stopped. Everything was removed.")?;
        return result.or_else(|error| match error.downcast_ref() {
            Some(Interrupted { conflict_shown }) if *conflict_shown => Ok(()),
            _ => Err(error),
        });
    }
    result?;
    print_line("Everything was removed.")
}

/// Ctrl-C was pressed.
#[derive(Debug, thiserror::Error)]
#[error("interrupted before the demo was over")]
struct Interrupted {
    conflict_shown: bool,
}

fn show_conflict(agent: &Path, mode: DemoMode, stop: &AtomicBool) -> Result<()> {
    let node = Node::new("demo")?;
    let pod = |device: &str| PodSpec::new(device).default_route();
    let with_prefix = format!("{ADDRESS}/32");
    let _first = node.add_pod(&pod(FIRST).address(&with_prefix).host_route())?;
    // Created without the address, so that the measured time does not include creating a namespace.
    let second = node.add_pod(&pod(SECOND))?;
    print_line(format_args!(
        "\nThe first pod, on {FIRST}, has {ADDRESS}, and the node routes the address to it."
    ))?;

    let started = Instant::now();
    let command = AgentCommand::run(agent);
    let mut agent = Agent::start(node.netns(), &command)?;
    wait(stop, START_LIMIT, |step| agent.wait_ready(step))?;
    print_line(format_args!(
        "Agent ready in {} ms.",
        started.elapsed().as_millis()
    ))?;

    print_line(format_args!(
        "Adding {ADDRESS} to the second pod, on {SECOND}.\n"
    ))?;
    let added = Instant::now();
    second.add_address(&with_prefix)?;
    let raised = wait(stop, EVENT_LIMIT, |step| {
        agent.wait_event(step, |event| event.raises(ADDRESS))
    })?;
    print_line(describe_received(&raised, added)?)?;

    if mode == DemoMode::Interactive {
        print_line("\nPress Enter to delete the second pod, or Ctrl-C to stop.")?;
        wait_for_enter(stop)?;
    }
    print_line("\nDeleting the second pod.\n")?;
    let deleted = Instant::now();
    second.delete()?;
    let resolved = wait(stop, EVENT_LIMIT, |step| {
        agent.wait_event(step, |event| event.resolves(ADDRESS))
    })?;
    print_line(describe_received(&resolved, deleted)?)?;
    agent.terminate(STOP_LIMIT)?;
    print_line("")
}

fn describe_received(received: &ReceivedEvent, since: Instant) -> Result<String> {
    let conflict = received
        .event
        .conflict()
        .context("the agent's event holds no conflict")?;
    let elapsed = received.at.saturating_duration_since(since);
    Ok(describe::describe_conflict(&conflict, elapsed))
}

/// Repeats a wait of at most [`POLL_INTERVAL`] until it succeeds, so that Ctrl-C can end it.
fn wait<T>(
    stop: &AtomicBool,
    limit: Duration,
    mut step: impl FnMut(Duration) -> Result<T>,
) -> Result<T> {
    let deadline = Instant::now() + limit;
    loop {
        let began = Instant::now();
        let outcome = step(POLL_INTERVAL);
        if stop.load(Ordering::Relaxed) {
            bail!(Interrupted {
                conflict_shown: false
            });
        }
        match outcome {
            // An error before the interval has passed is not a timeout.
            Err(error) if began.elapsed() < POLL_INTERVAL => return Err(error),
            Err(error) if Instant::now() >= deadline => {
                return Err(error.context(format!("gave up after {limit:?}")));
            }
            Err(_) => {}
            Ok(value) => return Ok(value),
        }
    }
}

fn wait_for_enter(stop: &AtomicBool) -> Result<()> {
    let stdin = io::stdin();
    let timeout =
        PollTimeout::try_from(POLL_INTERVAL).context("the poll interval is out of range")?;
    loop {
        let ready = poll(
            &mut [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)],
            timeout,
        );
        if stop.load(Ordering::Relaxed) {
            bail!(Interrupted {
                conflict_shown: true
            });
        }
        match ready {
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => {
                // A closed stdin is readable and returns 0 bytes, which counts as Enter.
                return stdin
                    .read_line(&mut String::new())
                    .map(drop)
                    .context("could not read the terminal");
            }
            Err(errno) => return Err(errno).context("could not wait for the terminal"),
        }
    }
}

#[cfg(all(test, feature = "privileged-tests"))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    /// Remaining network namespaces of this process.
    fn namespaces() -> Vec<String> {
        let prefix = format!("ipconflict-{}-", std::process::id());
        std::fs::read_dir("/run/netns")
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.starts_with(&prefix))
            .collect()
    }

    #[test]
    fn failed_or_interrupted_demo_removes_its_namespaces() {
        // `false` exits at once, like an agent that fails to start.
        let failing = Path::new("/bin/false");
        let mode = DemoMode::Unattended;
        let error = show_conflict(failing, mode, &AtomicBool::new(false)).unwrap_err();
        assert!(
            format!("{error:#}").contains("the agent exited"),
            "{error:#}"
        );
        assert_eq!(namespaces(), [""; 0]);

        let error = show_conflict(failing, mode, &AtomicBool::new(true)).unwrap_err();
        assert!(error.is::<Interrupted>(), "{error:#}");
        assert_eq!(namespaces(), [""; 0]);
    }
}
