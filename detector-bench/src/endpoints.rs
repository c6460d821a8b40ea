//! Pods that take the connections of the endpoints: how long the node's own probe takes meanwhile, and detection.

use std::{
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use detector_testkit::{
    Agent, AgentCommand, ClientBehaviour, MacAddress, Node, Pod, PodClients, PodSpec,
    http::TestClient, send_half_open,
};

use super::{
    Figure, Goal,
    metrics::AGENT_ORIGIN,
    pod_pairs::PodPairs,
    statistics::{median, percentile},
};

const GROUP: &str = "Pods that take connections of the endpoints";
/// Numbers of pods that share the connections.
const PODS: [usize; 2] = [1, 50];
const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 9842);
const NODE_MAC: MacAddress = MacAddress([0x02, 0, 0, 0, 0, 1]);
/// A probe as kubelet sends it must be answered within this time, in milliseconds.
const PROBE_GOAL: f64 = 100.0;

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct EndpointOptions {
    /// Connections of all pods together.
    pub connections: usize,
    /// Probes of each address, for each kind of connections.
    pub probes: u32,
    /// Conflicts for each kind of connections.
    pub conflicts: u32,
}

/// What the connections do.
#[derive(Clone, Copy, Debug)]
enum Attack {
    Clients(ClientBehaviour),
    HalfOpen,
}

const ATTACKS: [(&str, Attack); 3] = [
    ("held", Attack::Clients(ClientBehaviour::Silent)),
    ("half-open", Attack::HalfOpen),
    ("slow", Attack::Clients(ClientBehaviour::SlowRequest)),
];

/// Measures the agent at this path on new nodes.
///
/// # Errors
/// A namespace cannot be created, a probe fails, or the agent misses a conflict.
pub fn run(agent: &Path, options: EndpointOptions) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for pods in PODS {
        figures.extend(run_with(agent, pods, options)?);
    }
    Ok(figures)
}

fn run_with(agent: &Path, pods: usize, options: EndpointOptions) -> Result<Vec<Figure>> {
    let node = Node::new("endpoints")?;
    node.ip(&format!("address add {}/32 dev lo", SERVER.ip()))?;
    let specs: Vec<_> = (0..pods)
        .map(|pod| {
            PodSpec::new(format!("vethclient{pod}"))
                .host_mac(NODE_MAC)
                .address(format!("10.244.{pod}.2/32"))
                .host_route()
                .default_route()
        })
        .collect();
    let clients = node.add_pods(&specs)?;
    let pairs = PodPairs::new(&node, 10, Ipv4Addr::new(10, 99, 0, 0), |pod| pod)?;
    let command = AgentCommand::run(agent)
        .arg("--metrics-listen")
        .arg(SERVER.to_string());
    let agent = Agent::start_ready(&node, &command)?;
    let mut site = Site {
        node,
        pairs,
        agent,
        options,
        next_conflict: 0,
    };
    let mut figures = Vec::new();
    for (name, attack) in ATTACKS {
        let without = site.measure()?;
        let held = start(attack, &site.node, &clients, options.connections)?;
        let during = site.measure()?;
        drop(held);
        let s = if pods == 1 { "" } else { "s" };
        let name = format!("{} {name}, {pods} pod{s}", options.connections);
        figures.push(
            Figure::new(
                GROUP,
                format!("{name}: slowest /healthz from the node"),
                percentile(&during.probes_ms, 100.0),
                "ms",
            )
            .goal(Goal::Below(PROBE_GOAL))
            .note(format!(
                "of {}; p50 {:.2} ms, without {:.2} ms",
                during.probes_ms.len(),
                median(&during.probes_ms),
                median(&without.probes_ms)
            )),
        );
        let ratio = median(&during.latency_us) / median(&without.latency_us);
        figures.push(
            Figure::new(GROUP, format!("{name}: detection latency, p50"), ratio, "×").note(
                format!(
                    "by that without; {:.0} and {:.0} µs, p99 {:.0} and {:.0} µs, of {}",
                    median(&during.latency_us),
                    median(&without.latency_us),
                    percentile(&during.latency_us, 99.0),
                    percentile(&without.latency_us, 99.0),
                    during.latency_us.len()
                ),
            ),
        );
    }
    Ok(figures)
}

/// Starts the connections, in equal numbers from all pods; they last until the result is dropped, half-open ones for a
/// minute.
fn start(attack: Attack, node: &Node, pods: &[Pod], count: usize) -> Result<Vec<PodClients>> {
    let each = count / pods.len();
    let mut started = Vec::new();
    for pod in pods {
        match attack {
            Attack::Clients(behaviour) => {
                let server = SocketAddr::V4(SERVER);
                started.push(PodClients::start(pod, server, each, behaviour)?);
            }
            Attack::HalfOpen => send_half_open(node, pod, NODE_MAC, SERVER, each)?,
        }
    }
    Ok(started)
}

struct Site {
    agent: Agent,
    pairs: PodPairs,
    node: Node,
    options: EndpointOptions,
    next_conflict: u32,
}

/// Times of probes in milliseconds, and from a frame to the event line in microseconds.
struct Sample {
    probes_ms: Vec<f64>,
    latency_us: Vec<f64>,
}

impl Site {
    fn measure(&mut self) -> Result<Sample> {
        let exposed = format!("http://{SERVER}");
        let mut probes_ms = Vec::new();
        for _ in 0..self.options.probes {
            for origin in [AGENT_ORIGIN, &exposed] {
                let client = TestClient::new(&self.node, origin);
                let started = Instant::now();
                let answer = client.get("/healthz")?;
                probes_ms.push(started.elapsed().as_secs_f64() * 1e3);
                ensure!(answer.status == 200, "{}: {}", answer.status, answer.body);
            }
        }
        let mut latency_us = Vec::new();
        for _ in 0..self.options.conflicts {
            let pause = Duration::from_millis(2);
            let conflict = self
                .pairs
                .cause_conflict(&self.agent, self.next_conflict, pause)?;
            self.next_conflict += 1;
            latency_us.push(conflict.frame_to_line_us());
        }
        Ok(Sample {
            probes_ms,
            latency_us,
        })
    }
}
