//! `build`: the agent with the eBPF programs embedded.

use std::path::PathBuf;

use anyhow::Result;

use crate::{
    architecture::Architecture,
    ebpf, process, setup, static_agent,
    stdout::print_line,
    test,
    workspace::{OBJECT_VARIABLE, Workspace},
};

/// Package and binary of the agent.
pub(crate) const AGENT: &str = "detector-agent";

/// An integration test of the workspace that is quickly linked.
const SMALL_TEST: &str = "namespaces";

/// Package and binary of the kubectl plugin.
pub(crate) const PLUGIN: &str = "kubectl-ipconflict";

/// Cargo profile of the agent; the eBPF programs are always optimised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    /// Unoptimised, with the packages and features of the tests: what they compiled is used, and the other way round.
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

    /// Its directory in the target directory.
    pub(crate) fn subdir(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Release => "release",
        }
    }
}

/// Builds the agent and prints its path.
pub(crate) fn run(workspace: &Workspace, profile: Profile, is_static: bool) -> Result<()> {
    let agent = if is_static {
        setup::ensure(workspace, &[setup::BUILD])?;
        let here = Architecture::of_this_machine()?;
        static_agent::build(workspace, here, profile, &[AGENT])?.join(AGENT)
    } else {
        agent(workspace, profile)?
    };
    print_line(agent.display())
}

/// An executable of the workspace.
pub(crate) struct Binary {
    pub(crate) package: &'static str,
    pub(crate) name: &'static str,
}

impl Binary {
    /// Its path.
    pub(crate) fn path(&self, workspace: &Workspace, profile: Profile) -> PathBuf {
        workspace.target().join(profile.subdir()).join(self.name)
    }
}

/// The agent as an executable.
pub(crate) const AGENT_BINARY: Binary = Binary {
    package: AGENT,
    name: AGENT,
};

/// The kubectl plugin as an executable.
pub(crate) const PLUGIN_BINARY: Binary = Binary {
    package: PLUGIN,
    name: PLUGIN,
};

/// Builds the eBPF programs and the agent; returns the path of the executable.
pub(crate) fn agent(workspace: &Workspace, profile: Profile) -> Result<PathBuf> {
    binaries(workspace, profile, &[AGENT_BINARY])?;
    Ok(AGENT_BINARY.path(workspace, profile))
}

/// Builds the eBPF programs and executables of the workspace; returns the path of the programs' object.
pub(crate) fn binaries(
    workspace: &Workspace,
    profile: Profile,
    binaries: &[Binary],
) -> Result<PathBuf> {
    setup::ensure(workspace, &[setup::BUILD])?;
    let object = ebpf::build(workspace)?;
    let mut command = workspace.cargo();
    command
        .arg("build")
        .args(profile.flag())
        .env(OBJECT_VARIABLE, &object);
    match profile {
        Profile::Debug => {
            test::select_packages(&mut command)
                // With a test among the targets, cargo adds the features of dev-dependencies, as for `test`.
                .args(["--test", SMALL_TEST]);
        }
        Profile::Release => {
            for binary in binaries {
                command.args(["--package", binary.package]);
            }
        }
    }
    for binary in binaries {
        command.args(["--bin", binary.name]);
    }
    process::run(&mut command)?;
    Ok(object)
}
