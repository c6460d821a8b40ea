//! The status of a pod sandbox: its addresses, and JSON in the runtime's own format. containerd and CRI-O share the fields
//! used here.

use std::{collections::HashMap, net::IpAddr, path::PathBuf};

use detector_event::MAX_PRIMARY_ADDRESSES;
use serde::Deserialize;

use detector_cri::{PodSandboxNetworkStatus, PodSandboxStatusResponse};

/// Most devices of one sandbox.
const MAX_DEVICES: usize = 64;

/// What identifies the network of a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::pods) struct SandboxNetwork {
    /// Path of its network namespace, as the runtime sees it; `None` for a pod in the host network.
    pub(in crate::pods) namespace: Option<PathBuf>,
    /// Process id of the sandbox.
    pub(in crate::pods) pid: Option<u32>,
    /// Host ends of its devices in the runtime's CNI result (containerd only).
    pub(in crate::pods) devices: Vec<String>,
    /// The addresses of the primary interface.
    pub(in crate::pods) addresses: Vec<IpAddr>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Info {
    #[serde(default)]
    pid: u32,
    runtime_spec: Option<RuntimeSpec>,
    cni_result: Option<CniResult>,
}

#[derive(Deserialize)]
struct RuntimeSpec {
    linux: Option<Linux>,
}

#[derive(Deserialize)]
struct Linux {
    #[serde(default)]
    namespaces: Vec<Namespace>,
}

#[derive(Deserialize)]
struct Namespace {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    path: String,
}

/// From go-cni, which serialises fields under their Go names.
#[derive(Deserialize)]
struct CniResult {
    #[serde(rename = "Interfaces", default)]
    interfaces: Option<HashMap<String, Option<Interface>>>,
}

#[derive(Deserialize)]
struct Interface {
    #[serde(rename = "Sandbox", default)]
    sandbox: String,
}

impl SandboxNetwork {
    /// From the runtime's answer; `None` as in [`Self::parse`]. A runtime without verbose status is not asked again either.
    pub(in crate::pods) fn of(mut answer: PodSandboxStatusResponse) -> Option<Self> {
        let parsed = match answer.info.remove("info") {
            Some(info) => Self::parse(&info)?,
            None => Self::default(),
        };
        let network = answer.status.and_then(|status| status.network);
        Some(Self {
            addresses: network.map(addresses).unwrap_or_default(),
            ..parsed
        })
    }

    /// Parses the verbose status; `None` if it does not (yet) describe the network, so that it must be requested again.
    pub(in crate::pods) fn parse(info: &str) -> Option<Self> {
        let info: Info = serde_json::from_str(info).ok()?;
        let namespaces = info.runtime_spec?.linux?.namespaces;
        let namespace = namespaces
            .into_iter()
            .find(|namespace| namespace.kind == "network" && namespace.path.starts_with('/'))
            .map(|namespace| namespace.path.into());
        let interfaces = info.cni_result.and_then(|result| result.interfaces);
        let devices = interfaces
            .unwrap_or_default()
            .into_iter()
            .filter(|(name, interface)| {
                let on_host = interface.as_ref().is_none_or(|i| i.sandbox.is_empty());
                on_host && name != "lo" && (1..=15).contains(&name.len())
            })
            .map(|(name, _)| name)
            .take(MAX_DEVICES)
            .collect();
        Some(Self {
            namespace,
            pid: Some(info.pid).filter(|pid| *pid > 0),
            devices,
            addresses: Vec::new(),
        })
    }
}

fn addresses(network: PodSandboxNetworkStatus) -> Vec<IpAddr> {
    let additional = network
        .additional_ips
        .into_iter()
        .map(|additional| additional.ip);
    let all = std::iter::once(network.ip).chain(additional);
    // A stopped sandbox has an empty one.
    all.filter_map(|ip| ip.parse().ok())
        .take(MAX_PRIMARY_ADDRESSES)
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use detector_cri::{PodIp, PodSandboxStatus};

    #[test]
    fn containerd_status_has_namespace_process_and_device() {
        let network =
            SandboxNetwork::parse(include_str!("../fixtures/containerd-1.6-status.json")).unwrap();
        let file = "/var/run/netns/cni-5fcc2183-6c3d-1ab3-fc21-09b463aafe79";
        assert_eq!(network.namespace, Some(file.into()));
        assert_eq!(network.pid, Some(7980));
        assert_eq!(network.devices, ["veth63a506ba"]);
    }

    #[test]
    fn cri_o_status_has_namespace_and_process() {
        let network = SandboxNetwork::parse(include_str!("../fixtures/crio-status.json")).unwrap();
        let file = "/var/run/netns/5b1c0e6e-8a3f-4c1f-9b57-0d6c1f1d8a11";
        assert_eq!(network.namespace, Some(file.into()));
        assert_eq!(network.pid, Some(24181));
        assert_eq!(network.devices, [""; 0]);
    }

    #[test]
    fn addresses_are_those_of_the_status() {
        let answer = |ips: &[&str]| {
            let mut ips = ips.iter().map(|ip| (*ip).to_owned());
            let network = PodSandboxNetworkStatus {
                ip: ips.next().unwrap_or_default(),
                additional_ips: ips.map(|ip| PodIp { ip }).collect(),
            };
            let info = include_str!("../fixtures/crio-status.json").to_owned();
            PodSandboxStatusResponse {
                status: Some(PodSandboxStatus {
                    network: Some(network),
                }),
                info: [("info".to_owned(), info)].into(),
            }
        };
        let addresses = |ips: &[&str]| {
            let network = SandboxNetwork::of(answer(ips)).unwrap();
            assert_eq!(network.pid, Some(24181));
            let addresses = network.addresses.iter();
            addresses.map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(addresses(&["10.0.0.1", "fd00::1"]), ["10.0.0.1", "fd00::1"]);
        assert_eq!(addresses(&[""]), [""; 0], "stopped");
        assert_eq!(addresses(&["10.0.0.1", "x"]), ["10.0.0.1"]);
        assert_eq!(addresses(&["10.0.0.1"; 40]).len(), MAX_PRIMARY_ADDRESSES);
        let mut plain = answer(&["10.0.0.1"]);
        plain.info.clear();
        assert_eq!(SandboxNetwork::of(plain).unwrap().addresses.len(), 1);
        let mut unfinished = answer(&["10.0.0.1"]);
        unfinished.info.insert("info".to_owned(), "{}".to_owned());
        assert_eq!(SandboxNetwork::of(unfinished), None);
    }

    #[test]
    fn host_network_pod_has_no_namespace() {
        let info =
            r#"{"pid":1,"runtimeSpec":{"linux":{"namespaces":[{"type":"pid"}]}},"cniResult":null}"#;
        let network = SandboxNetwork::parse(info).unwrap();
        assert_eq!((network.namespace, network.devices), (None, Vec::new()));
    }

    #[test]
    fn status_without_network_is_not_accepted() {
        for info in [
            "",
            "{",
            "[]",
            "{}",
            r#"{"pid":1,"runtimeSpec":null}"#,
            r#"{"pid":-1,"runtimeSpec":{}}"#,
        ] {
            assert_eq!(SandboxNetwork::parse(info), None, "{info}");
        }
    }
}
