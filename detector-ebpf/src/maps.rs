//! Maps, and the read-only globals that the loader sets.

use aya_ebpf::{
    Global,
    macros::map,
    maps::{LruHashMap, PerCpuArray, RingBuf},
};
use detector_common::{COUNTERS, Counter, DeviceBudget};

/// Records for the agent. The loader sets the size.
#[map]
pub(crate) static EVENTS: RingBuf = RingBuf::with_byte_size(1 << 20, 0);

/// The last published state of each neighbour entry.
#[map]
pub(crate) static NEIGHBOURS: LruHashMap<NeighbourKey, PublishedNeighbour> =
    LruHashMap::with_max_entries(16_384, 0);

/// The budget of each device, by interface index. An evicted device starts again with a full budget.
#[map]
pub(crate) static BUDGETS: LruHashMap<u32, DeviceBudget> = LruHashMap::with_max_entries(16_384, 0);

/// All counters, by [`Counter::index`], as one value, which the agent reads with one system call.
#[map]
pub(crate) static COUNTS: PerCpuArray<[u64; COUNTERS as usize]> =
    PerCpuArray::with_max_entries(1, 0);

/// Nanoseconds during which a published observation is not published again.
// SAFETY: no other symbol of the object has this name.
#[unsafe(no_mangle)]
pub(crate) static REPUBLISH_AFTER_NS: Global<u64> = Global::new(30_000_000_000);

/// Nanoseconds until one token of a device's budget is refilled; 0 means no limit.
// SAFETY: no other symbol of the object has this name.
#[unsafe(no_mangle)]
pub(crate) static BUDGET_INTERVAL_NS: Global<u64> = Global::new(1_000_000_000 / 256);

/// Nanoseconds until a device's empty budget is full.
// SAFETY: no other symbol of the object has this name.
#[unsafe(no_mangle)]
pub(crate) static BUDGET_WINDOW_NS: Global<u64> = Global::new(2_000_000_000);

/// Inode of the agent's network namespace; 0 matches none.
// SAFETY: no other symbol of the object has this name.
#[unsafe(no_mangle)]
pub(crate) static NETNS_INODE: Global<u32> = Global::new(0);

/// A neighbour entry's identity.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct NeighbourKey {
    /// The entry's device.
    pub(crate) ifindex: u32,
    /// The IP version, 4 or 6.
    pub(crate) ip_version: u32,
    /// As in the record.
    pub(crate) address: [u8; 16],
}

/// The last published state of a neighbour entry.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PublishedNeighbour {
    /// Time of publication, `CLOCK_MONOTONIC` nanoseconds.
    pub(crate) at: u64,
    /// The hardware address, zero if there was none.
    pub(crate) lladdr: [u8; 6],
    /// The validity, see `neighbour`.
    pub(crate) validity: u8,
    /// Padding, always zero.
    pub(crate) reserved: u8,
}

/// Adds one to a counter of this CPU.
#[inline(always)]
pub(crate) fn count(counter: Counter) {
    let Some(counts) = COUNTS.get_ptr_mut(0) else {
        return;
    };
    // SAFETY: the value belongs to this CPU. A program that interrupts this one on the same CPU may cost an increment.
    if let Some(value) = unsafe { (*counts).get_mut(counter.index() as usize) } {
        *value += 1;
    }
}
