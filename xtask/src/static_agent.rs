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
    compiler::{self, Candidate},
    ebpf, linker, process,
    requirements::MissingDependency,
    source_paths,
    workspace::{OBJECT_VARIABLE, Workspace},
};

/// Compiles the eBPF programs and these executables, each of the package of its name; returns the directory that contains them. They
/// have no debug information.
///
/// # Errors
/// No compiler has the standard library of the architecture or its source, or an executable does not compile.
pub(crate) fn build(
    workspace: &Workspace,
    architecture: Architecture,
    profile: Profile,
    executables: &[&str],
) -> Result<PathBuf> {
    let object = ebpf::build_for(workspace, architecture.rust_name())?;
    let mut command = cargo(workspace, "build", architecture, executables)?;
    command.args(profile.flag()).env(OBJECT_VARIABLE, object);
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
    let toolchain = Toolchain::find(workspace)?;
    let target = architecture.target();
    let mut command = toolchain.cargo(workspace, &target)?;
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
        .env(
            "CARGO_ENCODED_RUSTFLAGS",
            flags(workspace, architecture, toolchain.rustc())?,
        );
    Ok(command)
}

/// The compiler of a release: the same one for all architectures.
enum Toolchain {
    /// The current one, which has the standard library of every architecture.
    Current,
    /// One with the library's source, from which a missing standard library is built.
    WithSource(Candidate),
}

impl Toolchain {
    fn find(workspace: &Workspace) -> Result<Self> {
        let rustc = Path::new("rustc");
        let has_library =
            |architecture: Architecture| has_standard_library(rustc, &architecture.target());
        if Architecture::ALL.into_iter().all(has_library) {
            return Ok(Self::Current);
        }
        // The compiler of the eBPF programs, whose choice depends on their linker; `lint` works without the linker.
        let linker = linker::find(workspace).map_or(Some(linker::LLVM), |linker| linker.llvm);
        let compiler = compiler::find(linker).map_err(MissingDependency::from)?;
        Ok(Self::WithSource(compiler))
    }

    fn cargo(&self, workspace: &Workspace, target: &str) -> Result<Command> {
        let Self::WithSource(compiler) = self else {
            return Ok(workspace.cargo());
        };
        let mut command = compiler.cargo_command(workspace)?;
        if !has_standard_library(&compiler.rustc, target) {
            compiler.allow_unstable_options(&mut command);
            command.args(["-Z", "build-std=std,panic_unwind"]);
        }
        Ok(command)
    }

    fn rustc(&self) -> &Path {
        match self {
            Self::Current => Path::new("rustc"),
            Self::WithSource(compiler) => &compiler.rustc,
        }
    }
}

fn has_standard_library(rustc: &Path, target: &str) -> bool {
    process::try_output(
        Command::new(rustc)
            .args(["--print", "target-libdir", "--target"])
            .arg(target),
    )
    .is_some_and(|directory| Path::new(directory.trim_end()).is_dir())
}

/// Compiler flags in the format of `CARGO_ENCODED_RUSTFLAGS`.
fn flags(workspace: &Workspace, architecture: Architecture, rustc: &Path) -> Result<OsString> {
    let mut flags: Vec<OsString> = vec![
        "-Ctarget-feature=+crt-static".into(),
        format!("-Clinker={}", architecture.c_compiler()).into(),
        "-Cstrip=debuginfo".into(),
    ];
    flags.extend(source_paths::remap_flags(workspace, rustc)?);
    Ok(flags.join("\x1f".as_ref()))
}
