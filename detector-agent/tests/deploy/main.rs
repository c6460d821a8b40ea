//! Everything in `deploy/`, exercised: rendered, validated, asked, run.
//!
//! What `cargo xtask setup` installs stands in for what no machine of ours has: a small renderer for Helm, a base image of
//! Debian's own libraries for distroless. Grafana is not run: its panels' queries are.
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
mod tools;
