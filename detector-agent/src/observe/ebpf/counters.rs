//! The kernel programs' counters.

use std::{fmt, sync::Arc};

use aya::maps::{HashMap, MapData, MapError, PerCpuArray};
use detector_common::{COUNTERS, Counter, DropReason, RecordKind, RejectReason};
use detector_engine::IfIndex;

/// The counters could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the kernel programs' counters: {0}")]
pub struct CounterError(#[from] MapError);

/// Reads the counters, from any thread; cheap to clone.
#[derive(Clone)]
pub struct CounterReader {
    maps: Arc<Maps>,
}

struct Maps {
    counts: PerCpuArray<MapData, [u64; COUNTERS as usize]>,
    budgets: HashMap<MapData, u32, [u64; 5]>,
}

impl fmt::Debug for CounterReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CounterReader").finish_non_exhaustive()
    }
}

/// All counters since the programs were loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterValues([u64; COUNTERS as usize]);

impl CounterValues {
    /// The value of one counter.
    #[must_use]
    pub fn get(&self, counter: Counter) -> u64 {
        self.0.get(counter.index() as usize).copied().unwrap_or(0)
    }

    /// The counters of lost observations.
    #[must_use]
    pub fn losses(&self) -> LossCounters {
        let dropped = |reason| self.get(Counter::Dropped(reason));
        LossCounters {
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

    /// Observations that were published recently and not again, by kind.
    pub fn known(&self) -> impl Iterator<Item = (RecordKind, u64)> {
        RecordKind::ALL
            .into_iter()
            .map(|kind| (kind, self.get(Counter::Known(kind))))
    }

    /// Observations lost, by reason (`ipconflict_observations_dropped_total`).
    pub fn dropped(&self) -> impl Iterator<Item = (&'static str, u64)> {
        DropReason::ALL
            .into_iter()
            .map(|reason| (reason.label(), self.get(Counter::Dropped(reason))))
    }

    /// Frames that are not valid claims, by reason (`ipconflict_frames_rejected_total`).
    pub fn rejected(&self) -> impl Iterator<Item = (&'static str, u64)> {
        RejectReason::ALL
            .into_iter()
            .map(|reason| (reason.label(), self.get(Counter::Rejected(reason))))
    }
}

/// Observations lost since the programs were loaded. An increase requires a resync.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LossCounters {
    /// Lost because the ring buffer was full.
    pub ring_full: u64,
    /// Claims beyond a device's budget.
    pub budget: u64,
    /// Neighbour entries beyond a device's budget.
    pub neighbour_budget: u64,
}

/// Observations of one device beyond its budget, since the kernel's entry for it was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLosses {
    /// The device.
    pub ifindex: IfIndex,
    /// Claims by frames, including contested ones, which were still published.
    pub frames: u64,
    /// Neighbour entries.
    pub neighbours: u64,
}

impl CounterReader {
    pub(super) fn new(
        counts: PerCpuArray<MapData, [u64; COUNTERS as usize]>,
        budgets: HashMap<MapData, u32, [u64; 5]>,
    ) -> Self {
        Self {
            maps: Arc::new(Maps { counts, budgets }),
        }
    }

    /// All counters, with one system call.
    ///
    /// # Errors
    /// The kernel refuses to read the map.
    pub fn read(&self) -> Result<CounterValues, CounterError> {
        let mut counts = CounterValues([0; COUNTERS as usize]);
        for of_cpu in self.maps.counts.get(&0, 0)?.iter() {
            for (sum, count) in counts.0.iter_mut().zip(of_cpu) {
                *sum = sum.wrapping_add(*count);
            }
        }
        Ok(counts)
    }

    /// The devices that exceeded their budget.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn devices_over_budget(&self) -> Result<Vec<DeviceLosses>, CounterError> {
        let mut devices = Vec::new();
        for entry in self.maps.budgets.iter() {
            let (ifindex, budget) = match entry {
                Ok(entry) => entry,
                // The entry was evicted while the map was iterated.
                Err(MapError::KeyNotFound) => continue,
                Err(error) => return Err(error.into()),
            };
            // The layout of `DeviceBudget`.
            let [_, _, _, frames, neighbours] = budget;
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
