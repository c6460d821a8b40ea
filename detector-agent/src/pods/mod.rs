//! Which pod stands behind a device.
//!
//! ```text
//! detection ──notes──► task ──rounds──► sources (cri, cni-cache, kube), each a task of its own
//!     ▲                 │  ◄──reports──
//!     │                 ├──► PodDirectory: what is known now, read without a lock
//!     └── "pods known" ─┘
//! ```
//!
//! A source does not answer for one device: it tells every pod it knows, each with what its devices can be told by
//! ([`Record`]). Joining devices and records ([`DeviceMatcher`]) is pure.
//!
//! Invariants: nobody on the way of an event waits for a source; a source that hangs delays no other; a device is
//! named only by records that were read after it appeared, because the kernel gives a namespace's id to the next one
//! as soon as it is free; a name, once given to a device (index and generation), is only replaced by a better
//! source's; everything is bounded.

mod cni_cache;
mod cri;
mod directory;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
pub(crate) mod kube;
mod matcher;
mod name_hash;
mod namespaces;
mod once;
mod resolver;
mod settings;
mod source;
mod sources;

use std::{borrow::Cow, collections::BTreeMap, fmt, sync::Arc};

use serde::{Deserialize, Serialize};

pub use cni_cache::CniCache;
pub use cri::Cri;
pub use directory::{PodDirectory, PodLookups};
pub use kube::Kube;
pub use matcher::{DeviceMatcher, Record};
pub use once::look_once;
pub use resolver::{Identifier, NOTES, Note};
pub use settings::{CriSetting, IdentifySettings, KubeSetting, PathSetting};
pub use source::{Problem, Source, SourceSnapshot, SourceState, SourceStatus};
pub use sources::Sources;

/// Which source told of a pod, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Via {
    /// The container runtime: by the pod's network namespace, or by the device the runtime's CNI result names.
    Cri,
    /// The CNI result cache: by the same two.
    CniCache,
    /// The Kubernetes API: the device's name is made of the pod's, or the pod's address is on no other device.
    Kube,
    /// The device itself: its name is a hash of a pod's name or container id that another source told, or its alias
    /// spells the pod out (newer kindnet).
    NameHash,
}

impl Via {
    /// Every source, best first.
    pub const ALL: [Self; 4] = [Self::Cri, Self::CniCache, Self::Kube, Self::NameHash];

    /// The Contract's word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cri => "cri",
            Self::CniCache => "cni-cache",
            Self::Kube => "kube",
            Self::NameHash => "name-hash",
        }
    }
}

impl fmt::Display for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A pod, as far as its source knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pod {
    /// Kubernetes namespace.
    pub namespace: String,
    /// Pod name.
    pub name: String,
    /// Pod uid.
    pub uid: Option<String>,
    /// Sandbox or container id.
    pub container_id: Option<String>,
    /// Which source told.
    pub via: Via,
    /// Those of its labels that the operator asked for. From the Kubernetes API only, as are the next two.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// What it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// It is being deleted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub terminating: bool,
}

/// What a pod belongs to: a Deployment, a StatefulSet, ….
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Its kind.
    pub kind: String,
    /// Its name, in the pod's namespace.
    pub name: String,
}

impl Pod {
    /// A pod of which only the name is known.
    #[must_use]
    pub fn named(namespace: impl Into<String>, name: impl Into<String>, via: Via) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
            uid: None,
            container_id: None,
            via,
            labels: BTreeMap::new(),
            owner: None,
            terminating: false,
        }
    }

    /// Whether both are the same pod, whoever told.
    #[must_use]
    pub fn is_same_pod(&self, other: &Self) -> bool {
        self.namespace == other.namespace && self.name == other.name && self.uid == other.uid
    }
}

/// What is known of a claimant's pod at this moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodAnswer {
    /// The pod.
    Known(Arc<Pod>),
    /// Not known, and why.
    Unknown(Cow<'static, str>),
}
