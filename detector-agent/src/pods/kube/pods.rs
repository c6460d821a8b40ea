//! From the API's pod to what is kept of it.

use std::net::IpAddr;

use k8s_openapi::{
    api::core::v1::Pod as ApiPod, apimachinery::pkg::apis::meta::v1::OwnerReference,
};

use crate::pods::{Owner, Pod, Record, Via};

/// Longest label value that Kubernetes allows.
const MAX_LABEL: usize = 63;
/// Where kubelet keeps the uid under which the runtime knows a static pod: the API's copy of it has another.
const STATIC_UID: &str = "kubernetes.io/config.hash";

/// What is kept of a pod; `None` where it has no name, or runs in the node's own network.
pub(in crate::pods) fn record(pod: &ApiPod, labels: &[String]) -> Option<Record> {
    let spec = pod.spec.as_ref()?;
    if spec.host_network == Some(true) {
        return None;
    }
    let metadata = &pod.metadata;
    let mut kept = Pod::named(
        metadata.namespace.clone()?,
        metadata.name.clone()?,
        Via::Kube,
    );
    kept.uid = metadata.uid.clone();
    kept.terminating = metadata.deletion_timestamp.is_some();
    let all = metadata.labels.as_ref();
    kept.labels = labels
        .iter()
        .filter_map(|label| Some((label.clone(), all?.get(label)?.clone())))
        .filter(|(_, value)| value.len() <= MAX_LABEL)
        .collect();
    kept.owner = owner(
        metadata.owner_references.as_deref().unwrap_or_default(),
        || all?.get("pod-template-hash"),
    );
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    let listed = status.and_then(|status| status.pod_ips.as_ref());
    Some(Record {
        pod: kept,
        namespace: None,
        devices: Vec::new(),
        addresses: listed
            .into_iter()
            .flatten()
            .filter_map(|ip| ip.ip.parse::<IpAddr>().ok())
            .collect(),
        known_as: metadata
            .annotations
            .as_ref()
            .and_then(|annotations| annotations.get(STATIC_UID).cloned()),
        // A pod that has ended gives its address back, and keeps it in its status.
        running: !matches!(phase, Some("Succeeded" | "Failed")),
        created: metadata
            .creation_timestamp
            .as_ref()
            .map_or(0, |time| time.0.as_second()),
    })
}

/// The controller; of a Deployment's ReplicaSet (named `<deployment>-<hash>`) the Deployment, without asking for it.
fn owner<'p>(
    references: &[OwnerReference],
    template_hash: impl FnOnce() -> Option<&'p String>,
) -> Option<Owner> {
    let controller = references
        .iter()
        .find(|reference| reference.controller == Some(true))?;
    let deployment = || {
        let hash = template_hash()?;
        let name = controller
            .name
            .strip_suffix(hash.as_str())?
            .strip_suffix('-')?;
        (!name.is_empty()).then(|| name.to_owned())
    };
    let of = |kind: &str, name: String| Owner {
        kind: kind.to_owned(),
        name,
    };
    Some(match controller.kind.as_str() {
        "ReplicaSet" => deployment().map_or_else(
            || of("ReplicaSet", controller.name.clone()),
            |name| of("Deployment", name),
        ),
        kind => of(kind, controller.name.clone()),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use serde_json::{Value, json};

    use super::*;

    fn pod(change: impl FnOnce(&mut Value)) -> Option<Record> {
        let mut pod = json!({
            "metadata": {"namespace": "shop", "name": "web-7d9f8-x2x4z", "uid": "u1",
                "creationTimestamp": "2026-03-21T09:10:11Z",
                "labels": {"app": "web", "secret": "s", "pod-template-hash": "7d9f8"},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-7d9f8", "uid": "r1",
                    "controller": true}]},
            "spec": {"nodeName": "n1", "containers": []},
            "status": {"phase": "Running", "podIP": "10.244.2.10",
                "podIPs": [{"ip": "10.244.2.10"}, {"ip": "fd00::10"}]}});
        change(&mut pod);
        record(
            &serde_json::from_value(pod).unwrap(),
            &["app".to_owned(), "team".to_owned()],
        )
    }

    #[test]
    fn a_pod_is_kept_with_the_labels_asked_for_its_addresses_and_its_deployment() {
        let record = pod(|_| {}).unwrap();
        assert_eq!(record.pod.uid.as_deref(), Some("u1"));
        assert_eq!(
            record.pod.labels,
            [("app".to_owned(), "web".to_owned())].into()
        );
        let owner = record.pod.owner.unwrap();
        assert_eq!((&*owner.kind, &*owner.name), ("Deployment", "web"));
        assert_eq!(record.addresses.len(), 2);
        assert!(record.running && !record.pod.terminating);
    }

    #[test]
    fn a_stateful_sets_pod_is_the_stateful_sets_and_a_bare_replica_sets_its_own() {
        let set = pod(|pod| pod["metadata"]["ownerReferences"][0]["kind"] = json!("StatefulSet"));
        assert_eq!(set.unwrap().pod.owner.unwrap().kind, "StatefulSet");
        let bare = pod(|pod| pod["metadata"]["labels"] = json!({}));
        assert_eq!(bare.unwrap().pod.owner.unwrap().kind, "ReplicaSet");
        let none = pod(|pod| pod["metadata"]["ownerReferences"] = json!([]));
        assert_eq!(none.unwrap().pod.owner, None);
    }

    #[test]
    fn a_pod_in_the_nodes_network_is_left_out_and_one_that_ended_does_not_run() {
        assert!(pod(|pod| pod["spec"]["hostNetwork"] = json!(true)).is_none());
        let ended = pod(|pod| pod["status"]["phase"] = json!("Failed"));
        assert!(!ended.unwrap().running);
        let leaving =
            pod(|pod| pod["metadata"]["deletionTimestamp"] = json!("2026-03-21T09:10:11Z"));
        assert!(leaving.unwrap().pod.terminating);
    }
}
