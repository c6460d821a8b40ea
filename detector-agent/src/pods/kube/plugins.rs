//! The pods of network plugins on this node. A diagnosis needs the times of their starts.
//!
//! A pod counts as a network plugin if it uses the network of the node, its controller is a DaemonSet with the name of a known
//! plugin, and its namespace is one of the system's: ordinary users cannot create such pods there.

use std::{collections::HashMap, sync::Arc};

use arc_swap::ArcSwapOption;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod as ApiPod};

/// The names of DaemonSets of network plugins; with a suffix after `-` as well, as of `kube-flannel-ds-amd64`.
const DAEMON_SETS: [&str; 18] = [
    "antrea-agent",
    "aws-node",
    "azure-cns",
    "azure-cni",
    "calico-node",
    "canal",
    "cilium",
    "kindnet",
    "kube-flannel",
    "kube-ovn-cni",
    "kube-multus",
    "kube-router",
    "multus",
    "netd",
    "ovnkube-node",
    "spiderpool-agent",
    "weave-net",
    "whereabouts",
];
/// Most pods that are kept.
const MAX_PODS: usize = 64;
/// Most containers of one pod.
const MAX_CONTAINERS: usize = 8;

/// A pod of a network plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PluginPod {
    /// `namespace/name`.
    pub(crate) name: String,
    pub(crate) daemon_set: String,
    pub(crate) containers: Vec<PluginContainer>,
}

/// One of its containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PluginContainer {
    pub(crate) name: String,
    /// Since when it runs.
    pub(crate) started: Option<jiff::Timestamp>,
    pub(crate) restarts: u32,
    /// When the run before ended, and why.
    pub(crate) ended: Option<(jiff::Timestamp, String)>,
}

/// The network plugins' pods, as the Kubernetes API listed them last.
#[derive(Debug, Default)]
pub(crate) struct PluginPods(ArcSwapOption<Vec<PluginPod>>);

impl PluginPods {
    /// The pods, newest states; `None` if the API has not listed any pods yet, or is not used.
    pub(crate) fn get(&self) -> Option<Arc<Vec<PluginPod>>> {
        self.0.load_full()
    }

    pub(crate) fn set(&self, pods: impl Iterator<Item = PluginPod>) {
        let mut pods: Vec<_> = pods.take(MAX_PODS).collect();
        pods.sort_by(|a, b| a.name.cmp(&b.name));
        self.0.store(Some(Arc::new(pods)));
    }
}

/// Keeps those of the pods of a watch that are network plugins.
#[derive(Debug, Default)]
pub(super) struct WatchedPlugins(HashMap<String, PluginPod>);

impl WatchedPlugins {
    /// Adds, replaces or removes a pod by its key.
    pub(super) fn put(&mut self, key: String, pod: &ApiPod) {
        match plugin_pod(pod) {
            Some(plugin) if self.0.len() < MAX_PODS || self.0.contains_key(&key) => {
                self.0.insert(key, plugin);
            }
            Some(_) => {}
            None => drop(self.0.remove(&key)),
        }
    }

    pub(super) fn remove(&mut self, key: &str) {
        self.0.remove(key);
    }

    pub(super) fn publish(&self, to: &PluginPods) {
        to.set(self.0.values().cloned());
    }
}

/// What is known of a network plugin's pod; `None` if it is another pod.
pub(super) fn plugin_pod(pod: &ApiPod) -> Option<PluginPod> {
    let metadata = &pod.metadata;
    let namespace = metadata.namespace.as_deref()?;
    let mut owners = metadata.owner_references.iter().flatten();
    let controller = owners.find(|owner| owner.controller == Some(true))?;
    let is_plugin = pod.spec.as_ref()?.host_network == Some(true)
        && controller.kind == "DaemonSet"
        && is_of_system(namespace)
        && is_plugin_name(&controller.name);
    if !is_plugin {
        return None;
    }
    let statuses = pod
        .status
        .as_ref()
        .and_then(|s| s.container_statuses.as_ref());
    let statuses = statuses.into_iter().flatten().take(MAX_CONTAINERS);
    Some(PluginPod {
        name: format!("{namespace}/{}", metadata.name.as_deref()?),
        daemon_set: controller.name.clone(),
        containers: statuses.map(container).collect(),
    })
}

fn is_of_system(namespace: &str) -> bool {
    namespace.starts_with("kube-")
        || namespace.starts_with("openshift-")
        || namespace.ends_with("-system")
        || matches!(namespace, "cilium" | "spiderpool")
}

fn is_plugin_name(name: &str) -> bool {
    DAEMON_SETS.iter().any(|known| {
        let rest = name.strip_prefix(known);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    })
}

fn container(status: &ContainerStatus) -> PluginContainer {
    let state = status.state.as_ref();
    let running = state.and_then(|state| state.running.as_ref());
    let last = status.last_state.as_ref();
    let ended = last.and_then(|state| state.terminated.as_ref());
    PluginContainer {
        name: status.name.clone(),
        started: running.and_then(|running| Some(running.started_at.as_ref()?.0)),
        restarts: u32::try_from(status.restart_count).unwrap_or_default(),
        ended: ended.and_then(|ended| {
            let reason = ended.reason.as_deref().unwrap_or("no reason is given");
            let why = format!("{reason}, exit code {}", ended.exit_code);
            Some((ended.finished_at.as_ref()?.0, why))
        }),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

    use serde_json::{Value, json};

    use super::*;

    fn plugin(change: impl FnOnce(&mut Value)) -> Option<PluginPod> {
        let mut pod = json!({
            "metadata": {"namespace": "kube-system", "name": "calico-node-x2x4z",
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "calico-node", "uid": "d1",
                    "controller": true}]},
            "spec": {"nodeName": "n1", "hostNetwork": true, "containers": []},
            "status": {"containerStatuses": [{"name": "calico-node", "image": "i", "imageID": "i", "ready": true,
                "restartCount": 3, "state": {"running": {"startedAt": "2026-03-21T09:10:11Z"}},
                "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled",
                    "finishedAt": "2026-03-21T09:10:01Z"}}}]}});
        change(&mut pod);
        plugin_pod(&serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn plugin_has_its_last_start_and_how_the_run_before_ended() {
        let plugin = plugin(|_| {}).unwrap();
        assert_eq!(plugin.name, "kube-system/calico-node-x2x4z");
        let container = &plugin.containers[0];
        assert_eq!(
            container.started.unwrap().to_string(),
            "2026-03-21T09:10:11Z"
        );
        assert_eq!(container.restarts, 3);
        let (ended, why) = container.ended.as_ref().unwrap();
        assert_eq!(ended.to_string(), "2026-03-21T09:10:01Z");
        assert_eq!(why, "OOMKilled, exit code 137");
    }

    #[test]
    fn only_known_daemon_sets_of_the_system_are_plugins() {
        let owner = |pod: &mut Value, key: &str, value: &str| {
            pod["metadata"]["ownerReferences"][0][key] = value.into();
        };
        assert!(plugin(|pod| owner(pod, "name", "calico-node-windows")).is_some());
        assert!(plugin(|pod| owner(pod, "name", "calico-nodes")).is_none());
        assert!(plugin(|pod| owner(pod, "kind", "ReplicaSet")).is_none());
        assert!(plugin(|pod| pod["metadata"]["namespace"] = "shop".into()).is_none());
        assert!(plugin(|pod| pod["spec"]["hostNetwork"] = false.into()).is_none());
    }
}
