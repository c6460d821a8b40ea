//! Cost of the agent by the number of pods: memory, time from start to ready, CPU time while idle, memory per claim.

use std::{
    net::Ipv4Addr,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use detector_testkit::{
    Agent, AgentCommand, DEADLINE, Frame, FrameSender, Node, Pod, PodSpec,
    process::{anonymous_kib, cpu_time, resident_kib},
    until,
};

use super::{Figure, Goal, metrics::Metrics, statistics::median};

const GROUP: &str = "Cost by number of pods";
/// After this time the agent has finished its work after start-up.
const SETTLE_TIME: Duration = Duration::from_millis(1500);
/// The number of pods for which goals are set.
const TYPICAL_PODS: usize = 250;
const MEMORY_GOAL_MIB: f64 = 20.0;
/// Of each additional pod.
const ALLOCATED_GOAL_KIB: f64 = 2.0;

/// What to measure.
#[derive(Clone, Debug)]
pub struct ScaleOptions {
    /// The numbers of pods to measure, ascending.
    pub pods: Vec<usize>,
    /// Starts of the agent for each number of pods.
    pub starts: usize,
    /// How long the idle agent is observed, with 250 pods.
    pub idle: Duration,
    /// Addresses that each of 250 pods announces additionally.
    pub claims: u32,
    /// No pods are created after this time; the remaining numbers are reported as not measured.
    pub time_limit: Duration,
}

/// Measures the agent at this path. Numbers of pods beyond the time limit become absent figures.
///
/// # Errors
/// A namespace cannot be created, or the agent does not become ready.
pub fn run(agent: &Path, options: &ScaleOptions) -> Result<Vec<Figure>> {
    let node = Node::new("scale")?;
    let mut creation_time = Duration::ZERO;
    let started = Instant::now();
    let mut pods: Vec<Pod> = Vec::new();
    let mut figures = Vec::new();
    let mut memory: Vec<Memory> = Vec::new();
    let command = AgentCommand::run(agent);
    for &count in &options.pods {
        // Estimated from the pods created so far.
        let each = creation_time / u32::try_from(pods.len().max(1))?;
        let expected = each * u32::try_from(count.saturating_sub(pods.len()))?;
        if !pods.is_empty() && started.elapsed() + expected > options.time_limit {
            figures.push(Figure::absent(
                GROUP,
                format!("{count} pods"),
                format!("not measured: creating them would take {expected:.0?} on this machine"),
            ));
            continue;
        }
        let at = Instant::now();
        while pods.len() < count {
            let chunk = (count - pods.len()).min(500);
            let specs: Vec<_> = (pods.len()..pods.len() + chunk).map(spec).collect();
            pods.extend(node.add_pods(&specs)?);
        }
        creation_time += at.elapsed();
        let mut ready_ms = Vec::new();
        for start in 1..=options.starts {
            let at = Instant::now();
            let agent = Agent::start_ready(&node, &command)?;
            ready_ms.push(at.elapsed().as_secs_f64() * 1e3);
            if start == options.starts {
                thread::sleep(SETTLE_TIME);
                let resident = mib(resident_kib(agent.pid())?);
                let allocated = mib(anonymous_kib(agent.pid())?);
                memory.push(Memory {
                    pods: count,
                    resident,
                    allocated,
                });
                let mut figure =
                    Figure::new(GROUP, format!("memory, {count} pods"), resident, "MiB").note(
                        format!(
                            "RSS; of it {allocated:.1} MiB allocated, the rest is the executable"
                        ),
                    );
                if count == TYPICAL_PODS {
                    figure = figure.goal(Goal::Below(MEMORY_GOAL_MIB));
                }
                figures.push(figure);
                if count == TYPICAL_PODS {
                    figures.push(idle_cpu(&agent, options.idle)?);
                    figures.push(memory_per_claim(&node, &agent, &pods, options.claims)?);
                }
            }
        }
        let mut figure = Figure::new(
            GROUP,
            format!("start to ready, {count} pods"),
            median(&ready_ms),
            "ms",
        )
        .note(format!("median of {}", ready_ms.len()));
        if let Some(bound) = match count {
            250 => Some(300.0),
            1000 => Some(150.0),
            _ => None,
        } {
            figure = figure.goal(Goal::AtMost(bound));
        }
        figures.push(figure);
    }
    figures.extend(memory_per_pod(&memory));
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

/// CPU usage while nothing happens.
fn idle_cpu(agent: &Agent, duration: Duration) -> Result<Figure> {
    let (before, at) = (cpu_time(agent.pid())?, Instant::now());
    thread::sleep(duration);
    let used = cpu_time(agent.pid())?.saturating_sub(before);
    let share = used.as_secs_f64() / at.elapsed().as_secs_f64() * 100.0;
    Ok(Figure::new(
        GROUP,
        format!("CPU while idle, {TYPICAL_PODS} pods"),
        share,
        "% of a core",
    )
    .goal(Goal::AtMost(0.05))
    .note(format!("over {duration:?}")))
}

/// Memory growth when each pod announces further addresses.
fn memory_per_claim(node: &Node, agent: &Agent, pods: &[Pod], each: u32) -> Result<Figure> {
    let count_claims = || Metrics::scrape(node)?.value("ipconflict_claims");
    let (claims_before, before) = (count_claims()?, anonymous_kib(agent.pid())?);
    let mut sent = 0_u32;
    for (number, pod) in (0_u32..).zip(pods) {
        let frames: Vec<_> = (0..each)
            .map(|n| {
                let base = u32::from(Ipv4Addr::new(10, 160, 0, 0));
                let address = Ipv4Addr::from(base + number * each + n);
                Frame::announcement(pod.mac(), address).to_bytes()
            })
            .collect();
        FrameSender::open(pod)?.send_all(&frames)?;
        sent += each;
    }
    let mut claims = 0.0;
    until(DEADLINE, "all claims to be counted", || {
        claims = count_claims()?;
        ensure!(
            claims >= claims_before + f64::from(sent),
            "{claims} claims, {sent} announced in addition to {claims_before}"
        );
        Ok(())
    })?;
    #[expect(clippy::cast_precision_loss, reason = "memory of one process")]
    let bytes = anonymous_kib(agent.pid())?.saturating_sub(before) as f64 * 1024.0;
    Ok(Figure::new(
        GROUP,
        "memory per additional claim",
        bytes / (claims - claims_before),
        "B",
    )
    .goal(Goal::Below(2048.0))
    .note(format!("{sent} claims from {} pods", pods.len())))
}

/// Memory with a number of pods, MiB.
#[derive(Clone, Copy, Debug)]
struct Memory {
    pods: usize,
    resident: f64,
    allocated: f64,
}

/// Memory per additional pod between one number of pods and the next; constant if growth is linear.
fn memory_per_pod(memory: &[Memory]) -> Vec<Figure> {
    let mut figures = Vec::new();
    for pair in memory.windows(2) {
        let [fewer, more] = pair else { continue };
        let range = format!("{} to {}", fewer.pods, more.pods);
        #[expect(clippy::cast_precision_loss, reason = "numbers of pods")]
        let pods = (more.pods - fewer.pods) as f64;
        let each = |difference: f64| difference * 1024.0 / pods;
        figures.push(Figure::new(
            GROUP,
            format!("memory per additional pod, {range}"),
            each(more.resident - fewer.resident),
            "KiB",
        ));
        let allocated = Figure::new(
            GROUP,
            format!("of which allocated, {range}"),
            each(more.allocated - fewer.allocated),
            "KiB",
        );
        // With few pods, the allocator's granularity is most of the difference.
        figures.push(if fewer.pods >= TYPICAL_PODS {
            allocated.goal(Goal::AtMost(ALLOCATED_GOAL_KIB))
        } else {
            allocated
        });
    }
    figures
}
