//! A cache of recently published claims.
//!
//! Two-way set-associative: a claim's hash selects a bucket of two claims, and a third replaces the older one. An evicted
//! claim is only published again, within its device's budget. Compared with the kernel's LRU hash map this avoids helper
//! calls, which were half of the cost of a new claim.
//!
//! Two CPUs may write a bucket at once. An entry is marked empty while it is written, so that a reader usually takes a
//! half-written entry for empty. In the worst case a claim is published once too often, or, if the halves of two claims
//! combine to a third one with the same hash, that one is published late.

use core::ptr;

use aya_ebpf::{Global, macros::map, maps::Array};
use detector_common::RawClaim;

use crate::maps::REPUBLISH_AFTER_NS;

/// Number of bits of the hash that select a bucket.
const BUCKET_BITS: u32 = 15;

#[map]
static CLAIMS: Array<Bucket> = Array::with_max_entries(1 << BUCKET_BITS, 0);

/// Random per load, so that a pod cannot choose claims that collide.
// SAFETY: no other symbol of the object has this name.
#[unsafe(no_mangle)]
static HASH_SEED: Global<u64> = Global::new(0);

/// A claim as words, for hashing and comparison.
type Words = [u64; 5];

const _: () = assert!(
    size_of::<Words>() == size_of::<RawClaim>() && align_of::<Words>() == align_of::<RawClaim>()
);

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
    // SAFETY: a `RawClaim` has the size and alignment of `Words` (asserted above) and no padding.
    let claim = unsafe { *ptr::from_ref(claim).cast::<Words>() };
    let bucket = CLAIMS.get_ptr_mut((hash(&claim) >> (u64::BITS - BUCKET_BITS)) as u32)?;
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

/// A sum of independent products; the constants are odd and otherwise arbitrary (fractions of the golden ratio and of
/// square roots).
#[inline(always)]
fn hash(words: &Words) -> u64 {
    const FACTORS: Words = [
        0x9e37_79b9_7f4a_7c15,
        0x6a09_e667_f3bc_c909,
        0xbb67_ae85_84ca_a73b,
        0x3c6e_f372_fe94_f82b,
        0xa54f_f53a_5f1d_36f1,
    ];
    let seed = HASH_SEED.load();
    let mut sum = seed;
    for (word, factor) in words.iter().zip(FACTORS) {
        // Low bits must affect the high ones, which select the bucket, and vice versa.
        let mixed = word ^ seed;
        sum = sum.wrapping_add((mixed ^ (mixed >> 32)).wrapping_mul(factor));
    }
    sum ^= sum >> 32;
    sum.wrapping_mul(FACTORS[0])
}
