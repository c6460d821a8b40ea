//! Sends requests from several connections, as fast as they are answered or at a rate, and measures each.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result};
use tokio::{
    sync::{Mutex as AsyncMutex, mpsc},
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval},
};

use super::client::{Api, Call, Connection};

/// What was measured.
#[derive(Debug, Default)]
pub(super) struct Measured {
    /// Milliseconds of each request.
    pub(super) latencies: Vec<f64>,
    /// From the first request to the last answer.
    pub(super) took: Duration,
}

impl Measured {
    /// Answers per second.
    #[expect(clippy::cast_precision_loss, reason = "a number of requests")]
    pub(super) fn rate(&self) -> f64 {
        self.latencies.len() as f64 / self.took.as_secs_f64()
    }
}

/// Sends all `calls` from `connections` connections, each the next one as soon as it is answered.
pub(super) async fn saturate(
    api: &Api,
    connections: usize,
    calls: impl Iterator<Item = Result<Call>> + Send + 'static,
) -> Result<Measured> {
    let calls = Arc::new(Mutex::new(calls.fuse()));
    let opened = open(api, connections).await?;
    let started = Instant::now();
    let mut workers = JoinSet::new();
    for mut connection in opened {
        let calls = Arc::clone(&calls);
        workers.spawn(async move {
            let mut latencies = Vec::new();
            let next = || calls.lock().unwrap_or_else(PoisonError::into_inner).next();
            while let Some(call) = next() {
                latencies.push(timed(&mut connection, &call?, Instant::now()).await?);
            }
            anyhow::Ok(latencies)
        });
    }
    collect(workers, started).await
}

/// Sends `calls` at a rate, whether or not earlier ones are answered, as long as one of `connections` is free. A request's time
/// begins when it is due, so that a wait for a connection is part of it.
pub(super) async fn paced(
    api: &Api,
    connections: usize,
    per_second: u32,
    calls: impl Iterator<Item = Result<Call>>,
) -> Result<Measured> {
    let (due, waiting) = mpsc::unbounded_channel::<(Instant, Call)>();
    let waiting = Arc::new(AsyncMutex::new(waiting));
    let mut workers = JoinSet::new();
    for mut connection in open(api, connections).await? {
        let waiting = Arc::clone(&waiting);
        workers.spawn(async move {
            let mut latencies = Vec::new();
            loop {
                let next = waiting.lock().await.recv().await;
                let Some((at, call)) = next else {
                    return anyhow::Ok(latencies);
                };
                latencies.push(timed(&mut connection, &call, at).await?);
            }
        });
    }
    let started = Instant::now();
    let mut ticks = interval(Duration::from_secs(1) / per_second.max(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    for call in calls {
        ticks.tick().await;
        // A worker that failed reports it below.
        let _ = due.send((Instant::now(), call?));
    }
    drop(due);
    collect(workers, started).await
}

async fn open(api: &Api, connections: usize) -> Result<Vec<Connection>> {
    let mut opened = Vec::new();
    for _ in 0..connections {
        opened.push(api.connect().await?);
    }
    Ok(opened)
}

/// Sends a request; the milliseconds from `at` to its answer.
async fn timed(connection: &mut Connection, call: &Call, at: Instant) -> Result<f64> {
    connection.send(call).await?;
    Ok(at.elapsed().as_secs_f64() * 1e3)
}

async fn collect(mut workers: JoinSet<Result<Vec<f64>>>, started: Instant) -> Result<Measured> {
    let mut measured = Measured::default();
    while let Some(done) = workers.join_next().await {
        let latencies = done.context("a worker")??;
        measured.latencies.extend(latencies);
    }
    measured.took = started.elapsed();
    Ok(measured)
}
