//! Comparison with other programs in Debian, on the same frames at the same time.
//!
//! All pods are ports of one bridge and the other programs listen on the bridge, where both claims pass: with one veth pair per
//! pod, as with `ptp` or Calico, a program that watches one device sees only one claimant. The kernel is configured to learn from
//! announcements (`arp_accept`); by default it does not, and its neighbour table shows no conflict. `tcpdump`, `ip monitor` and
//! `bpftrace` do not detect conflicts; this process compares their lines, which costs less than any script. Each line is timed when
//! it is read.

mod output_parsers;
mod program;

use std::{
    collections::HashMap,
    net::Ipv4Addr,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use detector_testkit::{Agent, AgentCommand, Node};

use super::{
    Figure, Goal,
    pod_pairs::PodPairs,
    statistics::{median, percentile},
};
use program::{PeerProgram, PeerState};

const GROUP: &str = "Against other programs";
const BRIDGE: &str = "br0";
const PAIRS: u32 = 20;
/// How long the other programs may take to start.
const WARM_UP_TIMEOUT: Duration = Duration::from_secs(10);
/// How long reports may arrive after the last frame.
const FINAL_WAIT: Duration = Duration::from_secs(4);
/// Pause after each frame while the other programs start.
const WARM_UP_PAUSE: Duration = Duration::from_millis(100);

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct PeerOptions {
    /// The number of conflicts.
    pub conflicts: u32,
    /// Pause after each frame.
    pub pause: Duration,
}

/// Measures the agent at this path and the other programs.
///
/// # Errors
/// A namespace cannot be created, or the agent misses a conflict.
pub fn run(agent: &Path, options: PeerOptions) -> Result<Vec<Figure>> {
    let node = Node::new("peers")?;
    node.add_bridge(BRIDGE, &["10.255.255.254/8"])?;
    node.sysctl(&format!("net.ipv4.conf.{BRIDGE}.arp_accept"), "1")?;
    let pairs = PodPairs::new(&node, PAIRS, Ipv4Addr::new(10, 98, 0, 1), |pod| {
        pod.master(BRIDGE)
    })?;
    let files = tempfile::tempdir().context("creating a directory for the other programs")?;
    let agent = Agent::start_ready(&node, &AgentCommand::run(agent))?;
    let mut peers = program::start_all(&node, files.path())?;
    let first = warm_up(&pairs, &mut peers)?;

    let mut agent_us = Vec::new();
    let mut conflicts: HashMap<Ipv4Addr, Instant> = HashMap::new();
    for number in first..first + options.conflicts {
        let conflict = pairs.cause_conflict(&agent, number, options.pause)?;
        agent_us.push(conflict.frame_to_line_us());
        conflicts.insert(conflict.address, conflict.sent);
    }
    thread::sleep(FINAL_WAIT);

    let total = conflicts.len();
    let agent_median = median(&agent_us);
    let mut figures = vec![figure("this agent", &agent_us, total)];
    for peer in &mut peers {
        peer.update_state();
        if let PeerState::Failed(reason) = &peer.state {
            figures.push(Figure::absent(
                GROUP,
                peer.name,
                format!("did not take part: {reason}"),
            ));
            continue;
        }
        let mut latency: HashMap<Ipv4Addr, f64> = HashMap::new();
        for (at, address) in peer.detections() {
            if let Some(sent) = conflicts.get(&address)
                && let Some(took) = at.checked_duration_since(*sent)
            {
                latency.entry(address).or_insert(took.as_secs_f64() * 1e6);
            }
        }
        let sample: Vec<f64> = latency.into_values().collect();
        if sample.is_empty() {
            let last = peer.lines().pop().map(|(_, line)| line).unwrap_or_default();
            figures.push(Figure::absent(
                GROUP,
                peer.name,
                format!("ran and saw none of {total} conflicts; its last line: {last:?}"),
            ));
            continue;
        }
        figures.push(figure(peer.name, &sample, total));
        figures.push(
            Figure::new(
                GROUP,
                format!("{}, p50 as a multiple of the agent's", peer.name),
                median(&sample) / agent_median,
                "×",
            )
            .goal(Goal::AtLeast(1.0)),
        );
    }
    Ok(figures)
}

fn figure(name: &str, sample: &[f64], total: usize) -> Figure {
    Figure::new(GROUP, format!("{name}, p50"), median(sample), "µs").note(format!(
        "saw {} of {total}; p99 {:.0} µs, max {:.0} µs",
        sample.len(),
        percentile(sample, 99.0),
        percentile(sample, 100.0)
    ))
}

/// Causes conflicts until each program has seen one or the timeout passes; returns the number of the next conflict.
fn warm_up(pairs: &PodPairs, peers: &mut [PeerProgram]) -> Result<u32> {
    let end = Instant::now() + WARM_UP_TIMEOUT;
    for number in 0.. {
        pairs.announce(number, WARM_UP_PAUSE)?;
        for peer in peers.iter_mut() {
            peer.update_state();
        }
        let is_waiting = peers.iter().any(|peer| {
            matches!(peer.state, PeerState::Running(_)) && peer.detections().is_empty()
        });
        if !is_waiting || Instant::now() > end {
            return Ok(number + 1);
        }
    }
    Ok(0)
}
