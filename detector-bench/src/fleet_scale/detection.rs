//! From the second pod's address to the event, with two real agents: one conflict after the other, and as many at the same time
//! as a node has pods.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use detector_testkit::{Cluster, random::Random, until};

use super::{
    Options, block_on,
    client::Api,
    milliseconds,
    pair::{Pair, PairOptions},
    servers::{self, CpuTimes, mib},
    watchers::{Received, watch},
};
use crate::{Figure, Goal};

const ONE: &str = "One conflict at a time";
const MANY: &str = "One podCIDR on two nodes";
/// Requests per second at which the pace never delays one conflict after the other.
const RATE: u32 = 200;
/// Between two conflicts, at least and at most.
const PAUSE: (u64, u64) = (60, 140);
/// Until all watches are open, and until all have received everything.
const DEADLINE: Duration = Duration::from_secs(180);
/// Nothing was received for so long: nothing more comes.
const QUIET: Duration = Duration::from_secs(3);

/// One conflict after the other.
pub(super) fn one_at_a_time(
    cluster: &Cluster,
    api: &Api,
    options: &Options,
) -> Result<Vec<Figure>> {
    let pair = Pair::start(
        cluster,
        api,
        options,
        &PairOptions {
            number: 1,
            // The first one is not counted.
            pods: options.conflicts + 1,
            rate: Some(RATE),
        },
    )?;
    let (total, agent) = one_after_another(&pair, options.seed)?;
    let [mut p50, mut p99, max] =
        super::latencies(ONE, "second address to event line read", &total);
    p50 = p50.goal(Goal::AtMost(50.0));
    p99 = p99.goal(Goal::AtMost(300.0));
    let mut figures = vec![p50, p99, max];
    figures.extend(super::latencies(
        ONE,
        "of which the agent's `latency_us`",
        &agent,
    ));
    Ok(figures)
}

/// The milliseconds of each conflict of a pair until its event was read, and those that the agent states. The first one is not counted.
pub(super) fn one_after_another(pair: &Pair, seed: u64) -> Result<(Vec<f64>, Vec<f64>)> {
    let random = &mut Random(seed);
    let (mut total, mut agent) = (Vec::new(), Vec::new());
    for pod in 0..pair.pods() {
        let mut assignment = pair.assignment(pod)?;
        thread::sleep(Duration::from_millis(
            PAUSE.0 + random.below(PAUSE.1 - PAUSE.0),
        ));
        let assigned = assignment.run()?;
        let reported = pair.wait_reported(assignment.address())?;
        assignment.finish()?;
        let conflict = reported
            .event
            .conflict()
            .context("an event without a conflict")?;
        ensure!(conflict.scope == "fleet", "{conflict:?}");
        if pod > 0 {
            total.push(milliseconds(reported.at - assigned));
            agent.push(conflict.latency_us.context("no latency")? / 1e3);
        }
    }
    Ok((total, agent))
}

/// The pods of a whole node at the same time, while as many agents as requested watch.
pub(super) fn all_at_once(cluster: &Cluster, api: &Api, options: &Options) -> Result<Vec<Figure>> {
    let pair = Pair::start(
        cluster,
        api,
        options,
        &PairOptions {
            number: 3,
            pods: options.node_conflicts,
            rate: None,
        },
    )?;
    let received = Arc::new(Received::new());
    thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let watched = block_on(cluster, watch(api, options.watchers, &received));
            // What waits for the watches does not wait for ever.
            received.end();
            watched
        });
        let measured = measure(cluster, &pair, &received, &watching);
        received.end();
        let watched = watching.join();
        watched.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        measured
    })
}

fn measure<T>(
    cluster: &Cluster,
    pair: &Pair,
    received: &Received,
    watching: &thread::ScopedJoinHandle<'_, T>,
) -> Result<Vec<Figure>> {
    let opening = Instant::now();
    while !received.is_ready() {
        if watching.is_finished() || opening.elapsed() > DEADLINE {
            bail!("{} watches could be opened", received.open());
        }
        thread::sleep(Duration::from_millis(20));
    }
    let opened = opening.elapsed();
    let mut figures = vec![
        Figure::new(MANY, "watches of IPConflicts", count(received.open()), "").note(format!(
            "each on a TLS connection of its own; opened in {:.0} s",
            opened.as_secs_f64()
        )),
    ];
    figures.extend(servers::memory(cluster, MANY, "with these watches")?);
    let mut assignments = (0..pair.pods())
        .map(|pod| pair.assignment(pod))
        .collect::<Result<Vec<_>>>()?;
    let (before, cpu_before) = (received.counters(), CpuTimes::now(cluster)?);
    let started = Instant::now();
    let mut latencies = Vec::new();
    let mut assigned = Vec::new();
    for assignment in &mut assignments {
        assigned.push(assignment.run()?);
    }
    for (address, at) in pair.addresses().iter().zip(assigned) {
        let reported = pair.wait_reported(*address)?;
        latencies.push(milliseconds(reported.at - at));
    }
    for assignment in assignments {
        assignment.finish()?;
    }
    // Until then everything that is to be written is; then until all watchers have received it.
    until(DEADLINE, "all watchers to have received all events", || {
        let quiet = received.last().elapsed();
        ensure!(quiet > QUIET, "received something {quiet:?} ago");
        Ok(())
    })?;
    let (after, cpu_after) = (received.counters(), CpuTimes::now(cluster)?);
    let took = received.last() - started;
    let conflicts = count(latencies.len());
    figures.extend(super::latencies(
        MANY,
        "second address to event line read",
        &latencies,
    ));
    #[expect(clippy::cast_precision_loss, reason = "figures for a reader")]
    let (events, each) = (
        (after.events - before.events) as f64,
        (after.first_bytes - before.first_bytes) as f64
            / (after.events - before.events).max(1) as f64,
    );
    figures.extend([
        Figure::new(MANY, "events on each watch", events, "").note(format!(
            "{:.1} for each of {conflicts} conflicts; {}",
            events / conflicts,
            pair.range()
        )),
        Figure::new(MANY, "an event, mean", each, "B"),
        Figure::new(
            MANY,
            "bytes to all watchers",
            mib(after.bytes - before.bytes),
            "MiB",
        )
        .note("response bodies, without TLS and HTTP"),
        Figure::new(
            MANY,
            "until all watchers had received them",
            took.as_secs_f64(),
            "s",
        ),
    ]);
    #[expect(clippy::cast_precision_loss, reason = "figures for a reader")]
    let continued = (after.continued - before.continued) as f64;
    let listed = after.listed_again - before.listed_again;
    figures.push(
        Figure::new(MANY, "watches that the server ended", continued, "").note(format!(
            "it ends those that do not keep up; continued at once, {listed} of them with a list"
        )),
    );
    figures.extend(cpu_after.figures(&cpu_before, MANY, "meanwhile"));
    Ok(figures)
}

#[expect(clippy::cast_precision_loss, reason = "figures for a reader")]
fn count(number: usize) -> f64 {
    number as f64
}
