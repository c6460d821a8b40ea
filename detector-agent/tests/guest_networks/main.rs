//! Networks that need drivers which a host may lack: VRFs, VLAN filtering of bridges, and VLAN interfaces.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod site;
mod vlans;
mod vrfs;

/// The agent under test.
const AGENT: &str = env!("CARGO_BIN_EXE_detector-agent");
