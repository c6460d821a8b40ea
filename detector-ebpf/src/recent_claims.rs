//! A cache of recently published claims.
//!
//! Two-way set-associative: the address and the device select a bucket of two claims, and a third replaces the older one. An
//! evicted claim is only published again, within its device's budget. The agent clears the buckets of an address
//! (`detector_common::recent_group`) once its claimants change: it may have dropped a claim that was not contested then.
//! Compared with the kernel's LRU hash map this avoids helper calls, which were half of the cost of a new claim.
//!
//! Two CPUs may write a bucket at once. An entry is marked empty while it is written, so that a reader usually takes a
//! half-written entry for empty. In the worst case a claim is published once too often, or, if the halves of two claims of
//! one device combine to a third one in the same bucket, that one is published late.

use core::{mem::offset_of, ptr};

use aya_ebpf::{Global, macros::map, maps::Array};
use detector_common::{RECENT_BUCKET_BITS, RawClaim, RecentBucket, recent_bucket, recent_group};

use crate::maps::REPUBLISH_AFTER_NS;

#[map]
static CLAIMS: Array<Bucket> = Array::with_max_entries(1 << RECENT_BUCKET_BITS, 0);

/// Random per load, so that a pod cannot choose addresses that collide.
// SAFETY: no other symbol of the object has this name.
#[unsafe(no_mangle)]
static HASH_SEED: Global<u64> = Global::new(0);

/// A claim as words, for comparison.
type Words = [u64; 5];

const _: () = {
    assert!(size_of::<Words>() == size_of::<RawClaim>());
    assert!(align_of::<Words>() == align_of::<RawClaim>());
    // The second and the third word.
    assert!(offset_of!(RawClaim, address) == 8);
    assert!(size_of::<Bucket>() == size_of::<RecentBucket>());
};

#[repr(C)]
struct Entry {
    /// Time of publication (coarse clock); 0 while the entry is empty or being written.
    at: u64,
    claim: Words,
}

#[repr(C)]
struct Bucket {
    ways: [Entry; 2],
}

/// The entry in which the publication of a claim is recorded.
pub(crate) struct Slot {
    entry: *mut Entry,
    claim: Words,
}

/// Result of a lookup.
pub(crate) enum Lookup {
    /// The claim was published recently.
    Recent(Slot),
    /// The claim was not published recently.
    New(Slot),
}

/// Looks a claim up at `now` (coarse clock).
#[inline(always)]
pub(crate) fn find(claim: &RawClaim, now: u64) -> Option<Lookup> {
    let ifindex = claim.ifindex;
    // SAFETY: a `RawClaim` has the size and alignment of `Words` (asserted above) and no padding.
    let claim = unsafe { *ptr::from_ref(claim).cast::<Words>() };
    let [_, high, low, ..] = claim;
    let group = recent_group([high, low], HASH_SEED.load());
    let bucket = CLAIMS.get_ptr_mut(recent_bucket(group, ifindex))?;
    // SAFETY: the bucket lives as long as the map; races are described above.
    unsafe {
        let (first, second) = (&raw mut (*bucket).ways[0], &raw mut (*bucket).ways[1]);
        for entry in [first, second] {
            if is_equal(&raw const (*entry).claim, &claim) {
                let is_recent = now.wrapping_sub((*entry).at) < REPUBLISH_AFTER_NS.load();
                let slot = Slot { entry, claim };
                return Some(if is_recent {
                    Lookup::Recent(slot)
                } else {
                    Lookup::New(slot)
                });
            }
        }
        let older = if (*first).at <= (*second).at {
            first
        } else {
            second
        };
        Some(Lookup::New(Slot {
            entry: older,
            claim,
        }))
    }
}

impl Slot {
    /// Records that the claim was published at `now` (coarse clock).
    #[inline(always)]
    pub(crate) fn set_published(self, now: u64) {
        // SAFETY: the entry lives as long as the map; races are described above. Volatile keeps the order of the writes.
        unsafe {
            ptr::write_volatile(&raw mut (*self.entry).at, 0);
            (*self.entry).claim = self.claim;
            ptr::write_volatile(&raw mut (*self.entry).at, now);
        }
    }
}

/// Compares without a call: the BPF backend turns `==` on arrays into a call of a byte loop.
///
/// # Safety
/// `stored` points to an entry's claim, which other CPUs may write meanwhile.
#[inline(always)]
unsafe fn is_equal(stored: *const Words, claim: &Words) -> bool {
    let mut difference = 0;
    for (index, word) in claim.iter().enumerate() {
        // SAFETY: `index` is within the array, and the caller vouches for the pointer.
        difference |= unsafe { *stored.cast::<u64>().add(index) } ^ word;
    }
    difference == 0
}
