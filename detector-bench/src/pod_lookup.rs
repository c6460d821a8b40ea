//! Pod lookup. [`run`] measures how long the first lookup of all pods takes, and the diagnosis of their conflicts: containerd runs
//! real pods, each address is used twice after a wipe of IPAM's state, then the agent is started. [`run_unresponsive`] shows that lookups do not delay events: the same conflicts without a pod
//! source, and with a CRI socket that accepts connections and never responds.

use std::{
    collections::HashMap,
    fmt,
    os::unix::net::UnixListener,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use detector_testkit::{
    Agent, AgentCommand, Containerd, DEADLINE, Node, RUN_ARGS, ReceivedEvent, event::Conflict,
};

use super::latency::{self, LatencyOptions, LatencyReport};

/// Durations of the first lookup of all pods.
#[derive(Clone, Debug)]
pub struct LookupReport {
    /// The number of pods.
    pub pods: usize,
    /// From the agent's start to the first event of a conflict.
    pub first_event: Duration,
    /// From the first event to the event that contains the last pod.
    pub all_known: Duration,
    /// Of each conflict, from its first event to the one that contains its cause, in milliseconds.
    pub explained_ms: Vec<f64>,
}

impl fmt::Display for LookupReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            pods,
            first_event,
            all_known,
            explained_ms: _,
        } = self;
        writeln!(f, "agent started to first event      {first_event:?}")?;
        writeln!(f, "first event to all {pods} pods known  {all_known:?}")
    }
}

/// Creates `pairs` pairs of pods with the same address and waits until the agent has looked up all of them, and has explained each
/// conflict.
///
/// # Errors
/// A pod cannot be created, or is not found in time, or the cause of a conflict is not.
pub fn run(agent: &Path, pairs: u32) -> Result<LookupReport> {
    let node = Node::new("benchidentify")?;
    let mut containerd = Containerd::ptp(&node, "10.244.0.0/16")?;
    containerd.run_pods((0..pairs).map(|n| format!("old-{n}")))?;
    containerd.wipe_ipam()?;
    containerd.run_pods((0..pairs).map(|n| format!("new-{n}")))?;
    let command = |cache: &str| {
        containerd
            .agent_command(agent, RUN_ARGS)
            .arg("--cni-cache-dir")
            .arg(cache)
            .arg("--cri-endpoint")
            .arg(containerd.socket())
    };
    let pairs = pairs as usize;
    let started = Instant::now();
    let mut lookups = Agent::start(&node, &command("off"))?;
    let events = lookups.wait_until(DEADLINE, |events| {
        first_with(events, has_pods).len() == pairs
    })?;
    lookups.terminate(DEADLINE)?;
    let first = events.first().context("no event")?.at;
    let known = first_with(&events, has_pods);
    let last = known.into_values().max().context("no pod")?;

    let command = command("/var/lib/cni/results")
        .arg("--ipam")
        .arg("auto")
        .arg("--cni-conf-dir")
        .arg(containerd.directory().join("net.d"));
    let diagnoses = Agent::start(&node, &command)?;
    let events = diagnoses.wait_until(DEADLINE, |events| {
        first_with(events, has_cause).len() == pairs
    })?;
    let raised = first_with(&events, |_| true);
    let explained = first_with(&events, has_cause).into_iter();
    Ok(LookupReport {
        pods: 2 * pairs,
        first_event: first - started,
        all_known: last - first,
        explained_ms: explained
            .filter_map(|(address, at)| Some((at - *raised.get(&address)?).as_secs_f64() * 1e3))
            .collect(),
    })
}

/// Latency without a pod source and with an unresponsive one.
#[derive(Clone, Debug)]
pub struct UnresponsiveReport {
    /// Without any pod source.
    pub without: LatencyReport,
    /// With an unresponsive CRI socket.
    pub unresponsive: LatencyReport,
}

/// Measures the latency of the same conflicts without a pod source and with an unresponsive CRI socket.
///
/// # Errors
/// As [`latency::run_command`].
pub fn run_unresponsive(agent: &Path, options: LatencyOptions) -> Result<UnresponsiveReport> {
    let directory = tempfile::tempdir()?;
    let socket = directory.path().join("unresponsive.sock");
    let listener = UnixListener::bind(&socket).context("opening the unresponsive socket")?;
    // Ends with the process. Accepted connections stay open and are never read.
    thread::spawn(move || listener.incoming().flatten().collect::<Vec<_>>());
    let command = |cri: &Path| {
        AgentCommand::run(agent)
            .arg("--cni-cache-dir=off")
            .arg("--kube=off")
            .arg("--cri-endpoint")
            .arg(cri)
    };
    Ok(UnresponsiveReport {
        without: latency::run_command(&command(Path::new("off")), options)?,
        unresponsive: latency::run_command(&command(&socket), options)?,
    })
}

/// When each address was first reported with such a conflict.
fn first_with(
    events: &[ReceivedEvent],
    is_such: impl Fn(&Conflict) -> bool,
) -> HashMap<String, Instant> {
    let mut first = HashMap::new();
    for received in events {
        if let Some(conflict) = received.event.conflict().filter(&is_such) {
            first.entry(conflict.address).or_insert(received.at);
        }
    }
    first
}

fn has_pods(conflict: &Conflict) -> bool {
    conflict
        .claimants
        .iter()
        .all(|claimant| claimant.pod.is_some())
}

fn has_cause(conflict: &Conflict) -> bool {
    let diagnosis = conflict.diagnosis.as_ref();
    diagnosis.is_some_and(|diagnosis| diagnosis["cause"] != "unknown")
}
