//! How much pod traffic slows down with the agent: TCP and UDP between two pods of a node with an agent and of one without.
//!
//! Slices of a fraction of a second alternate between the nodes, so that other load on the machine affects both. The nodes are
//! equal except for their memory, so the agent changes nodes and the two losses are averaged. The same measurement without any
//! agent gives the noise.

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
use detector_testkit::{Agent, AgentCommand, DEADLINE, Node, Pod, PodSpec, wait_reachable};

use super::{
    Figure, Goal,
    statistics::{half_interquartile_range, median, median_error},
};

const GROUP: &str = "Cost for pod traffic";
/// The goal for each loss, percent.
const MAX_LOSS: f64 = 1.0;
/// How often a UDP receiver checks whether to stop.
const RECEIVE_TIMEOUT: Duration = Duration::from_millis(200);

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct TrafficOptions {
    /// The duration of one measurement on one node.
    pub slice: Duration,
    /// Pairs of slices for each kind of traffic in each of the three arrangements.
    pub rounds: u32,
}

/// Measures the agent at this path.
///
/// # Errors
/// A namespace cannot be created, or the pods cannot reach each other.
pub fn run(agent: &Path, options: TrafficOptions) -> Result<Vec<Figure>> {
    let nodes = [RoutedNode::new(1)?, RoutedNode::new(2)?];
    let command = AgentCommand::run(agent);
    let without = compare_all(&nodes, options)?;
    let agent = Agent::start_ready(&nodes[0].node, &command)?;
    let on_first = compare_all(&nodes, options)?;
    drop(agent);
    let agent = Agent::start_ready(&nodes[1].node, &command)?;
    let on_second = compare_all(&nodes, options)?;
    drop(agent);
    Ok(TrafficKind::ALL
        .into_iter()
        .zip(without)
        .zip(on_first.into_iter().zip(on_second))
        .map(|((kind, without), (on_first, on_second))| {
            // In the second arrangement the first node is the one without an agent.
            let ratio = (on_first.ratio * (1.0 / on_second.ratio)).sqrt();
            let loss = (1.0 - ratio) * 100.0;
            let node_difference = (without.ratio - 1.0) * 100.0;
            let pairs = 2 * options.rounds;
            Figure::new(GROUP, format!("{}, loss", kind.name()), loss, "%")
                .goal(Goal::Below(MAX_LOSS))
                .note(format!(
                    "without agent {:.0} {}; {pairs} pairs; without any agent the nodes differ by {node_difference:+.1} %, and half of the pairs lie within ±{:.1} %, so the uncertainty of the median is about ±{:.1} %",
                    without.second_node_rate,
                    kind.unit(),
                    without.spread,
                    median_error(without.spread, pairs as usize),
                ))
        })
        .collect())
}

#[derive(Clone, Copy, Debug)]
enum TrafficKind {
    Stream,
    Datagrams,
    Requests,
}

