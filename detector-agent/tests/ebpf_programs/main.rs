//! The kernel programs on the real kernel: what they publish, what they count, and what they leave alone.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod agreement;
mod attaching;
mod frames;
mod limits;
mod loading;
mod neighbours;
mod world;
