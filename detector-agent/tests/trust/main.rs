//! Detection in realistic setups: bridges, VLANs, IPv6, VIP moves, loss, restarts.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod assignments;
mod bridge;
mod first_frames;
mod host;
mod ipv6;
mod leftovers;
mod loss;
mod moves;
mod new_devices;
mod own_interfaces;
mod own_stack;
mod preemption;
mod recycled_ids;
mod restart;
mod reuse;
mod since;
mod tentative;
mod versions;
mod vlan;

/// The agent under test.
const AGENT: &str = env!("CARGO_BIN_EXE_detector-agent");
