//! Builds static executables for any [`Architecture`]: the agent as the image contains it, and what else a release contains.
//!
//! They are linked with glibc, whose allocator the agent's memory bounds were measured with, and need no file of the system
//! they run on.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use crate::{
    architecture::Architecture,
    build::{AGENT, Profile},
    ebpf, process, source_paths, toolchain,
    workspace::{OBJECT_VARIABLE, Workspace},
};

/// Compiles the eBPF programs and these executables, each of the package of its name; returns the directory that contains them. They
/// have no debug information.
///
/// # Errors
/// An executable does not compile.
pub(crate) fn build(
    workspace: &Workspace,
    architecture: Architecture,
    profile: Profile,
    executables: &[&str],
) -> Result<PathBuf> {
    let object = ebpf::build(workspace)?;
    let mut command = cargo(workspace, "build", architecture, executables)?;
    command.args(profile.flag()).env(OBJECT_VARIABLE, object);
    // Without git, or outside of a checkout, the version does not name it.
    let mut git = Command::new("git");
    git.current_dir(workspace.root());
    git.args([
        "describe",
        "--always",
        "--dirty",
        "--exclude=*",
        "--abbrev=12",
    ]);
    if let Ok(commit) = process::output(&mut git) {
        command.env("IPCONFLICT_COMMIT", commit.trim_end());
    }
    process::run(&mut command)
        .with_context(|| format!("{executables:?} for {} not built", architecture.name()))?;
    Ok(target_dir(workspace)
        .join(architecture.target())
        .join(profile.subdir()))
}

/// A command that type-checks the agent without the eBPF programs.
///
/// # Errors
/// As [`build`].
pub(crate) fn check(workspace: &Workspace, architecture: Architecture) -> Result<Command> {
    cargo(workspace, "check", architecture, &[AGENT])
}

fn target_dir(workspace: &Workspace) -> PathBuf {
    workspace.target().join("static")
}

fn cargo(
    workspace: &Workspace,
    subcommand: &str,
    architecture: Architecture,
    executables: &[&str],
) -> Result<Command> {
    let target = architecture.target();
    let mut command = toolchain::cargo(workspace);
    command
        .args([subcommand, "--locked"])
        .args(
            executables
                .iter()
                .flat_map(|name| ["--package", name, "--bin", name]),
        )
        .args(["--target", &target, "--target-dir"])
        .arg(target_dir(workspace))
        // With `--target`, these flags do not reach build scripts and procedural macros, which cannot be static.
        .env("CARGO_ENCODED_RUSTFLAGS", flags(workspace, architecture)?);
    if !has_standard_library(&target) {
        toolchain::build_library(&mut command, "std,panic_unwind");
    }
    Ok(command)
}

fn has_standard_library(target: &str) -> bool {
    process::try_output(
        Command::new(toolchain::rustc())
            .args(["--print", "target-libdir", "--target"])
            .arg(target),
    )
    .is_some_and(|directory| Path::new(directory.trim_end()).is_dir())
}

/// Compiler flags in the format of `CARGO_ENCODED_RUSTFLAGS`.
fn flags(workspace: &Workspace, architecture: Architecture) -> Result<OsString> {
    let mut flags: Vec<OsString> = vec![
        "-Ctarget-feature=+crt-static".into(),
        format!("-Clinker={}", architecture.c_compiler()).into(),
        "-Cstrip=debuginfo".into(),
    ];
    flags.extend(source_paths::remap_flags(workspace, &toolchain::rustc())?);
    Ok(flags.join("\x1f".as_ref()))
}
