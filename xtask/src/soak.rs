//! `soak`: runs an agent under churn and faults for a given time.

use std::process::Command;

use anyhow::Result;

use crate::{
    build::{self, AGENT_BINARY, Binary, Profile},
    host, process, setup,
    workspace::Workspace,
};

/// The program that creates and deletes the pods.
const SOAK: Binary = Binary {
    package: "detector-bench",
    name: "soak",
};

/// Arguments of `soak`.
#[derive(clap::Args)]
pub(crate) struct SoakOptions {
    /// Duration in minutes
    #[arg(long, default_value = "60")]
    minutes: String,
    /// Use an unoptimised agent: no rebuild after the tests
    #[arg(long)]
    debug: bool,
    /// Arguments for the soak program, for example `-- --rate 20 --seed 7`
    #[arg(last = true)]
    soak_args: Vec<String>,
}

/// Builds the agent and the soak program and runs it.
///
/// # Errors
/// The user is not root, a build failed, the agent leaked, or its state differs from a fresh snapshot.
pub(crate) fn run(workspace: &Workspace, options: &SoakOptions) -> Result<()> {
    host::require_root("the soak test creates network namespaces and loads eBPF programs")?;
    setup::ensure(workspace, &[setup::BUILD])?;
    let profile = Profile::from_debug_flag(options.debug);
    build::binaries(workspace, profile, &[AGENT_BINARY, SOAK])?;
    let mut command = Command::new(SOAK.path(workspace, profile));
    command
        .current_dir(workspace.root())
        .arg("--agent")
        .arg(AGENT_BINARY.path(workspace, profile))
        .args(["--minutes", &options.minutes]);
    process::run(command.args(&options.soak_args))
}
