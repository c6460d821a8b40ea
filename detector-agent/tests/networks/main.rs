//! Networks as a node has them: isolated bridges, pods with several interfaces, Docker's bridges, link-local addresses that
//! are routed. VRFs and VLANs: `guest_networks`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod isolated;
mod link_local;

/// The agent under test.
const AGENT: &str = env!("CARGO_BIN_EXE_detector-agent");
