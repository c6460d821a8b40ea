//! A storm elsewhere: tens of thousands of conflicts within other nodes, as after a wipe of IPAM's state in the whole cluster. Half of
//! them are there when two agents start, and the rest come while these agents find conflicts between their nodes.

use std::{fs, path::Path, thread, time::Instant};

use anyhow::{Context as _, Result};
use detector_testkit::{Cluster, process::resident_kib};

use super::{
    Options, block_on,
    client::{Api, Call},
    detection, latencies,
    load::saturate,
    objects::{CONFLICTS, SimulatedNode, to_bytes},
    pair::{Pair, PairOptions},
    servers::{self, mib},
};
use crate::Figure;

const STORM: &str = "A storm elsewhere";
/// Connections that create conflicts, while the agents have to be served.
const CONNECTIONS: usize = 16;
/// What an agent publishes of its node at most.
const EACH: u32 = 64;
/// Conflicts between the two nodes meanwhile.
const BETWEEN: u16 = 50;
/// Requests per second at which the pace never delays one conflict after the other.
const RATE: u32 = 200;

/// Measures it.
pub(super) fn measure(cluster: &Cluster, api: &Api, options: &Options) -> Result<Vec<Figure>> {
    let half = options.storm / 2;
    let before = load(cluster, api, options, 0..half)?;
    let mut figures = vec![
        Figure::new(
            STORM,
            "conflicts within other nodes, before",
            f64::from(half),
            "",
        )
        .note(format!("{:.0} MiB, {EACH} of each node", mib(before))),
    ];
    let started = Instant::now();
    let pair = Pair::start(
        cluster,
        api,
        options,
        &PairOptions {
            number: 5,
            pods: BETWEEN,
            rate: Some(RATE),
        },
    )?;
    figures.push(
        Figure::new(
            STORM,
            "until both agents work",
            started.elapsed().as_secs_f64(),
            "s",
        )
        .note("with their nodes and pods, one after the other; the range of both is reported"),
    );
    figures.extend(agents(&pair, "after their start")?);
    let from = received(&pair)?;
    let (loaded, measured) = thread::scope(|scope| {
        let loading = scope.spawn(|| load(cluster, api, options, half..options.storm));
        let measured = detection::one_after_another(&pair, options.seed);
        let loaded = loading.join();
        let loaded = loaded.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (loaded, measured)
    });
    let (total, _) = measured?;
    figures.push(
        Figure::new(
            STORM,
            "conflicts within other nodes, meanwhile",
            f64::from(options.storm - half),
            "",
        )
        .note(format!("{:.0} MiB", mib(loaded?))),
    );
    figures.extend(latencies(
        STORM,
        "second address to event line read",
        &total,
    ));
    for (side, (now, from)) in received(&pair)?.into_iter().zip(from).enumerate() {
        let name = format!("received meanwhile by agent {side}");
        figures.push(
            Figure::new(STORM, name, mib(now - from), "MiB")
                .note("everything on its node's link: about 50 conflicts with their requests"),
        );
    }
    figures.extend(agents(&pair, "at the end")?);
    figures.extend(servers::memory(cluster, STORM, "at the end")?);
    Ok(figures)
}

/// Memory of the agents.
fn agents(pair: &Pair, when: &str) -> Result<Vec<Figure>> {
    let agents = pair.agents().iter().enumerate();
    let figures = agents.map(|(side, agent)| {
        let name = format!("agent {side}, resident, {when}");
        let bytes = resident_kib(agent.pid())? * 1024;
        Ok(Figure::new(STORM, name, mib(bytes), "MiB"))
    });
    figures.collect()
}

/// Bytes that each node has received from the API server.
fn received(pair: &Pair) -> Result<[u64; 2]> {
    let of = |side: usize| -> Result<u64> {
        let agent = pair.agents().get(side).context("no such agent")?;
        let file = Path::new("/proc")
            .join(agent.pid().to_string())
            .join("net/dev");
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        Ok(uplink_bytes(&text))
    };
    Ok([of(0)?, of(1)?])
}

/// The received bytes in `/proc/net/dev` of all interfaces but the loopback one and those of pods.
fn uplink_bytes(text: &str) -> u64 {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    let links = lines.filter(|(name, _)| {
        let name = name.trim();
        name != "lo" && !name.starts_with("cali")
    });
    links
        .filter_map(|(_, numbers)| numbers.split_whitespace().next()?.parse::<u64>().ok())
        .sum()
}

/// Creates these conflicts; returns the bytes of their objects.
fn load(
    cluster: &Cluster,
    api: &Api,
    options: &Options,
    numbers: std::ops::Range<u32>,
) -> Result<u64> {
    let (seed, has_labels) = (options.seed, !options.storm_unlabelled);
    let body = move |number: u32| {
        let node = SimulatedNode::new(number / EACH, seed);
        to_bytes(&node.local_conflict(number % EACH, has_labels))
    };
    let each = body(numbers.start)?.len() as u64;
    let count = u64::from(numbers.end - numbers.start);
    let calls = numbers.map(move |number| Ok(Call::create(CONFLICTS, body(number)?)));
    block_on(cluster, async move {
        saturate(api, CONNECTIONS, calls).await.map(drop)
    })?;
    Ok(each * count)
}

#[cfg(test)]
mod tests {
    use super::uplink_bytes;

    #[test]
    fn bytes_of_pods_and_the_loopback_interface_do_not_count() {
        let text = "Inter-|   Receive\n face |bytes    packets\n    lo: 1 1\n  eth0: 20 3 0\ncali01: 400 1\n";
        assert_eq!(uplink_bytes(text), 20);
    }
}
