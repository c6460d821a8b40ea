//! Prints how soon a raised conflict is told: `bench_report --agent target/release/detector-agent`.

use std::{path::PathBuf, time::Duration};

use clap::Parser;
use detector_testkit::bench_report::{Options, run};

/// Makes conflicts one after another and prints how long their event lines and webhook requests take.
#[derive(Parser)]
struct Arguments {
    /// The detector-agent binary.
    #[arg(long)]
    agent: PathBuf,
    /// How many conflicts.
    #[arg(long, default_value_t = 500)]
    conflicts: u32,
    /// Pairs of pods that take turns.
    #[arg(long, default_value_t = 50)]
    pairs: u32,
    /// Milliseconds of rest between two frames.
    #[arg(long, default_value_t = 2)]
    rest_ms: u64,
    /// Directory on the disk to measure, which the agent keeps its state in.
    #[arg(long)]
    state: Option<PathBuf>,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let options = Options {
        conflicts: arguments.conflicts,
        pairs: arguments.pairs,
        rest: Duration::from_millis(arguments.rest_ms),
        state: arguments.state,
    };
    print!("{}", run(&arguments.agent, &options)?);
    Ok(())
}
