//! What this machine lets `setup` do: who runs it, and which package manager is there.

use std::{
    env, fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

/// The machine that the tasks run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    /// The effective user is root.
    pub(crate) root: bool,
    /// `apt-get` is there.
    pub(crate) apt: bool,
}

impl Host {
    /// Looks at this process and its PATH.
    pub(crate) fn inspect() -> Self {
        Self {
            root: nix::unistd::geteuid().is_root(),
            apt: find_program("apt-get").is_some(),
        }
    }

    /// May packages be installed without asking anyone?
    pub(crate) fn installs_packages(self) -> bool {
        self.root && self.apt
    }
}

/// The first executable of that name in PATH or in the folders where administration tools are.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    program_folders()
        .map(|folder| folder.join(name))
        .find(|path| is_executable(path))
}

/// Every folder of PATH, then the system's own ones: an unprivileged PATH lacks the latter.
pub(crate) fn program_folders() -> impl Iterator<Item = PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = env::split_paths(&path).collect();
    folders.extend(["/usr/local/bin", "/usr/bin", "/usr/sbin", "/sbin"].map(PathBuf::from));
    folders.into_iter()
}

/// A regular file that someone may execute.
pub(crate) fn is_executable(path: &Path) -> bool {
    fs::metadata(path)
        .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}
