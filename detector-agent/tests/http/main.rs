//! The endpoints: API, status page, metrics, `watch`, and hostile clients.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

#[cfg(feature = "privileged-tests")]
mod api;
mod hostile;
#[cfg(feature = "privileged-tests")]
mod lists;
#[cfg(feature = "privileged-tests")]
mod networks;
#[cfg(feature = "privileged-tests")]
mod page;
#[cfg(feature = "privileged-tests")]
mod prometheus;
#[cfg(feature = "privileged-tests")]
mod watch;

/// The agent under test.
#[cfg(feature = "privileged-tests")]
const AGENT: &str = env!("CARGO_BIN_EXE_detector-agent");
