//! `build`: the agent with the eBPF programs embedded.

use std::path::PathBuf;

use anyhow::Result;

use crate::{
    ebpf, process,
    requirements::Group,
    setup,
    stdout::print_line,
    workspace::{OBJECT_VARIABLE, Workspace},
};

/// Package and binary of the agent.
pub(crate) const AGENT: &str = "detector-agent";

/// Cargo profile of the agent; the eBPF programs are always optimised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    /// Unoptimised.
    Debug,
    /// Optimised.
    Release,
}

impl Profile {
    /// The profile that a `--debug` flag selects.
    pub(crate) fn from_debug_flag(debug: bool) -> Self {
        if debug { Self::Debug } else { Self::Release }
    }

    /// Cargo's flag for the profile, if it needs one.
    pub(crate) fn flag(self) -> Option<&'static str> {
        (self == Self::Release).then_some("--release")
    }

    fn target_subdir(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Release => "release",
        }
    }
}

/// Builds the agent and prints its path.
pub(crate) fn run(workspace: &Workspace, profile: Profile) -> Result<()> {
    let agent = agent(workspace, profile)?;
    print_line(agent.display())
}

/// Builds the eBPF programs and the agent; returns the path of the executable.
pub(crate) fn agent(workspace: &Workspace, profile: Profile) -> Result<PathBuf> {
    setup::ensure(workspace, &[Group::Build])?;
    let object = ebpf::build(workspace)?;
    let mut command = workspace.cargo();
    command
        .args(["build", "--package", AGENT, "--bin", AGENT])
        .args(profile.flag())
        .env(OBJECT_VARIABLE, object);
    process::run(&mut command)?;
    Ok(workspace.target().join(profile.target_subdir()).join(AGENT))
}
