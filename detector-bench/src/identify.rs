//! How long the first look-up of all pods takes: real pods by containerd, every address twice, then an agent is started.
//! And that no look-up is on the way of an event: the same conflicts without a source of names, and with a runtime's
//! socket that takes every connection and never answers.

use std::{
    collections::HashMap,
    fmt,
    os::unix::net::UnixListener,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};

use super::latency::{self, Options};
use detector_testkit::{
    agent::{Agent, AgentCommand, DEADLINE, RUN_ARGS, ReceivedEvent},
    containerd::Containerd,
    node::Node,
};

/// What was measured.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// Pods.
    pub pods: usize,
    /// From the agent's start to the first event of a conflict.
    pub first_event: Duration,
    /// From the first event to the event that names the last pod.
    pub all_named: Duration,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            pods,
            first_event,
            all_named,
        } = self;
        writeln!(f, "agent started to first event      {first_event:?}")?;
        writeln!(f, "first event to all {pods} pods named  {all_named:?}")
    }
}

/// Makes `pairs` pairs of pods of one address each and lets `agent` name them.
///
/// # Errors
/// Where a pod cannot be made, or is not named in time.
pub fn run(agent: &Path, pairs: u32) -> Result<Report> {
    let node = Node::new("benchidentify")?;
    let mut containerd = Containerd::ptp(&node, "10.244.0.0/16")?;
    containerd.run_pods((0..pairs).map(|n| format!("old-{n}")))?;
    containerd.wipe_ipam()?;
    containerd.run_pods((0..pairs).map(|n| format!("new-{n}")))?;
    let command = containerd
        .agent_command(agent, RUN_ARGS)
        .arg("--cni-cache-dir")
        .arg("off")
        .arg("--cri-endpoint")
        .arg(containerd.socket());
    let begun = Instant::now();
    let agent = Agent::start(&node, &command)?;
    let pairs = pairs as usize;
    let events = agent.wait_until(DEADLINE, |events| named_at(events).len() == pairs)?;
    let first = events.first().context("no event")?.at;
    let last = named_at(&events).into_values().max().context("no pod")?;
    Ok(Report {
        pods: 2 * pairs,
        first_event: first - begun,
        all_named: last - first,
    })
}

/// Latency without a source of names, and with a socket that hangs.
#[derive(Clone, Debug)]
pub struct Hanging {
    /// Without any source.
    pub without: latency::Report,
    /// With the socket.
    pub hanging: latency::Report,
}

/// Measures the latency of the same conflicts without a source of names and with a socket that hangs.
///
/// # Errors
/// As [`latency::run`].
pub fn run_hanging(agent: &Path, options: Options) -> Result<Hanging> {
    let directory = tempfile::tempdir()?;
    let socket = directory.path().join("hanging.sock");
    let listener = UnixListener::bind(&socket).context("the socket that hangs")?;
    // Ends with the process. What is taken is kept open and never read.
    thread::spawn(move || listener.incoming().flatten().collect::<Vec<_>>());
    let command = |cri: &Path| {
        AgentCommand::run(agent)
            .arg("--cni-cache-dir=off")
            .arg("--kube=off")
            .arg("--cri-endpoint")
            .arg(cri)
    };
    Ok(Hanging {
        without: latency::run_command(&command(Path::new("off")), options)?,
        hanging: latency::run_command(&command(&socket), options)?,
    })
}

/// When each address was first told with all its pods.
fn named_at(events: &[ReceivedEvent]) -> HashMap<String, Instant> {
    let mut named = HashMap::new();
    for received in events {
        let Some(conflict) = received.event.conflict() else {
            continue;
        };
        if conflict
            .claimants
            .iter()
            .all(|claimant| claimant.pod.is_some())
        {
            named.entry(conflict.address).or_insert(received.at);
        }
    }
    named
}
