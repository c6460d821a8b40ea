//! Pod lookup: which pod is behind a device.
//!
//! ```text
//! event loop ──LookupRequest──► resolver ──rounds──► sources (cri, cni-cache, kube), one task each
//!     ▲                          │  ◄──snapshots──
//!     │                          ├──► PodDirectory: current answers, read without a lock
//!     └───── pods changed ───────┘
//! ```
//!
//! A source is not queried per device: it returns every pod it knows, each with what identifies the pod's devices
//! ([`PodRecord`]). Matching devices with records ([`DeviceMatcher`]) is pure.
//!
//! Invariants:
//! - the event loop never waits for a source, and a source that hangs delays no other;
//! - a device is matched only with records read after it appeared, because the kernel reuses a network namespace's id
//!   as soon as it is free;
//! - once a device (ifindex and generation) has a pod, only a better source replaces it;
//! - queues, caches and messages are bounded.

mod cni_cache;
mod cri;
mod directory;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod kube;
mod matcher;
mod name_hash;
mod netns;
mod once;
mod resolver;
mod settings;
mod source;
mod sources;

pub use cni_cache::CniCache;
pub(crate) use cni_cache::cache_files::CacheFiles;
pub use cri::Cri;
pub(crate) use cri::{ListedSandboxes, SandboxList};
pub use directory::{PodDirectory, PodLookups};
pub use kube::KubePods;
#[cfg(test)]
pub(crate) use kube::PluginPod;
pub(crate) use kube::{PluginContainer, PluginPods};
pub use matcher::{DeviceMatcher, PodRecord};
pub use once::resolve_once;
pub use resolver::{LOOKUP_QUEUE, LookupRequest, LookupUpdate, PodResolver};
pub use settings::{CriSetting, PathSetting, PodLookupSettings};
pub use source::{PodSource, SourceError, SourceSnapshot, SourceState, SourceStatus};
pub use sources::PodSources;
