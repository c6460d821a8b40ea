//! Lets an agent live through churn and faults: `soak --agent target/release/detector-agent --minutes 5`.

use std::{
    path::PathBuf,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use clap::Parser;
use detector_bench::soak::{Options, run};

/// Pods come and go around an agent, things fail, and its memory, descriptors and words are looked at.
#[derive(Parser)]
struct Arguments {
    /// The detector-agent binary.
    #[arg(long)]
    agent: PathBuf,
    /// For how long.
    #[arg(long, default_value_t = 60.0)]
    minutes: f64,
    /// Pods made and deleted a second.
    #[arg(long, default_value_t = 50.0)]
    rate: f64,
    /// Pods alive at once.
    #[arg(long, default_value_t = 150)]
    population: usize,
    /// Repeats the choices of an earlier run.
    #[arg(long)]
    seed: Option<u64>,
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
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let options = Options {
        duration: Duration::from_secs_f64(arguments.minutes * 60.0),
        rate: arguments.rate,
        population: arguments.population,
        seed: arguments.seed.unwrap_or(now.as_secs()),
    };
    println!("seed {}", options.seed);
    let report = run(&arguments.agent, options)?;
    print!("{report}");
    report.verdict()
}
