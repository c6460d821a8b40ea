//! Whether the fleet costs a node what it does by itself: latency, CPU time and memory of an agent without and with it.
//!
//! Three nodes alternate, conflict by conflict: two agents without the fleet, whose difference is the noise, and one with it. The
//! nodes differ too, a little, so the agents change nodes until each has been on all. All three read Pods from the API server.

use std::{
    net::Ipv4Addr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use detector_testkit::{
    Agent, Cluster, DEADLINE, Node, Pod, PodSpec,
    process::{anonymous_kib, cpu_time, resident_kib},
};
use tempfile::TempDir;

use super::{
    Options,
    client::Api,
    pair::{agent_command, create_objects, pod_device, wait_registered},
};
use crate::{Figure, pod_pairs::PodPairs, statistics::percentile};

const GROUP: &str = "One node without and with the fleet";
/// The number of the first node; those of [`super::pair`] are smaller.
const FIRST_NODE: usize = 11;
/// Pods of each node whose addresses are registered; the usual limit of a node.
const PODS: u8 = 110;
/// Further pods, in pairs, that announce addresses which are not registered.
const PAIRS: u32 = 50;
/// After an announcement, so that the agent is idle when the next one comes.
const PAUSE: Duration = Duration::from_millis(2);
/// After this time an agent has finished its work after start-up.
const SETTLE_TIME: Duration = Duration::from_secs(3);
/// The least time that an agent is idle: the API server then has closed the connections that the burst of registrations left (Go's
/// server closes idle ones after 90 s).
const CONNECTIONS_CLOSED: Duration = Duration::from_secs(100);

/// What is compared.
const QUANTITIES: [(&str, &str); 8] = [
    ("frame sent to event line read, p50", "µs"),
    ("frame sent to event line read, p99", "µs"),
    ("CPU time for each conflict", "µs"),
    ("CPU while idle", "% of a core"),
    ("memory while idle, resident", "MiB"),
    ("memory while idle, allocated", "MiB"),
    ("memory with open conflicts, resident", "MiB"),
    ("memory with open conflicts, allocated", "MiB"),
];

/// The agents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arm {
    Off,
    OffAgain,
    On,
}

impl Arm {
    const ALL: [Self; 3] = [Self::Off, Self::OffAgain, Self::On];
}

/// What was measured of one agent.
#[derive(Clone, Debug, Default)]
struct Sample {
    latencies_us: Vec<f64>,
    conflicts_cpu: Duration,
    idle_cpu: Duration,
    idle_time: Duration,
    /// Before the first conflict.
    idle_memory: Memory,
    /// After the last one; all of them are open.
    memory: Memory,
    /// The runs that are added up here.
    runs: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Memory {
    resident_kib: u64,
    anonymous_kib: u64,
}

impl Memory {
    fn of(agent: &Agent) -> Result<Self> {
        Ok(Self {
            resident_kib: resident_kib(agent.pid())?,
            anonymous_kib: anonymous_kib(agent.pid())?,
        })
    }

