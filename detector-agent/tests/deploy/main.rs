//! Tests of everything in `deploy/`: rendered, validated, queried and run.
//!
//! Stand-ins installed by `cargo xtask setup` replace tools that are not available here: a small
//! renderer for Helm, and a base image of Debian's libraries for distroless. Grafana is not run, but the
//! queries of its panels are.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod chart;
mod dashboards;
mod docs;
mod image;
mod manifests;
mod problem_detector;
mod rules;
mod runbooks;
mod tools;

/// The agent under test.
const AGENT: &str = env!("CARGO_BIN_EXE_detector-agent");
