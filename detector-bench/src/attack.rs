//! What one pod costs the agent that does, as fast as it can, what `CAP_NET_ADMIN` in its own namespace allows: CPU time, memory,
//! log, and the latency of conflicts between two other pods meanwhile. The first measurement is of a pod that does nothing.
//!
//! Each attack has a node and an agent of its own. The pod changes its own tables through iproute2, a process for each thousand
//! changes, so some ten thousand a second are possible.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpStream},
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use detector_testkit::{
    Agent, AgentCommand, Frame, FrameSender, MacAddress, Node, Pod, PodSpec,
    process::{cpu_time, resident_kib},
    random::Random,
};

use super::{Figure, Goal, metrics::Metrics, pod_pairs::PodPairs, random_announcement};

const GROUP: &str = "Cost of one hostile pod";
/// Pods that do nothing, so that a snapshot costs something.
const OTHER_PODS: usize = 100;
/// Frames per system call.
const FRAMES: usize = 256;
/// Changes per process.
const CHANGES: u32 = 1000;
/// Clients that send requests at the same time.
const CLIENTS: usize = 4;
/// Interval between two samples of memory, and between two conflicts.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(20);
const CONFLICT_INTERVAL: Duration = Duration::from_millis(100);
/// The address of the node on the pod's link, with the pod's own.
const NODE_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
const POD_ADDRESS: &str = "10.99.0.2/16";

/// What the pod does.
#[derive(Clone, Copy, Debug)]
enum Attack {
    Nothing,
    /// ARP announcements of random addresses.
    Announcements,
    /// ARP requests for the node's address from random ones, each of which the node adds to its neighbour table.
    Requests,
    /// Changes in its own namespace: two lines of `ip -batch` for the number of the round.
    Changes(fn(u32) -> [String; 2]),
    /// HTTP requests to the agent's endpoints.
    Http,
}

const ATTACKS: [(&str, Attack); 13] = [
    ("idle", Attack::Nothing),
    ("ARP announcements", Attack::Announcements),
    ("ARP requests to the node", Attack::Requests),
    (
        "addresses",
        Attack::Changes(|n| both("address", &format!("{}/32 dev eth0", numbered(n)))),
    ),
    (
        "its only address",
        Attack::Changes(|_| {
            ["del", "add"].map(|verb| format!("address {verb} {POD_ADDRESS} dev eth0"))
        }),
    ),
    (
        "neighbour entries",
        Attack::Changes(|n| {
            both(
                "neigh",
                &format!("{} lladdr 02:00:00:00:00:01 dev eth0", numbered(n)),
            )
        }),
    ),
    (
        "routes",
        Attack::Changes(|n| both("route", &format!("{}/32 dev eth0", numbered(n)))),
    ),
    (
        "macvlan devices",
        Attack::Changes(|_| {
            [
                "link add link eth0 name m0 type macvlan mode bridge".to_owned(),
                "link del m0".to_owned(),
            ]
        }),
    ),
    (
        "veth pairs",
        Attack::Changes(|_| {
            [
                "link add v0 type veth peer name v1".to_owned(),
                "link del v0".to_owned(),
            ]
        }),
    ),
    (
        "addresses of a second device",
        Attack::Changes(|n| both("address", &format!("{}/32 dev lo", numbered(n)))),
    ),
    (
        "hardware address of its device",
        Attack::Changes(|n| {
            let last = (n % 120) * 2;
            [0, 1].map(|low| {
                format!(
                    "link set eth0 address 02:00:00:00:01:{:02x}",
                    last + low + 1
                )
            })
        }),
    ),
    (
        "its device down and up",
        Attack::Changes(|_| ["down", "up"].map(|state| format!("link set eth0 {state}"))),
    ),
    ("HTTP requests", Attack::Http),
];

fn both(object: &str, what: &str) -> [String; 2] {
    ["add", "del"].map(|verb| format!("{object} {verb} {what}"))
}

fn numbered(number: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 100, 0, 0)) + number % 65_536)
}

/// Measures the agent at this path under each attack for `duration`.
///
/// # Errors
/// A namespace cannot be created, or the agent misses a conflict.
pub fn run(agent: &Path, duration: Duration) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (name, attack) in ATTACKS {
        let cost = measure(agent, attack, duration).with_context(|| format!("attack: {name}"))?;
        figures.extend(cost.figures(name));
    }
    Ok(figures)
}

/// What an attack cost.
struct Cost {
    /// What the pod did, per second.
    rate: f64,
    /// Of a core.
    cpu_percent: f64,
    growth_kib: u64,
    log_bytes: u64,
    resyncs: f64,
    dropped: f64,
    slowest_ms: f64,
}

impl Cost {
    #[expect(clippy::cast_precision_loss, reason = "figures for a reader")]
    fn figures(&self, name: &str) -> [Figure; 4] {
        let figure = |what, value, unit| Figure::new(GROUP, format!("{name}: {what}"), value, unit);
        [
            figure("CPU time of the agent", self.cpu_percent, "% of a core")
                .goal(Goal::Below(25.0))
                .note(format!(
                    "{:.0}/s; {} resyncs, {} observations dropped",
                    self.rate, self.resyncs, self.dropped
                )),
            figure(
                "memory growth of the agent",
                self.growth_kib as f64 / 1024.0,
                "MiB",
            )
            .goal(Goal::Below(32.0)),
            figure("log", self.log_bytes as f64 / 1024.0, "KiB").goal(Goal::Below(64.0)),
            figure("slowest of the conflicts", self.slowest_ms, "ms").note("frame to event line"),
        ]
    }
}

