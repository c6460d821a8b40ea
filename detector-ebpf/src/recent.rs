//! The claims that were published a short while ago.
//!
//! A cache of two ways: a claim's hash names a bucket, which remembers two claims; a third takes the place of the older one.
//! A claim that was forgotten is only published again, within its device's budget. Against a map of the kernel's own (LRU
//! hash) this saves its helper calls, which on the way of a new claim were half of the whole cost.
//!
//! Two CPUs may write a bucket at once. An entry is marked empty while it is written, so what a reader finds half-written it
//! mostly takes for empty; at worst one claim is published once too often, or, where the halves of two claims make up a third
//! one that hashes alike, once too late.

use core::ptr;

use aya_ebpf::{Global, macros::map, maps::Array};
use detector_common::Claim;

use crate::maps::REPUBLISH_AFTER_NS;

/// Buckets are numbered by so many bits of the hash.
const BUCKET_BITS: u32 = 15;

#[map]
static CLAIMS: Array<Bucket> = Array::with_max_entries(1 << BUCKET_BITS, 0);

/// Makes the hash another one each time, so that nobody can choose claims that meet in a bucket.
#[unsafe(no_mangle)]
static HASH_SEED: Global<u64> = Global::new(0);

/// A claim as words, which is how it is hashed and compared.
type Words = [u64; 5];

const _: () =
    assert!(size_of::<Words>() == size_of::<Claim>() && align_of::<Words>() == align_of::<Claim>());

#[repr(C)]
struct Entry {
    /// When it was published (coarse clock); 0 marks an entry that is empty or being written.
    at: u64,
    claim: Words,
}

#[repr(C)]
struct Bucket {
    ways: [Entry; 2],
}

/// Where a claim's publication will be noted.
pub(crate) struct Place {
    entry: *mut Entry,
    claim: Words,
}

/// What is known about a claim.
pub(crate) enum Recent {
    /// It was published a short while ago.
    Known(Place),
    /// It was not, or too long ago.
    New(Place),
}

/// Looks a claim up at `now` (coarse clock).
#[inline(always)]
pub(crate) fn look_up(claim: &Claim, now: u64) -> Option<Recent> {
    // SAFETY: a `Claim` has size and alignment of `Words` (asserted above) and no padding.
    let claim = unsafe { *ptr::from_ref(claim).cast::<Words>() };
    let bucket = CLAIMS.get_ptr_mut((hash(&claim) >> (u64::BITS - BUCKET_BITS)) as u32)?;
    // SAFETY: the bucket lives as long as the map; what races do to it is described above.
    unsafe {
        let (first, second) = (&raw mut (*bucket).ways[0], &raw mut (*bucket).ways[1]);
        for entry in [first, second] {
            if is_equal(&(*entry).claim, &claim) {
                let is_recent = now.wrapping_sub((*entry).at) < REPUBLISH_AFTER_NS.load();
                let place = Place { entry, claim };
                return Some(if is_recent {
                    Recent::Known(place)
                } else {
                    Recent::New(place)
                });
            }
        }
        let older = if (*first).at <= (*second).at {
            first
        } else {
            second
        };
        Some(Recent::New(Place {
            entry: older,
            claim,
        }))
    }
}

impl Place {
    /// Notes that the claim was published at `now` (coarse clock).
    #[inline(always)]
    pub(crate) fn note(self, now: u64) {
        // SAFETY: as in `look_up`. Volatile: the compiler keeps the order.
        unsafe {
            ptr::write_volatile(&raw mut (*self.entry).at, 0);
            (*self.entry).claim = self.claim;
            ptr::write_volatile(&raw mut (*self.entry).at, now);
        }
    }
}

/// Equality without a call: of `==` the compiler makes one of a loop over bytes.
#[inline(always)]
fn is_equal(a: &Words, b: &Words) -> bool {
    let mut difference = 0;
    for (a, b) in a.iter().zip(b) {
        difference |= a ^ b;
    }
    difference == 0
}

/// A sum of products, none of which waits for another; the constants are odd and otherwise arbitrary (fractions of the
/// golden ratio and of square roots).
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
        // Low bits have to reach the high ones, of which the bucket's number is taken, and the other way round.
        let mixed = word ^ seed;
        sum = sum.wrapping_add((mixed ^ (mixed >> 32)).wrapping_mul(factor));
    }
    sum ^= sum >> 32;
    sum.wrapping_mul(FACTORS[0])
}
