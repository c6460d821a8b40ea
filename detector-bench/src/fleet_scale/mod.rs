//! A fleet of simulated agents and a few real ones at one API server with etcd.
//!
//! The simulated agents are Nodes and IPClaims that were written as an agent writes them, and connections that send what an agent
//! sends. They are administrators, so the API server's priority and fairness sheds nothing: what is measured is what the server
//! can do.

mod client;
mod detection;
mod load;
mod local;
mod objects;
mod pair;
mod restart;
mod servers;
mod storm;
mod watchers;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result};
use detector_testkit::{
    Cluster,
    cluster::{ClusterOptions, Controllers, Programs, Server},
};
use hyper::Method;

use self::{
    client::{Api, Call},
    load::{Measured, paced, saturate},
    objects::{CLAIMS, CONFLICTS, NODES, SimulatedNode, to_bytes},
    restart::{Journal, restart},
    servers::{CpuTimes, mib},
};
use crate::{Figure, figure::record, statistics::percentile};

const CREATE: &str = "Creating claims";
const SERVERS: &str = "Servers";
const RESTART: &str = "All agents restart";
/// Connections that send as fast as they are answered.
const CONNECTIONS: usize = 64;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// The agent.
    pub agent: PathBuf,
    /// The directory of the servers, kubectl and helm.
    pub tools: PathBuf,
    /// The checkout, for the CustomResourceDefinitions.
    pub checkout: PathBuf,
    /// Simulated agents.
    pub agents: u32,
    /// Claims of addresses, of all agents together. Each agent also has that of its podCIDR.
    pub claims: u32,
    /// How long each rate is measured.
    pub rate_time: Duration,
    /// Conflicts one after the other.
    pub conflicts: u16,
    /// Conflicts at the same time.
    pub node_conflicts: u16,
    /// Watches of IPConflicts meanwhile.
    pub watchers: usize,
    /// Agents that restart without a journal.
    pub without_journal: u32,
    /// Of all random choices.
    pub seed: u64,
    /// Conflicts of each agent in each run of the comparison of one node.
    pub local_conflicts: u32,
    /// How long the idle agents of that comparison are observed.
    pub idle_time: Duration,
    /// Only that comparison.
    pub local_only: bool,
    /// Conflicts within other nodes, while agents find some between theirs.
    pub storm: u32,
    /// These have the shape of an earlier version, without labels.
    pub storm_unlabelled: bool,
    /// Only that.
    pub storm_only: bool,
}

impl Options {
    /// Pods of each agent.
    fn pods(&self) -> u32 {
        self.claims / self.agents.max(1)
    }
}

/// Measures everything; figures are printed and recorded as soon as they are known.
///
/// # Errors
/// A server does not start or does not answer as expected, or an agent does not report a conflict.
pub fn run(options: &Options, show: impl Fn(&[Figure])) -> Result<()> {
    let finish = |figures: Vec<Figure>| {
        show(&figures);
        record(&figures)
    };
    let cluster = Cluster::start(
        &Programs::in_tools(&options.tools)?,
        &ClusterOptions {
            nodes: 0,
            controllers: Controllers::ForSimulatedNodes,
            ..ClusterOptions::default()
        },
    )?;
    install(&cluster, &options.checkout)?;
    let api = &Api::new(&cluster.api_access())?;
    if options.storm_only {
        return finish(storm::measure(&cluster, api, options)?);
    }
    finish(local::compare(&cluster, api, options)?)?;
    if options.local_only {
        return Ok(());
    }
    let nodes = block_on(&cluster, create_nodes(api, options))?;
    let empty = servers::resident(&cluster, Server::ApiServer)?;
    finish(servers::memory(&cluster, SERVERS, "without claims")?)?;

    finish(block_on(
        &cluster,
        load_claims(&cluster, api, options, &nodes),
    )?)?;
    let grown = servers::resident(&cluster, Server::ApiServer)?.saturating_sub(empty);
    let mut loaded = servers::memory(&cluster, SERVERS, "with all claims")?;
    let each = mib(grown) * 1024.0 / f64::from(options.claims + options.agents);
    loaded.push(Figure::new(
        SERVERS,
        "API server, resident, for each claim",
        each,
        "KiB",
    ));
    finish(loaded)?;

    finish(detection::one_at_a_time(&cluster, api, options)?)?;
    // As in a fleet without conflicts.
    block_on(&cluster, delete_conflicts(api))?;

    let kept = restart(api, &nodes, options.pods(), CONNECTIONS, Journal::Kept);
    let kept = block_on(&cluster, kept)?;
    finish(restart_figures("with their journals", nodes.len(), &kept))?;

    finish(detection::all_at_once(&cluster, api, options)?)?;
    block_on(&cluster, delete_conflicts(api))?;

    let some = nodes.len().min(options.without_journal as usize);
    let some = nodes.get(..some).unwrap_or_default();
    let lost = restart(api, some, options.pods(), CONNECTIONS, Journal::Lost);
    let lost = block_on(&cluster, lost)?;
    finish(restart_figures("without journals", some.len(), &lost))?;
    finish(servers::memory(&cluster, SERVERS, "at the end")?)?;
    finish(storm::measure(&cluster, api, options)?)
}

/// Creates the CustomResourceDefinitions and waits until they are served.
fn install(cluster: &Cluster, checkout: &Path) -> Result<()> {
    let crds = checkout.join("deploy/crds");
    let crds = crds.to_str().context("a path that is no text")?;
    cluster.kubectl(&["apply", "-f", crds])?;
    let established = [
        "wait",
        "--for=condition=Established",
        "--timeout=60s",
        "-f",
        crds,
    ];
    cluster.kubectl(&established).map(drop)
}

