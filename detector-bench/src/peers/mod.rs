//! Who else sees a conflict, and after how long: the programs that Debian has, on the same frames at the same time.
//!
//! All pods are ports of one bridge and everybody else listens on the bridge, where both claims come by: behind a veth
//! each, as with `ptp` or Calico, a program that watches one device sees one claimant only. The kernel is told to learn
//! from announcements (`arp_accept`), which it does not by default and without which its neighbour table says nothing.
//! `tcpdump`, `ip monitor` and `bpftrace` do not look for conflicts; what would compare their lines is this process, which costs less
//! than any script. Times are taken when a line is read.

mod program;
mod words;

use std::{
    collections::HashMap,
    net::Ipv4Addr,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};

use super::{
    Figure, Goal,
    pairs::Pairs,
    statistics::{median, percentile},
};
use detector_testkit::{
    agent::{Agent, AgentCommand},
    node::Node,
};
use program::{Peer, State};

const GROUP: &str = "Against other programs";
const BRIDGE: &str = "br0";
const PAIRS: u32 = 20;
/// How long the others may take to come up.
const WARM_UP: Duration = Duration::from_secs(10);
/// How long what was seen may take to be told, after the last frame.
const LATE: Duration = Duration::from_secs(4);
/// Rest after each claim while the others come up.
const PACE: Duration = Duration::from_millis(100);

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How many conflicts.
    pub conflicts: u32,
    /// Rest after each frame.
    pub rest: Duration,
}

/// Measures the agent and the others.
///
/// # Errors
/// Where a namespace cannot be made, or the agent misses a conflict.
pub fn run(agent: &Path, options: Options) -> Result<Vec<Figure>> {
    let node = Node::new("peers")?;
    node.add_bridge(BRIDGE, &["10.255.255.254/8"])?;
    node.sysctl(&format!("net.ipv4.conf.{BRIDGE}.arp_accept"), "1")?;
    let pairs = Pairs::new(&node, PAIRS, Ipv4Addr::new(10, 98, 0, 1), |pod| {
        pod.master(BRIDGE)
    })?;
    let files = tempfile::tempdir().context("a directory for files of the others")?;
    let agent = Agent::start_ready(&node, &AgentCommand::run(agent))?;
    let mut peers = program::start(&node, files.path())?;
    let first = warm_up(&pairs, &mut peers)?;

    let mut ours = Vec::new();
    let mut conflicts: HashMap<Ipv4Addr, Instant> = HashMap::new();
    for number in first..first + options.conflicts {
        let made = pairs.conflict(&agent, number, options.rest)?;
        ours.push(made.outside_us());
        conflicts.insert(made.address, made.sent);
    }
    thread::sleep(LATE);

    let total = conflicts.len();
    let our_median = median(&ours);
    let mut figures = vec![figure("this agent", &ours, total)];
    for peer in &mut peers {
        peer.check();
        if let State::Absent(why) = &peer.state {
            figures.push(Figure::absent(
                GROUP,
                peer.name,
                format!("did not take part: {why}"),
            ));
            continue;
        }
        let mut latency: HashMap<Ipv4Addr, f64> = HashMap::new();
        for (at, address) in peer.seen() {
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
                median(&sample) / our_median,
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

/// Conflicts until each of the others saw one, or has had its time; gives the number of the first that was not made.
fn warm_up(pairs: &Pairs, peers: &mut [Peer]) -> Result<u32> {
    let until = Instant::now() + WARM_UP;
    for number in 0.. {
        pairs.claim(number, PACE)?;
        for peer in peers.iter_mut() {
            peer.check();
        }
        let waiting = peers
            .iter()
            .any(|peer| matches!(peer.state, State::Running(_)) && peer.seen().is_empty());
        if !waiting || Instant::now() > until {
            return Ok(number + 1);
        }
    }
    Ok(0)
}
