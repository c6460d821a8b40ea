//! Facts about a process from `/proc`: memory, CPU time, file descriptors, children.

use std::{fs, time::Duration};

use anyhow::{Context as _, Result};

/// Resident memory (`VmRSS`) in KiB.
///
/// # Errors
/// The process does not exist.
pub fn resident_kib(pid: u32) -> Result<u64> {
    status_kib(pid, "VmRSS:")
}

/// Resident anonymous memory (`RssAnon`) in KiB: allocations, without the pages of the executable.
///
/// # Errors
/// The process does not exist.
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

/// User and kernel CPU time of the live threads of a process, with nanosecond resolution (`schedstat`,
/// Documentation/scheduler/sched-stats.rst).
///
/// # Errors
/// The process does not exist, or the kernel has no scheduler statistics.
pub fn cpu_time(pid: u32) -> Result<Duration> {
    let folder = format!("/proc/{pid}/task");
    let mut nanoseconds = 0;
    for thread in fs::read_dir(&folder).with_context(|| format!("reading {folder}"))? {
        let path = thread?.path().join("schedstat");
        // A thread may exit meanwhile.
        let Ok(text) = fs::read_to_string(&path) else {
            continue;
        };
        let ran: u64 = text
            .split_whitespace()
            .next()
            .and_then(|field| field.parse().ok())
            .with_context(|| format!("{} has an unexpected format", path.display()))?;
        nanoseconds += ran;
    }
    Ok(Duration::from_nanos(nanoseconds))
}

/// The number of open file descriptors.
///
/// # Errors
/// The process does not exist.
pub fn open_descriptors(pid: u32) -> Result<usize> {
    let path = format!("/proc/{pid}/fd");
    Ok(fs::read_dir(&path)
        .with_context(|| format!("reading {path}"))?
        .count())
}

/// The ids of its child processes; none if it does not exist.
#[must_use]
pub fn children(parent: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{parent}/task"));
    let mut pids = Vec::new();
    for thread in threads.into_iter().flatten().flatten() {
        let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        pids.extend(
            children
                .split_whitespace()
                .filter_map(|pid| pid.parse::<u32>().ok()),
        );
    }
    pids
}
