#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod agent;
mod columns;
mod confirmation;
mod failures;
mod handover;
mod hostile_objects;
mod leaving;
mod model;
mod nodes;
mod own_node;
mod questions;
mod random_answers;
mod restart;
mod server;
