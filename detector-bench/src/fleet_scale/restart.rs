//! All agents start again at the same time, as after a power failure.
//!
//! Each simulated agent lists the IPConflicts without labels and those of its node, and watches the latter; it lists and watches its
//! Node on a second connection; then, on a third one, it
//! reads its claims (with a journal), or tries to create each and reads it (without). At most so many agents at a time are
//! connected: what is measured is how fast the server answers, not what clients do that it makes wait.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use hyper::StatusCode;
use tokio::{sync::Semaphore, task::JoinSet, time::Instant};

use super::{
    client::{Api, Call},
    load::Measured,
    objects::{CLAIMS, CONFLICTS, NODES, SimulatedNode, to_bytes},
    watchers::{list_version, watch_call},
};

/// Whether the agents know what they registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Journal {
    Kept,
    Lost,
}

/// Starts an agent for each of `nodes`, at most `at_once` at a time.
pub(super) async fn restart(
    api: &Api,
    nodes: &[SimulatedNode],
    pods: u32,
    at_once: usize,
    journal: Journal,
) -> Result<Measured> {
    let slots = Arc::new(Semaphore::new(at_once));
    let started = Instant::now();
    let mut agents = JoinSet::new();
    for node in nodes {
        let slot = Arc::clone(&slots).acquire_owned().await?;
        let (api, node) = (api.clone(), node.clone());
        agents.spawn(async move {
            let latencies = start(&api, &node, pods, journal).await;
            drop(slot);
            latencies
        });
    }
    let mut measured = Measured::default();
    while let Some(done) = agents.join_next().await {
        measured.latencies.extend(done.context("an agent")??);
    }
    measured.took = started.elapsed();
    Ok(measured)
}

/// What one agent sends until it has caught up; the milliseconds of each request.
async fn start(api: &Api, node: &SimulatedNode, pods: u32, journal: Journal) -> Result<Vec<f64>> {
    let mut calls = Vec::new();
    for (name, claim) in
        std::iter::once(node.range_claim()).chain((0..pods).map(|pod| node.pod_claim(pod)))
    {
        if journal == Journal::Lost {
            calls.push(Call::create_again(CLAIMS, to_bytes(&claim)?));
        }
        calls.push(Call::get(format!("{CLAIMS}/{name}")));
    }
    let mut latencies = Vec::with_capacity(calls.len() + 5);
    let mut time = Stopwatch::start();
    let mut watching = api.connect().await?;
    let unlabelled =
        format!("{CONFLICTS}?resourceVersion=0&labelSelector=%21ipconflict.io%2Fscope");
    watching.send(&Call::get(unlabelled)).await?;
    latencies.push(time.lap());
    let version = list_version(&mut watching, &node.name).await?;
    latencies.push(time.lap());
    let (status, _events) = watching.open(&watch_call(&version, &node.name)).await?;
    ensure!(status == StatusCode::OK, "the watch: {status}");
    latencies.push(time.lap());
    let mut own = api.connect().await?;
    let selected = format!(
        "{NODES}?resourceVersion=0&fieldSelector=metadata.name%3D{}",
        node.name
    );
    own.send(&Call::get(selected.clone())).await?;
    latencies.push(time.lap());
    let (status, _node_events) = own.open(&Call::get(format!("{selected}&watch=1"))).await?;
    ensure!(status == StatusCode::OK, "the watch of the Node: {status}");
    latencies.push(time.lap());
    let mut connection = api.connect().await?;
    for call in &calls {
        connection.send(call).await?;
        latencies.push(time.lap());
    }
    Ok(latencies)
}

/// Milliseconds from one answer to the next; a new connection is part of the request after it.
struct Stopwatch(Instant);

impl Stopwatch {
    fn start() -> Self {
        Self(Instant::now())
    }

    fn lap(&mut self) -> f64 {
        let now = Instant::now();
        let before = std::mem::replace(&mut self.0, now);
        (now - before).as_secs_f64() * 1e3
    }
}
