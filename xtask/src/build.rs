//! `build`: the agent with the kernel programs inside.

use std::path::PathBuf;

use anyhow::Result;

use crate::{
    ebpf, process,
    requirements::Group,
    say::say,
    setup,
    workspace::{OBJECT_VARIABLE, Workspace},
};

/// Package and binary of the agent.
pub(crate) const AGENT: &str = "detector-agent";

/// How the agent is compiled; the kernel programs are always optimised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    /// Unoptimised.
    Debug,
    /// Optimised.
    Release,
}

impl Profile {
    /// The profile that the command line's `--debug` asks for.
    pub(crate) fn from_debug_flag(debug: bool) -> Self {
        if debug { Self::Debug } else { Self::Release }
    }

    /// What cargo is told of it.
    pub(crate) fn flag(self) -> Option<&'static str> {
        (self == Self::Release).then_some("--release")
    }

    fn folder(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Release => "release",
        }
    }
}

/// Builds and says where the agent is.
pub(crate) fn run(workspace: &Workspace, profile: Profile) -> Result<()> {
    let agent = agent(workspace, profile)?;
    say(agent.display())?;
    Ok(())
}

/// Builds everything that the agent consists of and returns the path of its executable.
pub(crate) fn agent(workspace: &Workspace, profile: Profile) -> Result<PathBuf> {
    setup::ensure(workspace, &[Group::Build])?;
    let object = ebpf::build(workspace)?;
    let mut command = workspace.cargo();
    command
        .args(["build", "--package", AGENT, "--bin", AGENT])
        .args(profile.flag())
        .env(OBJECT_VARIABLE, object);
    process::run(&mut command)?;
    Ok(workspace.target().join(profile.folder()).join(AGENT))
}
