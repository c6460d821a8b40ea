//! Which pod stands behind a device.

use std::{borrow::Cow, sync::Arc};

use serde::{Deserialize, Serialize};

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
    /// Which source told: `cri`, `cni-cache`, `name-hash` or `kube`.
    pub via: String,
}

/// What is known of a claimant's pod at this moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodAnswer {
    /// The pod.
    Known(Arc<Pod>),
    /// Not known, and why.
    Unknown(Cow<'static, str>),
}
