//! The ids of conflicts and anomalies.

use std::{fmt, num::ParseIntError};

use serde::{Deserialize, Serialize, Serializer};

use crate::ascii::{hex, serialize_ascii};

/// Defines an id of 128 bits, which is 32 hexadecimal digits as text.
macro_rules! id {
    ($(#[$attribute:meta])* $type:ident) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
        #[serde(try_from = "String")]
        pub struct $type(pub u128);

        impl $type {
            /// Its digits in ASCII.
            fn text(self) -> [u8; 32] {
                let mut text = [0; 32];
                let (digits, _) = text.as_chunks_mut();
                for (digits, byte) in digits.iter_mut().zip(self.0.to_be_bytes()) {
                    *digits = hex(byte);
                }
                text
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(str::from_utf8(&self.text()).map_err(|_| fmt::Error)?)
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serialize_ascii(&self.text(), serializer)
            }
        }

        impl TryFrom<String> for $type {
            type Error = ParseIntError;

            fn try_from(text: String) -> Result<Self, ParseIntError> {
                u128::from_str_radix(&text, 16).map(Self)
            }
        }
    };
}

id! {
    /// Identifies a conflict for its whole life, even across restarts of the agent.
    ConflictId
}

id! {
    /// Identifies an anomaly for its whole life, even across restarts of the agent.
    AnomalyId
}

/// New ids: distinct across restarts by the seed, and within one run by the serial number.
#[derive(Debug)]
pub(crate) struct IdSequence {
    seed: u64,
    serial: u64,
}

impl IdSequence {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, serial: 0 }
    }

    pub(crate) fn next(&mut self) -> u128 {
        self.serial += 1;
        let high = mix(self.seed ^ mix(self.serial));
        let low = mix(self.seed.rotate_left(32).wrapping_add(self.serial));
        (u128::from(high) << 64) | u128::from(low)
    }
}

/// The finalizer of SplitMix64: spreads a counter over all bits.
fn mix(value: u64) -> u64 {
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
