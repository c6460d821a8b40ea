//! `soak`: an agent lives through churn and faults for as long as one has time.

use anyhow::{Result, bail};

use crate::{
    build::{self, Profile},
    host::Host,
    process,
    requirements::Group,
    setup,
    workspace::Workspace,
};

/// Arguments of `soak`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// For how long
    #[arg(long, default_value = "60")]
    minutes: String,
    /// Unoptimised, as the tests build them: begins sooner after those
    #[arg(long)]
    debug: bool,
    /// Passed on, as `-- --rate 20 --seed 7`
    #[arg(last = true)]
    soak: Vec<String>,
}

/// Builds agent and soak and runs it.
///
/// # Errors
/// Not root, a build failed, or the agent leaked or said something else than a fresh look.
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    if !Host::inspect().root {
        bail!("the soak makes network namespaces and loads kernel programs: run it as root");
    }
    setup::ensure(workspace, &[Group::Build, Group::Demo])?;
    let profile = Profile::from_debug_flag(args.debug);
    let agent = build::agent(workspace, profile)?;
    let mut command = workspace.cargo();
    command
        .args(["run", "--quiet"])
        .args(profile.flag())
        .args(["--package", "detector-bench", "--bin", "soak"])
        .args(["--", "--agent"])
        .arg(agent)
        .args(["--minutes", &args.minutes]);
    process::run(command.args(&args.soak))
}
