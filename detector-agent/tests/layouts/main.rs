//! Layouts of network plugins: after each step, the agent's conflicts are what the kernel has, as iproute2 shows it.
//! Plugins that are installed run themselves; the others' devices, routes and rules are created in the plugin's order.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod aws;
mod azure;
mod calico;
mod flannel;
mod kernel;
mod layout;
mod ptp;
mod vips;

/// The agent under test.
const AGENT: &str = env!("CARGO_BIN_EXE_detector-agent");
