//! Cargo's helpers that `lint` uses, installed for this checkout alone.

use std::path::PathBuf;

use anyhow::Result;

use crate::{
    host::{find_program, is_executable},
    process,
    workspace::Workspace,
};

/// A program that `cargo install` brings.
pub(crate) struct Tool {
    /// Crate and executable.
    name: &'static str,
    /// The version that `setup` installs.
    version: &'static str,
}

/// Checks licences, sources and doubled dependencies.
pub(crate) const DENY: Tool = Tool {
    name: "cargo-deny",
    version: "0.20.2",
};

/// Finds dependencies that nothing uses.
pub(crate) const MACHETE: Tool = Tool {
    name: "cargo-machete",
    version: "0.9.2",
};

impl Tool {
    /// Its name, as a person calls it.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Where it is: installed for this checkout, or in PATH.
    pub(crate) fn find(&self, workspace: &Workspace) -> Option<PathBuf> {
        Some(workspace.tool(self.name))
            .filter(|path| is_executable(path))
            .or_else(|| find_program(self.name))
    }

    /// Builds it into `target/tools`, unoptimised: it runs for seconds, and optimising it takes minutes.
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

    /// The command that installs it for every checkout.
    pub(crate) fn install_command(&self) -> String {
        format!(
            "cargo install {} --version {} --locked",
            self.name, self.version
        )
    }
}