impl TrafficKind {
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

/// The first node's rate compared with the second's.
struct RateComparison {
    /// Median ratio of the pairs.
    ratio: f64,
    /// Half of the interquartile range of the ratios, percent.
    spread: f64,
    /// Median of the second node's rates.
    second_node_rate: f64,
}

/// Compares the nodes with each kind of traffic.
fn compare_all(nodes: &[RoutedNode; 2], options: TrafficOptions) -> Result<Vec<RateComparison>> {
    TrafficKind::ALL
        .into_iter()
        .map(|kind| {
            let flows = [Flow::open(&nodes[0], kind)?, Flow::open(&nodes[1], kind)?];
            // Warm-up.
            for flow in &flows {
                flow.measure(options.slice)?;
            }
            let (mut ratios, mut second_node_rates) = (Vec::new(), Vec::new());
            for round in 0..options.rounds {
                let [a, b] = &flows;
                // The order alternates too.
                let (first, second) = if round % 2 == 0 {
                    let first = a.measure(options.slice)?;
                    (first, b.measure(options.slice)?)
                } else {
                    let second = b.measure(options.slice)?;
                    (a.measure(options.slice)?, second)
                };
                ratios.push(first / second);
                second_node_rates.push(second);
            }
            Ok(RateComparison {
                ratio: median(&ratios),
                spread: half_interquartile_range(&ratios) * 100.0,
                second_node_rate: median(&second_node_rates),
            })
        })
        .collect()
}

/// A node that routes between two pods.
struct RoutedNode {
    node: Node,
    client: Pod,
    server: Pod,
    address: Ipv4Addr,
}

impl RoutedNode {
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

/// Traffic of one kind between the pods of a node; idle between two measurements.
struct Flow {
    kind: TrafficKind,
    tcp: Option<TcpStream>,
    udp: Option<UdpSocket>,
    received: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

impl Flow {
    fn open(node: &RoutedNode, kind: TrafficKind) -> Result<Self> {
        let received = Arc::<AtomicU64>::default();
        let stop = Arc::<AtomicBool>::default();
        let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let mut flow = Self {
            kind,
            tcp: None,
            udp: None,
            received: Arc::clone(&received),
            stop: Arc::clone(&stop),
            server: None,
        };
        if let TrafficKind::Datagrams = kind {
            let server = node.server.netns().run_in(|| Ok(UdpSocket::bind(any)?))?;
            server.set_read_timeout(Some(RECEIVE_TIMEOUT))?;
            let target = SocketAddr::from((node.address, server.local_addr()?.port()));
            flow.server = Some(thread::spawn(move || {
                let mut buffer = [0; 2048];
                while !stop.load(Ordering::Relaxed) {
                    if server.recv(&mut buffer).is_ok() {
                        received.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }));
            let client = node.client.netns().run_in(|| Ok(UdpSocket::bind(any)?))?;
            client.connect(target)?;
            flow.udp = Some(client);
            return Ok(flow);
        }
        let listener = node.server.netns().run_in(|| Ok(TcpListener::bind(any)?))?;
        let target = SocketAddr::from((node.address, listener.local_addr()?.port()));
        let client = node.client.netns().run_in(|| {
            TcpStream::connect_timeout(&target, DEADLINE).context("connecting to the other pod")
        })?;
        client.set_nodelay(true)?;
        client.set_read_timeout(Some(DEADLINE))?;
        client.set_write_timeout(Some(DEADLINE))?;
        let (mut server, _) = listener.accept()?;
        server.set_nodelay(true)?;
        flow.server = Some(thread::spawn(move || {
            // Ends when the client closes the connection.
            let mut buffer = vec![0; 256 * 1024];
            while let Ok(length @ 1..) = server.read(&mut buffer) {
                received.fetch_add(length as u64, Ordering::Relaxed);
                if matches!(kind, TrafficKind::Requests) && server.write_all(&[0]).is_err() {
                    break;
                }
            }
        }));
        flow.tcp = Some(client);
        Ok(flow)
    }

    /// The received rate, in the unit of the kind.
    fn measure(&self, slice: Duration) -> Result<f64> {
        let before = self.received.load(Ordering::Relaxed);
        let started = Instant::now();
        let tcp = || self.tcp.as_ref().context("a TCP connection");
        match self.kind {
            TrafficKind::Stream => {
                let block = vec![0; 128 * 1024];
                while started.elapsed() < slice {
                    tcp()?
                        .write_all(&block)
                        .context("sending to the other pod")?;
                }
            }
            TrafficKind::Datagrams => {
                let socket = self.udp.as_ref().context("a UDP socket")?;
                while started.elapsed() < slice {
                    for _ in 0..64 {
                        socket.send(&[0; 64]).context("sending to the other pod")?;
                    }
                }
            }
            TrafficKind::Requests => {
                let mut response = [0];
                while started.elapsed() < slice {
                    let mut stream = tcp()?;
                    stream.write_all(&[0])?;
                    stream.read_exact(&mut response)?;
                }
            }
        }
        #[expect(
            clippy::cast_precision_loss,
            reason = "bytes of a fraction of a second"
        )]
        let received = (self.received.load(Ordering::Relaxed) - before) as f64;
        let rate = received / started.elapsed().as_secs_f64();
        if let TrafficKind::Stream | TrafficKind::Datagrams = self.kind {
            // Buffered data must not count for the next slice.
            self.wait_drained();
        }
        Ok(match self.kind {
            TrafficKind::Stream => rate / 1e6,
            TrafficKind::Datagrams | TrafficKind::Requests => rate,
        })
    }

    fn wait_drained(&self) {
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

impl Drop for Flow {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.tcp = None;
        if let Some(server) = self.server.take() {
            // The thread only reads and cannot panic.
            let _ = server.join();
        }
    }
}
