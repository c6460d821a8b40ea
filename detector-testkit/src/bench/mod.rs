//! What `cargo xtask bench` measures of a whole agent, from outside. Each part gives [`Figure`]s: what was measured beside
//! what it should be.

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
pub mod statistics;
pub mod storm;
pub mod throughput;

pub use figure::{Figure, Goal};
