//! The user and the programs of this machine.

use std::{
    env, fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Result, ensure};

/// Fails unless the effective user is root; `reason` completes the error message.
pub(crate) fn require_root(reason: &str) -> Result<()> {
    ensure!(is_root(), "run this as root: {reason}");
    Ok(())
}

/// `setup` installs packages without asking: as root, on a machine with apt.
pub(crate) fn can_install_packages() -> bool {
    is_root() && find_program("apt-get").is_some()
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// The first executable of that name in [`program_dirs`].
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    program_dirs()
        .map(|dir| dir.join(name))
        .find(|path| is_executable(path))
}

/// The directories of PATH, then the system's: the PATH of an unprivileged user has no `sbin`.
pub(crate) fn program_dirs() -> impl Iterator<Item = PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut dirs: Vec<PathBuf> = env::split_paths(&path).collect();
    dirs.extend(["/usr/local/bin", "/usr/bin", "/usr/sbin", "/sbin"].map(PathBuf::from));
    dirs.into_iter()
}

/// A regular file with an execute bit.
pub(crate) fn is_executable(path: &Path) -> bool {
    fs::metadata(path)
        .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

/// Memory that programs can have without swapping.
pub(crate) fn available_memory_mib() -> Option<u64> {
    let info = fs::read_to_string("/proc/meminfo").ok()?;
    let value = info
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:")?.strip_suffix("kB"))?;
    let kib: u64 = value.trim().parse().ok()?;
    Some(kib / 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_known() {
        assert!(available_memory_mib().is_some_and(|mib| mib > 0));
    }
}
