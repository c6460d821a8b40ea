//! How much longer packets between two pods take with the agent's program at the pods' devices.
//!
//! One node with one pair of pods, and one pinned thread that is both ends of the traffic. Every few milliseconds it changes what is
//! attached: nothing, an empty program (twice, for the A/A comparison) or the agent's program, see [`arms`]. So the difference of two
//! arms contains neither that of two nodes nor the scheduler's. In traffic whose ends are different threads, wake-ups come on top,
//! with and without the agent, and its share is smaller.
//!
//! At the end, the same with a whole agent that is started and stopped on the node, and attaches its program itself.

mod arms;
mod flow;

use std::{
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use anyhow::Result;
use detector_testkit::{Agent, AgentCommand, DEADLINE, Node, PodSpec};
use netlink_sys::{Socket, protocols::NETLINK_ROUTE};

use super::{
    Figure, Goal,
    comparison::{Blocks, Effect, Precision},
    processors::Pinned,
};
use arms::{Arm, Arms, Hook, attached_program, remove_clsact};
use flow::{DEVICES, Flow, RoutedNode, TrafficKind};

const GROUP: &str = "Cost for pod traffic";
/// The goal for what the agent takes more than an empty program, percent.
const GOAL: f64 = 0.3;
/// The goal for all that the agent costs on TCX, percent.
const TCX_GOAL: f64 = 1.5;
/// The agent's work after its start is over.
const SETTLE_TIME: Duration = Duration::from_millis(1500);
const ARMS: [Arm; 4] = [Arm::Nothing, Arm::Empty, Arm::Empty, Arm::Agent];
const NOTHING: usize = 0;
const EMPTY: usize = 1;
const EMPTY_AGAIN: usize = 2;
const AGENT: usize = 3;

/// What to measure.
#[derive(Clone, Debug)]
pub struct TrafficOptions {
    /// The object with the empty program.
    pub empty_object: PathBuf,
    /// The duration of one measurement of one arm.
    pub slice: Duration,
    /// For each kind of traffic.
    pub precision: Precision,
    /// How long a whole agent is measured; zero to leave it out.
    pub whole_agent: Duration,
}

/// Measures the agent at this path.
///
/// # Errors
/// A namespace cannot be created, a program cannot be attached, or the pods cannot reach each other.
pub fn run(agent: &Path, options: &TrafficOptions) -> Result<Vec<Figure>> {
    let node = RoutedNode::new()?;
    let mut figures = programs(agent, &node, options)?;
    if !options.whole_agent.is_zero() {
        figures.push(whole_agent(agent, &node, options)?);
    }
    Ok(figures)
}

/// Compares the programs.
fn programs(agent: &Path, node: &RoutedNode, options: &TrafficOptions) -> Result<Vec<Figure>> {
    let other_node = Node::new("pathagent")?;
    let pod = other_node.add_pod(&PodSpec::new("vethagent"))?;
    let agent = Agent::start_ready(&other_node, &AgentCommand::run(agent))?;
    let program = attached_program(&other_node, pod.device())?;
    // The first `clsact` on the machine enables its hooks for the packets of all devices; without a program there is none.
    other_node.delete_pods(vec![pod])?;
    let figures = node.node.run_in(|| {
        let _pinned = Pinned::to_last_processor()?;
        let mut arms = Arms::new(&DEVICES, &options.empty_object, program)?;
        let mut figures = Vec::new();
        // Changing what is attached to TCX takes much longer than a slice: one kind of traffic has to do.
        let measurements = TrafficKind::ALL.map(|kind| (kind, Hook::Clsact));
        for (kind, hook) in measurements
            .into_iter()
            .chain([(TrafficKind::Datagrams, Hook::Tcx)])
        {
            let mut flow = Flow::open(node, kind, options.slice)?;
            let mut blocks = Blocks::<4>::default();
            let effect = |blocks: &Blocks<4>| beyond_empty(blocks);
            blocks.add_until(options.precision, effect, |arm| {
                arms.switch(ARMS.get(arm).copied().unwrap_or(Arm::Nothing), hook)?;
                flow.measure()
            })?;
            arms.switch(Arm::Nothing, hook)?;
            figures.extend(kind_figures(kind, hook, &blocks));
        }
        Ok(figures)
    })?;
    drop(agent);
    Ok(figures)
}

/// The agent's program, by the mean of both measurements of the empty one.
fn beyond_empty(blocks: &Blocks<4>) -> Effect {
    Effect::of(&blocks.map(|of| of(AGENT) - (of(EMPTY) + of(EMPTY_AGAIN)) / 2.0))
}

fn kind_figures(kind: TrafficKind, hook: Hook, blocks: &Blocks<4>) -> [Figure; 4] {
    let name = match hook {
        Hook::Clsact => kind.name().to_owned(),
        Hook::Tcx => format!("{} by TCX", kind.name()),
    };
    let figure = |name: String, effect: Effect, note: String| {
        Figure::new(GROUP, name, effect.percent, "%")
            .uncertainty(effect.uncertainty)
            .note(note)
    };
    let times = [NOTHING, EMPTY, AGENT].map(|arm| blocks.typical(arm));
    let [nothing, empty, agent] = times.map(|time| format!("{time:.1}"));
    let all_in = figure(
        format!("{name}, more than without a program"),
        blocks.effect(AGENT, NOTHING),
        format!("without {nothing} ns"),
    );
    [
        figure(
            format!("{name}, more than with an empty program"),
            beyond_empty(blocks),
            format!(
                "{agent} ns {}, with the empty program {empty} ns; {} blocks of 2 slices each",
                kind.unit(),
                blocks.len()
            ),
        )
        .goal(Goal::AtMost(GOAL)),
        figure(
            format!("{name}, A/A of it"),
            blocks.effect(EMPTY_AGAIN, EMPTY),
            "the empty program, compared with itself".to_owned(),
        ),
        match hook {
            Hook::Clsact => all_in,
            Hook::Tcx => all_in.goal(Goal::AtMost(TCX_GOAL)),
        },
        figure(
            format!("{name}, of which the hook and an empty program"),
            blocks.effect(EMPTY, NOTHING),
            String::new(),
        ),
    ]
}

/// Starts and stops a whole agent on the node.
fn whole_agent(agent: &Path, node: &RoutedNode, options: &TrafficOptions) -> Result<Figure> {
    let command = AgentCommand::run(agent);
    let kind = TrafficKind::Datagrams;
    let mut flow = Flow::open(node, kind, options.slice * 10)?;
    let mut blocks = Blocks::<2>::default();
    let mut running: Option<Agent> = None;
    let mut last = None;
    let precision = Precision {
        time_limit: options.whole_agent,
        ..options.precision
    };
    blocks.add_until(
        precision,
        |blocks| blocks.effect(1, 0),
        |arm| {
            if arm == 1 && running.is_none() {
                running = Some(Agent::start_ready(&node.node, &command)?);
            } else if arm == 0
                && let Some(mut agent) = running.take()
            {
                agent.terminate(DEADLINE)?;
                node.node.run_in(|| {
                    let mut netlink = Socket::new(NETLINK_ROUTE)?;
                    netlink.bind_auto()?;
                    DEVICES
                        .iter()
                        .try_for_each(|device| remove_clsact(&netlink, device))
                })?;
            }
            // After either change, so that both arms start equally idle.
            if last != Some(arm) {
                last = Some(arm);
                thread::sleep(SETTLE_TIME);
            }
            let _pinned = Pinned::to_last_processor()?;
            flow.measure()
        },
    )?;
    let effect = blocks.effect(1, 0);
    Ok(Figure::new(
        GROUP,
        format!("{}, more with a whole agent than without", kind.name()),
        effect.percent,
        "%",
    )
    .uncertainty(effect.uncertainty)
    .note(format!(
        "started and stopped {} times on the node, attached by itself; without {:.1} ns {}",
        blocks.len(),
        blocks.typical(0),
        kind.unit()
    )))
}
