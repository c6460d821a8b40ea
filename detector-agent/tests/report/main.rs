//! What the sinks deliver: an agent's event lines, webhooks, Alertmanager, and faults on the way.
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
mod webhook;

/// The agent under test.
#[cfg(feature = "privileged-tests")]
const AGENT: &str = env!("CARGO_BIN_EXE_detector-agent");
