//! The table of causes: each row with its proof and its near misses, all rows with facts left out, and random mixtures.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot continue fails"
)]

mod allocation;
mod claimants;
mod cluster;
mod erase;
mod expected;
mod fixtures;
mod host_local;
mod model;
mod routing;
mod scenarios;
mod table;
mod texts;

use std::net::IpAddr;

use super::*;
use crate::model::{AnomalyKind, ConflictKind, EvidenceKind};
use erase::without;
use fixtures::*;

fn verdict(facts: &Facts) -> (Cause, CauseConfidence) {
    let diagnosis = diagnose(facts);
    (diagnosis.cause, diagnosis.confidence)
}
