//! Answers of runtimes and files with any content; see [`crate::fuzzing`].

use detector_cri::{ListPodSandboxResponse, PodSandboxStatusResponse, VersionResponse};
use detector_event::MAX_PRIMARY_ADDRESSES;
use prost::Message as _;

use super::{
    CriSetting, PodRecord,
    cni_cache::file as cache,
    cri::{Cri, sandbox::SandboxNetwork},
    kube::pod_record,
};

/// Longer names are rejected.
const MAX_NAME: usize = 253;

/// Reads a file of the CNI result cache.
pub fn cni_cache(bytes: &[u8]) {
    let Ok(entry) = cache::parse(bytes) else {
        return;
    };
    let pod = &entry.pod;
    assert!(
        [&pod.namespace, &pod.name]
            .iter()
            .all(|name| (1..=MAX_NAME).contains(&name.len())),
        "a name out of bounds was accepted: {pod:?}"
    );
    assert!(
        entry.devices.iter().all(|name| name.len() <= 15)
            && entry.addresses.len() <= MAX_PRIMARY_ADDRESSES,
        "{entry:?}"
    );
}

/// Reads a pod in the JSON of the Kubernetes API.
pub fn kube_pod(bytes: &[u8]) {
    if let Ok(pod) = serde_json::from_slice(bytes) {
        let _ = pod_record(&pod, &["app".to_owned()]);
    }
}

/// Reads a list of sandboxes and converts it to records.
pub fn cri_sandboxes(bytes: &[u8]) {
    let _ = VersionResponse::decode(bytes);
    let (Ok(answer), Some(mut cri)) = (
        ListPodSandboxResponse::decode(bytes),
        Cri::new(&CriSetting::Auto),
    ) else {
        return;
    };
    let listed = answer.items.len();
    let records: Vec<PodRecord> = cri.records(answer.items);
    assert!(records.len() <= listed, "more records than sandboxes");
    for record in records {
        let pod = &record.pod;
        assert!(
            (1..=MAX_NAME).contains(&pod.name.len()) && pod.namespace.len() <= MAX_NAME,
            "a name out of bounds was accepted: {pod:?}"
        );
    }
}

/// Reads the status of a sandbox: as protobuf, and as the JSON inside it.
pub fn cri_status(bytes: &[u8]) {
    if let Ok(answer) = PodSandboxStatusResponse::decode(bytes)
        && let Some(network) = SandboxNetwork::of(answer)
    {
        assert_bounds(&network);
    }
    if let Ok(info) = std::str::from_utf8(bytes)
        && let Some(network) = SandboxNetwork::parse(info)
    {
        assert_bounds(&network);
    }
}

fn assert_bounds(network: &SandboxNetwork) {
    assert!(
        network.devices.iter().all(|name| name.len() <= 15)
            && network.addresses.len() <= MAX_PRIMARY_ADDRESSES,
        "{network:?}"
    );
}
