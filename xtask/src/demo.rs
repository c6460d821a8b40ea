//! `run --demo`: one conflict, from the first pod to the end, in namespaces of its own.
//!
//! Whatever is made here is held by values that remove it when they are dropped: at the end, on an
//! error, on Ctrl-C (which only sets a flag that every wait looks at) and while a panic unwinds.

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
use detector_testkit::{Agent, AgentCommand, Node, PodSpec, Received};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGTERM};

use crate::{
    build::{self, Profile},
    host::Host,
    narrate,
    requirements::Group,
    say::say,
    setup,
    workspace::Workspace,
};

/// The address that both pods claim.
const ADDRESS: &str = "10.244.2.10";
/// The pods' devices in the node's namespace.
const FIRST: &str = "vethfirst";
const SECOND: &str = "vethsecond";

/// How long the agent may take to attach and look around.
const START_DEADLINE: Duration = Duration::from_secs(20);
/// How long an event may take; one that takes longer is a failure of the demo.
const EVENT_DEADLINE: Duration = Duration::from_secs(5);
/// How long the agent may take to end.
const STOP_DEADLINE: Duration = Duration::from_secs(5);
/// How often a wait looks whether someone pressed Ctrl-C.
const TICK: Duration = Duration::from_millis(100);

/// Who says when the second pod goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// The person at the terminal.
    Person,
    /// Nobody: as soon as the conflict was shown.
    Once,
}

impl Pace {
    /// A person decides only where there is one.
    pub(crate) fn new(once: bool) -> Self {
        if once || !io::stdin().is_terminal() {
            Self::Once
        } else {
            Self::Person
        }
    }
}

/// Says what it will do, builds the agent and shows the conflict.
///
/// # Errors
/// Not root, a build failed, the conflict was not named in time, or Ctrl-C before it was.
pub(crate) fn run(workspace: &Workspace, pace: Pace) -> Result<()> {
    say(format_args!(
        "Demo: two pods claim {ADDRESS} on a node made of network namespaces; the agent names them; everything is \
         removed at the end. Needs root."
    ))?;
    if !Host::inspect().root {
        bail!("the demo makes network namespaces and loads kernel programs: run it as root");
    }
    setup::ensure(workspace, &[Group::Build, Group::Demo])?;
    let agent = build::agent(workspace, Profile::Release)?;

    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .context("could not listen for Ctrl-C")?;
    }
    let shown = show(&agent, pace, &stop);
    if stop.load(Ordering::Relaxed) {
        say("Stopped; everything is removed.")?;
        return shown.or_else(|error| match error.downcast_ref() {
            Some(Stopped { conflict_shown }) if *conflict_shown => Ok(()),
            _ => Err(error),
        });
    }
    shown?;
    say("Everything is removed.")?;
    Ok(())
}

/// Someone pressed Ctrl-C.
#[derive(Debug, thiserror::Error)]
#[error("stopped before the demo was over")]
struct Stopped {
    conflict_shown: bool,
}

fn show(agent: &Path, pace: Pace, stop: &AtomicBool) -> Result<()> {
    let node = Node::new("demo")?;
    let pod = |device: &str| PodSpec::new(device).default_route();
    let with_prefix = format!("{ADDRESS}/32");
    let _first = node.add_pod(&pod(FIRST).address(&with_prefix).host_route())?;
    // Without its address yet: what is timed is the claim, not the making of a namespace.
    let second = node.add_pod(&pod(SECOND))?;
    say(format_args!(
        "\nThe first pod, on {FIRST}, has {ADDRESS}; the node's route leads to it."
    ))?;

    let started = Instant::now();
    let command = AgentCommand::run(agent);
    let mut agent = Agent::start(node.netns(), &command)?;
    wait(stop, START_DEADLINE, |tick| agent.wait_ready(tick))?;
    say(format_args!(
        "The agent watches, {:.0?} after its start.",
        started.elapsed()
    ))?;

    say(format_args!(
        "The second pod, on {SECOND}, is given {ADDRESS} too.\n"
    ))?;
    let claimed = Instant::now();
    second.add_address(&with_prefix)?;
    let raised = wait(stop, EVENT_DEADLINE, |tick| {
        agent.wait_event(tick, |event| event.raises(ADDRESS))
    })?;
    say(told(&raised, claimed)?)?;

    if pace == Pace::Person {
        say("\nPress Enter to delete the second pod, Ctrl-C to end here.")?;
        wait_for_enter(stop)?;
    }
    say("\nThe second pod is deleted.\n")?;
    let deleted = Instant::now();
    second.delete()?;
    let resolved = wait(stop, EVENT_DEADLINE, |tick| {
        agent.wait_event(tick, |event| event.resolves(ADDRESS))
    })?;
    say(told(&resolved, deleted)?)?;
    agent.terminate(STOP_DEADLINE)?;
    say("")?;
    Ok(())
}

fn told(received: &Received, since: Instant) -> Result<String> {
    let conflict = received
        .event
        .conflict()
        .context("the agent's event holds no conflict")?;
    let elapsed = received.at.saturating_duration_since(since);
    Ok(narrate::conflict(&conflict, elapsed))
}

/// Waits in short steps, so that Ctrl-C ends the wait.
fn wait<T>(
    stop: &AtomicBool,
    deadline: Duration,
    mut step: impl FnMut(Duration) -> Result<T>,
) -> Result<T> {
    let until = Instant::now() + deadline;
    loop {
        let began = Instant::now();
        let outcome = step(TICK);
        if stop.load(Ordering::Relaxed) {
            bail!(Stopped {
                conflict_shown: false
            });
        }
        match outcome {
            // An error that came early is not lack of time.
            Err(error) if began.elapsed() < TICK => return Err(error),
            Err(error) if Instant::now() >= until => {
                return Err(error.context(format!("gave up after {deadline:?}")));
            }
            Err(_) => {}
            Ok(value) => return Ok(value),
        }
    }
}

fn wait_for_enter(stop: &AtomicBool) -> Result<()> {
    let stdin = io::stdin();
    let tick = PollTimeout::try_from(TICK).context("a tick is no poll timeout")?;
    loop {
        let ready = poll(&mut [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)], tick);
        if stop.load(Ordering::Relaxed) {
            bail!(Stopped {
                conflict_shown: true
            });
        }
        match ready {
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => {
                // A closed stdin reads as nothing, and goes on just so.
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

    /// Namespaces of this process that are still there.
    fn namespaces() -> Vec<String> {
        let ours = format!("ipconflict-{}-", std::process::id());
        std::fs::read_dir("/run/netns")
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.starts_with(&ours))
            .collect()
    }

    #[test]
    fn nothing_stays_behind_when_the_agent_fails_or_someone_stops_the_demo() {
        // `false` ends at once, as an agent does that the kernel refuses.
        let failing = Path::new("/bin/false");
        let error = show(failing, Pace::Once, &AtomicBool::new(false)).unwrap_err();
        assert!(
            format!("{error:#}").contains("the agent ended"),
            "{error:#}"
        );
        assert_eq!(namespaces(), [""; 0]);

        let error = show(failing, Pace::Once, &AtomicBool::new(true)).unwrap_err();
        assert!(error.is::<Stopped>(), "{error:#}");
        assert_eq!(namespaces(), [""; 0]);
    }
}
