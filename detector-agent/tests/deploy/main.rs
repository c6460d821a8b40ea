//! Tests of everything in `deploy/`: rendered, validated, queried and run.
//!
//! The tools are those that `cargo xtask setup` installs, Helm and kubectl among them. The image's agent is
//! not static as that of a release is; its libraries are the base image. Grafana is not run, but the queries of its panels are.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod admission;
mod agent_alerts;
mod chart;
mod crds;
mod dashboards;
mod docs;
mod host_local;
mod image;
mod incidents;
mod inhibition;
mod manifests;
mod node_readiness;
mod opentelemetry;
mod problem_detector;
mod repository;
mod rules;
mod runbooks;
mod systemd;
mod tools;
mod walkthroughs;

/// The agent under test.
const AGENT: &str = env!("CARGO_BIN_EXE_detector-agent");
