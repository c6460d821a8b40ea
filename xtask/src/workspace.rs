//! Where things are: the checkout, its target directory, and what the tasks leave there.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use crate::process;

/// Environment variable that hands the eBPF object to the agent's build script.
pub(crate) const OBJECT_VARIABLE: &str = "DETECTOR_EBPF_OBJECT";

/// The checkout that the tasks work on.
pub(crate) struct Workspace {
    root: PathBuf,
    target: PathBuf,
}

impl Workspace {
    /// Finds the checkout and asks cargo for its target directory.
    pub(crate) fn locate() -> Result<Self> {
        // Cargo sets the variable at run time, which is right even for a binary built elsewhere.
        let manifest = env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let root = manifest
            .parent()
            .with_context(|| format!("{} has no parent folder", manifest.display()))?
            .to_path_buf();
        let metadata = process::output(
            host_cargo()
                .args(["metadata", "--no-deps", "--format-version", "1"])
                .current_dir(&root),
        )?;
        let metadata: serde_json::Value =
            serde_json::from_str(&metadata).context("`cargo metadata` did not print JSON")?;
        let target = metadata["target_directory"]
            .as_str()
            .context("`cargo metadata` names no target directory")?
            .into();
        Ok(Self { root, target })
    }

    /// The folder that holds the workspace's Cargo.toml.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Cargo's target directory (`target`, unless configured otherwise).
    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// Root of the tools that `setup` installs for this checkout alone.
    pub(crate) fn tools(&self) -> PathBuf {
        self.target.join("tools")
    }

    /// Path of a tool that `setup` or `lint` installs.
    pub(crate) fn tool(&self, name: &str) -> PathBuf {
        self.tools().join("bin").join(name)
    }

    /// Target directory of the eBPF build: its own, so that it never waits for cargo's lock.
    pub(crate) fn ebpf_target(&self) -> PathBuf {
        self.target.join("ebpf")
    }

    /// The eBPF object that agent builds embed.
    pub(crate) fn ebpf_object(&self) -> PathBuf {
        self.ebpf_target().join("detector-ebpf.o")
    }

    /// A cargo command of the toolchain that runs this task, in the checkout.
    pub(crate) fn cargo(&self) -> Command {
        let mut command = host_cargo();
        command.current_dir(&self.root);
        // `cargo run` adds its own library folders; a nested cargo sets what it needs itself.
        command.env_remove("LD_LIBRARY_PATH");
        command
    }
}

fn host_cargo() -> Command {
    Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")))
}