async fn create_nodes(api: &Api, options: &Options) -> Result<Vec<SimulatedNode>> {
    let mut nodes: Vec<_> = (0..options.agents)
        .map(|number| SimulatedNode::new(number, options.seed))
        .collect();
    let bodies: Vec<_> = nodes
        .iter()
        .map(|node| Ok(Call::create(NODES, node.node()?)))
        .collect();
    saturate(api, CONNECTIONS, bodies.into_iter()).await?;
    // The claims name the uids of their owners.
    let mut connection = api.connect().await?;
    for node in &mut nodes {
        let found = connection
            .send(&Call::get(format!("{NODES}/{}", node.name)))
            .await?;
        let found: serde_json::Value = serde_json::from_slice(&found)?;
        let uid = found
            .pointer("/metadata/uid")
            .and_then(serde_json::Value::as_str);
        node.uid = uid.context("a Node without uid")?.to_owned();
    }
    Ok(nodes)
}

async fn delete_conflicts(api: &Api) -> Result<()> {
    let all = Call {
        method: Method::DELETE,
        ..Call::get(CONFLICTS.to_owned())
    };
    api.connect().await?.send(&all).await.map(drop)
}

/// Creates all claims: most of them as fast as possible, the last ones at rates; then tries to create some of them again.
async fn load_claims(
    cluster: &Cluster,
    api: &Api,
    options: &Options,
    nodes: &[SimulatedNode],
) -> Result<Vec<Figure>> {
    let pods = options.pods();
    let mut claims = Vec::new();
    for pod in 0..pods {
        claims.extend(nodes.iter().map(|node| (node.clone(), Some(pod))));
    }
    claims.extend(nodes.iter().map(|node| (node.clone(), None)));
    let body = |(node, pod): (SimulatedNode, Option<u32>)| {
        let (_, claim) = match pod {
            Some(pod) => node.pod_claim(pod),
            None => node.range_claim(),
        };
        to_bytes(&claim)
    };
    let mut figures = Vec::new();
    // The last ones are created at these rates, so that they are measured with all others loaded.
    let rates = [50, 200].map(|rate| (rate, rate * options.rate_time.as_secs()));
    let slow: u64 = rates.iter().map(|(_, count)| count).sum();
    let fast = claims.len().saturating_sub(usize::try_from(slow)?);
    let mut rest = claims.split_off(fast).into_iter();
    let again: Vec<_> = claims
        .iter()
        .rev()
        .step_by(7)
        .take(usize::try_from(slow)?)
        .cloned()
        .collect();

    let all = claims
        .into_iter()
        .map(move |claim| Ok(Call::create(CLAIMS, body(claim)?)));
    let before = CpuTimes::now(cluster)?;
    let measured = saturate(api, CONNECTIONS, all).await?;
    let cpu = CpuTimes::now(cluster)?.figures(&before, CREATE, "at saturation");
    figures.push(
        Figure::new(CREATE, "at saturation", measured.rate(), "/s").note(format!(
            "{} claims from {CONNECTIONS} connections in {:.0} s",
            measured.latencies.len(),
            measured.took.as_secs_f64()
        )),
    );
    figures.extend(latencies(CREATE, "at saturation", &measured.latencies));
    figures.extend(cpu);
    for (rate, count) in rates {
        let calls: Vec<_> = rest.by_ref().take(usize::try_from(count)?).collect();
        let calls = calls
            .into_iter()
            .map(|claim| Ok(Call::create(CLAIMS, body(claim)?)));
        let measured = paced(api, CONNECTIONS, u32::try_from(rate)?, calls).await?;
        let name = format!("{rate}/s, all others loaded");
        figures.extend(latencies(CREATE, &name, &measured.latencies));
    }
    for (rate, count) in rates {
        let calls: Vec<_> = again
            .iter()
            .take(usize::try_from(count)?)
            .cloned()
            .collect();
        let calls = calls
            .into_iter()
            .map(|claim| Ok(Call::create_again(CLAIMS, body(claim)?)));
        let measured = paced(api, CONNECTIONS, u32::try_from(rate)?, calls).await?;
        let name = format!("AlreadyExists, {rate}/s");
        figures.extend(latencies(CREATE, &name, &measured.latencies));
    }
    Ok(figures)
}

fn restart_figures(how: &str, agents: usize, measured: &Measured) -> Vec<Figure> {
    let requests = measured.latencies.len();
    let seconds = measured.took.as_secs_f64();
    let mut figures = vec![
        Figure::new(RESTART, format!("{agents} agents {how}"), seconds, "s").note(format!(
            "{requests} requests and {} TLS handshakes, {CONNECTIONS} agents at a time",
            3 * agents
        )),
        Figure::new(RESTART, format!("requests, {how}"), measured.rate(), "/s"),
    ];
    let name = format!("a request, {how}");
    figures.extend(latencies(RESTART, &name, &measured.latencies));
    figures
}

/// p50, p99 and maximum of a sample of milliseconds.
fn latencies(group: &str, name: &str, sample: &[f64]) -> [Figure; 3] {
    [("p50", 50.0), ("p99", 99.0), ("max", 100.0)].map(|(rank, percent)| {
        let value = percentile(sample, percent);
        Figure::new(group, format!("{name}, {rank}"), value, "ms")
            .note(format!("of {}", sample.len()))
    })
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Runs a future on one thread in the control plane's namespace.
fn block_on<T: Send>(
    cluster: &Cluster,
    future: impl Future<Output = Result<T>> + Send,
) -> Result<T> {
    cluster.netns().run_in(|| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("a runtime")?;
        runtime.block_on(future)
    })
}
