//! `run`: the freshly built agent on this node, with its events on stdout.

use std::{os::unix::process::CommandExt as _, process::Command};

use anyhow::{Context as _, Result};

use crate::{
    build::{self, Profile},
    workspace::Workspace,
};

/// Arguments of `run`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Passed on to `detector-agent run`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    agent: Vec<String>,
}

/// Builds the agent and becomes it, so that signals and the exit code are the agent's own.
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let agent = build::agent(workspace, Profile::Release)?;
    let mut command = Command::new(&agent);
    command.arg("run");
    let names_events = |arg: &String| arg == "--events" || arg.starts_with("--events=");
    if !args.agent.iter().any(names_events) {
        command.args(["--events", "-"]);
    }
    let error = command.args(&args.agent).exec();
    Err(error).with_context(|| format!("could not start {}", agent.display()))
}
