//! What the creation of a pod's network loses to the agent: ADD by the real `ptp` on a node with an agent and on one
//! without, in turns, and then the other way round.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Result;

use super::{
    Figure, Goal,
    statistics::{median, percentile},
};
use detector_testkit::{
    agent::{Agent, AgentCommand},
    cni::Cni,
    node::Node,
};

const GROUP: &str = "Cost by number of pods";

/// Measures `pairs` pairs of ADD in each of three arrangements, at most for `deadline`.
///
/// # Errors
/// Where a plugin fails or is not installed.
pub fn run(agent: &Path, pairs: u32, deadline: Duration) -> Result<Vec<Figure>> {
    let begun = Instant::now();
    let nodes = [
        Side::new("cnia", "10.71.0.0/16")?,
        Side::new("cnib", "10.72.0.0/16")?,
    ];
    let command = AgentCommand::run(agent);
    let third = deadline / 3;
    let noise = compare(&nodes, pairs, begun + third)?;
    let running = Agent::start_ready(&nodes[0].node, &command)?;
    let first = compare(&nodes, pairs, begun + third * 2)?;
    drop(running);
    let running = Agent::start_ready(&nodes[1].node, &command)?;
    let second = compare(&nodes, pairs, begun + deadline)?;
    drop(running);
    let added = ((median(&first.ratios) / median(&second.ratios)).sqrt() - 1.0) * 100.0;
    let quartile = |percent| percentile(&noise.ratios, percent);
    let spread = (quartile(75.0) - quartile(25.0)) / 2.0 * 100.0;
    let measured = first.ratios.len() + second.ratios.len();
    #[expect(clippy::cast_precision_loss, reason = "a number of pairs")]
    let known_to = 1.25 * spread / 0.674 / (measured as f64).sqrt();
    Ok(vec![
        Figure::new(GROUP, "time added to a CNI ADD by ptp", added, "%")
            .goal(Goal::Below(1.0))
            .note(format!(
                "without {:.1} ms; {measured} pairs; without any agent the nodes differ by {:+.1} %, and half of the pairs lie within ±{spread:.1} %, so the median is known to about ±{known_to:.1} %",
                median(&noise.plain_ms),
                (median(&noise.ratios) - 1.0) * 100.0,
            )),
    ])
}

struct Side {
    node: Node,
    cni: Cni,
}

impl Side {
    fn new(name: &str, subnet: &str) -> Result<Self> {
        let side = Self {
            node: Node::new(name)?,
            cni: Cni::ptp(name, subnet)?,
        };
        side.add()?;
        Ok(side)
    }

    /// One ADD, in milliseconds, and the DEL that follows.
    fn add(&self) -> Result<f64> {
        let (pod, took) = self.cni.add_pod_timed(&self.node, "bench")?;
        self.cni.remove_pod(&self.node, pod)?;
        Ok(took.as_secs_f64() * 1e3)
    }
}

#[derive(Default)]
struct Compared {
    /// First node's time by the second's.
    ratios: Vec<f64>,
    /// The second's.
    plain_ms: Vec<f64>,
}

fn compare(sides: &[Side; 2], pairs: u32, until: Instant) -> Result<Compared> {
    let mut compared = Compared::default();
    for number in 0..pairs {
        if Instant::now() > until {
            break;
        }
        let [a, b] = sides;
        let (first, second) = if number % 2 == 0 {
            let first = a.add()?;
            (first, b.add()?)
        } else {
            let second = b.add()?;
            (a.add()?, second)
        };
        compared.ratios.push(first / second);
        compared.plain_ms.push(second);
    }
    Ok(compared)
}
