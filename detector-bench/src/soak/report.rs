//! What a soak came to, and whether that is well.

use std::{fmt, time::Duration};

use anyhow::{Result, ensure};

use super::{Options, measure::Trend};

/// Growth from the first to the last quarter after the warm-up that is not yet a leak: what waits for a failing webhook comes
/// and goes, and the allocator keeps its place. In an hour some 80,000 pods are made in between, so that 30 bytes of each are found.
const MAY_GROW_KIB: f64 = 2048.0;
/// The same for descriptors: connections that are being made.
const MAY_OPEN: usize = 4;

/// What it came to.
#[derive(Debug)]
pub struct Report {
    pub(super) options: Options,
    pub(super) took: Duration,
    pub(super) made: u64,
    pub(super) duplicates: u64,
    pub(super) raised: usize,
    pub(super) stops: u32,
    pub(super) bursts: u32,
    pub(super) restarts: u32,
    pub(super) moods: u32,
    pub(super) delivered: usize,
    pub(super) lost: u64,
    pub(super) resyncs: u64,
    pub(super) open: usize,
    pub(super) agreed_after: Duration,
    pub(super) trend: Trend,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.took.as_secs_f64();
        let Trend {
            first_kib,
            last_kib,
            slope_kib_per_hour,
            most_kib,
            descriptors: (before, after),
        } = self.trend;
        let mib = |kib: f64| kib / 1024.0;
        let rate = self.made as f64 / seconds;
        let rows = [
            ("seed", format!("{}", self.options.seed)),
            ("time", format!("{seconds:.0} s")),
            (
                "pods made and deleted",
                format!(
                    "{} ({rate:.1} a second), {} alive",
                    self.made, self.options.population
                ),
            ),
            (
                "pods with an address of another's",
                self.duplicates.to_string(),
            ),
            (
                "conflicts raised (events of the last life)",
                self.raised.to_string(),
            ),
            (
                "bursts of frames beyond the ring buffer",
                self.bursts.to_string(),
            ),
            (
                "records lost, and readings of everything",
                format!("{}, {}", self.lost, self.resyncs),
            ),
            ("SIGSTOP and SIGCONT", self.stops.to_string()),
            ("killed and started anew", self.restarts.to_string()),
            (
                "webhook and runtime failing, or well again",
                self.moods.to_string(),
            ),
            (
                "requests that the webhook accepted",
                self.delivered.to_string(),
            ),
            (
                "resident memory, warm to end",
                format!(
                    "{:.1} to {:.1} MiB, most {:.1}",
                    mib(first_kib),
                    mib(last_kib),
                    mib(most_kib)
                ),
            ),
            (
                "its slope",
                format!("{:+.2} MiB an hour", mib(slope_kib_per_hour)),
            ),
            (
                "most descriptors, warm and at the end",
                format!("{before}, {after}"),
            ),
            (
                "open conflicts, as a fresh look sees them",
                format!(
                    "{}, agreed after {:.1} s",
                    self.open,
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

impl Report {
    /// Whether memory and descriptors stayed within bounds.
    ///
    /// # Errors
    /// Names what grew, and the bound.
    pub fn verdict(&self) -> Result<()> {
        let grown = self.trend.last_kib - self.trend.first_kib;
        ensure!(
            grown <= MAY_GROW_KIB,
            "resident memory grew by {grown:.0} KiB after the warm-up; the bound is {MAY_GROW_KIB:.0} KiB"
        );
        let (before, after) = self.trend.descriptors;
        ensure!(
            after <= before + MAY_OPEN,
            "descriptors grew from {before} to {after} after the warm-up; the bound is {MAY_OPEN} more"
        );
        Ok(())
    }
}
