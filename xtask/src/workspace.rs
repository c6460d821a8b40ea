//! The checkout and the paths in its target directory.

use std::{
    env,
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use crate::process;

/// Environment variable that passes the eBPF object to the agent's build script.
pub(crate) const OBJECT_VARIABLE: &str = "DETECTOR_EBPF_OBJECT";

/// The checkout that the tasks work on.
pub(crate) struct Workspace {
    root: PathBuf,
    target: PathBuf,
}

impl Workspace {
    /// Finds the checkout and its target directory.
    pub(crate) fn locate() -> Result<Self> {
        // `cargo run` sets the variable; the compile-time value may be that of another checkout
        // when the target directory is shared.
        let manifest_dir = env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let root = manifest_dir
            .parent()
            .with_context(|| format!("{} has no parent directory", manifest_dir.display()))?
            .to_path_buf();
        let metadata = process::output(
            Command::new(host_cargo())
                .args(["metadata", "--no-deps", "--format-version", "1"])
                .current_dir(&root),
        )?;
        let metadata: serde_json::Value =
            serde_json::from_str(&metadata).context("`cargo metadata` did not print JSON")?;
        let target = metadata["target_directory"]
            .as_str()
            .context("`cargo metadata` printed no target directory")?
            .into();
        Ok(Self { root, target })
    }

    /// The directory of the workspace's Cargo.toml.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Cargo's target directory (`target`, unless configured otherwise).
    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// Install root of the tools for this checkout.
    pub(crate) fn tools(&self) -> PathBuf {
        self.target.join("tools")
    }

    /// Target directory of the eBPF build: a separate one, so that it never waits for cargo's lock.
    pub(crate) fn ebpf_target(&self) -> PathBuf {
        self.target.join("ebpf")
    }

    /// A cargo command of the current toolchain, in the checkout.
    pub(crate) fn cargo(&self) -> Command {
        self.program(host_cargo())
    }

    /// A program, in the checkout, without the variables that `cargo run` set for this process.
    pub(crate) fn program(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root);
        // `cargo run` added its own library directories; a nested cargo sets what it needs.
        command.env_remove("LD_LIBRARY_PATH");
        for (variable, _) in env::vars_os() {
            if describes_this_package(&variable.to_string_lossy()) {
                command.env_remove(&variable);
            }
        }
        command
    }
}

/// Whether `cargo run` sets the variable for this package. Build scripts that ask cargo to watch such variables (that of ring) would run
/// again, and everything that depends on them would be compiled again, whenever tasks and plain cargo commands alternate.
fn describes_this_package(variable: &str) -> bool {
    ["CARGO_PKG_", "CARGO_MANIFEST_"]
        .iter()
        .any(|prefix| variable.starts_with(prefix))
}

fn host_cargo() -> OsString {
    env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}
