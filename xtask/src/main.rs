//! Project tasks: `cargo xtask setup | build | run | test | lint | bench | fuzz | soak | doctor`.
//!
//! One file per task. Everything that a task needs of another (the eBPF object, the machine's
//! packages) it asks for itself, so each command works on a fresh clone with nothing typed before it.

mod bench;
mod build;
mod compiler;
mod demo;
mod doctor;
mod ebpf;
mod fuzz;
mod host;
mod linker;
mod lint;
mod narrate;
mod process;
mod python;
mod requirements;
mod run;
mod say;
mod setup;
mod soak;
mod test;
mod tools;
mod vm;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::workspace::Workspace;

/// Builds, runs and checks the IP Conflict Detector.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Find what building and testing need; install what is missing where that is allowed
    Setup,
    /// Leave target/release/detector-agent with the kernel programs inside
    Build {
        /// Build without optimisation, into target/debug
        #[arg(long)]
        debug: bool,
    },
    /// Build, then run the agent on this node, one event a line on stdout
    Run(run::Args),
    /// Run every test, those that need root and network namespaces included
    Test(test::Args),
    /// Check format, lints, documentation, licences and unused dependencies
    Lint,
    /// Measure every figure that the project promises, into one table and docs/benchmarks.md
    Bench(bench::Args),
    /// Throw inputs at every parser that reads what others wrote
    Fuzz(fuzz::Args),
    /// Let an agent live through churn and faults, and look whether it leaks or forgets
    Soak(soak::Args),
    /// Say what is there and what is missing for building, running and testing
    Doctor,
}

fn main() -> ExitCode {
    match dispatch(Cli::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(task: Task) -> anyhow::Result<()> {
    let workspace = Workspace::locate()?;
    match task {
        Task::Setup => setup::run(&workspace),
        Task::Build { debug } => build::run(&workspace, build::Profile::from_debug_flag(debug)),
        Task::Run(args) => run::run(&workspace, &args),
        Task::Test(args) => test::run(&workspace, &args),
        Task::Lint => lint::run(&workspace),
        Task::Bench(args) => bench::run(&workspace, &args),
        Task::Fuzz(args) => fuzz::run(&workspace, &args),
        Task::Soak(args) => soak::run(&workspace, &args),
        Task::Doctor => doctor::run(&workspace),
    }
}
