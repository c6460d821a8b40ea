//! `bench`: how long the agent takes to name a conflict, over many of them, and what a flood from one pod costs it.

use std::process::Command;

use anyhow::{Result, bail};

use crate::{
    build::{self, Profile},
    host::Host,
    process,
    requirements::Group,
    setup,
    workspace::Workspace,
};

/// Package and binaries that make the conflicts and measure.
const PACKAGE: &str = "detector-testkit";
const LATENCY: &str = "bench_latency";
const FLOOD: &str = "bench_flood";

/// Arguments of `bench`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// What to measure; without it both, one after the other
    #[arg(long, value_enum)]
    only: Option<Bench>,
    /// Passed on to the bench, as `--conflicts 1000`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    bench: Vec<String>,
}

/// The benches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Bench {
    /// Detection latency of an idle agent
    Latency,
    /// Memory, processor time and latency while one pod floods
    Flood,
}

/// Builds agent and benches, all optimised, and runs them.
///
/// # Errors
/// Not root, a build failed, or a conflict was not named.
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    if !Host::inspect().root {
        bail!("the bench makes network namespaces and loads kernel programs: run it as root");
    }
    setup::ensure(workspace, &[Group::Build, Group::Demo])?;
    let agent = build::agent(workspace, Profile::Release)?;
    for (bench, binary) in [(Bench::Latency, LATENCY), (Bench::Flood, FLOOD)] {
        if args.only.is_some_and(|only| only != bench) {
            continue;
        }
        process::run(workspace.cargo().args([
            "build",
            "--release",
            "--package",
            PACKAGE,
            "--bin",
            binary,
        ]))?;
        process::run(
            Command::new(workspace.target().join("release").join(binary))
                .arg("--agent")
                .arg(&agent)
                .args(&args.bench),
        )?;
    }
    Ok(())
}
