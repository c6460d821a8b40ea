//! Project tasks: `cargo xtask setup | build | run | test | lint | bench | fuzz | soak | cluster | doctor`.
//!
//! One module per task. Each task runs what it depends on (installing requirements, building the
//! eBPF object), so every command works on a fresh clone.

mod architecture;
mod artifact;
mod bench;
mod build;
mod cache;
mod cluster;
mod demo;
mod ebpf;
mod files;
mod fuzz;
mod host;
mod kubernetes;
mod lint;
mod process;
mod python;
mod release;
mod run;
mod setup;
mod soak;
mod source_paths;
mod static_agent;
mod stdout;
mod suite;
mod test;
mod toolchain;
mod tools;
mod vm;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::workspace::Workspace;

/// Builds, runs and checks the IP Conflict Detector.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct XtaskCli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Install what building and testing need, or list the commands that would
    Setup,
    /// Build target/release/detector-agent with the eBPF programs embedded
    Build {
        /// Build without optimisation, into target/debug
        #[arg(long)]
        debug: bool,
        /// Build a static executable, as in the image, into target/static
        #[arg(long = "static")]
        is_static: bool,
    },
    /// Build and run the agent on this node, with one event per line on stdout
    Run(run::RunOptions),
    /// Run all tests, including those that need root and network namespaces
    Test(test::TestOptions),
    /// Check formatting, lints, documentation, licences and unused dependencies
    Lint(lint::LintOptions),
    /// Measure every figure with a goal; print the tables and update docs/benchmarks.md
    Bench(bench::BenchOptions),
    /// Fuzz every parser of untrusted input
    Fuzz(fuzz::FuzzOptions),
    /// Run the agent under churn and faults; fail on leaks and wrong state
    Soak(soak::SoakOptions),
    /// Run a real Kubernetes cluster on this machine, with the agent installed by its chart, until Ctrl-C
    Cluster(cluster::ClusterArgs),
    /// Build what a release consists of into target/dist; publish nothing
    Release(release::ReleaseOptions),
    /// List what building, running and testing need, and what is missing
    Doctor,
}

fn main() -> ExitCode {
    match dispatch(XtaskCli::parse().task) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(task: Task) -> anyhow::Result<ExitCode> {
    let workspace = Workspace::locate()?;
    let done = match task {
        Task::Cluster(args) => return cluster::run(&workspace, &args),
        Task::Setup => setup::run(&workspace),
        Task::Build { debug, is_static } => build::run(
            &workspace,
            build::Profile::from_debug_flag(debug),
            is_static,
        ),
        Task::Run(options) => run::run(&workspace, &options),
        Task::Test(options) => test::run(&workspace, &options),
        Task::Lint(options) => lint::run(&workspace, &options),
        Task::Bench(options) => bench::run(&workspace, &options),
        Task::Fuzz(options) => fuzz::run(&workspace, &options),
        Task::Soak(options) => soak::run(&workspace, &options),
        Task::Release(options) => release::run(&workspace, &options),
        Task::Doctor => setup::doctor(&workspace),
    };
    done.map(|()| ExitCode::SUCCESS)
}
