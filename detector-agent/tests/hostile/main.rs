//! What a hostile pod can try: each row of the table in `docs/security.md` has its test here.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod address_changes;
mod bounds;
mod budget;
mod connections;
mod exhaustion;
mod framing;
mod hidden_addresses;
mod instance;
mod internal_interfaces;
mod macs;
mod malformed_frames;
mod metrics;
mod neighbour_floods;
mod odd_names;
mod own_stacks;
mod poisoned_event;
mod renames;
mod routers;
mod squatting;
mod storm;
mod sweep;
mod threat_model;
mod unusual_frames;

/// The agent under test.
const AGENT: &str = env!("CARGO_BIN_EXE_detector-agent");
