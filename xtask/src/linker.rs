//! Finding bpf-linker, and installing it for this checkout.

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::Result;

use crate::{
    host::{find_program, is_executable},
    process,
    requirements::Missing,
    workspace::Workspace,
};

/// Environment variable that names the linker to use.
pub(crate) const LINKER_VARIABLE: &str = "DETECTOR_BPF_LINKER";

/// The version that `setup` installs.
const VERSION: &str = "0.13.0";

/// The LLVM that `setup` builds the linker with; it links what compilers up to this LLVM emit.
pub(crate) const LLVM: u32 = 22;

/// Debian's packages that the linker is built against.
pub(crate) const PACKAGES: &[&str] = &["llvm-22-dev", "libpolly-22-dev"];

/// The linker for the eBPF build.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Linker {
    /// The executable.
    pub(crate) path: PathBuf,
    /// Newest LLVM whose output it reads, where known: a linker that `setup` did not build does not tell.
    pub(crate) llvm: Option<u32>,
}

/// Why there is no linker.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LinkerError {
    /// The override points nowhere.
    #[error("{LINKER_VARIABLE} names {}, which is no executable file", .0.display())]
    Override(PathBuf),
    /// None found.
    #[error("bpf-linker is neither at {} nor in PATH", .0.display())]
    Missing(PathBuf),
}

impl From<LinkerError> for Missing {
    fn from(error: LinkerError) -> Self {
        let what = error.to_string();
        match error {
            LinkerError::Override(_) => Self::misconfigured(what, LINKER_VARIABLE),
            LinkerError::Missing(_) => Self::absent(
                what,
                format!(
                    "cargo install bpf-linker --version {VERSION} --locked --no-default-features \
                     --features llvm-{LLVM} (with LLVM {LLVM}'s development files)"
                ),
            ),
        }
    }
}

/// Finds the linker: the override, then the one `setup` installed, then PATH.
pub(crate) fn find(workspace: &Workspace) -> Result<Linker, LinkerError> {
    choose(
        env::var_os(LINKER_VARIABLE).map(PathBuf::from),
        &workspace.tool("bpf-linker"),
        find_program("bpf-linker"),
    )
}

fn choose(
    named: Option<PathBuf>,
    installed: &Path,
    in_path: Option<PathBuf>,
) -> Result<Linker, LinkerError> {
    if let Some(path) = named {
        return if is_executable(&path) {
            Ok(Linker { path, llvm: None })
        } else {
            Err(LinkerError::Override(path))
        };
    }
    if is_executable(installed) {
        return Ok(Linker {
            path: installed.to_path_buf(),
            llvm: Some(LLVM),
        });
    }
    in_path
        .map(|path| Linker { path, llvm: None })
        .ok_or_else(|| LinkerError::Missing(installed.to_path_buf()))
}

/// Builds the linker into `target/tools`; takes about a minute on two cores.
pub(crate) fn install(workspace: &Workspace) -> Result<()> {
    let mut command = workspace.cargo();
    command
        .args(["install", "bpf-linker", "--version", VERSION, "--locked"])
        .args(["--no-default-features", "--features"])
        .arg(format!("llvm-{LLVM}"))
        .arg("--root")
        .arg(workspace.tools())
        .env_remove("CARGO_TARGET_DIR");
    if let Some(prefix) = llvm_prefix() {
        command.env("LLVM_PREFIX", prefix);
    }
    process::run(&mut command)
}

/// Where Debian puts that LLVM; elsewhere the build looks for `llvm-config` itself.
fn llvm_prefix() -> Option<PathBuf> {
    Some(PathBuf::from(format!("/usr/lib/llvm-{LLVM}")))
        .filter(|prefix| prefix.join("include/llvm-c/Core.h").exists())
}

/// Are the development files that [`install`] builds against there?
pub(crate) fn can_be_built() -> bool {
    llvm_prefix().is_some_and(|prefix| prefix.join("lib/libPolly.a").exists())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    fn executable(folder: &Path, name: &str) -> PathBuf {
        let path = folder.join(name);
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn the_override_wins_over_every_other_linker() {
        let folder = tempfile::tempdir().unwrap();
        let named = executable(folder.path(), "named");
        let installed = executable(folder.path(), "installed");
        let linker = choose(Some(named.clone()), &installed, Some("/usr/bin/x".into())).unwrap();
        assert_eq!(linker.path, named);
    }

    #[test]
    fn an_override_that_points_nowhere_is_an_error_and_not_skipped() {
        let folder = tempfile::tempdir().unwrap();
        let installed = executable(folder.path(), "installed");
        let error = choose(Some("/nonexistent".into()), &installed, None).unwrap_err();
        let missing = Missing::from(error);
        assert_eq!(
            missing.to_string(),
            "DETECTOR_BPF_LINKER names /nonexistent, which is no executable file; \
             fix: unset DETECTOR_BPF_LINKER, or name another one"
        );
        assert!(!missing.is_installable());
    }

    #[test]
    fn the_installed_linker_wins_over_path_and_its_llvm_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let installed = executable(folder.path(), "installed");
        let linker = choose(None, &installed, Some("/usr/bin/x".into())).unwrap();
        assert_eq!(linker.path, installed);
        assert_eq!(linker.llvm, Some(LLVM));
    }

    #[test]
    fn a_missing_linker_is_named_with_the_command_that_installs_it() {
        let missing = Missing::from(choose(None, Path::new("/nonexistent"), None).unwrap_err());
        assert_eq!(
            missing.to_string(),
            "bpf-linker is neither at /nonexistent nor in PATH; fix: cargo install bpf-linker --version 0.13.0 \
             --locked --no-default-features --features llvm-22 (with LLVM 22's development files)"
        );
        assert!(missing.is_installable());
    }
}
