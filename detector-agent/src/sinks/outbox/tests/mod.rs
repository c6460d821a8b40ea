//! The outbox's invariants, with crashes at every write, full disks and full queues.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test that cannot set itself up fails

mod disk;
mod faults;
mod lanes;
mod model;
mod windows;
mod world;
