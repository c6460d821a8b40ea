//! How many claims per second the whole agent processes before the first one is lost: known claims, which the kernel program only
//! counts, and new ones, each of which goes through the ring buffer and the engine.

use std::{
    net::Ipv4Addr,
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use detector_testkit::{
    Agent, AgentCommand, ArpOperation, DEADLINE, Frame, FrameSender, MacAddress, Node, Pod,
    PodSpec, process::cpu_time, until,
};

use super::{Figure, Goal, metrics::Metrics};

const GROUP: &str = "Throughput";
/// Frames per system call.
const BATCH: usize = 256;
/// New claims of one pod at once; the kernel program accepts a burst of 512.
const CLAIMS_PER_POD: u32 = 500;
/// Sender threads; more would only compete for the CPUs.
const SENDERS: usize = 2;

/// How long sent claims may take until they are counted.
const COUNT_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval between two scrapes of the agent's counters.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// What to measure.
#[derive(Clone, Debug)]
pub struct ThroughputOptions {
    /// How long known claims are sent.
    pub repeated: Duration,
    /// Pods that send new claims, 500 each.
    pub pods: u32,
    /// Rates at which new claims are sent, per second; 0 for as fast as possible.
    pub rates: Vec<u32>,
}

/// Measures the agent at this path.
///
/// # Errors
/// A namespace cannot be created, or the agent does not respond.
pub fn run(agent: &Path, options: &ThroughputOptions) -> Result<Vec<Figure>> {
    let node = Node::new("claims")?;
    let specs: Vec<_> = (0..options.pods)
        .map(|number| PodSpec::new(format!("veth{number}")))
        .collect();
    let pods = node.add_pods(&specs)?;
    let command = AgentCommand::run(agent);
    let mut figures = measure_known(&node, &pods, &command, options.repeated)?;
    figures.extend(measure_new(&node, &pods, &command, &options.rates)?);
    Ok(figures)
}

/// Counters of ARP claims from `/metrics`.
#[derive(Clone, Copy, Debug, Default)]
struct ClaimCounters {
    known: f64,
    new: f64,
    dropped: f64,
}

impl ClaimCounters {
    fn scrape(node: &Node) -> Result<Self> {
        let metrics = Metrics::scrape(node)?;
        let observations = "ipconflict_observations_total";
        Ok(Self {
            known: metrics.sum(observations, "kind=\"arp_known\""),
            new: metrics.sum(observations, "kind=\"arp\""),
            dropped: metrics.sum("ipconflict_observations_dropped_total", ""),
        })
    }
}

/// Each sender repeats one claim as fast as it can.
fn measure_known(
    node: &Node,
    pods: &[Pod],
    command: &AgentCommand,
    duration: Duration,
) -> Result<Vec<Figure>> {
    let agent = Agent::start_ready(node, command)?;
    let before = ClaimCounters::scrape(node)?;
    let sent = AtomicU64::new(0);
    let started = Instant::now();
    thread::scope(|scope| -> Result<()> {
        let senders: Vec<_> = pods
            .iter()
            .take(SENDERS)
            .map(|pod| {
                let sent = &sent;
                scope.spawn(move || -> Result<()> {
                    let sender = FrameSender::open(pod)?;
                    let frames = vec![announcement(pod, own_address(pod)); BATCH];
                    while started.elapsed() < duration {
                        sender.send_all(&frames)?;
                        sent.fetch_add(BATCH as u64, Ordering::Relaxed);
                    }
                    Ok(())
                })
            })
            .collect();
        senders.into_iter().try_for_each(|sender| {
            sender
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })?;
    let seconds = started.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "a number of frames")]
    let sent = sent.into_inner() as f64;
    // The counters are updated once per second; frames missing after that were lost before the kernel program.
    let mut counters = ClaimCounters::default();
    let mut last_known = -1.0;
    until(DEADLINE, "the counters to stop", || {
        thread::sleep(Duration::from_millis(1100));
        counters = ClaimCounters::scrape(node)?;
        let is_stable = counters.known <= last_known;
        last_known = counters.known;
        ensure!(is_stable, "the counters still increase");
        Ok(())
    })?;
    drop(agent);
    let seen = counters.known - before.known + counters.new - before.new;
    let dropped = counters.dropped - before.dropped;
    Ok(vec![
        Figure::new(GROUP, "repeated claims", seen / seconds, "/s")
            .goal(Goal::AtLeast(1e6))
            .note(format!(
                "as fast as {SENDERS} senders can on this machine; {sent:.0} sent, {:.0} not seen by the agent, of them {dropped:.0} dropped by it",
                (sent - seen).max(0.0)
            )),
    ])
}

/// An announcement to an unused unicast MAC, so that the host discards it after the agent's program.
fn announcement(pod: &Pod, address: Ipv4Addr) -> Vec<u8> {
    Frame::arp(
        ArpOperation::Request,
        MacAddress([0x02, 0xff, 0, 0, 0, 1]),
        (pod.mac(), address),
        (MacAddress::ZERO, address),
    )
    .to_bytes()
}

fn own_address(pod: &Pod) -> Ipv4Addr {
    let [.., a, b, c] = pod.mac().0;
    Ipv4Addr::new(10, a, b, c)
}

/// All pods announce new addresses, with a new agent for each rate.
fn measure_new(
    node: &Node,
    pods: &[Pod],
    command: &AgentCommand,
    rates: &[u32],
) -> Result<Vec<Figure>> {
    let senders = pods
        .iter()
        .map(FrameSender::open)
        .collect::<Result<Vec<_>>>()?;
    let mut best: Option<f64> = None;
    let mut notes = Vec::new();
    for &rate in rates {
        let agent = Agent::start_ready(node, command)?;
        let before = ClaimCounters::scrape(node)?;
        let batches: Vec<(&FrameSender, Vec<Vec<u8>>)> = (0_u32..)
            .zip(pods.iter().zip(&senders))
            .map(|(number, (pod, sender))| {
                let base = u32::from(Ipv4Addr::new(10, 0, 0, 1)) + number * CLAIMS_PER_POD;
                let frames = (0..CLAIMS_PER_POD)
                    .map(|n| announcement(pod, Ipv4Addr::from(base + n)))
                    .collect();
                (sender, frames)
            })
            .collect();
        let cpu_before = cpu_time(agent.pid())?;
        let total = f64::from(CLAIMS_PER_POD) * batches.len() as f64;
        let started = Instant::now();
        let mut sent = 0.0;
        // In rounds over the pods, at the requested rate if possible.
        for chunk in 0..CLAIMS_PER_POD as usize / 50 {
            for (sender, frames) in &batches {
                let frames = frames
                    .get(chunk * 50..(chunk + 1) * 50)
                    .context("frames of one round")?;
                if rate > 0 {
                    let due = Duration::from_secs_f64(sent / f64::from(rate));
                    while started.elapsed() < due {
                        thread::yield_now();
                    }
                }
                sender.send_all(frames)?;
                sent += frames.len() as f64;
            }
        }
        let sending_time = started.elapsed().as_secs_f64();
        let mut counted = 0.0;
        let end = started.elapsed() + COUNT_TIMEOUT;
        while counted < total && started.elapsed() < end {
            let counters = ClaimCounters::scrape(node)?;
            counted = counters.new - before.new;
            thread::sleep(POLL_INTERVAL);
        }
        let processing_time = started.elapsed().as_secs_f64();
        let cpu_used = cpu_time(agent.pid())?.saturating_sub(cpu_before);
        // The agent reads the kernel's counters once per second.
        thread::sleep(Duration::from_millis(1100));
        let dropped = ClaimCounters::scrape(node)?.dropped - before.dropped;
        drop(agent);
        let offered = total / sending_time;
        if counted >= total && dropped == 0.0 {
            let rate = total / processing_time;
            notes.push(format!(
                "sent at {offered:.0}/s: none lost, {rate:.0}/s processed, {:.1} µs of CPU time each",
                cpu_used.as_secs_f64() * 1e6 / total
            ));
            best = Some(best.map_or(rate, |best| best.max(rate)));
        } else {
            notes.push(format!(
                "sent at {offered:.0}/s: {:.0} of {total:.0} lost",
                dropped.max(total - counted)
            ));
        }
    }
    let figure = best.map_or_else(
        || Figure::absent(GROUP, "new claims", ""),
        |best| Figure::new(GROUP, "new claims", best, "/s"),
    );
    Ok(vec![figure.goal(Goal::AtLeast(200_000.0)).note(format!(
        "first frame to last claim counted; {}",
        notes.join("; ")
    ))])
}
