//! Prints how long an agent takes to name all pods of a node: `bench_identify --agent target/release/detector-agent`.

use std::path::PathBuf;

use clap::Parser;
use detector_testkit::bench_identify::run;

/// Makes pods with containerd, two for each address, starts the agent and prints how long it takes to name them.
#[derive(Parser)]
struct Arguments {
    /// The detector-agent binary.
    #[arg(long)]
    agent: PathBuf,
    /// Pairs of pods.
    #[arg(long, default_value_t = 125)]
    pairs: u32,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    print!("{}", run(&arguments.agent, arguments.pairs)?);
    Ok(())
}
