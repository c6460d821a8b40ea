//! How much slower the creation of a pod's network is with the agent: ADD by the real `ptp` plugin, alternating between a node
//! with an agent and one without; then the agent changes nodes.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Result;
use detector_testkit::{Agent, AgentCommand, Cni, Node};

use super::{
    Figure, Goal,
    statistics::{half_interquartile_range, median, median_error},
};

const GROUP: &str = "Cost by number of pods";

/// Measures `pairs` pairs of ADD in each of three arrangements (no agent, agent on the first node, agent on the second), for at
/// most `time_limit`.
///
/// # Errors
/// A plugin fails or is not installed.
pub fn run(agent: &Path, pairs: u32, time_limit: Duration) -> Result<Vec<Figure>> {
    let started = Instant::now();
    let nodes = [
        CniNode::new("cnia", "10.71.0.0/16")?,
        CniNode::new("cnib", "10.72.0.0/16")?,
    ];
    let command = AgentCommand::run(agent);
    let third = time_limit / 3;
    let without = compare(&nodes, pairs, started + third)?;
    let running = Agent::start_ready(&nodes[0].node, &command)?;
    let on_first = compare(&nodes, pairs, started + third * 2)?;
    drop(running);
    let running = Agent::start_ready(&nodes[1].node, &command)?;
    let on_second = compare(&nodes, pairs, started + time_limit)?;
    drop(running);
    let added = ((median(&on_first.ratios) / median(&on_second.ratios)).sqrt() - 1.0) * 100.0;
    let spread = half_interquartile_range(&without.ratios) * 100.0;
    let measured = on_first.ratios.len() + on_second.ratios.len();
    Ok(vec![
        Figure::new(GROUP, "time added to a CNI ADD by ptp", added, "%")
            .goal(Goal::Below(1.0))
            .note(format!(
                "without agent {:.1} ms; {measured} pairs; without any agent the nodes differ by {:+.1} %, and half of the pairs lie within ±{spread:.1} %, so the uncertainty of the median is about ±{:.1} %",
                median(&without.second_node_ms),
                (median(&without.ratios) - 1.0) * 100.0,
                median_error(spread, measured),
            )),
    ])
}

struct CniNode {
    node: Node,
    cni: Cni,
}

impl CniNode {
    fn new(name: &str, subnet: &str) -> Result<Self> {
        let node = Self {
            node: Node::new(name)?,
            cni: Cni::ptp(name, subnet)?,
        };
        // Warm-up.
        node.time_add()?;
        Ok(node)
    }

    /// Runs ADD, then DEL; returns the duration of ADD in milliseconds.
    fn time_add(&self) -> Result<f64> {
        let (pod, took) = self.cni.add_pod_timed(&self.node, "bench")?;
        self.cni.remove_pod(&self.node, pod)?;
        Ok(took.as_secs_f64() * 1e3)
    }
}

#[derive(Default)]
struct AddTimes {
    /// The first node's time divided by the second's, for each pair.
    ratios: Vec<f64>,
    second_node_ms: Vec<f64>,
}

fn compare(nodes: &[CniNode; 2], pairs: u32, end: Instant) -> Result<AddTimes> {
    let mut times = AddTimes::default();
    for number in 0..pairs {
        if Instant::now() > end {
            break;
        }
        let [a, b] = nodes;
        // The order alternates too.
        let (first, second) = if number % 2 == 0 {
            let first = a.time_add()?;
            (first, b.time_add()?)
        } else {
            let second = b.time_add()?;
            (a.time_add()?, second)
        };
        times.ratios.push(first / second);
        times.second_node_ms.push(second);
    }
    Ok(times)
}
