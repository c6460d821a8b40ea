//! Detection latency: conflicts caused one after another by a second pod's ARP announcement, timed twice: by the agent
//! (`latency_us`, kernel timestamp to event) and from outside (frame sent to event line read).
//!
//! All conflicts stay open, and a pod that contests more than a few addresses is an anomaly of its own (`address_sweep`), whose work
//! is no part of a usual conflict. So the conflicts are caused in rounds, each with a new agent.
//!
//! [`run_with_floor`] alternates with a thread that only passes the frame on, on a node of its own with as many pods and the same
//! storm, so that both are measured on the same machine in the same state.

use std::{net::Ipv4Addr, ops::Range, path::Path, thread, time::Duration};

use anyhow::Result;
use detector_testkit::{Agent, AgentCommand, DEADLINE, Node, Pod, PodSpec};

use super::{
    floor::PassThrough,
    pod_pairs::{CONFLICTS_PER_PAIR, PodPairs},
    storm::Storm,
};

/// Conflicts of one block: so many by the agent, so many by the thread, in alternating order.
const BLOCK: usize = 50;
/// How long a storm lasts before the first conflict of a block.
const STORM_LEAD: Duration = Duration::from_millis(50);

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
    /// The lowest rate of a storm, in frames per second; 0 without a storm.
    pub storm_rate: f64,
}

/// The agent beside a thread that only passes the frame on.
#[derive(Clone, Debug, Default)]
pub struct FloorReport {
    /// The agent.
    pub agent: LatencyReport,
    /// For each block, from just before the frame was sent until the event line was read: the agent and the thread.
    pub blocks: Vec<[Vec<f64>; 2]>,
}

/// Measures the agent at this path and the thread, in alternating blocks, each on a new node.
///
/// # Errors
/// A namespace cannot be created, the agent misses a conflict, or the thread a frame.
pub fn run_with_floor(agent: &Path, options: LatencyOptions) -> Result<FloorReport> {
    let command = AgentCommand::run(agent);
    let site = Site::new("bench", options)?;
    let floor_site = Site::new("floor", options)?;
    let floor = PassThrough::start(&floor_site.node, &floor_site.pairs)?;
    let mut report = FloorReport::default();
    let mut storm_rates = Vec::new();
    for conflicts in rounds(options) {
        let mut agent = Agent::start_ready(&site.node, &command)?;
        for numbers in conflicts.collect::<Vec<u32>>().chunks(BLOCK) {
            let seed = u64::from(numbers.first().copied().unwrap_or_default());
            let mut block: [Vec<f64>; 2] = Default::default();
            let is_agent_first = report.blocks.len().is_multiple_of(2);
            for is_agent in [is_agent_first, !is_agent_first] {
                let [agent_us, floor_us] = &mut block;
                if is_agent {
                    let agent_report = &mut report.agent;
                    let rate = site.under_storm(seed, || {
                        for number in numbers {
                            agent_us.push(site.measure(&agent, *number, agent_report)?);
                        }
                        Ok(())
                    })?;
                    storm_rates.extend(rate);
                } else {
                    floor_site.under_storm(seed, || {
                        for number in numbers {
                            let pairs = &floor_site.pairs;
                            floor_us.push(floor.pass_on(pairs, *number, options.pause)?);
                        }
                        Ok(())
                    })?;
                }
            }
            report.blocks.push(block);
        }
        agent.terminate(DEADLINE)?;
    }
    report.agent.storm_rate = storm_rates.into_iter().reduce(f64::min).unwrap_or_default();
    Ok(report)
}

/// Measures an agent that is started with this command.
///
/// # Errors
/// As [`run_with_floor`].
pub fn run_command(command: &AgentCommand, options: LatencyOptions) -> Result<LatencyReport> {
    let site = Site::new("bench", options)?;
    let mut report = LatencyReport::default();
    for conflicts in rounds(options) {
        let mut agent = Agent::start_ready(&site.node, command)?;
        for number in conflicts {
            site.measure(&agent, number, &mut report)?;
        }
        agent.terminate(DEADLINE)?;
    }
    Ok(report)
}

/// A node with the pods.
struct Site {
    node: Node,
    pairs: PodPairs,
    storming_pod: Pod,
    options: LatencyOptions,
}

impl Site {
    fn new(name: &str, options: LatencyOptions) -> Result<Self> {
        let node = Node::new(name)?;
        let base = Ipv4Addr::new(10, 99, 0, 0);
        let pairs = PodPairs::new(&node, options.pairs, base, |pod| pod)?;
        let storming_pod = node.add_pod(&PodSpec::new("vethstorm"))?;
        Ok(Self {
            node,
            pairs,
            storming_pod,
            options,
        })
    }

    /// Causes a conflict and appends its latencies to the report; returns the microseconds until its line was read.
    fn measure(&self, agent: &Agent, number: u32, report: &mut LatencyReport) -> Result<f64> {
        let conflict = self
            .pairs
            .cause_conflict(agent, number, self.options.pause)?;
        report
            .kernel_to_event_us
            .push(conflict.kernel_to_event_us()?);
        report.frame_to_line_us.push(conflict.frame_to_line_us());
        Ok(conflict.frame_to_line_us())
    }

    /// Runs `body` under the storm of the options, if there is one.
    fn under_storm(&self, seed: u64, body: impl FnOnce() -> Result<()>) -> Result<Option<f64>> {
        if self.options.storm_rate == 0 {
            return body().map(|()| None);
        }
        let storm = Storm::start(&self.storming_pod, self.options.storm_rate, seed)?;
        thread::sleep(STORM_LEAD);
        body()?;
        storm.stop().map(Some)
    }
}

/// Splits the conflicts into rounds whose lengths differ by at most one.
fn rounds(options: LatencyOptions) -> impl Iterator<Item = Range<u32>> {
    let conflicts = options.conflicts;
    let rounds = conflicts.div_ceil(options.pairs.saturating_mul(CONFLICTS_PER_PAIR).max(1));
    let start = move |round| {
        let start = u64::from(conflicts) * u64::from(round) / u64::from(rounds.max(1));
        u32::try_from(start).unwrap_or(u32::MAX)
    };
    (0..rounds).map(move |round| start(round)..start(round + 1))
}

#[cfg(test)]
mod tests {
    use super::{LatencyOptions, rounds};

    #[test]
    fn rounds_cover_all_conflicts_within_the_limit() {
        let bounds = |conflicts| {
            let options = LatencyOptions {
                conflicts,
                pairs: 50,
                ..LatencyOptions::default()
            };
            rounds(options)
                .map(|r| (r.start, r.end))
                .collect::<Vec<_>>()
        };
        assert_eq!(bounds(0), []);
        assert_eq!(bounds(150), [(0, 150)]);
        assert_eq!(bounds(300), [(0, 150), (150, 300)]);
        assert_eq!(bounds(301), [(0, 100), (100, 200), (200, 301)]);
    }
}
