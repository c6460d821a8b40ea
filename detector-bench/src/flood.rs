//! The effect of one hostile pod: it sends ARP frames with random senders as fast as it can, while two other pods cause conflicts.
//! Measures latency, and memory and CPU time of the agent.

use std::{
    net::Ipv4Addr,
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use detector_testkit::{
    Agent, AgentCommand, FrameSender, Node, Pod, PodSpec,
    process::{cpu_time, resident_kib},
    random::Random,
};

use super::{pod_pairs::PodPairs, random_announcement};

/// Frames per system call.
const BATCH: usize = 256;
/// Interval between two samples of memory.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(20);

/// The largest number of conflicts of one pair; a device may have this many claims.
const MAX_CONFLICTS: u32 = 1000;

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct FloodOptions {
    /// The minimum number of frames; the flood continues until the last conflict is raised.
    pub frames: u64,
    /// The number of conflicts between two other pods meanwhile.
    pub conflicts: u32,
}

impl Default for FloodOptions {
    fn default() -> Self {
        Self {
            frames: 2_000_000,
            conflicts: 100,
        }
    }
}

/// The measurements.
#[derive(Clone, Debug)]
pub struct FloodReport {
    /// Frames sent.
    pub frames: u64,
    /// Duration of the flood.
    pub took: Duration,
    /// Resident memory before the flood, KiB.
    pub before_kib: u64,
    /// Maximum resident memory since then, KiB.
    pub max_kib: u64,
    /// CPU time of the agent meanwhile.
    pub cpu_time: Duration,
    /// `latency_us` of each raising event.
    pub kernel_to_event_us: Vec<f64>,
    /// From just before the deciding frame was sent until the event line was read, in microseconds.
    pub frame_to_line_us: Vec<f64>,
}

/// Measures the agent at this path on a new node.
///
/// # Errors
/// A namespace cannot be created, or the agent misses a conflict.
pub fn run(agent: &Path, options: FloodOptions) -> Result<FloodReport> {
    ensure!(
        (1..=MAX_CONFLICTS).contains(&options.conflicts),
        "conflicts must be between 1 and {MAX_CONFLICTS}"
    );
    let node = Node::new("flood")?;
    let flooder = node.add_pod(&PodSpec::new("vethflood"))?;
    // Addresses that the flood does not use.
    let pair = PodPairs::new(&node, 1, Ipv4Addr::new(172, 16, 0, 0), |pod| pod)?;
    let agent = Agent::start_ready(&node, &AgentCommand::run(agent))?;
    let pid = agent.pid();
    let before_kib = resident_kib(pid)?;
    let cpu_time_before = cpu_time(pid)?;
    let started = Instant::now();
    let (sent, max_kib) = (AtomicU64::new(0), AtomicU64::new(before_kib));
    let (all_raised, flooded) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut latencies = (Vec::new(), Vec::new());
    thread::scope(|scope| {
        let flood = scope.spawn(|| {
            let outcome = flood(&flooder, options.frames, &all_raised, &sent);
            flooded.store(true, Ordering::Release);
            outcome
        });
        let sampler = scope.spawn(|| -> Result<()> {
            while !flooded.load(Ordering::Acquire) {
                max_kib.fetch_max(resident_kib(pid)?, Ordering::Relaxed);
                thread::sleep(SAMPLE_INTERVAL);
            }
            Ok(())
        });
        let conflicts = cause_conflicts(&agent, &pair, options, &sent);
        all_raised.store(true, Ordering::Release);
        let resume = |panic| std::panic::resume_unwind(panic);
        flood.join().unwrap_or_else(resume)?;
        sampler.join().unwrap_or_else(resume)?;
        latencies = conflicts?;
        Ok::<(), anyhow::Error>(())
    })?;
    let took = started.elapsed();
    let (kernel_to_event_us, frame_to_line_us) = latencies;
    Ok(FloodReport {
        frames: sent.into_inner(),
        took,
        before_kib,
        max_kib: max_kib.into_inner().max(resident_kib(pid)?),
        cpu_time: cpu_time(pid)?.saturating_sub(cpu_time_before),
        kernel_to_event_us,
        frame_to_line_us,
    })
}

/// Sends until at least `frames` are sent and `stop` is set.
fn flood(pod: &Pod, frames: u64, stop: &AtomicBool, sent: &AtomicU64) -> Result<()> {
    let sender = FrameSender::open(pod)?;
    // A fixed seed, so that every flood is the same.
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    while sent.load(Ordering::Relaxed) < frames || !stop.load(Ordering::Acquire) {
        let batch: Vec<_> = (0..BATCH)
            .map(|_| random_announcement(&mut random, 10))
            .collect();
        sender.send_all(&batch)?;
        sent.fetch_add(BATCH as u64, Ordering::Relaxed);
    }
    Ok(())
}

/// Causes the conflicts, spread over the flood; returns both latencies of each.
fn cause_conflicts(
    agent: &Agent,
    pair: &PodPairs,
    options: FloodOptions,
    sent: &AtomicU64,
) -> Result<(Vec<f64>, Vec<f64>)> {
    let (mut kernel_to_event_us, mut frame_to_line_us) = (Vec::new(), Vec::new());
    for number in 0..options.conflicts {
        let due = options.frames / u64::from(options.conflicts + 1) * u64::from(number + 1);
        while sent.load(Ordering::Relaxed) < due {
            thread::sleep(Duration::from_millis(1));
        }
        let conflict = pair.cause_conflict(agent, number, Duration::ZERO)?;
        kernel_to_event_us.push(conflict.kernel_to_event_us()?);
        frame_to_line_us.push(conflict.frame_to_line_us());
    }
    Ok((kernel_to_event_us, frame_to_line_us))
}
