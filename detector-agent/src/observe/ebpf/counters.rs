//! What the programs counted.

use std::{fmt, sync::Arc};

use aya::maps::{HashMap, MapData, MapError, PerCpuArray};
use detector_common::{COUNTERS, Counter, DropReason, RecordKind, RejectReason};

use crate::engine::IfIndex;

/// The counters could not be read.
#[derive(Debug, thiserror::Error)]
#[error("the kernel programs' counters cannot be read: {0}")]
pub struct ReadError(#[from] MapError);

/// Reads the counters; cheap to clone, from any thread.
#[derive(Clone)]
pub struct CounterReader {
    maps: Arc<Maps>,
}

struct Maps {
    counts: PerCpuArray<MapData, [u64; COUNTERS as usize]>,
    budgets: HashMap<MapData, u32, [u64; 4]>,
}

impl fmt::Debug for CounterReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CounterReader").finish_non_exhaustive()
    }
}

/// All counters at one moment, since the programs were loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts([u64; COUNTERS as usize]);

impl Counts {
    /// One of them.
    #[must_use]
    pub fn get(&self, counter: Counter) -> u64 {
        self.0.get(counter.index() as usize).copied().unwrap_or(0)
    }

    /// What was lost.
    #[must_use]
    pub fn losses(&self) -> Losses {
        let dropped = |reason| self.get(Counter::Dropped(reason));
        Losses {
            ring_full: dropped(DropReason::RingFull),
            budget: dropped(DropReason::Budget),
            neighbour_budget: dropped(DropReason::NeighbourBudget),
        }
    }

    /// Observations published, by kind (`ipconflict_observations_total`).
    pub fn published(&self) -> impl Iterator<Item = (&'static str, u64)> {
        RecordKind::ALL
            .into_iter()
            .map(|kind| (kind.label(), self.get(Counter::Published(kind))))
    }

    /// Observations that equalled one published a short while before, by kind.
    pub fn known(&self) -> impl Iterator<Item = (&'static str, u64)> {
        RecordKind::ALL
            .into_iter()
            .map(|kind| (kind.label(), self.get(Counter::Known(kind))))
    }

    /// Observations lost, by reason (`ipconflict_observations_dropped_total`).
    pub fn dropped(&self) -> impl Iterator<Item = (&'static str, u64)> {
        DropReason::ALL
            .into_iter()
            .map(|reason| (reason.label(), self.get(Counter::Dropped(reason))))
    }

    /// Frames that were no valid claim, by reason (`ipconflict_frames_rejected_total`).
    pub fn rejected(&self) -> impl Iterator<Item = (&'static str, u64)> {
        RejectReason::ALL
            .into_iter()
            .map(|reason| (reason.label(), self.get(Counter::Rejected(reason))))
    }
}

/// What was lost since the programs were loaded. A change calls for a fresh look at the kernel's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// For want of room in the ring buffer.
    pub ring_full: u64,
    /// Claims beyond a device's budget.
    pub budget: u64,
    /// Neighbour entries beyond a device's budget.
    pub neighbour_budget: u64,
}

/// What one device was turned away since its budget was last needed and forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLosses {
    /// The device.
    pub ifindex: IfIndex,
    /// Claims by frames.
    pub frames: u64,
    /// Neighbour entries.
    pub neighbours: u64,
}

impl CounterReader {
    pub(super) fn new(
        counts: PerCpuArray<MapData, [u64; COUNTERS as usize]>,
        budgets: HashMap<MapData, u32, [u64; 4]>,
    ) -> Self {
        Self {
            maps: Arc::new(Maps { counts, budgets }),
        }
    }

    /// All counters, with one system call.
    ///
    /// # Errors
    /// Where the kernel refuses to read the map.
    pub fn read(&self) -> Result<Counts, ReadError> {
        let mut counts = Counts([0; COUNTERS as usize]);
        for of_cpu in self.maps.counts.get(&0, 0)?.iter() {
            for (sum, count) in counts.0.iter_mut().zip(of_cpu) {
                *sum = sum.wrapping_add(*count);
            }
        }
        Ok(counts)
    }

    /// The devices that were turned away.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn devices_over_budget(&self) -> Result<Vec<DeviceLosses>, ReadError> {
        let mut devices = Vec::new();
        for entry in self.maps.budgets.iter() {
            let (ifindex, budget) = match entry {
                Ok(entry) => entry,
                // The entry gave way while the map was walked.
                Err(MapError::KeyNotFound) => continue,
                Err(error) => return Err(error.into()),
            };
            // The layout of `DeviceBudget`.
            let [_, _, frames, neighbours] = budget;
            if frames + neighbours > 0 {
                devices.push(DeviceLosses {
                    ifindex,
                    frames,
                    neighbours,
                });
            }
        }
        Ok(devices)
    }
}
