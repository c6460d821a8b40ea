//! The agent in a real Kubernetes cluster: API server, kubelet and containerd, and the chart installed by real Helm.
//!
//! Each test has a cluster of its own, and follows an installation from step to step.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod documents;
mod fleet;
mod installation;
mod life;
mod outage;
mod registry;

/// The executable under test.
pub(crate) const AGENT: &str = env!("CARGO_BIN_EXE_detector-agent");
