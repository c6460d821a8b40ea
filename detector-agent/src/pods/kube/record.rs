//! Converts pods of the Kubernetes API to records.

use std::net::IpAddr;

use detector_event::WallTime;
use detector_event::{MAX_PRIMARY_ADDRESSES, Owner, Pod, Via};
use k8s_openapi::{
    api::core::v1::Pod as ApiPod, apimachinery::pkg::apis::meta::v1::OwnerReference,
};

use crate::pods::PodRecord;

/// Longest label value that Kubernetes allows.
const MAX_LABEL: usize = 63;
/// Annotation with the uid that kubelet and the runtime use for a static pod; the API's mirror pod has another.
const RUNTIME_UID: &str = "kubernetes.io/config.hash";

/// The record of a pod, with those of its labels that are in `labels`; `None` if it has no name or uses the host
/// network.
pub(in crate::pods) fn pod_record(api_pod: &ApiPod, labels: &[String]) -> Option<PodRecord> {
    let spec = api_pod.spec.as_ref()?;
    if spec.host_network == Some(true) {
        return None;
    }
    let metadata = &api_pod.metadata;
    let mut pod = Pod::named(
        metadata.namespace.clone()?,
        metadata.name.clone()?,
        Via::Kube,
    );
    pod.uid = metadata.uid.clone();
    let created = metadata.creation_timestamp.as_ref();
    pod.created_at = created.map(|time| WallTime::from(time.0));
    pod.terminating = metadata.deletion_timestamp.is_some();
    let all = metadata.labels.as_ref();
    pod.labels = labels
        .iter()
        .filter_map(|label| Some((label.clone(), all?.get(label)?.clone())))
        .filter(|(_, value)| value.len() <= MAX_LABEL)
        .collect();
    pod.owner = owner(
        metadata.owner_references.as_deref().unwrap_or_default(),
        || all?.get("pod-template-hash"),
    );
    let status = api_pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    let addresses = status.and_then(|status| status.pod_ips.as_ref());
    Some(PodRecord {
        pod,
        namespace: None,
        devices: Vec::new(),
        network: None,
        addresses: addresses
            .into_iter()
            .flatten()
            .filter_map(|ip| ip.ip.parse::<IpAddr>().ok())
            .take(MAX_PRIMARY_ADDRESSES)
            .collect(),
        secondary_addresses: Vec::new(),
        runtime_uid: metadata
            .annotations
            .as_ref()
            .and_then(|annotations| annotations.get(RUNTIME_UID).cloned()),
        // A pod that ended has released its address, but its status still lists it.
        running: !matches!(phase, Some("Succeeded" | "Failed")),
        created: created.map_or(0, |time| time.0.as_second()),
    })
}

/// The pod's controller. For a ReplicaSet named `<deployment>-<hash>` this is the Deployment, derived from the name.
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

    fn pod(change: impl FnOnce(&mut Value)) -> Option<PodRecord> {
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
        pod_record(
            &serde_json::from_value(pod).unwrap(),
            &["app".to_owned(), "team".to_owned()],
        )
    }

    #[test]
    fn record_has_selected_labels_addresses_and_deployment() {
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
        let created = record.pod.created_at.unwrap();
        assert_eq!(created.to_string(), "2026-03-21T09:10:11.000000Z");
    }

    #[test]
    fn owner_is_stateful_set_or_bare_replica_set() {
        let set = pod(|pod| pod["metadata"]["ownerReferences"][0]["kind"] = json!("StatefulSet"));
        assert_eq!(set.unwrap().pod.owner.unwrap().kind, "StatefulSet");
        let bare = pod(|pod| pod["metadata"]["labels"] = json!({}));
        assert_eq!(bare.unwrap().pod.owner.unwrap().kind, "ReplicaSet");
        let none = pod(|pod| pod["metadata"]["ownerReferences"] = json!([]));
        assert_eq!(none.unwrap().pod.owner, None);
    }

    #[test]
    fn host_network_pod_is_skipped_and_ended_pod_is_not_running() {
        assert!(pod(|pod| pod["spec"]["hostNetwork"] = json!(true)).is_none());
        let ended = pod(|pod| pod["status"]["phase"] = json!("Failed"));
        assert!(!ended.unwrap().running);
        let leaving =
            pod(|pod| pod["metadata"]["deletionTimestamp"] = json!("2026-03-21T09:10:11Z"));
        assert!(leaving.unwrap().pod.terminating);
    }
}
