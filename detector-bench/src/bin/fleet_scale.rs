//! Measures a fleet at one API server: `fleet_scale --agent target/release/detector-agent --tools target/tools`.

use std::{path::PathBuf, time::Duration};

use anyhow::ensure;
use clap::Parser;
use detector_bench::{
    Figure,
    fleet_scale::{Options, run},
};

/// Measure what a fleet costs an API server, and how fast a conflict across nodes is reported.
#[derive(Parser)]
struct Arguments {
    /// Path of the detector-agent binary.
    #[arg(long)]
    agent: PathBuf,
    /// Directory of the servers, kubectl and helm.
    #[arg(long)]
    tools: PathBuf,
    /// The checkout.
    #[arg(long, default_value = ".")]
    checkout: PathBuf,
    /// Simulated agents.
    #[arg(long, default_value_t = 5_000)]
    agents: u32,
    /// Claims of addresses, of all agents together.
    #[arg(long, default_value_t = 150_000)]
    claims: u32,
    /// Seconds in which each rate of creations is measured.
    #[arg(long, default_value_t = 20)]
    rate_seconds: u64,
    /// Conflicts one after the other.
    #[arg(long, default_value_t = 500)]
    conflicts: u16,
    /// Conflicts at the same time.
    #[arg(long, default_value_t = 110)]
    node_conflicts: u16,
    /// Watches of IPConflicts meanwhile.
    #[arg(long, default_value_t = 5_000)]
    watchers: usize,
    /// Agents that restart without a journal.
    #[arg(long, default_value_t = 5_000)]
    without_journal: u32,
    /// Seed of the objects' contents and of the pauses.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Conflicts of each agent in each of three runs that compare a node without and with the fleet.
    #[arg(long, default_value_t = 1_000)]
    local_conflicts: u32,
    /// Seconds in which the agents of that comparison are idle.
    #[arg(long, default_value_t = 20)]
    idle_seconds: u64,
    /// Only that comparison.
    #[arg(long)]
    local_only: bool,
    /// Conflicts within other nodes, while two agents find some between theirs.
    #[arg(long, default_value_t = 100_000)]
    storm: u32,
    /// These have the shape of a version without labels.
    #[arg(long)]
    storm_unlabelled: bool,
    /// Only that.
    #[arg(long)]
    storm_only: bool,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    ensure!(
        (1..=20_000).contains(&arguments.agents) && arguments.claims >= arguments.agents,
        "--agents must be between 1 and 20000, and --claims at least as many"
    );
    ensure!(
        arguments.claims / arguments.agents <= 250,
        "at most 250 claims for each agent"
    );
    ensure!(
        (1..=2_000).contains(&arguments.conflicts)
            && (1..=2_000).contains(&arguments.node_conflicts),
        "--conflicts and --node-conflicts must be between 1 and 2000"
    );
    ensure!(
        (1..=2_500).contains(&arguments.local_conflicts),
        "--local-conflicts must be between 1 and 2500"
    );
    let options = Options {
        agent: arguments.agent,
        tools: arguments.tools,
        checkout: arguments.checkout,
        agents: arguments.agents,
        claims: arguments.claims,
        rate_time: Duration::from_secs(arguments.rate_seconds),
        conflicts: arguments.conflicts,
        node_conflicts: arguments.node_conflicts,
        watchers: arguments.watchers,
        without_journal: arguments.without_journal,
        seed: arguments.seed,
        local_conflicts: arguments.local_conflicts,
        idle_time: Duration::from_secs(arguments.idle_seconds),
        local_only: arguments.local_only,
        storm: arguments.storm,
        storm_unlabelled: arguments.storm_unlabelled,
        storm_only: arguments.storm_only,
    };
    run(&options, |figures| figures.iter().for_each(print))
}

fn print(figure: &Figure) {
    let Figure {
        group,
        name,
        value,
        unit,
        note,
        ..
    } = figure;
    match value {
        Some(value) => println!("{group:<24} {name:<52}{value:>12.2} {unit:<4} {note}"),
        None => println!("{group:<24} {name:<52}{:>12} {note}", "-"),
    }
}
