//! How long an operator waits: conflicts made one after another by a second pod's gratuitous ARP, timed twice: by the
//! agent (`latency_us`, kernel timestamp to event) and from outside (frame handed to the kernel to event line read).
//!
//! An agent keeps so many conflicts open and these all stay open, so they are made in rounds, each with an agent of its own.

use std::{net::Ipv4Addr, ops::Range, path::Path, time::Duration};

use anyhow::Result;

use super::{pairs::Pairs, storm::Storm};
use detector_testkit::{
    agent::{Agent, AgentCommand, DEADLINE},
    node::{Node, PodSpec},
};

/// Conflicts of one agent at most; it keeps 4,096 open.
const ROUND: u32 = 2500;

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How many conflicts, one after another.
    pub conflicts: u32,
    /// Pairs of pods that take turns.
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
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// `latency_us` of each raising event.
    pub agent_us: Vec<f64>,
    /// From just before the frame was sent to the event line in the reader's hands.
    pub outside_us: Vec<f64>,
    /// Frames a second that the storm came to, in its weakest round; 0 without one.
    pub storm: f64,
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
    let node = Node::new("bench")?;
    let base = Ipv4Addr::new(10, 99, 0, 0);
    let pairs = Pairs::new(&node, options.pairs, base, |pod| pod)?;
    let stormy = node.add_pod(&PodSpec::new("vethstorm"))?;
    let mut report = Report::default();
    let mut storms = Vec::new();
    for conflicts in rounds(options.conflicts) {
        let mut agent = Agent::start_ready(&node, command)?;
        let storm = (options.storm > 0)
            .then(|| Storm::begin(&stormy, options.storm))
            .transpose()?;
        for number in conflicts {
            let made = pairs.conflict(&agent, number, options.rest)?;
            report.agent_us.push(made.agent_us()?);
            report.outside_us.push(made.outside_us());
        }
        if let Some(storm) = storm {
            storms.push(storm.end()?);
        }
        agent.terminate(DEADLINE)?;
    }
    report.storm = storms.into_iter().reduce(f64::min).unwrap_or_default();
    Ok(report)
}

/// The numbers of each round's conflicts; rounds are as long as each other, give or take one.
fn rounds(conflicts: u32) -> impl Iterator<Item = Range<u32>> {
    let rounds = conflicts.div_ceil(ROUND);
    let begin = move |round| {
        let begin = u64::from(conflicts) * u64::from(round) / u64::from(rounds.max(1));
        u32::try_from(begin).unwrap_or(u32::MAX)
    };
    (0..rounds).map(move |round| begin(round)..begin(round + 1))
}

#[cfg(test)]
mod tests {
    use super::rounds;

    #[test]
    fn every_conflict_is_in_one_round_and_no_round_is_too_long() {
        let ends = |conflicts| {
            rounds(conflicts)
                .map(|r| (r.start, r.end))
                .collect::<Vec<_>>()
        };
        assert_eq!(ends(0), []);
        assert_eq!(ends(1000), [(0, 1000)]);
        assert_eq!(ends(5000), [(0, 2500), (2500, 5000)]);
        assert_eq!(ends(5001), [(0, 1667), (1667, 3334), (3334, 5001)]);
    }
}
