//! Builds the eBPF programs into `target/ebpf/detector-ebpf.o`.
//!
//! The build uses its own compiler, target and target directory. Environment variables that cargo or
//! rustup set for this process must not reach it.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};
use object::{
    build::elf::{Builder, Section, SectionData},
    elf,
};

use crate::{process, source_paths, toolchain, workspace::Workspace};

/// Package and binary of the eBPF programs.
const PACKAGE: &str = "detector-ebpf";

/// Binary of the program that tests and benchmarks compare with; the agent's build script expects it beside the object.
const EMPTY: &str = "detector-ebpf-empty";

/// Little-endian BPF: all supported machines are little-endian.
const TARGET: &str = "bpfel-unknown-none";

/// The architecture whose `pt_regs` the programs could read. None does, so the object is the same for all architectures: the byte
/// code is for every little-endian machine, and offsets in kernel structs are set when the programs are loaded. A kprobe would
/// read them, and need an object for each architecture.
const REGISTERS: &str = "x86_64";

/// Compiles the eBPF programs and returns the path of the object.
///
/// # Errors
/// The programs do not compile.
pub(crate) fn build(workspace: &Workspace) -> Result<PathBuf> {
    let target = workspace.ebpf_target();
    process::run(&mut command(workspace)?).context("the eBPF programs did not compile")?;
    let built = target.join(TARGET).join("release");
    let object = target.join("detector-ebpf.o");
    install(&built.join(EMPTY), &empty_object(&object))?;
    install(&built.join(PACKAGE), &object)?;
    Ok(object)
}

/// As [`build`], but returns the object of the program that tests and benchmarks compare with.
///
/// # Errors
/// As [`build`].
pub(crate) fn build_empty(workspace: &Workspace) -> Result<PathBuf> {
    Ok(empty_object(&build(workspace)?))
}

/// The object of the empty program, next to that of the agent's programs.
fn empty_object(object: &Path) -> PathBuf {
    object.with_file_name(EMPTY).with_extension("o")
}

fn command(workspace: &Workspace) -> Result<Command> {
    let mut command = toolchain::cargo(workspace);
    command
        .args(["build", "--release", "--package", PACKAGE, "--bins"])
        .args(["--target", TARGET, "--target-dir"])
        .arg(workspace.ebpf_target())
        .env(
            "CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER",
            toolchain::linker(workspace),
        )
        .env("CARGO_ENCODED_RUSTFLAGS", encoded_flags(workspace)?)
        // bpf-linker links bitcode and optimises the program itself.
        .env("CARGO_PROFILE_RELEASE_LTO", "off");
    toolchain::build_library(&mut command, "core");
    Ok(command)
}

/// Compiler flags in the format of `CARGO_ENCODED_RUSTFLAGS`.
///
/// Debug information becomes BTF, which maps and `tp_btf` programs need, and which names source files.
fn encoded_flags(workspace: &Workspace) -> Result<OsString> {
    let mut flags: Vec<OsString> = vec![
        format!("--cfg=bpf_target_arch=\"{REGISTERS}\"").into(),
        "-Cdebuginfo=2".into(),
        "-Clink-arg=--btf".into(),
    ];
    flags.extend(source_paths::remap_flags(workspace, &toolchain::rustc())?);
    Ok(flags.join("\x1f".as_ref()))
}

fn install(from: &Path, to: &Path) -> Result<()> {
    let built =
        fs::read(from).with_context(|| format!("the build did not produce {}", from.display()))?;
    let stripped = without_dwarf(&built)
        .with_context(|| format!("could not strip debug information from {}", from.display()))?;
    write_if_changed(&stripped, to)
}

/// Removes DWARF, most of the object's size, which the compiler writes in addition to the BTF that the kernel needs.
fn without_dwarf(built: &[u8]) -> Result<Vec<u8>> {
    let mut object = Builder::read(built)?;
    for section in object.sections.iter_mut() {
        section.delete |=
            section.name.starts_with(b".debug") || section.name.starts_with(b".rel.debug");
    }
    // LLVM writes one string table for symbols and sections; the builder needs a second one.
    let has_names = |section: &Section<'_>| matches!(section.data, SectionData::SectionString);
    if !object.sections.iter().any(has_names) {
        let names = object.sections.add();
        names.name = b".shstrtab"[..].into();
        names.sh_type = elf::SHT_STRTAB;
        names.sh_addralign = 1;
        names.data = SectionData::SectionString;
    }
    object.delete_orphans();
    let mut stripped = Vec::new();
    object.write(&mut stripped)?;
    Ok(stripped)
}

/// Does not touch an equal target, so that cargo does not rebuild the agent.
fn write_if_changed(object: &[u8], to: &Path) -> Result<()> {
    if fs::read(to).is_ok_and(|present| present == object) {
        return Ok(());
    }
    // Rename is atomic: a concurrent agent build never reads a partial object.
    let partial = to.with_extension("partial");
    fs::write(&partial, object)
        .and_then(|()| fs::rename(&partial, to))
        .with_context(|| format!("could not write {}", to.display()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn unchanged_object_is_not_rewritten() {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("object.o");
        let modified = || fs::metadata(&to).unwrap().modified().unwrap();

        write_if_changed(b"one", &to).unwrap();
        let first = modified();
        write_if_changed(b"one", &to).unwrap();
        assert_eq!(modified(), first);

        write_if_changed(b"two", &to).unwrap();
        assert_eq!(fs::read_to_string(&to).unwrap(), "two");
    }

    #[test]
    fn missing_build_output_is_named() {
        let error = install(Path::new("/nonexistent/object"), Path::new("/tmp/x")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the build did not produce /nonexistent/object"
        );
    }

    #[cfg(feature = "privileged-tests")]
    #[test]
    fn object_does_not_contain_paths_of_this_machine() {
        let workspace = Workspace::locate().unwrap();
        let object = fs::read(build(&workspace).unwrap()).unwrap();
        let text = String::from_utf8_lossy(&object);
        assert!(text.contains("/src/detector-ebpf/src/"));
        for path in source_paths::of_this_machine(&workspace) {
            assert!(!text.contains(path.to_str().unwrap()), "{path:?}");
        }
    }
}
