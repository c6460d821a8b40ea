//! The CNI result cache, in which a container runtime keeps what the plugins returned.

use std::{net::IpAddr, path::Path};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::{
    netns::Netns,
    node::{POD_DEVICE, Pod},
};

/// An entry of the CNI result cache.
pub(super) struct CacheEntry<'a> {
    pub(super) network: &'a str,
    pub(super) container_id: &'a str,
    /// Namespace and name.
    pub(super) pod: (&'a str, &'a str),
    pub(super) netns: &'a Netns,
    pub(super) result: Value,
}

impl CacheEntry<'_> {
    pub(super) fn write(&self, directory: &Path) -> Result<()> {
        let Self {
            network,
            container_id,
            pod: (namespace, name),
            ..
        } = self;
        let entry = json!({
            "kind": "cniCacheV1", "containerId": container_id, "config": "e30=", "ifName": POD_DEVICE,
            "networkName": network, "netns": self.netns.path(),
            "cniArgs": [["K8S_POD_NAMESPACE", namespace], ["K8S_POD_NAME", name], ["K8S_POD_UID", format!("uid-{name}")]],
            "result": self.result,
        });
        let path = directory.join(format!("{network}-{container_id}-{POD_DEVICE}"));
        std::fs::write(&path, entry.to_string())
            .with_context(|| format!("writing {}", path.display()))
    }
}

/// Writes the result with which a network plugin would have given the pod these addresses into the CNI result cache in `directory`.
/// The id of the container is the pod's name.
///
/// # Errors
/// The file cannot be written.
pub fn cache_result_of(
    directory: &Path,
    pod: &Pod,
    (namespace, name): (&str, &str),
    addresses: &[IpAddr],
) -> Result<()> {
    let ips = addresses.iter().map(|ip| {
        let prefix = if ip.is_ipv6() { 128 } else { 32 };
        json!({"address": format!("{ip}/{prefix}"), "interface": 1})
    });
    let entry = CacheEntry {
        network: "net",
        container_id: name,
        pod: (namespace, name),
        netns: pod.netns(),
        result: json!({"cniVersion": "0.3.1", "ips": ips.collect::<Vec<_>>(), "interfaces":
            [{"name": pod.device()}, {"name": POD_DEVICE, "sandbox": pod.netns().path()}]}),
    };
    entry.write(directory)
}
