//! Sinks: webhooks and Alertmanager, with and without delivery faults.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

#[cfg(feature = "privileged-tests")]
mod agent;
#[cfg(feature = "privileged-tests")]
mod alertmanager;
#[cfg(feature = "privileged-tests")]
mod faults;
#[cfg(feature = "privileged-tests")]
mod restart;
mod webhook;

/// The agent under test.
#[cfg(feature = "privileged-tests")]
const AGENT: &str = env!("CARGO_BIN_EXE_detector-agent");
