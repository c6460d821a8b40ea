//! Allocations against live addresses: host-local, Calico and AWS.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod advice;
mod host_local;
mod leases;
mod remote;
mod sources;

/// The agent under test.
const AGENT: &str = env!("CARGO_BIN_EXE_detector-agent");
