//! What pods' traffic loses to the agent: TCP and UDP between two pods of a node with an agent and of one without, side by
//! side, and then the other way round.
//!
//! Slices of a fraction of a second alternate between the nodes, so that what else the machine does falls on both. The
//! nodes are alike, but not the same memory: therefore the agent changes sides, and the two losses are averaged. What
//! the same measurement says without any agent is the noise.

use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};

use super::{Figure, Goal, statistics::median};
use detector_testkit::{
    agent::{Agent, AgentCommand, DEADLINE},
    node::{Node, Pod, PodSpec},
    traffic::wait_reachable,
};

const GROUP: &str = "Cost for the pods' traffic";
/// Goal for each loss, percent.
const LOSS: f64 = 1.0;
/// Longest that a side of a connection waits before it looks whether to end.
const PATIENCE: Duration = Duration::from_millis(200);

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// One measurement on one node.
    pub slice: Duration,
    /// Pairs of slices for each kind of traffic and each of the three arrangements.
    pub rounds: u32,
}

/// Measures.
///
/// # Errors
/// Where a namespace cannot be made, or traffic does not flow.
pub fn run(agent: &Path, options: Options) -> Result<Vec<Figure>> {
    let sides = [Side::new(1)?, Side::new(2)?];
    let command = AgentCommand::run(agent);
    let noise = losses(&sides, options)?;
    let agent = Agent::start_ready(&sides[0].node, &command)?;
    let first = losses(&sides, options)?;
    drop(agent);
    let agent = Agent::start_ready(&sides[1].node, &command)?;
    let second = losses(&sides, options)?;
    drop(agent);
    Ok(Kind::ALL
        .into_iter()
        .zip(noise)
        .zip(first.into_iter().zip(second))
        .map(|((kind, noise), (first, second))| {
            // With the agent on the second node the first is the one without.
            let ratio = (first.ratio * (1.0 / second.ratio)).sqrt();
            let loss = (1.0 - ratio) * 100.0;
            let side_to_side = (noise.ratio - 1.0) * 100.0;
            Figure::new(GROUP, format!("{}, loss", kind.name()), loss, "%")
                .goal(Goal::Below(LOSS))
                .note(format!(
                    "without {:.0} {}; {} pairs; without any agent the nodes differ by {side_to_side:+.1} %, and half of the pairs lie within ±{:.1} %, so the median is known to about ±{:.1} %",
                    noise.plain,
                    kind.unit(),
                    2 * options.rounds,
                    noise.spread,
                    // Standard error of a median, from the quartiles: 1.25 σ/√n with σ = spread / 0.674.
                    1.25 * noise.spread / 0.674 / f64::from(2 * options.rounds).sqrt(),
                ))
        })
        .collect())
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Stream,
    Datagrams,
    Requests,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Stream, Self::Datagrams, Self::Requests];

    fn name(self) -> &'static str {
        match self {
            Self::Stream => "TCP throughput",
            Self::Datagrams => "UDP packets",
            Self::Requests => "TCP request and response",
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Self::Stream => "MB/s",
            Self::Datagrams => "packets/s received",
            Self::Requests => "transactions/s",
        }
    }
}

/// First node's rate by the second's.
struct Compared {
    /// Median of the pairs.
    ratio: f64,
    /// Half of the distance between the quartiles, percent.
    spread: f64,
    /// Median of the second node's rates.
    plain: f64,
}

fn losses(sides: &[Side; 2], options: Options) -> Result<Vec<Compared>> {
    Kind::ALL
        .into_iter()
        .map(|kind| {
            let links = [Link::open(&sides[0], kind)?, Link::open(&sides[1], kind)?];
            for link in &links {
                link.measure(options.slice)?;
            }
            let (mut ratios, mut plain) = (Vec::new(), Vec::new());
            for round in 0..options.rounds {
                let [a, b] = &links;
                // Who goes first alternates too.
                let (first, second) = if round % 2 == 0 {
                    let first = a.measure(options.slice)?;
                    (first, b.measure(options.slice)?)
                } else {
                    let second = b.measure(options.slice)?;
                    (a.measure(options.slice)?, second)
                };
                ratios.push(first / second);
                plain.push(second);
            }
            let quartile = |percent| super::statistics::percentile(&ratios, percent);
            Ok(Compared {
                ratio: median(&ratios),
                spread: (quartile(75.0) - quartile(25.0)) / 2.0 * 100.0,
                plain: median(&plain),
            })
        })
        .collect()
}

/// A node with two pods that reach each other through it.
struct Side {
    node: Node,
    client: Pod,
    server: Pod,
    address: Ipv4Addr,
}

