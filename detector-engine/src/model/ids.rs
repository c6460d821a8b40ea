//! Distinct numbers for the ids of conflicts and anomalies.

/// The finalizer of SplitMix64: spreads a counter over all bits.
pub(crate) fn mix(value: u64) -> u64 {
    let z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first outputs of SplitMix64 with seed 0, from the reference implementation.
    #[test]
    fn ids_are_spread_by_splitmix64() {
        let step = 0x9e37_79b9_7f4a_7c15_u64;
        let numbers: Vec<_> = (0..3).map(|n| mix(step.wrapping_mul(n))).collect();
        assert_eq!(
            numbers,
            [
                0xe220_a839_7b1d_cdaf,
                0x6e78_9e6a_a1b9_65f4,
                0x06c4_5d18_8009_454f
            ]
        );
    }
}
