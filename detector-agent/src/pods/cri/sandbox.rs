//! What a runtime says of a pod sandbox in the verbose answer: JSON of its own making, of which containerd and CRI-O
//! share what is needed here.

use std::{collections::HashMap, path::PathBuf};

use serde::Deserialize;

/// Devices that are believed of one sandbox.
const MAX_DEVICES: usize = 64;

/// How the network of a sandbox is found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::pods) struct Network {
    /// The file of its namespace, as the runtime sees it; `None` for a pod in the node's own network.
    pub(in crate::pods) namespace: Option<PathBuf>,
    /// The sandbox's process.
    pub(in crate::pods) pid: Option<u32>,
    /// The host ends that the runtime's CNI result names (containerd).
    pub(in crate::pods) devices: Vec<String>,
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

/// go-cni's, whose fields are written as Go names them.
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

impl Network {
    /// Reads the runtime's words; `None` where they do not tell (yet), so that it is to be asked again.
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
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn containerd_tells_the_namespace_the_process_and_the_host_device() {
        let network =
            Network::parse(include_str!("../fixtures/containerd-1.6-status.json")).unwrap();
        let file = "/var/run/netns/cni-5fcc2183-6c3d-1ab3-fc21-09b463aafe79";
        assert_eq!(network.namespace, Some(file.into()));
        assert_eq!(network.pid, Some(7980));
        assert_eq!(network.devices, ["veth63a506ba"]);
    }

    #[test]
    fn cri_o_tells_the_namespace_and_the_process() {
        let network = Network::parse(include_str!("../fixtures/crio-status.json")).unwrap();
        let file = "/var/run/netns/5b1c0e6e-8a3f-4c1f-9b57-0d6c1f1d8a11";
        assert_eq!(network.namespace, Some(file.into()));
        assert_eq!(network.pid, Some(24181));
        assert_eq!(network.devices, [""; 0]);
    }

    #[test]
    fn a_pod_in_the_nodes_own_network_has_no_namespace() {
        let info =
            r#"{"pid":1,"runtimeSpec":{"linux":{"namespaces":[{"type":"pid"}]}},"cniResult":null}"#;
        let network = Network::parse(info).unwrap();
        assert_eq!((network.namespace, network.devices), (None, Vec::new()));
    }

    #[test]
    fn what_does_not_tell_the_network_is_to_be_asked_again() {
        for info in [
            "",
            "{",
            "[]",
            "{}",
            r#"{"pid":1,"runtimeSpec":null}"#,
            r#"{"pid":-1,"runtimeSpec":{}}"#,
        ] {
            assert_eq!(Network::parse(info), None, "{info}");
        }
    }
}
