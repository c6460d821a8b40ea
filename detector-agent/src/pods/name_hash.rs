//! Device names that CNI plugins derive from the pod's name or its container's id.
//!
//! A hash cannot be inverted, so the names of all known pods are hashed and compared. Prefixes are configurable (Felix's
//! `InterfacePrefix`, AWS's `AWS_VPC_K8S_CNI_VETHPREFIX`), so only what follows them is compared.

use std::collections::HashMap;

use detector_event::Pod;
use sha1::{Digest as _, Sha1};
use sha2::Sha256;

/// Hex digits of the hash in device names of Calico, AWS and Azure.
const DIGITS: usize = 11;
/// Longest prefix before them: a device name has at most 15 bytes (`IFNAMSIZ`).
const PREFIX: usize = 4;
/// AWS numbers a pod's secondary interfaces from 1; this many are tried.
const SECONDARY_INTERFACES: u32 = 8;
/// The pod's interface, which is part of what Cilium hashes.
const INTERFACE: &str = "eth0";

/// Possible device names of pods.
#[derive(Debug, Default)]
pub(super) struct HashedNames {
    /// Names without their prefix, each with the pod's position.
    tails: HashMap<String, usize>,
    /// Full names, each with the pod's position.
    names: HashMap<String, usize>,
}

impl HashedNames {
    /// The possible device names of `pods`.
    pub(super) fn new<'p>(pods: impl Iterator<Item = &'p Pod>) -> Self {
        let mut this = Self::default();
        for (index, pod) in pods.enumerate() {
            let key = format!("{}.{}", pod.namespace, pod.name);
            this.tails.insert(tail(&key), index);
            for interface in 1..=SECONDARY_INTERFACES {
                this.tails
                    .insert(tail(&format!("{key}.{interface}")), index);
            }
            if let Some(id) = &pod.container_id {
                this.names.extend(
                    from_container_id(&pod.name, id)
                        .into_iter()
                        .map(|name| (name, index)),
                );
            }
        }
        this
    }

    /// The position of the pod that this device name is derived from.
    pub(super) fn find(&self, device: &str) -> Option<usize> {
        if let Some(index) = self.names.get(device) {
            return Some(*index);
        }
        let prefix = device.len().checked_sub(DIGITS)?;
        if !(1..=PREFIX).contains(&prefix) {
            return None;
        }
        self.tails.get(device.get(prefix..)?).copied()
    }
}

/// The name without prefix in Calico, AWS and Azure's transparent mode. `key` is `<namespace>.<pod>`; AWS appends
/// `.<index>` for secondary interfaces.
fn tail(key: &str) -> String {
    hex(&Sha1::digest(key), DIGITS)
}

/// Names derived from the container's id: Calico outside Kubernetes, OVN-Kubernetes, Cilium, Antrea.
fn from_container_id(pod: &str, id: &str) -> Vec<String> {
    let mut names = Vec::with_capacity(4);
    names.extend(id.get(..DIGITS).map(|id| format!("cali{id}")));
    names.extend(id.get(..15).map(str::to_owned));
    names.push(format!(
        "lxc{}",
        hex(&Sha256::digest(format!("{id}:{INTERFACE}")), 12)
    ));
    let head = pod.get(..8).unwrap_or(pod).trim_start_matches('-');
    names.push(format!("{head}-{}", hex(&Sha1::digest(id), 6)));
    names
}

fn hex(bytes: &[u8], digits: usize) -> String {
    const HEX: [char; 16] = [
        '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f',
    ];
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 0xf])
        .filter_map(|nibble| HEX.get(usize::from(nibble)))
        .take(digits)
        .collect()
}

#[cfg(test)]
mod tests {
    use detector_event::Via;

    use super::*;

    fn pod(namespace: &str, name: &str, container_id: Option<&str>) -> Pod {
        Pod {
            container_id: container_id.map(str::to_owned),
            ..Pod::named(namespace, name, Via::Kube)
        }
    }

    /// Computed with the plugins' own code, or taken from their tests (AWS).
    #[test]
    fn calico_aws_and_azure_names_match_the_plugins() {
        let pods = [
            pod("kube-system", "coredns-abc", None),
            pod("default", "web-0", None),
            pod("kube-system", "coredns-57ff979f67-qqbdh", None),
        ];
        let names = HashedNames::new(pods.iter());
        for (device, position) in [
            ("cali3d5d6ab04b5", Some(0)),
            ("eni3d5d6ab04b5", Some(0)),
            ("azv3d5d6ab04b5", Some(0)),
            ("eni769f2b6ef39", Some(0)),
            ("vlan3d5d6ab04b5", Some(0)),
            ("cali0d7763386da", Some(1)),
            ("enib5faff8a083", Some(2)),
            ("3d5d6ab04b5", None),
            ("tunl03d5d6ab04b5", None),
            ("cali3d5d6ab04b6", None),
            ("veth12345678", None),
            ("", None),
        ] {
            assert_eq!(names.find(device), position, "{device}");
        }
    }

    /// Computed with sha1sum and sha256sum by each plugin's rule.
    #[test]
    fn container_id_names_match_the_plugins() {
        let id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
        let pods = [pod("default", "web-0-long-name", Some(id))];
        let names = HashedNames::new(pods.iter());
        for device in ["cali0123456789a", "0123456789abcde", CILIUM, ANTREA] {
            assert_eq!(names.find(device), Some(0), "{device}");
        }
    }

    const CILIUM: &str = "lxcbf46857248e3";
    const ANTREA: &str = "web-0-lo-ce4303";

    #[test]
    fn non_ascii_names_and_short_ids_match_nothing() {
        let pods = [pod("ü", "ßßßßßßßßß", Some("x"))];
        let names = HashedNames::new(pods.iter());
        assert_eq!(names.find("ürgend-ein-näme"), None);
    }
}
