//! Two nodes with real agents whose pods get the same addresses: the pods of the first node have theirs from the start, those of
//! the second get them when the test assigns them.
//!
//! There are neither kubelet nor container runtime: the Pods exist in the API with their addresses, and their devices are named
//! as Calico does, so the agents recognise them. Each agent has a state directory.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::Ipv4Addr,
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use detector_testkit::{
    Agent, AgentCommand, Cluster, Node, POD_DEVICE, Pod, PodSpec, ReceivedEvent, until,
};
use tempfile::TempDir;

use super::{
    Options, block_on,
    client::{Api, Call},
    load::saturate,
    objects::{self, NODES, PODS},
};
use crate::metrics::Metrics;

/// How long an agent may take until it has registered what its node has, and until a conflict is reported.
const DEADLINE: Duration = Duration::from_secs(120);
/// Connections while the Pods are created.
const CONNECTIONS: usize = 16;

/// The two nodes.
pub(super) struct Pair {
    /// Stopped before the nodes are removed.
    agents: [Agent; 2],
    first: u32,
    addresses: Vec<Ipv4Addr>,
    pods: Vec<Pod>,
    _others: Vec<Pod>,
    _nodes: [Node; 2],
    _state: [TempDir; 2],
}

/// How to make a pair.
pub(super) struct PairOptions {
    /// Two numbers from here on are the nodes'.
    pub(super) number: u8,
    /// Pods on each node.
    pub(super) pods: u16,
    /// Requests per second of each agent; the default of the agent if `None`.
    pub(super) rate: Option<u32>,
}

impl Pair {
    /// Starts both agents and waits until the first one has registered its addresses.
    pub(super) fn start(
        cluster: &Cluster,
        api: &Api,
        options: &Options,
        pair: &PairOptions,
    ) -> Result<Self> {
        let number = usize::from(pair.number);
        let first = u32::from(Ipv4Addr::new(10, 200, pair.number * 8, 0));
        let addresses: Vec<Ipv4Addr> = (0..u32::from(pair.pods))
            .map(|pod| Ipv4Addr::from(first + 1 + pod))
            .collect();
        let names = [0, 1].map(|side| format!("scale-{}", number + side));
        for name in &names {
            create_objects(cluster, api, name, &range(first), &addresses)?;
        }
        let nodes = [Node::new(&names[0])?, Node::new(&names[1])?];
        for (side, node) in nodes.iter().enumerate() {
            cluster.connect(number + side, node)?;
        }
        let specs = |side: usize| -> Vec<PodSpec> {
            let devices =
                (0..addresses.len()).map(|pod| PodSpec::new(pod_device(&names[side], pod)));
            let with_address = devices.zip(&addresses).map(|(spec, address)| match side {
                0 => spec.address(format!("{address}/32")).host_route(),
                _ => spec,
            });
            with_address.collect()
        };
        let others = nodes[0].add_pods(&specs(0))?;
        let pods = nodes[1].add_pods(&specs(1))?;
        let state = [tempfile::tempdir()?, tempfile::tempdir()?];
        let command = |side: usize| {
            let command = agent_command(cluster, options, &names[side], state[side].path())
                .args(["--fleet", "kubernetes"]);
            match pair.rate {
                Some(rate) => command.args(["--fleet-rate", &rate.to_string()]),
                None => command,
            }
        };
        let holder = Agent::start_ready(&nodes[0], &command(0))?;
        wait_registered(&nodes[0], addresses.len()).with_context(|| holder.log())?;
        let contender = Agent::start_ready(&nodes[1], &command(1))?;
        // The range of both nodes: the comparison works on the second one as well.
        contender.wait_event(DEADLINE, |event| {
            let anomaly = event.anomaly();
            anomaly.is_some_and(|anomaly| anomaly.kind == "pod_cidr_overlap")
        })?;
        Ok(Self {
            agents: [holder, contender],
            first,
            addresses,
            pods,
            _others: others,
            _nodes: nodes,
            _state: state,
        })
    }

    /// The contender's agent, which reports the conflicts.
    pub(super) fn reporter(&self) -> &Agent {
        &self.agents[1]
    }

    /// Both agents, the holder's first.
    pub(super) fn agents(&self) -> &[Agent; 2] {
        &self.agents
    }

    pub(super) fn pods(&self) -> usize {
        self.pods.len()
    }

    /// The process that will assign a pod of the second node its address.
    pub(super) fn assignment(&self, pod: usize) -> Result<Assignment> {
        let (pod, address) = self
            .pods
            .get(pod)
            .zip(self.addresses.get(pod))
            .context("no such pod")?;
        Assignment::prepare(pod, *address)
    }

