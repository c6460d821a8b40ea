//! The kernel programs on the running kernel: what they publish and count, and that they leave other programs alone.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod accepted;
mod agreement;
mod attaching;
mod contested;
mod fixture;
mod frames;
mod limits;
mod loading;
mod neighbours;
