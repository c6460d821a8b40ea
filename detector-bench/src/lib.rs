//! Benchmarks and the soak test of a whole agent, measured from outside.
//!
//! Each benchmark returns [`Figure`]s: measured values, each with its goal if one is set. `cargo xtask bench` runs the
//! `bench` binary once per benchmark and collects them; `cargo xtask soak` runs the `soak` binary.

pub mod cni;
pub mod figure;
pub mod flood;
pub mod floor;
pub mod identify;
pub mod latency;
mod pairs;
pub mod path;
pub mod peers;
pub mod report;
pub mod scale;
pub mod soak;
pub mod statistics;
pub mod storm;
pub mod throughput;

pub use figure::{Figure, Goal};