    /// Both together.
    fn and(self, other: Self) -> Self {
        Self {
            resident_kib: self.resident_kib + other.resident_kib,
            anonymous_kib: self.anonymous_kib + other.anonymous_kib,
        }
    }
}

/// A node with its pods.
struct ComparedNode {
    pairs: PodPairs,
    _pods: Vec<Pod>,
    node: Node,
    name: String,
}

/// Compares the agents on three nodes of the cluster.
pub(super) fn compare(cluster: &Cluster, api: &Api, options: &Options) -> Result<Vec<Figure>> {
    let nodes = [0, 1, 2].map(|index| ComparedNode::new(cluster, api, index));
    let nodes = nodes.into_iter().collect::<Result<Vec<_>>>()?;
    let mut samples = [(); Arm::ALL.len()].map(|()| Sample::default());
    for phase in 0..nodes.len() {
        let order: Vec<_> = (0..nodes.len()).map(|n| (n + phase) % 3).collect();
        measure(cluster, options, &nodes, &order, &mut samples)?;
    }
    Ok(figures(&samples))
}

/// One run: the agent of node `n` is that of number `order[n]`.
fn measure(
    cluster: &Cluster,
    options: &Options,
    nodes: &[ComparedNode],
    order: &[usize],
    samples: &mut [Sample; Arm::ALL.len()],
) -> Result<()> {
    let mut agents = Vec::new();
    for (node, number) in nodes.iter().zip(order) {
        let arm = *Arm::ALL.get(*number).context("no such agent")?;
        agents.push((*number, node, node.start(cluster, options, arm)?));
    }
    thread::sleep(SETTLE_TIME);
    let cpu_times = |agents: &[(usize, &ComparedNode, RunningAgent)]| {
        let times = agents
            .iter()
            .map(|(_, _, running)| cpu_time(running.agent.pid()));
        times.collect::<Result<Vec<_>>>()
    };
    let (before, at) = (cpu_times(&agents)?, Instant::now());
    thread::sleep(options.idle_time.max(CONNECTIONS_CLOSED));
    let (idle, idle_time) = (cpu_times(&agents)?, at.elapsed());
    for (number, _, running) in &agents {
        let sample = samples.get_mut(*number).context("no such agent")?;
        sample.idle_memory = sample.idle_memory.and(Memory::of(&running.agent)?);
    }
    for conflict in 0..options.local_conflicts {
        // Each is the first one as often as the others.
        let first = conflict as usize % agents.len();
        let (later, sooner) = agents.split_at(first);
        for (number, node, running) in sooner.iter().chain(later) {
            let timed = node.pairs.cause_conflict(&running.agent, conflict, PAUSE)?;
            if let Some(sample) = samples.get_mut(*number) {
                sample.latencies_us.push(timed.frame_to_line_us());
            }
        }
    }
    let end = cpu_times(&agents)?;
    for ((number, _, running), ((before, idle), end)) in
        agents.iter().zip(before.iter().zip(&idle).zip(&end))
    {
        let sample = samples.get_mut(*number).context("no such agent")?;
        sample.idle_cpu += idle.saturating_sub(*before);
        sample.idle_time += idle_time;
        sample.conflicts_cpu += end.saturating_sub(*idle);
        sample.memory = sample.memory.and(Memory::of(&running.agent)?);
        sample.runs += 1;
    }
    for (_, _, mut running) in agents {
        running.agent.terminate(DEADLINE)?;
    }
    Ok(())
}

/// An agent with its state directory.
struct RunningAgent {
    agent: Agent,
    _state: TempDir,
}

impl ComparedNode {
    fn new(cluster: &Cluster, api: &Api, index: u8) -> Result<Self> {
        let name = format!("local-{index}");
        let first = u32::from(Ipv4Addr::new(10, 201, index, 0));
        let addresses: Vec<_> = (0..u32::from(PODS))
            .map(|pod| Ipv4Addr::from(first + 2 + pod))
            .collect();
        let range = format!("{}/24", Ipv4Addr::from(first));
        create_objects(cluster, api, &name, &range, &addresses)?;
        let node = Node::new(&name)?;
        cluster.connect(FIRST_NODE + usize::from(index), &node)?;
        let specs: Vec<_> = (0..)
            .zip(&addresses)
            .map(|(pod, address)| {
                PodSpec::new(pod_device(&name, pod))
                    .address(format!("{address}/32"))
                    .host_route()
            })
            .collect();
        Ok(Self {
            _pods: node.add_pods(&specs)?,
            pairs: PodPairs::new(&node, PAIRS, Ipv4Addr::new(10, 99, 0, 0), |pod| pod)?,
            node,
            name,
        })
    }

