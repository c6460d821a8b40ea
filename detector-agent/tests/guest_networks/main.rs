//! What needs drivers that a host may lack: VRFs, VLAN filtering of bridges, VLAN interfaces, dummies, and ipvlan.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod internal_interfaces;
mod site;
mod vlans;
mod vrfs;

/// The agent under test.
const AGENT: &str = env!("CARGO_BIN_EXE_detector-agent");
