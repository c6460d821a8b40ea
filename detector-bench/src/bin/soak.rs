//! Runs an agent under churn and faults: `soak --agent target/release/detector-agent --minutes 5`.

use std::{
    path::PathBuf,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use clap::Parser;
use detector_bench::soak::{SoakOptions, run};

/// Run an agent under churn and faults, and check its memory, descriptors and events.
#[derive(Parser)]
struct Arguments {
    /// Path of the detector-agent binary.
    #[arg(long)]
    agent: PathBuf,
    /// Duration in minutes.
    #[arg(long, default_value_t = 60.0)]
    minutes: f64,
    /// Pods created and deleted per second.
    #[arg(long, default_value_t = 50.0)]
    rate: f64,
    /// Live pods at once.
    #[arg(long, default_value_t = 150)]
    population: usize,
    /// Seed of an earlier run, to repeat its choices.
    #[arg(long)]
    seed: Option<u64>,
    /// Limit the agent to this percentage of one core, instead of injecting other faults.
    #[arg(long)]
    throttle: Option<u32>,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    anyhow::ensure!(
        (0.5..=1440.0).contains(&arguments.minutes),
        "--minutes must be between 0.5 and 1440"
    );
    anyhow::ensure!(
        (1.0..=1000.0).contains(&arguments.rate),
        "--rate must be between 1 and 1000"
    );
    anyhow::ensure!(
        (3..=2000).contains(&arguments.population),
        "--population must be between 3 and 2000"
    );
    anyhow::ensure!(
        arguments
            .throttle
            .is_none_or(|percent| (1..=100).contains(&percent)),
        "--throttle must be between 1 and 100"
    );
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let options = SoakOptions {
        duration: Duration::from_secs_f64(arguments.minutes * 60.0),
        rate: arguments.rate,
        population: arguments.population,
        seed: arguments.seed.unwrap_or(now.as_secs()),
        throttle_percent: arguments.throttle,
    };
    println!("seed {}", options.seed);
    let report = run(&arguments.agent, options)?;
    print!("{report}");
    match options.throttle_percent {
        // What it has not processed yet takes memory.
        Some(_) => Ok(()),
        None => report.check_growth(),
    }
}
