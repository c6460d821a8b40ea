//! Cargo subcommands that `lint` and `release` use, installed for this checkout only.

use std::path::PathBuf;

use anyhow::Result;

use crate::{
    host::{find_program, is_executable},
    process,
    workspace::Workspace,
};

/// A program that `cargo install` provides.
pub(crate) struct Tool {
    /// Crate and executable.
    name: &'static str,
    /// The version that `setup` installs.
    version: &'static str,
}

/// Checks licences, sources and banned dependencies.
pub(crate) const DENY: Tool = Tool {
    name: "cargo-deny",
    version: "0.20.2",
};

/// Finds unused dependencies.
pub(crate) const MACHETE: Tool = Tool {
    name: "cargo-machete",
    version: "0.9.2",
};

/// Writes the software bill of materials.
pub(crate) const CYCLONEDX: Tool = Tool {
    name: "cargo-cyclonedx",
    version: "0.5.9",
};

impl Tool {
    /// Name of the crate and the executable.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// The executable: the one installed for this checkout, or the one in PATH.
    pub(crate) fn find(&self, workspace: &Workspace) -> Option<PathBuf> {
        Some(workspace.tool(self.name))
            .filter(|path| is_executable(path))
            .or_else(|| find_program(self.name))
    }

    /// Installs it into `target/tools`, unoptimised: it runs for seconds, optimising it takes minutes.
    pub(crate) fn install(&self, workspace: &Workspace) -> Result<()> {
        process::run(
            workspace
                .cargo()
                .args(["install", self.name, "--version", self.version, "--locked"])
                .arg("--debug")
                .arg("--root")
                .arg(workspace.tools())
                .env("CARGO_PROFILE_DEV_DEBUG", "0")
                .env_remove("CARGO_TARGET_DIR"),
        )
    }

    /// The command that installs it for the user.
    pub(crate) fn install_command(&self) -> String {
        format!(
            "cargo install {} --version {} --locked",
            self.name, self.version
        )
    }
}
