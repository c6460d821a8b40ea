//! Prints what a flood from one pod costs an agent: `bench_flood --agent target/release/detector-agent`.

use std::path::PathBuf;

use clap::Parser;
use detector_testkit::bench_flood::{Options, run};

/// Floods an agent from one pod while two others come into conflict, and prints memory, processor time and latency.
#[derive(Parser)]
struct Arguments {
    /// The detector-agent binary.
    #[arg(long)]
    agent: PathBuf,
    /// How many frames.
    #[arg(long, default_value_t = Options::default().frames)]
    frames: u64,
    /// How many conflicts meanwhile.
    #[arg(long, default_value_t = Options::default().conflicts)]
    conflicts: u32,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let options = Options {
        frames: arguments.frames,
        conflicts: arguments.conflicts,
    };
    print!("{}", run(&arguments.agent, options)?);
    Ok(())
}
