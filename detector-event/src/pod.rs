//! Pods, as far as their source knows them.

use std::{collections::BTreeMap, fmt, net::IpAddr, sync::Arc};

use detector_engine::KnownPod;
use serde::{Deserialize, Serialize};

use crate::WallTime;

/// The source that identified a pod, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[serde(rename_all = "kebab-case")]
pub enum Via {
    /// The container runtime: by the pod's network namespace, or by the device named in the runtime's CNI result.
    Cri,
    /// The CNI result cache: by the same two.
    CniCache,
    /// The Kubernetes API: the device's name is derived from the pod's, or no other device has the pod's address.
    Kube,
    /// The device itself: its name is a hash of a pod's name or container id known from another source, or its alias
    /// contains the pod's name (newer kindnet).
    NameHash,
}

impl Via {
    /// Every source, best first.
    pub const ALL: [Self; 4] = [Self::Cri, Self::CniCache, Self::Kube, Self::NameHash];

    /// Its name in events and metrics.
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

/// The pod behind a device, as far as its source knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Pod {
    /// Kubernetes namespace.
    pub namespace: String,
    /// Pod name.
    pub name: String,
    /// Pod uid.
    pub uid: Option<String>,
    /// The id of its sandbox or container; null where the source does not have it.
    pub container_id: Option<String>,
    /// The source that identified it.
    pub via: Via,
    /// The labels named by `--pod-labels`. Like the three fields below, from the Kubernetes API only.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The workload it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// Present and true if it is being deleted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub terminating: bool,
    /// When it was created, from the Kubernetes API, to the second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<WallTime>,
    /// When its sandbox was created, from the container runtime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_created_at: Option<WallTime>,
    /// The addresses of its primary interface, as the container runtime, the CNI result cache or the Kubernetes API gives them; at most
    /// [`MAX_PRIMARY_ADDRESSES`]. Not part of events.
    #[serde(skip)]
    pub primary_addresses: Vec<IpAddr>,
    /// The addresses of its secondary interfaces, by the CNI result cache; at most [`MAX_SECONDARY_ADDRESSES`]. Not part of events.
    #[serde(skip)]
    pub secondary_addresses: Vec<IpAddr>,
    /// Whether it was recognised by the addresses on its device alone. Not part of events.
    #[serde(skip)]
    pub is_matched_by_address: bool,
}

/// Most primary addresses of one pod. Kubernetes allows one of each family.
pub const MAX_PRIMARY_ADDRESSES: usize = 16;
/// Most addresses of the secondary interfaces of one pod.
pub const MAX_SECONDARY_ADDRESSES: usize = 64;

/// The workload a pod belongs to: a Deployment, a StatefulSet, ….
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Owner {
    /// The workload's kind.
    pub kind: String,
    /// The workload's name, in the pod's namespace.
    pub name: String,
}

impl Pod {
    /// A pod whose name is all that is known.
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
            created_at: None,
            sandbox_created_at: None,
            primary_addresses: Vec::new(),
            secondary_addresses: Vec::new(),
            is_matched_by_address: false,
        }
    }

    /// What the engine compares with claims.
    #[must_use]
    pub fn to_known(&self) -> KnownPod {
        let addresses = self
            .primary_addresses
            .iter()
            .chain(&self.secondary_addresses);
        KnownPod {
            name: format!("{}/{}", self.namespace, self.name),
            sandbox: self.container_id.as_deref().map(Arc::from),
            addresses: addresses.copied().collect(),
            may_have_more_addresses: self.primary_addresses.len() >= MAX_PRIMARY_ADDRESSES
                || self.secondary_addresses.len() >= MAX_SECONDARY_ADDRESSES,
            is_matched_by_address: self.is_matched_by_address,
        }
    }

    /// Whether `newer` is the same pod, and has nothing that this does not. Which source found it makes no difference.
    #[must_use]
    pub fn covers(&self, newer: &Self) -> bool {
        fn covers<T: PartialEq>(known: &Option<T>, newer: &Option<T>) -> bool {
            newer.is_none() || known == newer
        }
        (&self.namespace, &self.name) == (&newer.namespace, &newer.name)
            && covers(&self.uid, &newer.uid)
            && covers(&self.container_id, &newer.container_id)
            && covers(&self.owner, &newer.owner)
            && covers(&self.created_at, &newer.created_at)
            && covers(&self.sandbox_created_at, &newer.sandbox_created_at)
            && (newer.labels.is_empty() || self.labels == newer.labels)
            && (self.terminating || !newer.terminating)
    }

    /// How much is known of it: the number of its fields that have a value.
    #[must_use]
    pub fn known_parts(&self) -> u8 {
        let parts = [
            self.uid.is_some(),
            self.container_id.is_some(),
            self.owner.is_some(),
            !self.labels.is_empty(),
            self.terminating,
        ];
        1 + parts.into_iter().map(u8::from).sum::<u8>()
    }

    /// Whether both are the same pod, regardless of the source.
    #[must_use]
    pub fn is_same_pod(&self, other: &Self) -> bool {
        self.namespace == other.namespace && self.name == other.name && self.uid == other.uid
    }
}

/// The pod behind a device as currently known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodAnswer {
    /// The pod.
    Known(Arc<Pod>),
    /// Not known; the reason, for people.
    Unknown(Arc<str>),
}
