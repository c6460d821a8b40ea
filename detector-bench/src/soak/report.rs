//! The results of a soak and its pass criteria.

use std::{fmt, time::Duration};

use anyhow::{Result, ensure};

use super::{SoakOptions, resources::ResourceTrend};

/// Largest growth from the first to the last quarter after the warm-up that is not considered a leak: the backlog of a failing
/// webhook varies, and the allocator keeps freed memory. An hour creates about 80,000 pods in between, so 30 leaked bytes per pod
/// are found.
const MAX_GROWTH_KIB: f64 = 2048.0;
/// Largest growth of the fewest descriptors, without connections.
const MAX_MORE_DESCRIPTORS: usize = 2;
/// The most connections: eight to the webhook, and some that are being closed.
const MAX_CONNECTIONS: usize = 16;

/// The results.
#[derive(Debug)]
pub struct SoakReport {
    pub(super) options: SoakOptions,
    pub(super) took: Duration,
    pub(super) created: u64,
    pub(super) duplicates: u64,
    pub(super) raised: usize,
    pub(super) stops: u32,
    pub(super) bursts: u32,
    pub(super) restarts: u32,
    pub(super) endpoint_changes: u32,
    pub(super) accepted_requests: usize,
    pub(super) lost_observations: u64,
    pub(super) resyncs: u64,
    pub(super) open_conflicts: usize,
    pub(super) agreed_after: Duration,
    pub(super) trend: ResourceTrend,
}

impl fmt::Display for SoakReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.took.as_secs_f64();
        let ResourceTrend {
            first_kib,
            last_kib,
            slope_kib_per_hour,
            max_kib,
            descriptors: (before, after),
            max_connections,
        } = self.trend;
        let mib = |kib: f64| kib / 1024.0;
        let rate = self.created as f64 / seconds;
        let rows = [
            ("seed", format!("{}", self.options.seed)),
            ("time", format!("{seconds:.0} s")),
            (
                "pods created and deleted",
                format!(
                    "{} ({rate:.1} per second), {} live",
                    self.created, self.options.population
                ),
            ),
            (
                "pods with another pod's address",
                self.duplicates.to_string(),
            ),
            (
                "conflicts raised by the last agent",
                self.raised.to_string(),
            ),
            (
                "bursts that overflow the ring buffer",
                self.bursts.to_string(),
            ),
            (
                "observations lost, resyncs",
                format!("{}, {}", self.lost_observations, self.resyncs),
            ),
            ("SIGSTOP and SIGCONT", self.stops.to_string()),
            ("killed and restarted", self.restarts.to_string()),
            (
                "webhook and runtime failures or recoveries",
                self.endpoint_changes.to_string(),
            ),
            (
                "requests accepted by the webhook",
                self.accepted_requests.to_string(),
            ),
            (
                "resident memory, after warm-up to end",
                format!(
                    "{:.1} to {:.1} MiB, max {:.1}",
                    mib(first_kib),
                    mib(last_kib),
                    mib(max_kib)
                ),
            ),
            (
                "slope of resident memory",
                format!("{:+.2} MiB/h", mib(slope_kib_per_hour)),
            ),
            (
                "fewest descriptors, after warm-up and at end",
                format!("{before}, {after}, and at most {max_connections} connections"),
            ),
            (
                "open conflicts, equal to those of `check`",
                format!(
                    "{}, equal after {:.1} s",
                    self.open_conflicts,
                    self.agreed_after.as_secs_f64()
                ),
            ),
        ];
        for (name, value) in rows {
            writeln!(f, "{name:<44}{value}")?;
        }
        Ok(())
    }
}

impl SoakReport {
    /// Checks that memory and descriptors stayed within their bounds.
    ///
    /// # Errors
    /// One of them grew more; the error contains growth and bound.
    pub fn check_growth(&self) -> Result<()> {
        let growth = self.trend.last_kib - self.trend.first_kib;
        ensure!(
            growth <= MAX_GROWTH_KIB,
            "resident memory grew by {growth:.0} KiB after the warm-up; the bound is {MAX_GROWTH_KIB:.0} KiB"
        );
        let (before, after) = self.trend.descriptors;
        ensure!(
            after <= before + MAX_MORE_DESCRIPTORS,
            "descriptors grew from {before} to {after} after the warm-up; the bound is {MAX_MORE_DESCRIPTORS} more"
        );
        let connections = self.trend.max_connections;
        ensure!(
            connections <= MAX_CONNECTIONS,
            "there were {connections} connections at once; the bound is {MAX_CONNECTIONS}"
        );
        Ok(())
    }
}
