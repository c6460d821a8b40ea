//! Maps, and the read-only globals that the loader fills in.

use aya_ebpf::{
    Global,
    macros::map,
    maps::{LruHashMap, PerCpuArray, RingBuf},
};
use detector_common::{COUNTERS, Counter, DeviceBudget};

/// Records for the agent. The loader sets the size.
#[map]
pub(crate) static EVENTS: RingBuf = RingBuf::with_byte_size(1 << 20, 0);

/// Neighbour entries published, and what was said of them.
#[map]
pub(crate) static NEIGHBOURS: LruHashMap<NeighbourKey, NeighbourSaid> =
    LruHashMap::with_max_entries(16_384, 0);

/// What each device may still publish, by interface index. A device that falls out starts with a full budget.
#[map]
pub(crate) static BUDGETS: LruHashMap<u32, DeviceBudget> = LruHashMap::with_max_entries(16_384, 0);

/// All counters, by [`Counter::index`], as one value: the agent reads them every second, with one system call.
#[map]
pub(crate) static COUNTS: PerCpuArray<[u64; COUNTERS as usize]> =
    PerCpuArray::with_max_entries(1, 0);

/// How long a published observation needs no repetition, nanoseconds.
#[unsafe(no_mangle)]
pub(crate) static REPUBLISH_AFTER_NS: Global<u64> = Global::new(30_000_000_000);

/// Nanoseconds in which one token of a device's budget comes back; 0 means no limit.
#[unsafe(no_mangle)]
pub(crate) static BUDGET_INTERVAL_NS: Global<u64> = Global::new(1_000_000_000 / 256);

/// Nanoseconds in which a device's whole budget comes back.
#[unsafe(no_mangle)]
pub(crate) static BUDGET_WINDOW_NS: Global<u64> = Global::new(2_000_000_000);

/// Inode of the agent's network namespace; 0 matches none.
#[unsafe(no_mangle)]
pub(crate) static NETNS_INODE: Global<u32> = Global::new(0);

/// A neighbour entry's identity.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct NeighbourKey {
    /// The device it stands on.
    pub(crate) ifindex: u32,
    /// 4 or 6.
    pub(crate) ip_version: u32,
    /// As in the record.
    pub(crate) address: [u8; 16],
}

/// What was last published about a neighbour entry.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct NeighbourSaid {
    /// When.
    pub(crate) at: u64,
    /// Its hardware address, zero where there was none.
    pub(crate) lladdr: [u8; 6],
    /// Its validity, see `neighbour::Validity`.
    pub(crate) validity: u8,
    /// Zero.
    pub(crate) reserved: u8,
}

/// Adds one to a counter of this CPU.
#[inline(always)]
pub(crate) fn count(counter: Counter) {
    let Some(counts) = COUNTS.get_ptr_mut(0) else {
        return;
    };
    // SAFETY: the pointer is to this CPU's own value, and programs on a CPU do not preempt one another here in a way
    // that could do more than lose one increment.
    if let Some(value) = unsafe { (*counts).get_mut(counter.index() as usize) } {
        *value += 1;
    }
}
