//! Comparison with other programs in Debian, each alone beside the agent, on the same frames at the same time. More programs at once
//! would be woken by one frame and compete for the processors, and the order in which the scheduler runs them would be measured.
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
    ratio::Ratio,
    statistics::{median, percentile},
};
use program::{PeerCommand, PeerProgram, PeerState};

const GROUP: &str = "Against other programs";
const BRIDGE: &str = "br0";
const PAIRS: u32 = 20;
/// How long the other programs may take to start.
const WARM_UP_TIMEOUT: Duration = Duration::from_secs(10);
/// How long reports may arrive after the last frame.
const FINAL_WAIT: Duration = Duration::from_secs(2);
/// Conflicts of one block; the confidence interval is found from blocks.
const BLOCK: usize = 20;
/// What the other program's p50 and p99 must be at least, as multiples of the agent's.
const GOALS: [(f64, f64); 2] = [(50.0, 1.2), (99.0, 1.0)];
/// Pause after each frame while the other programs start.
const WARM_UP_PAUSE: Duration = Duration::from_millis(100);

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct PeerOptions {
    /// The number of conflicts for each of the other programs.
    pub conflicts: u32,
    /// Pause after each frame.
    pub pause: Duration,
}

/// Measures the agent at this path beside each of the other programs.
///
/// # Errors
/// A namespace cannot be created, or the agent misses a conflict.
pub fn run(agent: &Path, options: PeerOptions) -> Result<Vec<Figure>> {
    let files = tempfile::tempdir().context("creating a directory for the other programs")?;
    let command = AgentCommand::run(agent);
    let mut figures = Vec::new();
    for peer in program::all(files.path())? {
        figures.extend(run_with_peer(&command, peer, options)?);
    }
    Ok(figures)
}

/// A conflict as seen by the agent, by the address.
struct TimedConflict {
    sent: Instant,
    agent_us: f64,
}

fn run_with_peer(
    command: &AgentCommand,
    peer: PeerCommand,
    options: PeerOptions,
) -> Result<Vec<Figure>> {
    let node = Node::new("peers")?;
    node.add_bridge(BRIDGE, &["10.255.255.254/8"])?;
    node.sysctl(&format!("net.ipv4.conf.{BRIDGE}.arp_accept"), "1")?;
    let pairs = PodPairs::new(&node, PAIRS, Ipv4Addr::new(10, 98, 0, 1), |pod| {
        pod.master(BRIDGE)
    })?;
    let agent = Agent::start_ready(&node, command)?;
    let mut peer = peer.start(&node);
    let first = warm_up(&pairs, &mut peer)?;
    let mut conflicts = Vec::new();
    for number in first..first + options.conflicts {
        let conflict = pairs.cause_conflict(&agent, number, options.pause)?;
        let timed = TimedConflict {
            sent: conflict.sent,
            agent_us: conflict.frame_to_line_us(),
        };
        conflicts.push((conflict.address, timed));
    }
    thread::sleep(FINAL_WAIT);
    peer.update_state();
    if let PeerState::Failed(reason) = &peer.state {
        let reason = format!("did not take part: {reason}");
        return Ok(vec![Figure::absent(GROUP, peer.name, reason)]);
    }
    let mut detected: HashMap<Ipv4Addr, Instant> = HashMap::new();
    for (at, address) in peer.detections() {
        detected.entry(address).or_insert(at);
    }
    // A conflict that the other program missed counts for neither.
    let blocks: Vec<[Vec<f64>; 2]> = conflicts
        .chunks(BLOCK)
        .map(|block| {
            let both = block.iter().filter_map(|(address, timed)| {
                let took = detected.get(address)?.checked_duration_since(timed.sent)?;
                Some((took.as_secs_f64() * 1e6, timed.agent_us))
            });
            let (peer_us, agent_us) = both.unzip();
            [peer_us, agent_us]
        })
        .collect();
    Ok(figures(&peer, conflicts.len(), &blocks))
}

fn figures(peer: &PeerProgram, total: usize, blocks: &[[Vec<f64>; 2]]) -> Vec<Figure> {
    let [peer_us, agent_us] = [0, 1].map(|which| {
        let samples = blocks.iter().filter_map(|block| block.get(which));
        samples.flatten().copied().collect::<Vec<f64>>()
    });
    if peer_us.is_empty() {
        let last = peer.lines().pop().map(|(_, line)| line).unwrap_or_default();
        let reason = format!("ran and saw none of {total} conflicts; its last line: {last:?}");
        return vec![Figure::absent(GROUP, peer.name, reason)];
    }
    let mut figures = vec![
        figure(peer.name, &peer_us, total),
        figure(&format!("the agent beside {}", peer.name), &agent_us, total),
    ];
    for (percent, goal) in GOALS {
        let name = format!("{}, p{percent} as a multiple of the agent's", peer.name);
        let ratio = Ratio::of_percentiles(blocks, percent);
        figures.push(ratio.figure_with_goal(GROUP, name, Goal::AtLeast(goal)));
    }
    figures
}

fn figure(name: &str, sample: &[f64], total: usize) -> Figure {
    Figure::new(GROUP, format!("{name}, p50"), median(sample), "µs").note(format!(
        "saw {} of {total}; p99 {:.0} µs, max {:.0} µs",
        sample.len(),
        percentile(sample, 99.0),
        percentile(sample, 100.0)
    ))
}

/// Causes conflicts until the program has seen one, it has exited, or the timeout passes; returns the number of the next conflict.
fn warm_up(pairs: &PodPairs, peer: &mut PeerProgram) -> Result<u32> {
    let end = Instant::now() + WARM_UP_TIMEOUT;
    for number in 0.. {
        pairs.announce(number, WARM_UP_PAUSE)?;
        peer.update_state();
        let is_waiting =
            matches!(peer.state, PeerState::Running(_)) && peer.detections().is_empty();
        if !is_waiting || Instant::now() > end {
            return Ok(number + 1);
        }
    }
    Ok(0)
}
