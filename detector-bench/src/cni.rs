//! How much slower the creation of a pod's network is with the agent: ADD by the real plugins `ptp` and `bridge`, and by `ptp` with an
//! agent that attaches to TCX.
//!
//! A measurement is a series of pods added one right after the other, as on a node after a restart: what the agent does about a pod
//! after its ADD has ended delays the next ones, and is part of the result. Three equal nodes take turns, one of them with an agent;
//! the other two are the A/A comparison. The agent moves to the next node several times, so that a difference between the nodes
//! cancels out. Processors are not pinned: a plugin consists of several processes and threads.

use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use detector_testkit::{Agent, AgentCommand, Cni, CniPod, DEADLINE, Node, until};

use super::{
    Figure, Goal,
    comparison::{Blocks, Effect, trimmed_mean},
};

const GROUP: &str = "Cost by number of pods";
const GOAL: f64 = 5.0;
/// Pods added in one slice.
const PODS: usize = 12;
/// The agent's work after its start is over.
const SETTLE_TIME: Duration = Duration::from_millis(1500);
/// Without an agent, without an agent again, with an agent.
const WITHOUT: usize = 0;
const AGAIN: usize = 1;
const WITH: usize = 2;
const NODES: usize = 3;

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct CniOptions {
    /// How long each plugin is measured.
    pub time_limit: Duration,
    /// How long the agent stays on one node.
    pub stay: Duration,
    /// Percent on each side of the result that are sufficient.
    pub uncertainty: f64,
}

/// Measures the agent at this path with each plugin.
///
/// # Errors
/// A plugin fails or is not installed.
pub fn run(agent: &Path, options: CniOptions) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (plugin, create, attach) in [
        ("ptp", ptp as Create, "auto"),
        ("bridge", bridge, "auto"),
        ("ptp", ptp, "tcx"),
    ] {
        let nodes = (0..NODES)
            .map(|number| CniNode::new(plugin, number, create))
            .collect::<Result<Vec<_>>>()?;
        let command = AgentCommand::run(agent).arg("--attach").arg(attach);
        let blocks = measure(&command, &nodes, options)?;
        let name = match attach {
            "auto" => plugin.to_owned(),
            _ => format!("{plugin} with --attach {attach}"),
        };
        figures.extend(figures_of(&name, &blocks));
    }
    Ok(figures)
}

type Create = fn(&str, &str) -> Result<Cni>;

fn ptp(network: &str, subnet: &str) -> Result<Cni> {
    Cni::ptp(network, subnet)
}

fn bridge(network: &str, subnet: &str) -> Result<Cni> {
    Cni::bridge(network, "cni0", subnet)
}

fn measure(
    command: &AgentCommand,
    nodes: &[CniNode],
    options: CniOptions,
) -> Result<Blocks<NODES>> {
    let started = Instant::now();
    let mut blocks = Blocks::<NODES>::default();
    loop {
        let round = Instant::now();
        for place in 0..nodes.len() {
            // WITH is at `place`, the other two follow.
            let mut turn = nodes.iter().cycle().skip(place);
            let (with, without, again) = (turn.next(), turn.next(), turn.next());
            let Some(running) = with else { continue };
            let running = Agent::start_ready(&running.node, command)?;
            thread::sleep(SETTLE_TIME);
            let until = Instant::now() + options.stay;
            while Instant::now() < until {
                let mut pods = Vec::new();
                blocks.add(|arm| {
                    let node = match arm {
                        WITH => with,
                        AGAIN => again,
                        _ => without,
                    };
                    node.map_or(Ok(0.0), |node| node.time_adds(&mut pods))
                })?;
                remove(nodes, pods)?;
            }
            drop(running);
        }
        let is_sufficient = effect(&blocks).uncertainty <= options.uncertainty;
        if is_sufficient || started.elapsed() + round.elapsed() > options.time_limit {
            return Ok(blocks);
        }
    }
}

/// The agent's effect, by the mean of both nodes without one.
fn effect(blocks: &Blocks<NODES>) -> Effect {
    Effect::of(&blocks.map(|of| of(WITH) - (of(WITHOUT) + of(AGAIN)) / 2.0))
}

fn figures_of(plugin: &str, blocks: &Blocks<NODES>) -> Vec<Figure> {
    let (effect, same) = (effect(blocks), blocks.effect(AGAIN, WITHOUT));
    let name = format!("time added to a CNI ADD by {plugin}");
    vec![
        Figure::new(GROUP, name.clone(), effect.percent, "%")
            .uncertainty(effect.uncertainty)
            .goal(Goal::AtMost(GOAL))
            .note(format!(
                "without agent {:.2} ms; {} blocks of 2 × {PODS} pods on each of 3 nodes",
                blocks.typical(WITHOUT),
                blocks.len()
            )),
        Figure::new(GROUP, format!("{name}, A/A"), same.percent, "%")
            .uncertainty(same.uncertainty)
            .note("the two nodes without agent, compared the same way"),
    ]
}

struct CniNode {
    node: Node,
    cni: Cni,
}

impl CniNode {
    fn new(plugin: &str, number: usize, create: Create) -> Result<Self> {
        let name = format!("{plugin}{number}");
        let node = Self {
            node: Node::new(&name)?,
            cni: create(&name, &format!("10.{}.0.0/16", 71 + number))?,
        };
        // Warm-up.
        let mut pods = Vec::new();
        node.time_adds(&mut pods)?;
        remove(std::slice::from_ref(&node), pods)?;
        Ok(node)
    }

    /// Adds pods one after the other; returns the typical duration of ADD in milliseconds.
    fn time_adds(&self, pods: &mut Vec<CniPod>) -> Result<f64> {
        let mut times = Vec::new();
        for _ in 0..PODS {
            let (pod, took) = self.cni.add_pod_timed(&self.node, "bench")?;
            times.push(took.as_secs_f64() * 1e3);
            pods.push(pod);
        }
        Ok(trimmed_mean(&times).0)
    }
}

/// Removes all pods without DEL, which takes much longer than ADD: the kernel removes their namespaces together.
fn remove(nodes: &[CniNode], pods: Vec<CniPod>) -> Result<()> {
    drop(pods);
    until(DEADLINE, "the kernel to remove the pods' devices", || {
        for CniNode { node, .. } in nodes {
            let left = node.ip("-oneline link show type veth")?;
            ensure!(left.is_empty(), "still there: {left}");
        }
        Ok(())
    })
}
