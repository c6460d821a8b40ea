//! `run`: the freshly built agent on this node with its events on stdout, or the demo.

use std::{os::unix::process::CommandExt as _, process::Command};

use anyhow::{Context as _, Result};

use crate::{
    build::{self, Profile},
    demo::{self, Pace},
    workspace::Workspace,
};

/// Arguments of `run`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Show a conflict on a node made of network namespaces, and remove everything again
    #[arg(long, conflicts_with = "agent")]
    demo: bool,
    /// With --demo: end by itself, as it does without a terminal
    #[arg(long, requires = "demo")]
    once: bool,
    /// Passed on to `detector-agent run`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    agent: Vec<String>,
}

/// Builds the agent and becomes it, so that signals and the exit code are the agent's own.
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    if args.demo {
        return demo::run(workspace, Pace::new(args.once));
    }
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
