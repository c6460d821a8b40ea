//! The properties of this machine that figures depend on.

use std::path::Path;

use anyhow::Result;

use crate::files;

/// The machine of a benchmark run.
pub(super) struct Machine {
    /// The CPU's model name.
    pub(super) processor: String,
    /// Online CPUs.
    pub(super) cores: usize,
    /// Total memory in MiB.
    pub(super) memory_mib: u64,
    /// Whether it is a virtual machine.
    pub(super) is_virtual: bool,
    /// The kernel release.
    pub(super) kernel: String,
    /// Load averages before the run.
    pub(super) load: String,
}

impl Machine {
    /// Reads the properties from `/proc`.
    pub(super) fn inspect() -> Result<Self> {
        let cpuinfo = read_proc("/proc/cpuinfo")?;
        let field = |name: &str| {
            cpuinfo
                .lines()
                .filter(|line| line.starts_with(name))
                .find_map(|line| Some(line.split_once(':')?.1.trim().to_owned()))
        };
        let memory_kib: u64 = read_proc("/proc/meminfo")?
            .lines()
            .find_map(|line| line.strip_prefix("MemTotal:"))
            .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
            .unwrap_or_default();
        let flags = field("flags").unwrap_or_default();
        Ok(Self {
            processor: field("model name").unwrap_or_else(|| "unknown".to_owned()),
            cores: cpuinfo
                .lines()
                .filter(|line| line.starts_with("processor"))
                .count(),
            memory_mib: memory_kib / 1024,
            is_virtual: flags.split(' ').any(|flag| flag == "hypervisor"),
            kernel: read_proc("/proc/sys/kernel/osrelease")?.trim().to_owned(),
            load: load()?,
        })
    }
}

/// Load averages over 1, 5 and 15 minutes.
pub(super) fn load() -> Result<String> {
    let text = read_proc("/proc/loadavg")?;
    Ok(text.split(' ').take(3).collect::<Vec<_>>().join(" "))
}

fn read_proc(path: &str) -> Result<String> {
    files::read_text(Path::new(path))
}
