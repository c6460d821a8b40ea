//! IPAM's books: which IPAM hands out the addresses of this node's pods, and what it holds for whom.
//!
//! ```text
//! /etc/cni/net.d ──config──► which networks ──► host_local, aws, calico ──► Pool ──► detection
//!                                                     ▲                               │
//!                                                     └──────── "read them now" ──────┘
//! ```
//!
//! Everything here is on a thread of its own that may wait for a disk or an API. Comparing is done in
//! [`detect`](crate::detect), which is told whole books and which addresses changed in them.
//!
//! Invariants: no lock of a plugin is ever taken and nothing is written; a file is read within a bound and only where it
//! is a regular one; books that cannot be read are told as unknown, never as empty; what was recognised and what was
//! not is said in one place each: the health part, the log once, `check`.

mod aws;
mod calico;
mod config;
mod files;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod host_local;
mod kept;
mod once;
mod pace;
mod reader;
mod settings;
mod watch;
mod watcher;

pub use once::{Recognised, look_once};
pub use settings::{IpamSettings, IpamSwitch};
pub use watcher::IpamWatcher;

use std::sync::Arc;

use crate::{
    engine::{ChangedAddresses, Pool},
    health::State,
};

/// What came of reading the books of one network.
#[derive(Debug)]
struct Read {
    /// The books.
    pool: Arc<Pool>,
    /// What changed in them.
    touched: ChangedAddresses,
    /// How they are.
    state: State,
    /// The same in one sentence, for people.
    told: String,
}
