//! What a process uses, as `/proc` has it: memory, processor time, descriptors.

use std::{fs, time::Duration};

use anyhow::{Context as _, Result};

/// `VmRSS` of a process, KiB.
///
/// # Errors
/// Where it has ended.
pub fn resident_kib(pid: u32) -> Result<u64> {
    status_kib(pid, "VmRSS:")
}

/// `RssAnon` of a process, KiB: what it allocated, without the pages of its executable.
///
/// # Errors
/// Where it has ended.
pub fn anonymous_kib(pid: u32) -> Result<u64> {
    status_kib(pid, "RssAnon:")
}

fn status_kib(pid: u32, field: &str) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    text.lines()
        .find_map(|line| line.strip_prefix(field))
        .and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse().ok())
        .with_context(|| format!("no {field} in {path}"))
}

/// Time that the threads of a process which are alive ran, in its own code and in the kernel, to the nanosecond
/// (`schedstat`, Documentation/scheduler/sched-stats.rst).
///
/// # Errors
/// Where it has ended, or the kernel keeps no such statistics.
pub fn processor_time(pid: u32) -> Result<Duration> {
    let folder = format!("/proc/{pid}/task");
    let mut nanoseconds = 0;
    for thread in fs::read_dir(&folder).with_context(|| format!("reading {folder}"))? {
        let path = thread?.path().join("schedstat");
        // A thread may end while they are counted.
        let Ok(text) = fs::read_to_string(&path) else {
            continue;
        };
        let ran: u64 = text
            .split_whitespace()
            .next()
            .and_then(|field| field.parse().ok())
            .with_context(|| format!("{} is not as it should be", path.display()))?;
        nanoseconds += ran;
    }
    Ok(Duration::from_nanos(nanoseconds))
}

/// Descriptors that a process has open.
///
/// # Errors
/// Where it has ended.
pub fn descriptors(pid: u32) -> Result<usize> {
    let path = format!("/proc/{pid}/fd");
    Ok(fs::read_dir(&path)
        .with_context(|| format!("reading {path}"))?
        .count())
}
