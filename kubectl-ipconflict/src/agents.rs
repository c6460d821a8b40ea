//! Finds the agents of a cluster through the API server.

use std::{collections::BTreeMap, time::Duration};

use ::kube::{Api, Client, Error, Resource as _, api::ListParams};
use k8s_openapi::api::core::v1::{Node, Pod};
use tokio::time::timeout;

use super::{PluginError, args::ClusterArgs};

/// Limit for one list.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);
/// The nodes that can run an agent.
const LINUX_NODES: &str = "kubernetes.io/os=linux";

/// The agent on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeAgent {
    pub(super) node: String,
    pub(super) namespace: String,
    pub(super) pod: String,
    /// Why it cannot be asked.
    pub(super) not_running: Option<String>,
}

/// The agents of a cluster.
#[derive(Debug)]
pub(super) struct Agents {
    pub(super) agents: Vec<NodeAgent>,
    /// Nodes that run no agent.
    pub(super) nodes_without: Vec<String>,
    /// Why such nodes are not known.
    pub(super) nodes_unknown: Option<String>,
}

impl Agents {
    /// Lists the agents' pods, and the nodes if that is allowed.
    ///
    /// # Errors
    /// If the pods cannot be listed, or there is no agent.
    pub(super) async fn find(client: &Client, args: &ClusterArgs) -> Result<Self, PluginError> {
        let api: Api<Pod> = if args.all_namespaces {
            Api::all(client.clone())
        } else {
            Api::namespaced(client.clone(), &args.namespace)
        };
        let place = if args.all_namespaces {
            "any namespace".to_owned()
        } else {
            format!("the namespace {}", args.namespace)
        };
        // From the watch cache: thousands of pods need no quorum read.
        let selected = ListParams::default().labels(&args.selector).match_any();
        let pods = list(&api, &selected)
            .await
            .map_err(|reason| PluginError::List {
                what: format!("the agents' pods in {place}"),
                reason,
            })?;
        let mut agents = by_node(&pods);
        if agents.is_empty() {
            return Err(PluginError::NoAgents {
                place,
                selector: args.selector.clone(),
            });
        }
        if !args.nodes.is_empty() {
            let known = |node: &&String| !agents.iter().any(|agent| agent.node == **node);
            if let Some(unknown) = args.nodes.iter().find(known) {
                return Err(PluginError::NoSuchNode(unknown.clone()));
            }
            agents.retain(|agent| args.nodes.contains(&agent.node));
            return Ok(Self {
                agents,
                nodes_without: Vec::new(),
                nodes_unknown: None,
            });
        }
        let linux = ListParams::default().labels(LINUX_NODES).match_any();
        let nodes: Result<Vec<Node>, String> = list(&Api::all(client.clone()), &linux).await;
        let (nodes_without, nodes_unknown) = match nodes {
            Ok(nodes) => {
                let names = nodes.into_iter().filter_map(|node| node.metadata.name);
                let without = |name: &String| !agents.iter().any(|agent| agent.node == *name);
                (names.filter(without).collect(), None)
            }
            Err(reason) => (Vec::new(), Some(reason)),
        };
        Ok(Self {
            agents,
            nodes_without,
            nodes_unknown,
        })
    }
}

async fn list<K>(api: &Api<K>, parameters: &ListParams) -> Result<Vec<K>, String>
where
    K: Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    match timeout(LIST_TIMEOUT, api.list(parameters)).await {
        Ok(Ok(list)) => Ok(list.items),
        Ok(Err(error)) => Err(reason(&error)),
        Err(_) => Err("no answer in time".to_owned()),
    }
}

/// An error of the API server in one sentence.
pub(super) fn reason(error: &Error) -> String {
    match error {
        Error::Api(status) => status.message.clone(),
        other => detector_event::error_chain::one_line(other),
    }
}

/// The best pod of each node: one that runs and stays, if there is one.
fn by_node(pods: &[Pod]) -> Vec<NodeAgent> {
    let mut best: BTreeMap<&str, (u8, NodeAgent)> = BTreeMap::new();
    for pod in pods {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        // Not scheduled yet: the node shows up as one without an agent.
        let Some(node) = node else { continue };
        let status = pod.status.as_ref();
        let phase = status.and_then(|status| status.phase.as_deref());
        let phase = phase.unwrap_or("Unknown");
        if phase == "Succeeded" {
            continue;
        }
        let (rank, not_running) = match (phase, pod.meta().deletion_timestamp.is_some()) {
            ("Running", false) => (0, None),
            ("Running", true) => (1, None),
            _ => (2, Some(format!("its pod is {phase}"))),
        };
        let agent = NodeAgent {
            node: node.to_owned(),
            namespace: pod.meta().namespace.clone().unwrap_or_default(),
            pod: pod.meta().name.clone().unwrap_or_default(),
            not_running,
        };
        let known = best.get(node);
        if known.is_none_or(|(known, _)| rank < *known) {
            best.insert(node, (rank, agent));
        }
    }
    best.into_values().map(|(_, agent)| agent).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

    use serde_json::json;

    use super::*;

    fn pod(name: &str, node: Option<&str>, phase: &str, terminating: bool) -> Pod {
        let deleted = terminating.then_some("2026-03-21T09:10:11Z");
        serde_json::from_value(json!({
            "metadata": {"namespace": "agents", "name": name, "deletionTimestamp": deleted},
            "spec": {"nodeName": node, "containers": []},
            "status": {"phase": phase},
        }))
        .unwrap()
    }

    #[test]
    fn running_pod_of_each_node_is_asked() {
        let pods = [
            pod("old", Some("n1"), "Running", true),
            pod("new", Some("n1"), "Running", false),
            pod("evicted", Some("n1"), "Failed", false),
            pod("starting", Some("n2"), "Pending", false),
            pod("test", Some("n3"), "Succeeded", false),
            pod("unscheduled", None, "Pending", false),
        ];
        let agents = by_node(&pods);
        let found: Vec<_> = agents
            .iter()
            .map(|agent| (agent.node.as_str(), agent.pod.as_str()))
            .collect();
        assert_eq!(found, [("n1", "new"), ("n2", "starting")]);
        assert_eq!(agents[1].not_running.as_deref(), Some("its pod is Pending"));
    }
}
