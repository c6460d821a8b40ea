//! How many claims a second go through the whole agent before the first is lost: claims that it knows already, which the
//! kernel program only counts, and new ones, each of which goes through the ring buffer and the rules.

use std::{
    net::Ipv4Addr,
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

use super::{Figure, Goal};
use detector_testkit::{
    agent::{Agent, AgentCommand, DEADLINE},
    frames::{ArpOperation, Frame, FrameSender},
    http::TestClient,
    mac::MacAddress,
    node::{Node, Pod, PodSpec},
    process::cpu_time,
    until,
};

const GROUP: &str = "Throughput";
/// Frames in one system call.
const BATCH: usize = 256;
/// New claims of one pod at once: below the 512 that the kernel program's budget lets through.
const CLAIMS: u32 = 500;
/// Senders; more only take the processors from each other.
const SENDERS: usize = 2;

/// How long claims that were sent may take to be known.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks at the agent's counters.
const POLL: Duration = Duration::from_millis(5);

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long known claims are sent.
    pub repeated: Duration,
    /// Pods that send new ones, 500 each.
    pub pods: u32,
    /// Rates at which new claims are sent; the last one unpaced where it is 0.
    pub rates: Vec<u32>,
}

/// Measures.
///
/// # Errors
/// Where a namespace cannot be made, or the agent does not answer.
pub fn run(agent: &Path, options: &Options) -> Result<Vec<Figure>> {
    let node = Node::new("claims")?;
    let specs: Vec<_> = (0..options.pods)
        .map(|number| PodSpec::new(format!("veth{number}")))
        .collect();
    let pods = node.add_pods(&specs)?;
    let command = AgentCommand::run(agent);
    let mut figures = repeated(&node, &pods, &command, options.repeated)?;
    figures.extend(new(&node, &pods, &command, &options.rates)?);
    Ok(figures)
}

/// What `/metrics` says of claims by ARP.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    known: f64,
    new: f64,
    dropped: f64,
}

impl Counted {
    fn read(client: &TestClient<'_>) -> Result<Self> {
        let text = client.get("/metrics")?.body;
        let sum = |name: &str, label: &str| -> f64 {
            text.lines()
                .filter(|line| line.starts_with(name) && line.contains(label))
                .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
                .sum()
        };
        let observations = "ipconflict_observations_total{";
        Ok(Self {
            known: sum(observations, "kind=\"arp_known\""),
            new: sum(observations, "kind=\"arp\""),
            dropped: sum("ipconflict_observations_dropped_total{", ""),
        })
    }
}