    /// Waits until the conflict about an address is reported.
    pub(super) fn wait_reported(&self, address: Ipv4Addr) -> Result<ReceivedEvent> {
        let address = address.to_string();
        self.reporter()
            .wait_event(DEADLINE, |event| event.raises(&address))
    }

    /// All addresses.
    pub(super) fn addresses(&self) -> &[Ipv4Addr] {
        &self.addresses
    }

    /// The range that both nodes have.
    pub(super) fn range(&self) -> String {
        range(self.first)
    }
}

/// `ip`, started in the pod's namespace, waiting for the line that assigns the address: starting a process takes longer than
/// what is measured.
pub(super) struct Assignment {
    process: Child,
    input: ChildStdin,
    address: Ipv4Addr,
}

impl Assignment {
    fn prepare(pod: &Pod, address: Ipv4Addr) -> Result<Self> {
        let mut process = Command::new("ip")
            .args(["-n", pod.netns().name(), "-batch", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting ip")?;
        let mut input = process.stdin.take().context("the input of ip")?;
        let output = process.stdout.take().context("the output of ip")?;
        input.write_all(b"link show lo\n")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        ensure!(line.contains("lo:"), "ip wrote {line:?}");
        Ok(Self {
            process,
            input,
            address,
        })
    }

    pub(super) fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Assigns the address; when it was requested.
    pub(super) fn run(&mut self) -> Result<Instant> {
        let line = format!("address add {}/32 dev {POD_DEVICE}\n", self.address);
        let at = Instant::now();
        self.input.write_all(line.as_bytes())?;
        Ok(at)
    }

    /// Waits for the end of the process.
    pub(super) fn finish(self) -> Result<()> {
        let Self {
            mut process, input, ..
        } = self;
        drop(input);
        let status = process.wait()?;
        ensure!(status.success(), "ip: {status}");
        Ok(())
    }
}

/// The agent of a node that exists as an object and as a namespace.
pub(super) fn agent_command(
    cluster: &Cluster,
    options: &Options,
    node: &str,
    state: &Path,
) -> AgentCommand {
    AgentCommand::new(&options.agent, ["run", "--events", "-"])
        .args(["--log-format", "json", "--node-name", node])
        .args(["--kube", "on", "--cri-endpoint", "off"])
        .args(["--cni-cache-dir", "off", "--state-dir"])
        .arg(state)
        .env("KUBECONFIG", cluster.admin_config())
}

/// Waits until the agent of a node has registered the addresses of so many pods and the node's range.
pub(super) fn wait_registered(node: &Node, pods: usize) -> Result<()> {
    let expected = f64::from(u32::try_from(pods)?) + 1.0;
    until(DEADLINE, "the addresses to be registered", || {
        let registered = Metrics::scrape(node)?.value("ipconflict_fleet_claims")?;
        ensure!(registered >= expected, "{registered} of {expected}");
        Ok(())
    })
}

/// A Node with a range, and its Pods with their addresses.
pub(super) fn create_objects(
    cluster: &Cluster,
    api: &Api,
    node: &str,
    range: &str,
    addresses: &[Ipv4Addr],
) -> Result<()> {
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let node_call = Call::create(NODES, objects::node(node, range, boot_id.trim())?);
    let names = (0..).map(|pod| pod_name(node, pod));
    let pods: Vec<_> = names.zip(addresses.iter().copied()).collect();
    let node = node.to_owned();
    block_on(cluster, async move {
        saturate(api, 1, std::iter::once(Ok(node_call))).await?;
        let created = pods.clone().into_iter().map(move |(pod, _)| {
            let body = objects::pod(&pod, &node)?;
            Ok(Call::create(PODS, body))
        });
        saturate(api, CONNECTIONS, created).await?;
        let mut connection = api.connect().await?;
        let mut running = Vec::new();
        for (pod, address) in pods {
            let created = connection.send(&Call::get(format!("{PODS}/{pod}"))).await?;
            let body = objects::running(&created, address)?;
            running.push(Ok(Call::replace(format!("{PODS}/{pod}/status"), body)));
        }
        saturate(api, CONNECTIONS, running.into_iter())
            .await
            .map(drop)
    })
}

/// The device of a pod on a node.
pub(super) fn pod_device(node: &str, pod: usize) -> String {
    objects::calico_device(&pod_name(node, pod))
}

fn range(first: u32) -> String {
    format!("{}/21", Ipv4Addr::from(first))
}

fn pod_name(node: &str, pod: usize) -> String {
    format!("{node}-pod-{pod}")
}
