//! Facts about a process from `/proc`: memory, CPU time, file descriptors, children.

use std::{collections::BTreeSet, fs, time::Duration};

use anyhow::{Context as _, Result};
use procfs::{
    net::TcpState,
    process::{FDTarget, Process},
};

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

/// The numbers of open file descriptors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptors {
    /// TCP connections. One that is closed while they are counted may count as another descriptor.
    pub connections: usize,
    /// All others, TCP sockets that listen included.
    pub others: usize,
}

/// The open file descriptors of a process.
///
/// # Errors
/// The process does not exist.
pub fn open_descriptors(pid: u32) -> Result<Descriptors> {
    let process = Process::new(i32::try_from(pid)?)?;
    let mut open = Descriptors::default();
    let mut sockets = BTreeSet::new();
    for descriptor in process.fd()? {
        // A descriptor may be closed meanwhile.
        match descriptor.map(|descriptor| descriptor.target) {
            Ok(FDTarget::Socket(inode)) => {
                sockets.insert(inode);
            }
            Ok(_) => open.others += 1,
            Err(_) => {}
        }
    }
    let tcp = process.tcp()?.into_iter().chain(process.tcp6()?);
    open.connections = tcp
        .filter(|socket| socket.state != TcpState::Listen && sockets.contains(&socket.inode))
        .count();
    open.others += sockets.len() - open.connections;
    Ok(open)
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::{
        net::{TcpListener, TcpStream},
        os::fd::OwnedFd,
        process::{Command, Stdio},
    };

    use super::*;

    /// The descriptors of a process with these ones; it inherits some more.
    fn descriptors_with(stdin: Stdio, stdout: Stdio) -> Descriptors {
        let mut command = Command::new("sleep");
        command.arg("60").stdin(stdin).stdout(stdout);
        let mut child = command.stderr(Stdio::null()).spawn().unwrap();
        let open = open_descriptors(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        open.unwrap()
    }

    #[test]
    fn connections_are_counted_apart() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connection = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let without = descriptors_with(Stdio::null(), Stdio::null());
        let with = descriptors_with(
            OwnedFd::from(connection).into(),
            OwnedFd::from(listener).into(),
        );
        let expected = Descriptors {
            connections: without.connections + 1,
            others: without.others - 1,
        };
        assert_eq!(with, expected);
    }
}
