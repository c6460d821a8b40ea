//! What the agent costs by the number of pods: memory, time from start to ready, processor time while nothing happens,
//! memory for each claim.

use std::{
    net::Ipv4Addr,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};

use super::{Figure, Goal, statistics::median};
use detector_testkit::{
    agent::{Agent, AgentCommand, DEADLINE},
    frames::{Frame, FrameSender},
    http::TestClient,
    node::{Node, Pod, PodSpec},
    process::{anonymous_kib, cpu_time, resident_kib},
    until,
};

const GROUP: &str = "Cost by number of pods";
/// After this the agent has done what it does after its start.
const SETTLE: Duration = Duration::from_millis(1500);
/// Goals are set for this many pods.
const TYPICAL: usize = 250;
const MEMORY_GOAL_MIB: f64 = 20.0;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Numbers of pods, ascending.
    pub pods: Vec<usize>,
    /// Starts of the agent for each.
    pub starts: usize,
    /// How long it is watched doing nothing, at 250 pods.
    pub idle: Duration,
    /// Further addresses that each of 250 pods announces.
    pub claims: u32,
    /// No more pods are made after this; what is left is reported as not measured.
    pub deadline: Duration,
}

/// Measures; gives figures also for what did not fit into the time.
///
/// # Errors
/// Where a namespace cannot be made, or the agent does not become ready.
pub fn run(agent: &Path, options: &Options) -> Result<Vec<Figure>> {
    let node = Node::new("scale")?;
    let mut making = Duration::ZERO;
    let begun = Instant::now();
    let mut pods: Vec<Pod> = Vec::new();
    let mut figures = Vec::new();
    let mut memory: Vec<(usize, f64)> = Vec::new();
    let command = AgentCommand::run(agent);
    for &count in &options.pods {
        // Pods are made at a pace of their own; a guess from those before.
        let each = making / u32::try_from(pods.len().max(1))?;
        let expected = each * u32::try_from(count.saturating_sub(pods.len()))?;
        if !pods.is_empty() && begun.elapsed() + expected > options.deadline {
            figures.push(Figure::absent(
                GROUP,
                format!("{count} pods"),
                format!("not measured: making them would take {expected:.0?} here"),
            ));
            continue;
        }
        let at = Instant::now();
        while pods.len() < count {
            let chunk = (count - pods.len()).min(500);
            let specs: Vec<_> = (pods.len()..pods.len() + chunk).map(spec).collect();
            pods.extend(node.add_pods(&specs)?);
        }
        making += at.elapsed();
        let mut ready = Vec::new();
        for start in 1..=options.starts {
            let at = Instant::now();
            let agent = Agent::start_ready(&node, &command)?;
            ready.push(at.elapsed().as_secs_f64() * 1e3);
            if start == options.starts {
                thread::sleep(SETTLE);
                let resident = mib(resident_kib(agent.pid())?);
                memory.push((count, resident));
                let allocated = mib(anonymous_kib(agent.pid())?);
                let mut figure =
                    Figure::new(GROUP, format!("memory, {count} pods"), resident, "MiB").note(
                        format!(
                            "RSS; {allocated:.1} MiB of it allocated, the rest is the executable"
                        ),
                    );
                if count == TYPICAL {
                    figure = figure.goal(Goal::Below(MEMORY_GOAL_MIB));
                }
                figures.push(figure);
                if count == TYPICAL {
                    figures.push(idle(&agent, options.idle)?);
                    figures.push(claims(&node, &agent, &pods, options.claims)?);
                }
            }
        }
        let mut figure = Figure::new(
            GROUP,
            format!("start to ready, {count} pods"),
            median(&ready),
            "ms",
        )
        .note(format!("median of {}", ready.len()));
        if let Some(most) = match count {
            250 => Some(300.0),
            1000 => Some(1000.0),
            _ => None,
        } {
            figure = figure.goal(Goal::AtMost(most));
        }
        figures.push(figure);
    }
    figures.extend(growth(&memory));
    Ok(figures)
}

fn spec(number: usize) -> PodSpec {
    let number = u32::try_from(number).unwrap_or(u32::MAX);
    let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 128, 0, 1)).saturating_add(number));
    PodSpec::new(format!("veth{number}"))
        .address(format!("{address}/32"))
        .host_route()
}

#[expect(clippy::cast_precision_loss, reason = "memory of one process")]
fn mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}

/// Share of a core while nothing happens.
fn idle(agent: &Agent, watched: Duration) -> Result<Figure> {
    let (before, at) = (cpu_time(agent.pid())?, Instant::now());
    thread::sleep(watched);
    let used = cpu_time(agent.pid())?.saturating_sub(before);
    let share = used.as_secs_f64() / at.elapsed().as_secs_f64() * 100.0;
    Ok(Figure::new(
        GROUP,
        format!("processor while idle, {TYPICAL} pods"),
        share,
        "% of a core",
    )
    .goal(Goal::Below(0.1))
    .note(format!("over {watched:?}")))
}

/// What one more claim takes.
fn claims(node: &Node, agent: &Agent, pods: &[Pod], each: u32) -> Result<Figure> {
    let metrics = TestClient::new(node, "http://127.0.0.1:9842");
    let known = || -> Result<f64> { metric(&metrics.get("/metrics")?.body, "ipconflict_claims") };
    let (claims_before, before) = (known()?, anonymous_kib(agent.pid())?);
    let mut wanted = 0_u32;
    for (number, pod) in (0_u32..).zip(pods) {
        let frames: Vec<_> = (0..each)
            .map(|n| {
                let base = u32::from(Ipv4Addr::new(10, 160, 0, 0));
                let address = Ipv4Addr::from(base + number * each + n);
                Frame::announcement(pod.mac(), address).to_bytes()
            })
            .collect();
        FrameSender::open(pod)?.send_all(&frames)?;
        wanted += each;
    }
    let mut now = 0.0;
    until(DEADLINE, "all claims to be counted", || {
        now = known()?;
        ensure!(
            now >= claims_before + f64::from(wanted),
            "{now} claims are known after {wanted} more than {claims_before}"
        );
        Ok(())
    })?;
    #[expect(clippy::cast_precision_loss, reason = "memory of one process")]
    let bytes = anonymous_kib(agent.pid())?.saturating_sub(before) as f64 * 1024.0;
    Ok(Figure::new(
        GROUP,
        "memory for each further claim",
        bytes / (now - claims_before),
        "B",
    )
    .goal(Goal::Below(2048.0))
    .note(format!("{wanted} claims from {} pods", pods.len())))
}

/// The value of a metric without labels.
pub(super) fn metric(text: &str, name: &str) -> Result<f64> {
    for line in text.lines() {
        if let Some(value) = line
            .strip_prefix(name)
            .and_then(|rest| rest.strip_prefix(' '))
        {
            return Ok(value.parse()?);
        }
    }
    anyhow::bail!("there is no metric {name}")
}

/// KiB for each pod between one number of pods and the next: the same where growth is linear.
fn growth(memory: &[(usize, f64)]) -> Vec<Figure> {
    memory
        .windows(2)
        .filter_map(|pair| {
            let [(few, less), (many, more)] = pair else {
                return None;
            };
            #[expect(clippy::cast_precision_loss, reason = "numbers of pods")]
            let each = (more - less) * 1024.0 / (many - few) as f64;
            Some(Figure::new(
                GROUP,
                format!("memory for each further pod, {few} to {many}"),
                each,
                "KiB",
            ))
        })
        .collect()
}
