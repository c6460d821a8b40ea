//! Benchmarks and the soak test of a whole agent, measured from outside.
//!
//! Each benchmark returns [`Figure`]s: measured values, each with its goal if one is set. `cargo xtask bench` runs the
//! `bench` binary once per benchmark and collects them; `cargo xtask soak` runs the `soak` binary.

pub mod attack;
pub mod cni;
pub mod comparison;
pub mod delivery;
pub mod endpoints;
pub mod figure;
pub mod fleet_scale;
pub mod flood;
mod floor;
#[cfg(target_arch = "x86_64")]
pub mod instructions;
pub mod latency;
mod metrics;
pub mod peers;
pub mod pod_lookup;
mod pod_pairs;
mod processors;
pub mod ratio;
pub mod scale;
pub mod soak;
pub mod statistics;
mod storm;
pub mod throughput;
pub mod traffic;

pub use figure::{Figure, Goal, Verdict};

use detector_testkit::{Frame, MacAddress, random::Random};

/// An encoded ARP announcement of a random address in `network`/8, from a random locally administered MAC.
fn random_announcement(random: &mut Random, network: u8) -> Vec<u8> {
    let [_, a, b, c, d, e, f, g] = random.next_u64().to_be_bytes();
    let mac = MacAddress([0x02, d, e, f, g, a]);
    Frame::announcement(mac, [network, a, b, c].into()).to_bytes()
}
