//! Programs from crates.io, installed for this checkout only.

use std::path::PathBuf;

use anyhow::Result;

use crate::{files, process, workspace::Workspace};

/// A program that `cargo install` provides.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Tool {
    /// Crate and executable.
    pub(crate) name: &'static str,
    version: &'static str,
    features: &'static [&'static str],
}

/// Links the eBPF programs and writes their BTF. It is built with LLVM's development files, which must not be older than the
/// compiler's LLVM.
pub(crate) const LINKER: Tool = Tool {
    name: "bpf-linker",
    version: "0.13.0",
    features: &["--no-default-features", "--features", "llvm-22"],
};
const LLVM: &str = "/usr/lib/llvm-22";

/// Checks licences, sources and banned dependencies.
pub(crate) const DENY: Tool = Tool {
    name: "cargo-deny",
    version: "0.20.2",
    features: &[],
};

/// Finds unused dependencies.
pub(crate) const MACHETE: Tool = Tool {
    name: "cargo-machete",
    version: "0.9.2",
    features: &[],
};

/// Writes the software bill of materials.
pub(crate) const CYCLONEDX: Tool = Tool {
    name: "cargo-cyclonedx",
    version: "0.5.9",
    features: &[],
};

impl Tool {
    /// The executable.
    pub(crate) fn path(&self, workspace: &Workspace) -> PathBuf {
        workspace.tools().join("bin").join(self.name)
    }

    /// Whether this version is installed.
    pub(crate) fn is_installed(&self, workspace: &Workspace) -> bool {
        // Written by `cargo install`.
        let installed = files::read_text(&workspace.tools().join(".crates.toml"));
        let entry = format!("\"{} {} ", self.name, self.version);
        installed.is_ok_and(|text| text.contains(&entry)) && self.path(workspace).is_file()
    }

    /// Installs it into `target/tools`, unoptimised: it runs for seconds, optimising it takes minutes.
    pub(crate) fn install(&self, workspace: &Workspace) -> Result<()> {
        process::run(
            workspace
                .cargo()
                .args(["install", self.name, "--version", self.version])
                .args(self.features)
                .args(["--locked", "--debug", "--root"])
                .arg(workspace.tools())
                .env("CARGO_PROFILE_DEV_DEBUG", "0")
                .env("LLVM_PREFIX", LLVM)
                .env_remove("CARGO_TARGET_DIR"),
        )
    }
}
