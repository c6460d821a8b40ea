//! Where the kernel program's table of recently published claims has the claims of an address.
//!
//! All claims of an address are in one group of buckets, so that the agent can clear them: once another device claims the
//! address, claims that were published before, and may have been dropped since, are published again. Within the group, the
//! device selects the bucket, so that devices in different networks that have the same address do not displace each other.

/// Number of bits that select a bucket.
pub const RECENT_BUCKET_BITS: u32 = 15;

/// Number of buckets in a group, a power of two.
pub const RECENT_GROUP: u32 = 8;

/// Two claims, each with the time of its publication.
pub type RecentBucket = [u64; 12];

/// The first bucket of an address; `address` is that of a [`RawClaim`](crate::RawClaim) as words. `seed` is random, so that a
/// pod cannot choose addresses that collide.
#[must_use]
#[inline(always)]
pub const fn recent_group(address: [u64; 2], seed: u64) -> u32 {
    // Odd and otherwise arbitrary: fractions of the golden ratio and of a square root.
    const FACTORS: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0x6a09_e667_f3bc_c909];
    let [high, low] = address;
    let sum = seed
        .wrapping_add(mix(high, seed).wrapping_mul(FACTORS[0]))
        .wrapping_add(mix(low, seed).wrapping_mul(FACTORS[1]));
    let hash = (sum ^ (sum >> 32)).wrapping_mul(FACTORS[0]);
    (hash >> (u64::BITS - RECENT_BUCKET_BITS)) as u32 & !(RECENT_GROUP - 1)
}

/// The bucket of a device's claims of the address whose group begins at `group`.
#[must_use]
#[inline(always)]
pub const fn recent_bucket(group: u32, ifindex: u32) -> u32 {
    // Successive devices have different buckets.
    group | (ifindex & (RECENT_GROUP - 1))
}

/// Low bits must affect the high ones, which select the group, and vice versa.
#[inline(always)]
const fn mix(word: u64, seed: u64) -> u64 {
    let mixed = word ^ seed;
    mixed ^ (mixed >> 32)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// As many addresses as there are groups, of one subnet: few share a group.
    #[test]
    fn addresses_of_a_subnet_are_spread_over_the_groups() {
        for seed in [0, 1, 0x0123_4567_89ab_cdef, u64::MAX] {
            let mut groups: HashMap<u32, u32> = HashMap::new();
            for host in 0..4_096_u32 {
                let [a, b, c, d] = (0x0af4_0000 + host).to_be_bytes();
                let address = [u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0]), 0];
                *groups.entry(recent_group(address, seed)).or_default() += 1;
            }
            assert!(groups.keys().all(|group| group % RECENT_GROUP == 0
                && recent_bucket(*group, u32::MAX) < 1 << RECENT_BUCKET_BITS));
            // With independent hashes about 2,590 and at most 7 or so.
            let most = groups.values().max().copied();
            assert!(groups.len() > 2_300, "{seed:x}: {}", groups.len());
            assert!(most <= Some(12), "{seed:x}: {most:?}");
        }
    }
}
