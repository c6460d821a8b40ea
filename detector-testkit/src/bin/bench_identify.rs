//! Prints how long an agent takes to name all pods of a node, and that a runtime that hangs costs no event anything:
//! `bench_identify --agent target/release/detector-agent`.

use std::path::PathBuf;

use clap::Parser;
use detector_testkit::{
    bench_identify::{run, run_hanging},
    bench_latency::Options,
};

/// Makes pods with containerd, two for each address, starts the agent and prints how long it takes to name them; then
/// makes conflicts with and without a runtime that hangs, and prints how long the agent takes to tell each.
#[derive(Parser)]
struct Arguments {
    /// The detector-agent binary.
    #[arg(long)]
    agent: PathBuf,
    /// Pairs of pods.
    #[arg(long, default_value_t = 125)]
    pairs: u32,
    /// How many conflicts, each time.
    #[arg(long, default_value_t = Options::default().conflicts)]
    conflicts: u32,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    println!("{}", run(&arguments.agent, arguments.pairs)?);
    let options = Options {
        conflicts: arguments.conflicts,
        ..Options::default()
    };
    print!("{}", run_hanging(&arguments.agent, options)?);
    Ok(())
}
