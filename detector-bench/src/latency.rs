//! Detection latency: conflicts caused one after another by a second pod's ARP announcement, timed twice: by the agent
//! (`latency_us`, kernel timestamp to event) and from outside (frame sent to event line read).
//!
//! All conflicts stay open and an agent keeps a limited number, so they are caused in rounds, each with a new agent.

use std::{net::Ipv4Addr, ops::Range, path::Path, time::Duration};

use anyhow::Result;
use detector_testkit::{Agent, AgentCommand, DEADLINE, Node, PodSpec};

use super::{pod_pairs::PodPairs, storm::Storm};

/// The largest number of conflicts per agent, which keeps 4,096 open.
const MAX_ROUND: u32 = 2500;

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct LatencyOptions {
    /// The number of conflicts.
    pub conflicts: u32,
    /// The number of pairs of pods that take turns.
    pub pairs: u32,
    /// Pause after each frame, so that the agent is idle when the timed frame arrives, as on a real node.
    pub pause: Duration,
    /// Frames per second that another pod sends meanwhile, each a new claim; 0 for none.
    pub storm_rate: u32,
}

impl Default for LatencyOptions {
    fn default() -> Self {
        Self {
            conflicts: 1000,
            pairs: 50,
            pause: Duration::from_millis(2),
            storm_rate: 0,
        }
    }
}

/// Both latencies of each conflict, in microseconds and in order.
#[derive(Clone, Debug, Default)]
pub struct LatencyReport {
    /// `latency_us` of each raising event.
    pub kernel_to_event_us: Vec<f64>,
    /// From just before the frame was sent until the event line was read.
    pub frame_to_line_us: Vec<f64>,
    /// The lowest rate of the storm in any round, in frames per second; 0 without a storm.
    pub storm_rate: f64,
}

/// Measures the agent at this path on a new node.
///
/// # Errors
/// A namespace cannot be created, or the agent misses a conflict.
pub fn run(agent: &Path, options: LatencyOptions) -> Result<LatencyReport> {
    run_command(&AgentCommand::run(agent), options)
}

/// Measures an agent that is started with this command.
///
/// # Errors
/// As [`run`].
pub fn run_command(command: &AgentCommand, options: LatencyOptions) -> Result<LatencyReport> {
    let node = Node::new("bench")?;
    let base = Ipv4Addr::new(10, 99, 0, 0);
    let pairs = PodPairs::new(&node, options.pairs, base, |pod| pod)?;
    let storming_pod = node.add_pod(&PodSpec::new("vethstorm"))?;
    let mut report = LatencyReport::default();
    let mut storm_rates = Vec::new();
    for conflicts in rounds(options.conflicts) {
        let mut agent = Agent::start_ready(&node, command)?;
        let storm = (options.storm_rate > 0)
            .then(|| Storm::start(&storming_pod, options.storm_rate))
            .transpose()?;
        for number in conflicts {
            let conflict = pairs.cause_conflict(&agent, number, options.pause)?;
            report
                .kernel_to_event_us
                .push(conflict.kernel_to_event_us()?);
            report.frame_to_line_us.push(conflict.frame_to_line_us());
        }
        if let Some(storm) = storm {
            storm_rates.push(storm.stop()?);
        }
        agent.terminate(DEADLINE)?;
    }
    report.storm_rate = storm_rates.into_iter().reduce(f64::min).unwrap_or_default();
    Ok(report)
}

/// Splits the conflicts into rounds whose lengths differ by at most one.
fn rounds(conflicts: u32) -> impl Iterator<Item = Range<u32>> {
    let rounds = conflicts.div_ceil(MAX_ROUND);
    let start = move |round| {
        let start = u64::from(conflicts) * u64::from(round) / u64::from(rounds.max(1));
        u32::try_from(start).unwrap_or(u32::MAX)
    };
    (0..rounds).map(move |round| start(round)..start(round + 1))
}

#[cfg(test)]
mod tests {
    use super::rounds;

    #[test]
    fn rounds_cover_all_conflicts_within_the_limit() {
        let bounds = |conflicts| {
            rounds(conflicts)
                .map(|r| (r.start, r.end))
                .collect::<Vec<_>>()
        };
        assert_eq!(bounds(0), []);
        assert_eq!(bounds(1000), [(0, 1000)]);
        assert_eq!(bounds(5000), [(0, 2500), (2500, 5000)]);
        assert_eq!(bounds(5001), [(0, 1667), (1667, 3334), (3334, 5001)]);
    }
}
