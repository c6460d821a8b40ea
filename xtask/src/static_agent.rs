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
/// have no debug information and no symbols: the message and the place of a panic are in the log without them.
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
        "-Cstrip=symbols".into(),
    ];
    if packs_relocations(architecture) {
        flags.push("-Clink-arg=-Wl,-z,pack-relative-relocs".into());
    }
    flags.extend(source_paths::remap_flags(workspace, &toolchain::rustc())?);
    Ok(flags.join("\x1f".as_ref()))
}

/// Whether the linker can pack the 49,000 relative relocations (`DT_RELR`), and the startup code of the glibc that is linked applies
/// packed ones. Unpacked ones take 1.2 MB of the executable, all of which is read at each start.
fn packs_relocations(architecture: Architecture) -> bool {
    // binutils before 2.44 cannot for AArch64.
    architecture == Architecture::Amd64
        && process::try_output(Command::new("getconf").arg("GNU_LIBC_VERSION"))
            .is_some_and(|version| knows_packed_relocations(&version))
}

/// Of a text such as `glibc 2.36`: the first version that applies them.
fn knows_packed_relocations(glibc: &str) -> bool {
    glibc
        .trim_end()
        .strip_prefix("glibc 2.")
        .and_then(|minor| minor.parse::<u32>().ok())
        .is_some_and(|minor| minor >= 36)
}

#[cfg(test)]
mod tests {
    use super::knows_packed_relocations;

    #[test]
    fn relocations_are_packed_only_for_a_glibc_that_applies_packed_ones() {
        assert!(knows_packed_relocations("glibc 2.36\n"));
        assert!(knows_packed_relocations("glibc 2.41\n"));
        assert!(!knows_packed_relocations("glibc 2.35\n"));
        assert!(!knows_packed_relocations(""));
    }
}
