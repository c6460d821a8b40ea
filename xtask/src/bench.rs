//! `bench`: how long the agent takes to name a conflict, over many of them.

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

/// Package and binary that make the conflicts and measure.
const PACKAGE: &str = "detector-testkit";
const BINARY: &str = "bench_latency";

/// Arguments of `bench`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Passed on to the bench, as `--conflicts 1000`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    bench: Vec<String>,
}

/// Builds agent and bench, both optimised, and runs it.
///
/// # Errors
/// Not root, a build failed, or a conflict was not named.
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    if !Host::inspect().root {
        bail!("the bench makes network namespaces and loads kernel programs: run it as root");
    }
    setup::ensure(workspace, &[Group::Build, Group::Demo])?;
    let agent = build::agent(workspace, Profile::Release)?;
    process::run(workspace.cargo().args([
        "build",
        "--release",
        "--package",
        PACKAGE,
        "--bin",
        BINARY,
    ]))?;
    process::run(
        Command::new(workspace.target().join("release").join(BINARY))
            .arg("--agent")
            .arg(agent)
            .args(&args.bench),
    )
}