    fn start(&self, cluster: &Cluster, options: &Options, arm: Arm) -> Result<RunningAgent> {
        let state = tempfile::tempdir()?;
        let command = agent_command(cluster, options, &self.name, state.path());
        let mode = if arm == Arm::On { "kubernetes" } else { "off" };
        let agent = Agent::start_ready(&self.node, &command.args(["--fleet", mode]))?;
        if arm == Arm::On {
            wait_registered(&self.node, usize::from(PODS)).with_context(|| agent.log())?;
        }
        Ok(RunningAgent {
            agent,
            _state: state,
        })
    }
}

impl Sample {
    /// In the order and the units of [`QUANTITIES`].
    #[expect(clippy::cast_precision_loss, reason = "figures for a reader")]
    fn quantities(&self) -> [f64; QUANTITIES.len()] {
        let mib = |kib: u64| kib as f64 / f64::from(self.runs) / 1024.0;
        [
            percentile(&self.latencies_us, 50.0),
            percentile(&self.latencies_us, 99.0),
            self.conflicts_cpu.as_secs_f64() * 1e6 / self.latencies_us.len() as f64,
            self.idle_cpu.as_secs_f64() / self.idle_time.as_secs_f64() * 100.0,
            mib(self.idle_memory.resident_kib),
            mib(self.idle_memory.anonymous_kib),
            mib(self.memory.resident_kib),
            mib(self.memory.anonymous_kib),
        ]
    }

    /// Both together.
    fn and(&self, other: &Self) -> Self {
        Self {
            latencies_us: [&*self.latencies_us, &*other.latencies_us].concat(),
            conflicts_cpu: self.conflicts_cpu + other.conflicts_cpu,
            idle_cpu: self.idle_cpu + other.idle_cpu,
            idle_time: self.idle_time + other.idle_time,
            idle_memory: self.idle_memory.and(other.idle_memory),
            memory: self.memory.and(other.memory),
            runs: self.runs + other.runs,
        }
    }
}

/// Of each quantity the ratio with the fleet to without, and of the two without, which is the noise.
fn figures(samples: &[Sample; Arm::ALL.len()]) -> Vec<Figure> {
    let [off, again, on] = samples;
    let both = off.and(again).quantities();
    let (off, again, on) = (off.quantities(), again.quantities(), on.quantities());
    let mut figures = Vec::new();
    let values = off.into_iter().zip(again).zip(on).zip(both);
    for ((name, unit), (((off, again), on), both)) in QUANTITIES.into_iter().zip(values) {
        figures.push(
            Figure::new(GROUP, format!("{name}, with to without"), on / both, "×")
                .note(format!("{on:.2} with, {both:.2} {unit} without")),
        );
        figures.push(
            Figure::new(
                GROUP,
                format!("{name}, without to without"),
                again / off,
                "×",
            )
            .note(format!("the noise: {again:.2} and {off:.2} {unit}")),
        );
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(latency: f64, cpu_us: u64, kib: u64) -> Sample {
        Sample {
            latencies_us: vec![latency; 10],
            conflicts_cpu: Duration::from_micros(10 * cpu_us),
            idle_cpu: Duration::from_micros(cpu_us),
            idle_time: Duration::from_secs(1),
            idle_memory: memory(kib),
            memory: memory(kib),
            runs: 1,
        }
    }

    fn memory(kib: u64) -> Memory {
        Memory {
            resident_kib: kib,
            anonymous_kib: kib,
        }
    }

    #[test]
    fn fleet_is_compared_with_both_agents_without_it() {
        let samples = [
            sample(10.0, 100, 1024),
            sample(10.0, 300, 3072),
            sample(20.0, 400, 4096),
        ];
        let ratios: Vec<_> = figures(&samples).iter().map(|f| f.value).collect();
        let expected = [&[2.0, 1.0].repeat(2)[..], &[2.0, 3.0].repeat(6)].concat();
        let expected: Vec<_> = expected.into_iter().map(Some).collect();
        assert_eq!(ratios, expected);
    }
}
