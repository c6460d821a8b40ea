//! How long an operator waits: conflicts made one after another by a second pod's gratuitous ARP, timed twice: by the
//! agent (`latency_us`, kernel timestamp to event) and from outside (frame handed to the kernel to event line read).

use std::{
    fmt,
    net::Ipv4Addr,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

pub use crate::bench::statistics::percentile;
use crate::{
    agent::{Agent, AgentCommand, DEADLINE},
    bench::storm::Storm,
    frames::{Frame, FrameSender},
    node::{Node, Pod, PodSpec},
};

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How many conflicts, one after another.
    pub conflicts: u32,
    /// Pairs of pods that take turns. Each device has a budget of new claims in the kernel; with enough pairs the
    /// measurement stays below it.
    pub pairs: u32,
    /// Rest between two frames: the agent is idle when the frame that is timed comes, as on a node.
    pub rest: Duration,
    /// Frames a second that another pod sends meanwhile, each a claim never heard before; none where 0.
    pub storm: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            conflicts: 1000,
            pairs: 50,
            rest: Duration::from_millis(2),
            storm: 0,
        }
    }
}

/// Both measurements, in microseconds, in the order they were made.
#[derive(Clone, Debug)]
pub struct Report {
    /// `latency_us` of each raising event.
    pub agent_us: Vec<f64>,
    /// From just before the frame was sent to the event line in the reader's hands.
    pub outside_us: Vec<f64>,
    /// Frames a second that the storm came to.
    pub storm: f64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} conflicts, microseconds", self.agent_us.len())?;
        writeln!(f, "{:<42}{:>9}{:>9}{:>9}", "", "p50", "p99", "max")?;
        for (name, sample) in [
            ("kernel timestamp to event (latency_us)", &self.agent_us),
            ("frame sent to event line read", &self.outside_us),
        ] {
            let [p50, p99, max] = [50.0, 99.0, 100.0].map(|percent| percentile(sample, percent));
            writeln!(f, "{name:<42}{p50:>9.0}{p99:>9.0}{max:>9.0}")?;
        }
        Ok(())
    }
}

/// Measures the agent of this path on a node of its own.
///
/// # Errors
/// Where a namespace cannot be made, or the agent misses a conflict.
pub fn run(agent: &Path, options: Options) -> Result<Report> {
    run_command(&AgentCommand::run(agent), options)
}

/// Measures an agent that is started so.
///
/// # Errors
/// As [`run`].
pub fn run_command(command: &AgentCommand, options: Options) -> Result<Report> {
    ensure!(
        options.pairs > 0 && options.pairs <= 200,
        "pairs must be between 1 and 200"
    );
    ensure!(
        options.conflicts <= 4096,
        "at most 4096 conflicts: the agent keeps no more open"
    );
    let node = Node::new("bench")?;
    let specs: Vec<_> = (0..options.pairs * 2)
        .map(|number| PodSpec::new(format!("vethbench{number}")))
        .collect();
    let pods = node.add_pods(&specs)?;
    let senders = pods
        .iter()
        .map(FrameSender::open)
        .collect::<Result<Vec<_>>>()?;
    let stormy = node.add_pod(&PodSpec::new("vethstorm"))?;
    let agent = Agent::start_ready(&node, command)?;
    let storm = (options.storm > 0)
        .then(|| Storm::begin(&stormy, options.storm))
        .transpose()?;
    let pairs: Vec<(&[Pod], &[FrameSender])> = pods.chunks(2).zip(senders.chunks(2)).collect();
    let mut report = Report {
        agent_us: Vec::new(),
        outside_us: Vec::new(),
        storm: 0.0,
    };
    for (number, (pods, senders)) in (0..options.conflicts).zip(pairs.iter().cycle()) {
        let ([first, second], [first_sender, second_sender]) = (pods, senders) else {
            continue;
        };
        let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 99, 0, 0)) + number);
        first_sender.send(&Frame::announcement(first.mac(), address))?;
        thread::sleep(options.rest);
        let frame = Frame::announcement(second.mac(), address).to_bytes();
        let subject = address.to_string();
        let seen = agent.count();
        let sent = Instant::now();
        second_sender.send_bytes(&frame)?;
        let received = agent
            .wait_event_after(seen, DEADLINE, |event| event.raises(&subject))
            .with_context(|| format!("conflict {number} on {address}"))?;
        let conflict = received
            .event
            .conflict()
            .context("a raising event holds a conflict")?;
        report.agent_us.push(
            conflict
                .latency_us
                .context("a raising event holds its latency")?,
        );
        report
            .outside_us
            .push(received.at.saturating_duration_since(sent).as_secs_f64() * 1e6);
        thread::sleep(options.rest);
    }
    if let Some(storm) = storm {
        report.storm = storm.end()?;
    }
    Ok(report)
}
