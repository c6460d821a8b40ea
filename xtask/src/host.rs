//! The user and the memory of this machine.

use std::fs;

use anyhow::{Result, ensure};

/// Fails unless the effective user is root; `reason` completes the error message.
pub(crate) fn require_root(reason: &str) -> Result<()> {
    let is_root = nix::unistd::geteuid().is_root();
    ensure!(is_root, "run this as root: {reason}");
    Ok(())
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