impl Side {
    fn new(number: u8) -> Result<Self> {
        let node = Node::new("path")?;
        node.sysctl("net.ipv4.ip_forward", "1")?;
        let address = Ipv4Addr::new(10, 70, number, 2);
        let spec = |name: &str, host: u8| {
            PodSpec::new(name)
                .address(format!("10.70.{number}.{host}/32"))
                .host_route()
                .default_route()
                .proxy_arp()
        };
        let client = node.add_pod(&spec("vethclient", 1))?;
        let server = node.add_pod(&spec("vethserver", 2))?;
        wait_reachable(client.netns(), IpAddr::V4(address), DEADLINE)?;
        Ok(Self {
            node,
            client,
            server,
            address,
        })
    }
}

/// An open connection of one kind, idle between two measurements.
struct Link {
    kind: Kind,
    tcp: Option<TcpStream>,
    udp: Option<UdpSocket>,
    received: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

impl Link {
    fn open(side: &Side, kind: Kind) -> Result<Self> {
        let received = Arc::<AtomicU64>::default();
        let stop = Arc::<AtomicBool>::default();
        let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let mut link = Self {
            kind,
            tcp: None,
            udp: None,
            received: Arc::clone(&received),
            stop: Arc::clone(&stop),
            server: None,
        };
        if let Kind::Datagrams = kind {
            let server = side.server.netns().run_in(|| Ok(UdpSocket::bind(any)?))?;
            server.set_read_timeout(Some(PATIENCE))?;
            let target = SocketAddr::from((side.address, server.local_addr()?.port()));
            link.server = Some(thread::spawn(move || {
                let mut buffer = [0; 2048];
                while !stop.load(Ordering::Relaxed) {
                    if server.recv(&mut buffer).is_ok() {
                        received.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }));
            let client = side.client.netns().run_in(|| Ok(UdpSocket::bind(any)?))?;
            client.connect(target)?;
            link.udp = Some(client);
            return Ok(link);
        }
        let listener = side.server.netns().run_in(|| Ok(TcpListener::bind(any)?))?;
        let target = SocketAddr::from((side.address, listener.local_addr()?.port()));
        let client = side.client.netns().run_in(|| {
            TcpStream::connect_timeout(&target, DEADLINE).context("connecting to the other pod")
        })?;
        client.set_nodelay(true)?;
        client.set_read_timeout(Some(DEADLINE))?;
        client.set_write_timeout(Some(DEADLINE))?;
        let (mut server, _) = listener.accept()?;
        server.set_nodelay(true)?;
        link.server = Some(thread::spawn(move || {
            // Ends when the client closes.
            let mut buffer = vec![0; 256 * 1024];
            while let Ok(length @ 1..) = server.read(&mut buffer) {
                received.fetch_add(length as u64, Ordering::Relaxed);
                if matches!(kind, Kind::Requests) && server.write_all(&[0]).is_err() {
                    break;
                }
            }
        }));
        link.tcp = Some(client);
        Ok(link)
    }

    /// What came through in a second, in the kind's unit.
    fn measure(&self, slice: Duration) -> Result<f64> {
        let before = self.received.load(Ordering::Relaxed);
        let begun = Instant::now();
        let tcp = || self.tcp.as_ref().context("a TCP connection");
        match self.kind {
            Kind::Stream => {
                let block = vec![0; 128 * 1024];
                while begun.elapsed() < slice {
                    tcp()?
                        .write_all(&block)
                        .context("sending to the other pod")?;
                }
            }
            Kind::Datagrams => {
                let socket = self.udp.as_ref().context("a UDP socket")?;
                while begun.elapsed() < slice {
                    for _ in 0..64 {
                        socket.send(&[0; 64]).context("sending to the other pod")?;
                    }
                }
            }
            Kind::Requests => {
                let mut answer = [0];
                while begun.elapsed() < slice {
                    let mut stream = tcp()?;
                    stream.write_all(&[0])?;
                    stream.read_exact(&mut answer)?;
                }
            }
        }
        #[expect(
            clippy::cast_precision_loss,
            reason = "bytes of a fraction of a second"
        )]
        let received = (self.received.load(Ordering::Relaxed) - before) as f64;
        let rate = received / begun.elapsed().as_secs_f64();
        if let Kind::Stream | Kind::Datagrams = self.kind {
            // What is still in buffers is not the next slice's.
            self.drained();
        }
        Ok(match self.kind {
            Kind::Stream => rate / 1e6,
            Kind::Datagrams | Kind::Requests => rate,
        })
    }

    fn drained(&self) {
        let mut last = u64::MAX;
        loop {
            let now = self.received.load(Ordering::Relaxed);
            if now == last {
                return;
            }
            last = now;
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.tcp = None;
        if let Some(server) = self.server.take() {
            // A thread of ours that only reads.
            let _ = server.join();
        }
    }
}
