//! What one hostile pod costs: it sends ARP frames with random senders as fast as it can, while two other pods come into
//! conflict again and again. Memory and processor time of the agent are looked at all the while.

use std::{
    net::Ipv4Addr,
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};

use super::pairs::Pairs;
use detector_testkit::{
    agent::{Agent, AgentCommand},
    frames::{Frame, FrameSender},
    mac::MacAddress,
    node::{Node, Pod, PodSpec},
    process::{cpu_time, resident_kib},
    random::Random,
};

/// Frames in one system call.
const BATCH: usize = 256;
/// How often memory is looked at.
const SAMPLE: Duration = Duration::from_millis(20);

/// Conflicts of one pair: a device may hold so many claims.
const MOST_CONFLICTS: u32 = 1000;

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Frames of the flood, at least; it goes on until the last conflict is named.
    pub frames: u64,
    /// Conflicts between two other pods while it lasts.
    pub conflicts: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            frames: 2_000_000,
            conflicts: 100,
        }
    }
}

/// What it came to.
#[derive(Clone, Debug)]
pub struct Report {
    /// Frames sent.
    pub frames: u64,
    /// How long that took.
    pub took: Duration,
    /// Resident memory before the flood, KiB.
    pub before_kib: u64,
    /// The most resident memory from then on, KiB.
    pub most_kib: u64,
    /// Processor seconds the agent used meanwhile.
    pub processor: Duration,
    /// `latency_us` of each raising event.
    pub agent_us: Vec<f64>,
    /// From just before the deciding frame was sent to the event line in the reader's hands.
    pub outside_us: Vec<f64>,
}

/// Measures the agent of this path on a node of its own.
///
/// # Errors
/// Where a namespace cannot be made, or the agent misses a conflict.
pub fn run(agent: &Path, options: Options) -> Result<Report> {
    ensure!(
        (1..=MOST_CONFLICTS).contains(&options.conflicts),
        "conflicts must be between 1 and {MOST_CONFLICTS}"
    );
    let node = Node::new("flood")?;
    let flooder = node.add_pod(&PodSpec::new("vethflood"))?;
    // Outside of the flood's addresses.
    let pair = Pairs::new(&node, 1, Ipv4Addr::new(172, 16, 0, 0), |pod| pod)?;
    let agent = Agent::start_ready(&node, &AgentCommand::run(agent))?;
    let pid = agent.pid();
    let before_kib = resident_kib(pid)?;
    let processor_before = cpu_time(pid)?;
    let begun = Instant::now();
    let (sent, most) = (AtomicU64::new(0), AtomicU64::new(before_kib));
    let (named_all, flooded) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut latencies = (Vec::new(), Vec::new());
    thread::scope(|scope| {
        let flood = scope.spawn(|| {
            let outcome = flood(&flooder, options.frames, &named_all, &sent);
            flooded.store(true, Ordering::Release);
            outcome
        });
        let watch = scope.spawn(|| -> Result<()> {
            while !flooded.load(Ordering::Acquire) {
                most.fetch_max(resident_kib(pid)?, Ordering::Relaxed);
                thread::sleep(SAMPLE);
            }
            Ok(())
        });
        let conflicts = conflicts(&agent, &pair, options, &sent);
        named_all.store(true, Ordering::Release);
        let over = |panic| std::panic::resume_unwind(panic);
        flood.join().unwrap_or_else(over)?;
        watch.join().unwrap_or_else(over)?;
        latencies = conflicts?;
        Ok::<(), anyhow::Error>(())
    })?;
    let took = begun.elapsed();
    let (agent_us, outside_us) = latencies;
    Ok(Report {
        frames: sent.into_inner(),
        took,
        before_kib,
        most_kib: most.into_inner().max(resident_kib(pid)?),
        processor: cpu_time(pid)?.saturating_sub(processor_before),
        agent_us,
        outside_us,
    })
}

/// Sends until both the frames are sent and `enough` is set.
fn flood(pod: &Pod, frames: u64, enough: &AtomicBool, sent: &AtomicU64) -> Result<()> {
    let sender = FrameSender::open(pod)?;
    // The same flood every time.
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut batch = vec![Frame::announcement(pod.mac(), Ipv4Addr::UNSPECIFIED).to_bytes(); BATCH];
    while sent.load(Ordering::Relaxed) < frames || !enough.load(Ordering::Acquire) {
        for frame in &mut batch {
            let number = random.next_u64();
            let [_, a, b, c, d, e, f, g] = number.to_be_bytes();
            // 10.0.0.0/8 and a locally administered station.
            let announcement = Frame::announcement(
                MacAddress([0x02, d, e, f, g, a]),
                Ipv4Addr::new(10, a, b, c),
            );
            *frame = announcement.to_bytes();
        }
        sender.send_all(&batch)?;
        sent.fetch_add(BATCH as u64, Ordering::Relaxed);
    }
    Ok(())
}

/// Makes the conflicts, spread over the flood, and times each.
fn conflicts(
    agent: &Agent,
    pair: &Pairs,
    options: Options,
    sent: &AtomicU64,
) -> Result<(Vec<f64>, Vec<f64>)> {
    let (mut agent_us, mut outside_us) = (Vec::new(), Vec::new());
    for number in 0..options.conflicts {
        let due = options.frames / u64::from(options.conflicts + 1) * u64::from(number + 1);
        while sent.load(Ordering::Relaxed) < due {
            thread::sleep(Duration::from_millis(1));
        }
        let made = pair.conflict(agent, number, Duration::ZERO)?;
        agent_us.push(made.agent_us()?);
        outside_us.push(made.outside_us());
    }
    Ok((agent_us, outside_us))
}
