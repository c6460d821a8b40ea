#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod admission;
mod agent;
mod cause;
mod columns;
mod confirmation;
mod conflict_beliefs;
mod conflict_views;
mod contests;
mod failures;
mod handover;
mod hostile_objects;
mod leaving;
mod model;
mod nodes;
mod own_claims;
mod own_node;
mod pacing;
mod questions;
mod random_answers;
mod resolved;
mod restart;
mod rights;
mod server;
