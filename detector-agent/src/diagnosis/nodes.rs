//! Which Nodes have a range of pod addresses, and who wrote it.

use std::net::IpAddr;

use ::kube::{Api, Client, api::ListParams};
use detector_engine::diagnosis::{Known, NodeRange, PodCidrWriter, Source, UnixTime};
use detector_event::Pod as FoundPod;
use ipnet::IpNet;
use k8s_openapi::{
    api::core::v1::{Node, Pod},
    apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry,
};

use super::{files::not_checked, requests::Requests};

/// Most Nodes that are read for one finding.
const MAX_NODES: usize = 8;
const WHAT: &str = "the podCIDRs of nodes";

/// Those of the named Nodes with a podCIDR that overlaps with `range`.
pub(super) fn with_range<'n>(
    names: impl Iterator<Item = &'n str>,
    range: IpNet,
    requests: &mut Requests,
) -> Known<Vec<NodeRange>> {
    let mut names: Vec<_> = names.take(MAX_NODES).collect();
    names.sort_unstable();
    names.dedup();
    let read = requests.kube(async |client| read(client, &names).await);
    let nodes = match read {
        Ok(nodes) => nodes,
        Err(why) => return not_checked(WHAT, why),
    };
    let source = Source::KubernetesObject("nodes".to_owned());
    let ranges = nodes.iter().filter(|node| has_range(node, range));
    let ranges: Vec<_> = ranges.filter_map(node_range).collect();
    match ranges.is_empty() {
        true => Known::Absent(source),
        false => Known::Value(ranges, source),
    }
}

async fn read(client: Client, names: &[&str]) -> Result<Vec<Node>, String> {
    let api: Api<Node> = Api::all(client);
    let mut nodes = Vec::new();
    for name in names {
        let node = api.get_opt(name).await;
        nodes.extend(node.map_err(|error| format!("node {name}: {error}"))?);
    }
    Ok(nodes)
}

fn has_range(node: &Node, range: IpNet) -> bool {
    let spec = node.spec.as_ref();
    let ranges = spec.and_then(|spec| spec.pod_cidrs.as_ref());
    let mut ranges = ranges.into_iter().flatten();
    ranges.any(|own| {
        let own: Result<IpNet, _> = own.parse();
        own.is_ok_and(|own| own.contains(&range) || range.contains(&own))
    })
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
    let at = entry.time.as_ref()?.0.as_nanosecond();
    Some(PodCidrWriter {
        manager: entry.manager.clone()?,
        at: UnixTime(u64::try_from(at).ok()?),
    })
}

/// The addresses that kubelet has written into the status of a pod of any node; none if another pod has its name by now.
///
/// # Errors
/// One sentence.
pub(super) fn addresses_of_pod(
    pod: &FoundPod,
    requests: &mut Requests,
) -> Result<Vec<IpAddr>, String> {
    let (namespace, name) = (&pod.namespace, &pod.name);
    let one = ListParams::default().fields(&format!("metadata.name={name}"));
    let list = requests.kube(async |client| {
        let pods: Api<Pod> = Api::namespaced(client, namespace);
        let list = pods.list(&one).await;
        list.map_err(|error| error.to_string())
    })?;
    let pods = list.items.into_iter();
    let mut pods = pods.filter(|found| pod.uid.is_some() && found.metadata.uid == pod.uid);
    let status = pods.next().and_then(|pod| pod.status);
    let addresses = status.and_then(|status| status.pod_ips).unwrap_or_default();
    Ok(addresses
        .iter()
        .filter_map(|ip| ip.ip.parse().ok())
        .collect())
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
        assert_eq!(writer.at.to_string(), "2026-11-25T04:04:10Z");
    }

    #[test]
    fn ranges_overlap_if_one_contains_the_other() {
        let has = |own: &str, range: &str| {
            let node = json!({"metadata": {"name": "n"}, "spec": {"podCIDRs": [own]}});
            has_range(
                &serde_json::from_value(node).unwrap(),
                range.parse().unwrap(),
            )
        };
        assert!(has("10.244.2.0/24", "10.244.2.0/24"));
        assert!(has("10.244.2.0/24", "10.244.2.10/32"));
        assert!(has("10.244.2.0/25", "10.244.2.0/24"));
        assert!(!has("10.244.3.0/24", "10.244.2.0/24"));
        assert!(!has("fd00::/64", "10.244.2.0/24"));
    }
}
