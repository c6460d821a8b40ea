//! Which Nodes have a range of pod addresses, and who wrote it.

use std::{
    collections::HashMap,
    net::IpAddr,
    time::{Duration, Instant},
};

use ::kube::{Api, Client, api::ListParams};
use detector_engine::diagnosis::{Known, NodeRange, PodCidrWriter, Source};
use detector_event::Pod as FoundPod;
use ipnet::IpNet;
use k8s_openapi::{
    api::core::v1::{Node, Pod},
    apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry,
};

use super::{
    files::{not_checked, unix_timestamp},
    requests::Requests,
};

/// Most Nodes that are read for one finding.
const MAX_NODES: usize = 8;
/// How long what was read is used: two nodes with one range are a finding for each of their pods.
const MAX_AGE: Duration = Duration::from_secs(30);
/// Shortest time between two lists of the pods of one node.
const RELIST: Duration = Duration::from_secs(5);
const WHAT: &str = "the podCIDRs of nodes";

/// The podCIDRs of a Node, with who wrote them.
#[derive(Debug)]
struct PodCidrs {
    all: Vec<IpNet>,
    fact: NodeRange,
}

/// What the API server has of other nodes and their pods.
#[derive(Debug, Default)]
pub(super) struct OtherNodes {
    /// `None` if there is no such Node.
    nodes: HashMap<String, (Instant, Option<PodCidrs>)>,
    /// The addresses that kubelet has written into the status of a node's pods, by the pod's UID.
    pods: HashMap<String, (Instant, HashMap<String, Vec<IpAddr>>)>,
}

impl OtherNodes {
    /// Those of the named Nodes with a podCIDR that overlaps with `range`.
    pub(super) fn with_range<'n>(
        &mut self,
        names: impl Iterator<Item = &'n str>,
        range: IpNet,
        requests: &mut Requests,
    ) -> Known<Vec<NodeRange>> {
        let mut names: Vec<_> = names.take(MAX_NODES).collect();
        names.sort_unstable();
        names.dedup();
        self.nodes.retain(|_, (at, _)| at.elapsed() < MAX_AGE);
        let unread = names.iter().filter(|name| !self.nodes.contains_key(**name));
        let unread: Vec<_> = unread.copied().collect();
        if !unread.is_empty() {
            let now = Instant::now();
            match requests.kube(async |client| read(client, &unread).await) {
                Ok(read) => {
                    let read = read.into_iter();
                    self.nodes
                        .extend(read.map(|(name, node)| (name, (now, node))));
                }
                Err(why) => return not_checked(WHAT, why),
            }
        }
        let known = names.iter().filter_map(|name| self.nodes.get(*name));
        let known = known.filter_map(|(_, node)| node.as_ref());
        let overlaps = |own: &IpNet| own.contains(&range) || range.contains(own);
        let ranges = known.filter(|own| own.all.iter().any(overlaps));
        let ranges: Vec<_> = ranges.map(|own| own.fact.clone()).collect();
        let source = Source::KubernetesObject("nodes".to_owned());
        match ranges.is_empty() {
            true => Known::Absent(source),
            false => Known::Value(ranges, source),
        }
    }

    /// The addresses that kubelet has written into the status of a pod of another node; none if the pod is not there.
    ///
    /// # Errors
    /// One sentence.
    pub(super) fn addresses_of_pod(
        &mut self,
        node: &str,
        pod: &FoundPod,
        requests: &mut Requests,
    ) -> Result<Vec<IpAddr>, String> {
        let Some(uid) = &pod.uid else {
            return Err("its UID is not known".to_owned());
        };
        self.pods.retain(|_, (at, _)| at.elapsed() < MAX_AGE);
        let known = self.pods.get(node);
        let is_known =
            known.is_some_and(|(at, pods)| pods.contains_key(uid) || at.elapsed() < RELIST);
        if !is_known {
            let now = Instant::now();
            let pods = requests.kube(async |client| pods_of(client, node).await)?;
            self.pods.insert(node.to_owned(), (now, pods));
        }
        let known = self.pods.get(node).and_then(|(_, pods)| pods.get(uid));
        Ok(known.cloned().unwrap_or_default())
    }
}

