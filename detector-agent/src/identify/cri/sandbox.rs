//! What a runtime says of a pod sandbox in the verbose answer: JSON of its own making, of which containerd and CRI-O
//! share what is needed here.

use std::{collections::HashMap, path::PathBuf};

use serde::Deserialize;

/// Devices that are believed of one sandbox.
const MAX_DEVICES: usize = 64;

/// How the network of a sandbox is found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Network {
    /// The file of its namespace, as the runtime sees it; `None` for a pod in the node's own network.
    pub(super) namespace: Option<PathBuf>,
    /// The sandbox's process.
    pub(super) pid: Option<u32>,
    /// The host ends that the runtime's CNI result names (containerd).
    pub(super) devices: Vec<String>,
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
    pub(super) fn parse(info: &str) -> Option<Self> {
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
