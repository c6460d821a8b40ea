//! Finds bpf-linker, and installs it for this checkout.

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::Result;

use crate::{
    host::{find_program, is_executable},
    process,
    requirements::MissingDependency,
    workspace::Workspace,
};

/// Environment variable that names the linker to use.
pub(crate) const LINKER_VARIABLE: &str = "DETECTOR_BPF_LINKER";

/// The version that `setup` installs.
const VERSION: &str = "0.13.0";

/// The LLVM that `setup` builds the linker with; it reads the output of compilers up to this LLVM.
pub(crate) const LLVM: u32 = 22;

/// Debian packages that the linker is built against.
pub(crate) const PACKAGES: &[&str] = &["llvm-22-dev", "libpolly-22-dev"];

/// The linker for the eBPF build.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Linker {
    /// The executable.
    pub(crate) path: PathBuf,
    /// Newest LLVM whose output it reads; unknown for a linker that `setup` did not build.
    pub(crate) llvm: Option<u32>,
}

/// Why no linker can be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LinkerError {
    /// The override is not an executable file.
    #[error("{LINKER_VARIABLE} is {}, which is not an executable file", .0.display())]
    Override(PathBuf),
    /// None was found.
    #[error("bpf-linker is neither at {} nor in PATH", .0.display())]
    Missing(PathBuf),
}

impl From<LinkerError> for MissingDependency {
    fn from(error: LinkerError) -> Self {
        let what = error.to_string();
        match error {
            LinkerError::Override(_) => Self::misconfigured(what, LINKER_VARIABLE),
            LinkerError::Missing(_) => Self::absent(
                what,
                format!(
                    "cargo install bpf-linker --version {VERSION} --locked --no-default-features \
                     --features llvm-{LLVM} (needs the development files of LLVM {LLVM})"
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
    overridden: Option<PathBuf>,
    installed: &Path,
    in_path: Option<PathBuf>,
) -> Result<Linker, LinkerError> {
    if let Some(path) = overridden {
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

/// Builds the linker into `target/tools`, which takes less than a minute on two cores. Optimised, it would take twice as long to
/// build, and seconds less to link the programs: LLVM does nearly all of the work.
pub(crate) fn install(workspace: &Workspace) -> Result<()> {
    let mut command = workspace.cargo();
    command
        .args(["install", "bpf-linker", "--version", VERSION, "--locked"])
        .args(["--debug", "--no-default-features", "--features"])
        .arg(format!("llvm-{LLVM}"))
        .arg("--root")
        .arg(workspace.tools())
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        .env_remove("CARGO_TARGET_DIR");
    if let Some(prefix) = llvm_prefix() {
        command.env("LLVM_PREFIX", prefix);
    }
    process::run(&mut command)
}

/// Debian's directory of that LLVM; on other systems the build searches for `llvm-config` itself.
fn llvm_prefix() -> Option<PathBuf> {
    Some(PathBuf::from(format!("/usr/lib/llvm-{LLVM}")))
        .filter(|prefix| prefix.join("include/llvm-c/Core.h").exists())
}

/// Whether Debian's development files that [`install`] builds against are installed.
pub(crate) fn has_llvm() -> bool {
    llvm_prefix().is_some_and(|prefix| prefix.join("lib/libPolly.a").exists())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    fn executable(dir: &Path, name: &str) -> PathBuf {
        let path = dir.join(name);
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn override_takes_precedence() {
        let dir = tempfile::tempdir().unwrap();
        let overridden = executable(dir.path(), "overridden");
        let installed = executable(dir.path(), "installed");
        let linker = choose(
            Some(overridden.clone()),
            &installed,
            Some("/usr/bin/x".into()),
        )
        .unwrap();
        assert_eq!(linker.path, overridden);
    }

    #[test]
    fn override_without_a_file_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let installed = executable(dir.path(), "installed");
        let error = choose(Some("/nonexistent".into()), &installed, None).unwrap_err();
        let missing = MissingDependency::from(error);
        assert_eq!(
            missing.to_string(),
            "DETECTOR_BPF_LINKER is /nonexistent, which is not an executable file; \
             fix: unset DETECTOR_BPF_LINKER or correct its value"
        );
        assert!(!missing.is_installable());
    }

    #[test]
    fn installed_linker_takes_precedence_over_path() {
        let dir = tempfile::tempdir().unwrap();
        let installed = executable(dir.path(), "installed");
        let linker = choose(None, &installed, Some("/usr/bin/x".into())).unwrap();
        assert_eq!(linker.path, installed);
        assert_eq!(linker.llvm, Some(LLVM));
    }

    #[test]
    fn missing_linker_is_reported_with_the_install_command() {
        let missing =
            MissingDependency::from(choose(None, Path::new("/nonexistent"), None).unwrap_err());
        assert_eq!(
            missing.to_string(),
            "bpf-linker is neither at /nonexistent nor in PATH; fix: cargo install bpf-linker --version 0.13.0 \
             --locked --no-default-features --features llvm-22 (needs the development files of LLVM 22)"
        );
        assert!(missing.is_installable());
    }
}
