//! Building the kernel programs into `target/ebpf/detector-ebpf.o`.
//!
//! This is a build of its own: another compiler, another target, another target directory. Nothing
//! that cargo or rustup set for the task's own process may reach it.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use crate::{
    compiler::{self, Candidate},
    linker::{self, Linker},
    process,
    requirements::Missing,
    workspace::Workspace,
};

/// Package and binary of the kernel programs.
const PACKAGE: &str = "detector-ebpf";

/// The kernel's instruction set, in the byte order of the machines that the agent supports.
const TARGET: &str = "bpfel-unknown-none";

/// Variables that would send the nested cargo to another toolchain or other options.
const FOREIGN_VARIABLES: &[&str] = &[
    "CARGO",
    "CARGO_BUILD_RUSTC",
    "CARGO_BUILD_RUSTC_WRAPPER",
    "CARGO_BUILD_RUSTFLAGS",
    "CARGO_BUILD_TARGET",
    "CARGO_ENCODED_RUSTFLAGS",
    "CARGO_TARGET_DIR",
    "LD_LIBRARY_PATH",
    "RUSTC",
    "RUSTC_BOOTSTRAP",
    "RUSTC_WORKSPACE_WRAPPER",
    "RUSTC_WRAPPER",
    "RUSTDOC",
    "RUSTFLAGS",
    "RUSTUP_TOOLCHAIN",
    "RUST_RECURSION_COUNT",
];

/// Compiles the kernel programs and returns the path of the object.
///
/// # Errors
/// Compiler or linker is missing (the message names the fix), or the programs do not compile.
pub(crate) fn build(workspace: &Workspace) -> Result<PathBuf> {
    let linker = linker::find(workspace).map_err(Missing::from)?;
    let compiler = compiler::find(linker.llvm).map_err(Missing::from)?;
    process::run(&mut command(workspace, &compiler, &linker)?)
        .context("the kernel programs did not compile")?;
    let built = workspace
        .ebpf_target()
        .join(TARGET)
        .join("release")
        .join(PACKAGE);
    let object = workspace.ebpf_object();
    copy_if_changed(&built, &object)?;
    Ok(object)
}

fn command(workspace: &Workspace, compiler: &Candidate, linker: &Linker) -> Result<Command> {
    let cargo = compiler
        .cargo
        .as_ref()
        .context("the chosen compiler has no cargo beside it")?;
    let mut command = Command::new(cargo);
    for variable in FOREIGN_VARIABLES {
        command.env_remove(variable);
    }
    // Options of the profile and the target come from here alone.
    for (variable, _) in env::vars_os() {
        let name = variable.to_string_lossy();
        if ["CARGO_PROFILE_", "CARGO_TARGET_BPF", "CARGO_PKG_"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
        {
            command.env_remove(&variable);
        }
    }
    command
        .current_dir(workspace.root())
        .args(["build", "--release", "--package", PACKAGE, "--bin", PACKAGE])
        .args(["--target", TARGET, "-Z", "build-std=core", "--target-dir"])
        .arg(workspace.ebpf_target())
        .env("RUSTC", &compiler.rustc)
        .env("CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER", &linker.path)
        .env("CARGO_ENCODED_RUSTFLAGS", flags(env::consts::ARCH))
        // bpf-linker links bitcode and optimises the whole program itself.
        .env("CARGO_PROFILE_RELEASE_LTO", "off");
    if compiler.needs_bootstrap() {
        command.env("RUSTC_BOOTSTRAP", "1");
    }
    Ok(command)
}

/// Compiler flags, separated as `CARGO_ENCODED_RUSTFLAGS` wants them.
///
/// Debug information becomes BTF, which maps and `tp_btf` programs need; the architecture decides
/// how the kernel's registers are laid out, and is the machine's that the agent is built on.
fn flags(arch: &str) -> OsString {
    [
        format!("--cfg=bpf_target_arch=\"{arch}\""),
        "-Cdebuginfo=2".to_owned(),
        "-Clink-arg=--btf".to_owned(),
    ]
    .join("\x1f")
    .into()
}

/// Leaves an equal target alone, so that the agent is not built again for nothing.
fn copy_if_changed(from: &Path, to: &Path) -> Result<()> {
    let built =
        fs::read(from).with_context(|| format!("the build left no {} behind", from.display()))?;
    if fs::read(to).is_ok_and(|present| present == built) {
        return Ok(());
    }
    // Renamed into place: an agent build that runs meanwhile never sees half an object.
    let partial = to.with_extension("partial");
    fs::write(&partial, built)
        .and_then(|()| fs::rename(&partial, to))
        .with_context(|| format!("could not write {}", to.display()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn an_unchanged_object_is_not_written_again() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("built"), folder.path().join("object.o"));
        let modified = || fs::metadata(&to).unwrap().modified().unwrap();

        fs::write(&from, "one").unwrap();
        copy_if_changed(&from, &to).unwrap();
        let first = modified();
        copy_if_changed(&from, &to).unwrap();
        assert_eq!(modified(), first);

        fs::write(&from, "two").unwrap();
        copy_if_changed(&from, &to).unwrap();
        assert_eq!(fs::read_to_string(&to).unwrap(), "two");
    }

    #[test]
    fn a_build_that_left_nothing_is_named() {
        let error =
            copy_if_changed(Path::new("/nonexistent/object"), Path::new("/tmp/x")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the build left no /nonexistent/object behind"
        );
    }
}
