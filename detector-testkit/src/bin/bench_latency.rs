//! Prints the detection latency of an agent: `bench_latency --agent target/release/detector-agent`.

use std::{path::PathBuf, time::Duration};

use clap::Parser;
use detector_testkit::bench_latency::{Options, run};

/// Makes conflicts one after another and prints how long the agent takes to name each.
#[derive(Parser)]
struct Arguments {
    /// The detector-agent binary.
    #[arg(long)]
    agent: PathBuf,
    /// How many conflicts.
    #[arg(long, default_value_t = 1000)]
    conflicts: u32,
    /// Pairs of pods that take turns.
    #[arg(long, default_value_t = 50)]
    pairs: u32,
    /// Milliseconds of rest between two frames.
    #[arg(long, default_value_t = 2)]
    rest_ms: u64,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let options = Options {
        conflicts: arguments.conflicts,
        pairs: arguments.pairs,
        rest: Duration::from_millis(arguments.rest_ms),
    };
    print!("{}", run(&arguments.agent, options)?);
    Ok(())
}
