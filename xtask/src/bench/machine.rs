//! The machine that was measured, as far as figures depend on it.

use std::fs;

use anyhow::{Context as _, Result};

/// Processor, kernel, load.
pub(super) struct Machine {
    /// As the processor calls itself.
    pub(super) processor: String,
    /// Processors that are up.
    pub(super) cores: usize,
    /// MiB.
    pub(super) memory_mib: u64,
    /// Does it run in a virtual machine?
    pub(super) virtual_machine: bool,
    /// The kernel's release.
    pub(super) kernel: String,
    /// Load averages before the run.
    pub(super) load: String,
}

impl Machine {
    /// Looks at this one.
    pub(super) fn inspect() -> Result<Self> {
        let processors = read("/proc/cpuinfo")?;
        let field = |name: &str| {
            processors
                .lines()
                .filter(|line| line.starts_with(name))
                .find_map(|line| Some(line.split_once(':')?.1.trim().to_owned()))
        };
        let memory_kib: u64 = read("/proc/meminfo")?
            .lines()
            .find_map(|line| line.strip_prefix("MemTotal:"))
            .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
            .unwrap_or_default();
        let flags = field("flags").unwrap_or_default();
        Ok(Self {
            processor: field("model name").unwrap_or_else(|| "unknown".to_owned()),
            cores: processors
                .lines()
                .filter(|line| line.starts_with("processor"))
                .count(),
            memory_mib: memory_kib / 1024,
            virtual_machine: flags.split(' ').any(|flag| flag == "hypervisor"),
            kernel: read("/proc/sys/kernel/osrelease")?.trim().to_owned(),
            load: load()?,
        })
    }
}

/// Load averages of one, five and fifteen minutes.
pub(super) fn load() -> Result<String> {
    let text = read("/proc/loadavg")?;
    Ok(text.split(' ').take(3).collect::<Vec<_>>().join(" "))
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("reading {path}"))
}
