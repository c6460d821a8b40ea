//! IPAM sources: which IPAM assigns the addresses of this node's pods, and what it has allocated.
//!
//! ```text
//! /etc/cni/net.d, CNI results ──► networks ──► host_local, calico, … (SOURCES) ──Pool──► event loop
//!                                                    ▲                                     │
//!                                                    └─────── "read this pool now" ────────┘
//! ```
//!
//! Runs on a thread of its own, which may wait for a disk or an API. The [`engine`](detector_engine) compares: it gets each
//! pool's allocations and which addresses changed in them.
//!
//! Invariants: nothing is written, and no lock of a plugin is taken; only regular files are read, up to a bound;
//! allocations that cannot be read are reported as unknown, never as empty. What was found and what was not is reported
//! as parts of `/readyz`, in the log once per change, and by `check`.

pub(crate) mod aws;
mod azure;
pub(crate) mod calico;
mod cilium;
mod cni_config;
mod directory_watch;
mod files;
mod follower;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod host_local;
mod kube_objects;
mod kube_ovn;
mod lease_records;
mod leases;
mod network;
mod once;
mod read_budget;
mod settings;
mod snapshot_history;
mod source;
mod sources;
mod spiderpool;
mod watcher;
mod whereabouts;
mod whole_pool;

pub(crate) use cni_config::{configured_networks, network_config};
pub(crate) use files::{FileError, read as read_file, tail as read_tail};
pub use once::{IpamSnapshot, read_once};
pub use settings::{IpamMode, IpamSettings};
pub use watcher::IpamWatcher;

/// Longest container id.
const MAX_ID: usize = 128;

fn is_container_id(text: &str) -> bool {
    (1..=MAX_ID).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}