/// From the watch cache, which costs etcd nothing.
async fn pods_of(client: Client, node: &str) -> Result<HashMap<String, Vec<IpAddr>>, String> {
    let pods: Api<Pod> = Api::all(client);
    let of_node = ListParams::default().match_any();
    let of_node = of_node.fields(&format!("spec.nodeName={node}"));
    let list = pods
        .list(&of_node)
        .await
        .map_err(|error| error.to_string())?;
    let addresses = |pod: Pod| {
        let addresses = pod
            .status
            .and_then(|status| status.pod_ips)
            .unwrap_or_default();
        let addresses = addresses.iter().filter_map(|ip| ip.ip.parse().ok());
        Some((pod.metadata.uid?, addresses.collect()))
    };
    Ok(list.items.into_iter().filter_map(addresses).collect())
}

async fn read(client: Client, names: &[&str]) -> Result<Vec<(String, Option<PodCidrs>)>, String> {
    let api: Api<Node> = Api::all(client);
    let mut nodes = Vec::new();
    for name in names {
        let node = api.get_opt(name).await;
        let node = node.map_err(|error| format!("node {name}: {error}"))?;
        let range = node.and_then(|node| {
            let all = ranges(&node);
            node_range(&node).map(|fact| PodCidrs { all, fact })
        });
        nodes.push(((*name).to_owned(), range));
    }
    Ok(nodes)
}

fn ranges(node: &Node) -> Vec<IpNet> {
    let ranges = node.spec.as_ref().and_then(|spec| spec.pod_cidrs.as_ref());
    let ranges = ranges.into_iter().flatten();
    ranges.filter_map(|range| range.parse().ok()).collect()
}

fn node_range(node: &Node) -> Option<NodeRange> {
    let name = node.metadata.name.clone()?;
    let entries = node.metadata.managed_fields.iter().flatten();
    let last = entries.filter_map(writer).max_by_key(|writer| writer.at);
    let source = Source::KubernetesObject(format!("node {name}"));
    Some(NodeRange {
        writer: match last {
            Some(writer) => Known::Value(writer, source),
            None => not_checked(
                format!("who wrote the podCIDR of node {name}"),
                "its managedFields do not say",
            ),
        },
        node: name,
    })
}

/// The manager, if it wrote `spec.podCIDR`.
fn writer(entry: &ManagedFieldsEntry) -> Option<PodCidrWriter> {
    entry
        .fields_v1
        .as_ref()?
        .0
        .get("f:spec")?
        .get("f:podCIDR")?;
    Some(PodCidrWriter {
        manager: entry.manager.clone()?,
        at: unix_timestamp(entry.time.as_ref()?.0)?,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

    use serde_json::json;

    use super::*;

    #[test]
    fn last_manager_that_wrote_the_range_is_named() {
        let entry = |manager: &str, at: &str, spec: serde_json::Value| json!({"manager": manager, "operation": "Update", "apiVersion": "v1", "time": at, "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": spec}});
        let node = json!({"metadata": {"name": "worker-7", "managedFields": [
            entry("kubectl-patch", "2026-11-25T04:04:10Z", json!({"f:podCIDR": {}, "f:podCIDRs": {".": {}, "v:\"10.244.2.0/24\"": {}}})),
            entry("kube-controller-manager", "2026-11-25T03:00:00Z", json!({"f:podCIDR": {}})),
            entry("kubelet", "2026-11-25T05:00:00Z", json!({"f:taints": {}}))]}});
        let range = node_range(&serde_json::from_value(node).unwrap()).unwrap();
        let writer = range.writer.value().unwrap();
        assert_eq!(writer.manager, "kubectl-patch");
        assert_eq!(writer.at.to_string(), "2026-11-25 04:04:10Z");
    }
}
