//! The [`model`] test, which looks inside the engine. All other behaviour is tested through the public interface in
//! `tests/scenarios`, and what a module stores beside it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot continue fails"
)]

mod model;
mod objects;

use std::{net::IpAddr, sync::Arc, time::Duration};

use super::*;
use objects::*;

const MS: u64 = 1_000_000;