fn measure(agent: &Path, attack: Attack, duration: Duration) -> Result<Cost> {
    let node = Node::new("attack")?;
    let others: Vec<_> = (0..OTHER_PODS)
        .map(|n| PodSpec::new(format!("vethother{n}")).address(format!("10.98.0.{}/32", n + 1)))
        .collect();
    let _others = node.add_pods(&others)?;
    let spec = PodSpec::new("vethhostile").address(POD_ADDRESS);
    let hostile = node.add_pod(&spec)?;
    node.ip(&format!("address add {NODE_ADDRESS}/16 dev vethhostile"))?;
    let pair = PodPairs::new(&node, 4, Ipv4Addr::new(172, 16, 0, 0), |pod| pod)?;
    let command = AgentCommand::run(agent).arg("--listen").arg("0.0.0.0:9842");
    let agent = Agent::start_ready(&node, &command)?;
    let pid = agent.pid();
    let before = Metrics::scrape(&node)?;
    let (rss_before, log_before, cpu_before) =
        (resident_kib(pid)?, agent.log_bytes(), cpu_time(pid)?);
    let started = Instant::now();
    let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let (rss, slowest_ms) = thread::scope(|scope| {
        let attacker = scope.spawn(|| attack.run(&hostile, &stop, &done));
        let sampler = scope.spawn(|| -> Result<u64> {
            let mut most = rss_before;
            while !stop.load(Ordering::Acquire) {
                most = most.max(resident_kib(pid)?);
                thread::sleep(SAMPLE_INTERVAL);
            }
            Ok(most)
        });
        let conflicts = cause_conflicts(&agent, &pair, started + duration);
        stop.store(true, Ordering::Release);
        let resume = |panic| std::panic::resume_unwind(panic);
        attacker.join().unwrap_or_else(resume)?;
        let rss = sampler
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok::<_, anyhow::Error>((rss, conflicts?))
    })?;
    let seconds = started.elapsed().as_secs_f64();
    let cpu = cpu_time(pid)?.saturating_sub(cpu_before).as_secs_f64();
    let after = Metrics::scrape(&node)?;
    let rise = |name| after.sum(name, "") - before.sum(name, "");
    Ok(Cost {
        rate: done.into_inner() as f64 / seconds,
        cpu_percent: cpu / seconds * 100.0,
        growth_kib: rss.max(resident_kib(pid)?) - rss_before,
        log_bytes: agent.log_bytes() - log_before,
        resyncs: rise("ipconflict_resyncs_total"),
        dropped: rise("ipconflict_observations_dropped_total"),
        slowest_ms,
    })
}

/// Causes conflicts until `end`; returns the longest time from a frame to its event, in milliseconds.
fn cause_conflicts(agent: &Agent, pair: &PodPairs, end: Instant) -> Result<f64> {
    let mut slowest = 0.0_f64;
    let mut number = 0;
    while Instant::now() < end {
        let conflict = pair.cause_conflict(agent, number, Duration::ZERO)?;
        slowest = slowest.max(conflict.frame_to_line_us() / 1000.0);
        number += 1;
        thread::sleep(CONFLICT_INTERVAL);
    }
    Ok(slowest)
}

impl Attack {
    fn run(self, pod: &Pod, stop: &AtomicBool, done: &AtomicU64) -> Result<()> {
        match self {
            Self::Nothing => Ok(()),
            Self::Announcements => send(pod, stop, done, |random| random_announcement(random, 10)),
            Self::Requests => send(pod, stop, done, |random| {
                let [_, _, a, b, c, d, e, f] = random.next_u64().to_be_bytes();
                let mac = MacAddress([0x02, c, d, e, f, a]);
                Frame::request(mac, Ipv4Addr::new(10, 99, a, b), NODE_ADDRESS).to_bytes()
            }),
            Self::Changes(lines) => {
                let mut number = 0;
                while !stop.load(Ordering::Acquire) {
                    let rounds = number..number + CHANGES / 2;
                    number = rounds.end;
                    pod.netns().ip_batch(rounds.flat_map(lines))?;
                    done.fetch_add(u64::from(CHANGES), Ordering::Relaxed);
                }
                Ok(())
            }
            Self::Http => thread::scope(|scope| {
                let clients: Vec<_> = (0..CLIENTS)
                    .map(|_| scope.spawn(|| request(pod, stop, done)))
                    .collect();
                for client in clients {
                    client
                        .join()
                        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
                }
                Ok(())
            }),
        }
    }
}

fn send(
    pod: &Pod,
    stop: &AtomicBool,
    done: &AtomicU64,
    frame: impl Fn(&mut Random) -> Vec<u8>,
) -> Result<()> {
    let sender = FrameSender::open(pod)?;
    // A fixed seed, so that every run is the same.
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    while !stop.load(Ordering::Acquire) {
        let frames: Vec<_> = (0..FRAMES).map(|_| frame(&mut random)).collect();
        sender.send_all(&frames)?;
        done.fetch_add(FRAMES as u64, Ordering::Relaxed);
    }
    Ok(())
}

/// Sends requests, each on a connection of its own; a refused one counts as well.
fn request(pod: &Pod, stop: &AtomicBool, done: &AtomicU64) -> Result<()> {
    const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: 10.99.0.1\r\nConnection: close\r\n\r\n";
    pod.netns().run_in(|| {
        while !stop.load(Ordering::Acquire) {
            if let Ok(mut stream) = TcpStream::connect((NODE_ADDRESS, 9842)) {
                // The agent may close the connection at any time.
                let _ = stream
                    .write_all(REQUEST)
                    .and_then(|()| stream.read_to_end(&mut Vec::new()));
            }
            done.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    })
}
