//! The compiler and the linker of the eBPF programs. The compiler also builds releases.
//!
//! No prebuilt `core` exists for `bpfel-unknown-none`; it is built from the library source of exactly the compiler in use.
//! rustup has that source only for its own compilers and from a server of its own, Debian as packages.

use std::{env, ffi::OsStr, path::PathBuf, process::Command};

use crate::{tools::LINKER, workspace::Workspace};

/// Debian's packages of the compiler, its cargo and its library source.
pub(crate) const COMPILER_PACKAGES: &[&str] = &["rustc-web", "cargo-web", "rust-web-src"];

/// Debian's packages that the linker is built with.
pub(crate) const LINKER_PACKAGES: &[&str] = &["llvm-22-dev", "libpolly-22-dev"];

/// Environment variables that select another compiler, with its cargo beside it, and another linker.
const COMPILER_VARIABLE: &str = "DETECTOR_BPF_RUSTC";
const LINKER_VARIABLE: &str = "DETECTOR_BPF_LINKER";

/// What to do where [`COMPILER_PACKAGES`] and [`LINKER_PACKAGES`] do not exist.
pub(crate) const ELSEWHERE: &str = "on a system other than Debian 12, install a nightly Rust with rust-src and a bpf-linker, and set \
     DETECTOR_BPF_RUSTC to the output of `rustup which --toolchain nightly rustc` and DETECTOR_BPF_LINKER to the path of bpf-linker";

/// Names, or starts of them, of environment variables that cargo and rustup set for this process or that would change how the
/// programs are compiled.
const NOT_INHERITED: [&str; 11] = [
    "CARGO_BUILD_",
    "CARGO_ENCODED_",
    "CARGO_MANIFEST_",
    "CARGO_PKG_",
    "CARGO_PROFILE_",
    "CARGO_TARGET_",
    "LD_LIBRARY_PATH",
    "RUSTC",
    "RUSTDOC",
    "RUSTFLAGS",
    "RUSTUP_TOOLCHAIN",
];

/// The compiler.
pub(crate) fn rustc() -> PathBuf {
    env::var_os(COMPILER_VARIABLE).map_or_else(|| "/usr/bin/rustc".into(), PathBuf::from)
}

/// The linker.
pub(crate) fn linker(workspace: &Workspace) -> PathBuf {
    env::var_os(LINKER_VARIABLE).map_or_else(|| LINKER.path(workspace), PathBuf::from)
}

/// The compiler's cargo, in the checkout.
pub(crate) fn cargo(workspace: &Workspace) -> Command {
    let rustc = rustc();
    let mut command = Command::new(rustc.with_file_name("cargo"));
    for (variable, _) in env::vars_os().filter(|(variable, _)| !is_inherited(variable)) {
        command.env_remove(variable);
    }
    command.current_dir(workspace.root()).env("RUSTC", rustc);
    command
}

/// Lets [`cargo`], also that of a stable compiler, build these crates of the standard library.
pub(crate) fn build_library<'c>(command: &'c mut Command, crates: &str) -> &'c mut Command {
    command
        .arg("-Z")
        .arg(format!("build-std={crates}"))
        .env("RUSTC_BOOTSTRAP", "1")
}

/// Whether an environment variable replaces the package or program of this name.
pub(crate) fn is_replaced(name: &str) -> bool {
    let is_set = |variable| env::var_os(variable).is_some();
    (COMPILER_PACKAGES.contains(&name) && is_set(COMPILER_VARIABLE))
        || ((LINKER_PACKAGES.contains(&name) || name == LINKER.name) && is_set(LINKER_VARIABLE))
}

fn is_inherited(variable: &OsStr) -> bool {
    let name = variable.to_string_lossy();
    name != "CARGO" && !NOT_INHERITED.iter().any(|start| name.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_the_outer_cargo_are_not_inherited() {
        for name in ["CARGO", "CARGO_PROFILE_RELEASE_LTO", "RUSTC_WRAPPER"] {
            assert!(!is_inherited(name.as_ref()), "{name}");
        }
        for name in ["CARGO_HOME", "CARGO_NET_OFFLINE", "HTTPS_PROXY"] {
            assert!(is_inherited(name.as_ref()), "{name}");
        }
    }
}