/// Each sender repeats a few claims as fast as it can.
fn repeated(
    node: &Node,
    pods: &[Pod],
    command: &AgentCommand,
    lasting: Duration,
) -> Result<Vec<Figure>> {
    let agent = Agent::start_ready(node, command)?;
    let client = TestClient::new(node, "http://127.0.0.1:9842");
    let before = Counted::read(&client)?;
    let sent = AtomicU64::new(0);
    let begun = Instant::now();
    thread::scope(|scope| -> Result<()> {
        let senders: Vec<_> = pods
            .iter()
            .take(SENDERS)
            .map(|pod| {
                let sent = &sent;
                scope.spawn(move || -> Result<()> {
                    let sender = FrameSender::open(pod)?;
                    let frames = vec![claim(pod, own_address(pod)); BATCH];
                    while begun.elapsed() < lasting {
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
    let seconds = begun.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "a number of frames")]
    let sent = sent.into_inner() as f64;
    // Gauges are set once a second; what is missing after that was lost before the program.
    let mut counted = Counted::default();
    let mut last = -1.0;
    until(DEADLINE, "the counters to stop", || {
        thread::sleep(Duration::from_millis(1100));
        counted = Counted::read(&client)?;
        let settled = counted.known <= last;
        last = counted.known;
        ensure!(settled, "the counters still rise");
        Ok(())
    })?;
    drop(agent);
    let seen = counted.known - before.known + counted.new - before.new;
    let dropped = counted.dropped - before.dropped;
    Ok(vec![
        Figure::new(GROUP, "repeated claims", seen / seconds, "/s")
            .goal(Goal::AtLeast(1e6))
            .note(format!(
                "as fast as {SENDERS} senders on this machine can; {sent:.0} sent, {:.0} not seen by the agent, of them {dropped:.0} dropped by it",
                (sent - seen).max(0.0)
            )),
    ])
}

/// An announcement, but to a station that is not there: past the agent's program the host has no work with it.
fn claim(pod: &Pod, address: Ipv4Addr) -> Vec<u8> {
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

/// All pods claim new addresses, at each rate with an agent of its own.
fn new(node: &Node, pods: &[Pod], command: &AgentCommand, rates: &[u32]) -> Result<Vec<Figure>> {
    let senders = pods
        .iter()
        .map(FrameSender::open)
        .collect::<Result<Vec<_>>>()?;
    let mut best: Option<f64> = None;
    let mut tried = Vec::new();
    for &rate in rates {
        let agent = Agent::start_ready(node, command)?;
        let client = TestClient::new(node, "http://127.0.0.1:9842");
        let before = Counted::read(&client)?;
        let batches: Vec<(&FrameSender, Vec<Vec<u8>>)> = (0_u32..)
            .zip(pods.iter().zip(&senders))
            .map(|(number, (pod, sender))| {
                let base = u32::from(Ipv4Addr::new(10, 0, 0, 1)) + number * CLAIMS;
                let frames = (0..CLAIMS)
                    .map(|n| claim(pod, Ipv4Addr::from(base + n)))
                    .collect();
                (sender, frames)
            })
            .collect();
        let processor = cpu_time(agent.pid())?;
        let total = f64::from(CLAIMS) * batches.len() as f64;
        let begun = Instant::now();
        let mut sent = 0.0;
        // In rounds over the pods, as far as possible at the rate asked for.
        for chunk in 0..CLAIMS as usize / 50 {
            for (sender, frames) in &batches {
                let frames = frames
                    .get(chunk * 50..(chunk + 1) * 50)
                    .context("frames of one round")?;
                if rate > 0 {
                    let due = Duration::from_secs_f64(sent / f64::from(rate));
                    while begun.elapsed() < due {
                        thread::yield_now();
                    }
                }
                sender.send_all(frames)?;
                sent += frames.len() as f64;
            }
        }
        let sending = begun.elapsed().as_secs_f64();
        let mut last = 0.0;
        let patience = begun.elapsed() + PATIENCE;
        while last < total && begun.elapsed() < patience {
            let counted = Counted::read(&client)?;
            last = counted.new - before.new;
            thread::sleep(POLL);
        }
        let through = begun.elapsed().as_secs_f64();
        let processor = cpu_time(agent.pid())?.saturating_sub(processor);
        // The kernel's counters are read once a second.
        thread::sleep(Duration::from_millis(1100));
        let dropped = Counted::read(&client)?.dropped - before.dropped;
        drop(agent);
        let offered = total / sending;
        if last >= total && dropped == 0.0 {
            let rate = total / through;
            tried.push(format!(
                "sent at {offered:.0}/s: none lost, {rate:.0}/s known, {:.1} µs of the agent's processor time each",
                processor.as_secs_f64() * 1e6 / total
            ));
            best = Some(best.map_or(rate, |best| best.max(rate)));
        } else {
            tried.push(format!(
                "sent at {offered:.0}/s: {:.0} of {total:.0} lost",
                dropped.max(total - last)
            ));
        }
    }
    let figure = best.map_or_else(
        || Figure::absent(GROUP, "new claims", ""),
        |best| Figure::new(GROUP, "new claims", best, "/s"),
    );
    Ok(vec![figure.goal(Goal::AtLeast(200_000.0)).note(format!(
        "first frame to last claim known; {}",
        tried.join("; ")
    ))])
}
