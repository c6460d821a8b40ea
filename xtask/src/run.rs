//! `run`: starts the freshly built agent on this node with events on stdout, or the demo.

use std::{os::unix::process::CommandExt as _, process::Command};

use anyhow::{Context as _, Result};

use crate::{
    build::{self, Profile},
    demo::{self, DemoMode},
    workspace::Workspace,
};

/// Arguments of `run`.
#[derive(clap::Args)]
pub(crate) struct RunOptions {
    /// Demonstrate one conflict on a node simulated with network namespaces, then clean up
    #[arg(long, conflicts_with = "agent_args")]
    demo: bool,
    /// With --demo: do not wait for a key; the default without a terminal
    #[arg(long, requires = "demo")]
    once: bool,
    /// With --demo: optimise the agent, which takes minutes more to build, and show its real latency
    #[arg(long, requires = "demo")]
    release: bool,
    /// Arguments for `detector-agent run`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    agent_args: Vec<String>,
}

/// Builds the agent and replaces this process with it, so that signals and the exit code are the agent's.
pub(crate) fn run(workspace: &Workspace, options: &RunOptions) -> Result<()> {
    if options.demo {
        let profile = Profile::from_debug_flag(!options.release);
        return demo::run(workspace, DemoMode::new(options.once), profile);
    }
    let agent = build::agent(workspace, Profile::Release)?;
    let mut command = Command::new(&agent);
    command.arg("run");
    let sets_events = |arg: &String| arg == "--events" || arg.starts_with("--events=");
    if !options.agent_args.iter().any(sets_events) {
        command.args(["--events", "-"]);
    }
    let error = command.args(&options.agent_args).exec();
    Err(error).with_context(|| format!("could not start {}", agent.display()))
}
