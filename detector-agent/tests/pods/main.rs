//! Pods behind devices: the container runtime, the CNI result cache, the Kubernetes API.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod containerd;
mod diagnosis;
mod history;
mod incidents;
mod kube;
mod leftovers;
mod pod_cidr;
mod ranges;
mod recording;
mod remote_ipam;
mod shared_pool;
mod sources;
mod stale_endpoints;

/// The agent under test.
const AGENT: &str = env!("CARGO_BIN_EXE_detector-agent");
