//! What the kernel tells of a process from outside: memory, processor time, descriptors.

use std::{fs, time::Duration};

use anyhow::{Context as _, Result};
use nix::unistd::{SysconfVar, sysconf};

/// `VmRSS` of a process, KiB.
///
/// # Errors
/// Where there is no such process.
pub fn resident_kib(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    text.lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse().ok())
        .with_context(|| format!("no VmRSS in {path}"))
}

/// Time that a process ran, in its own code and in the kernel (proc_pid_stat(5), fields 14 and 15).
///
/// # Errors
/// Where there is no such process.
pub fn processor_time(pid: u32) -> Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    // The second field is the name in parentheses, which may hold anything.
    let (_, fields) = text
        .rsplit_once(')')
        .with_context(|| format!("{path} is not as it should be"))?;
    let ticks: u64 = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<u64>().ok())
        .sum();
    let per_second = sysconf(SysconfVar::CLK_TCK)?.context("no clock tick")?;
    Ok(Duration::from_secs_f64(ticks as f64 / per_second as f64))
}

/// Descriptors that a process has open.
///
/// # Errors
/// Where there is no such process.
pub fn descriptors(pid: u32) -> Result<usize> {
    let path = format!("/proc/{pid}/fd");
    Ok(fs::read_dir(&path)
        .with_context(|| format!("reading {path}"))?
        .count())
}
