//! Pins a thread to a processor, so that the scheduler's placement is not measured.

use anyhow::{Context as _, Result};
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};

/// Keeps the calling thread, and what it starts, on one processor until dropped.
#[derive(Debug)]
pub(super) struct Pinned {
    before: CpuSet,
}

impl Pinned {
    /// Pins the calling thread to the last processor that it may use: device interrupts usually go to the first.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(super) fn to_last_processor() -> Result<Self> {
        let this_thread = Pid::from_raw(0);
        let before = sched_getaffinity(this_thread).context("reading the processor affinity")?;
        let last = (0..CpuSet::count())
            .rev()
            .find(|number| before.is_set(*number).unwrap_or(false))
            .context("no processor to run on")?;
        let mut only = CpuSet::new();
        only.set(last).context("selecting a processor")?;
        sched_setaffinity(this_thread, &only).context("pinning a thread to a processor")?;
        Ok(Self { before })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // The set was valid before; a processor that was removed meanwhile is ignored by the kernel.
        let _ = sched_setaffinity(Pid::from_raw(0), &self.before);
    }
}
