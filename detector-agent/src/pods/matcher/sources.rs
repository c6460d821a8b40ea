//! The pod behind a device, from the snapshots of all sources. Pure.

use std::{net::IpAddr, sync::Arc};

use detector_engine::PodDevice;
use detector_event::{Pod, Via};

use super::{DeviceMatcher, PodRecord};

/// The latest snapshot of each source.
#[derive(Debug, Default)]
pub(in crate::pods) struct SourceMatchers {
    cri: LatestSnapshot,
    cni_cache: LatestSnapshot,
    kube: LatestSnapshot,
}

#[derive(Debug, Default)]
struct LatestSnapshot {
    matcher: DeviceMatcher,
    /// The round it was taken in.
    round: u64,
}

impl SourceMatchers {
    /// The Kubernetes API's snapshot, unless it is empty.
    pub(in crate::pods) fn kube(&self) -> Option<&DeviceMatcher> {
        Some(&self.kube.matcher).filter(|matcher| !matcher.records.is_empty())
    }

    /// Adds what the sources know about the same pod: its primary addresses, and from the Kubernetes API uid, labels, owner, creation
    /// and deletion.
    pub(in crate::pods) fn with_details(&self, pod: Arc<Pod>) -> Arc<Pod> {
        let in_kube = self.kube_record(&pod);
        let mut detailed = Pod::clone(&pod);
        if let Some(addresses) = self.primary_addresses(&pod, in_kube) {
            detailed.primary_addresses = addresses.to_vec();
        }
        if let Some(id) = &pod.container_id {
            let secondary = self.cni_cache.matcher.secondary_addresses_of_sandbox(id);
            if !secondary.is_empty() {
                detailed.secondary_addresses = secondary.to_vec();
            }
        }
        if let Some(PodRecord { pod: known, .. }) = in_kube {
            detailed.uid.clone_from(&known.uid);
            detailed.labels.clone_from(&known.labels);
            detailed.owner.clone_from(&known.owner);
            detailed.terminating = known.terminating;
            detailed.created_at = known.created_at;
        }
        if detailed == *pod {
            pod
        } else {
            Arc::new(detailed)
        }
    }

    /// The Kubernetes API's record of the same pod.
    fn kube_record(&self, pod: &Pod) -> Option<&PodRecord> {
        let record = self.kube.matcher.record_by_name(&pod.namespace, &pod.name);
        record.filter(|record| {
            pod.uid.is_none() || pod.uid == record.pod.uid || pod.uid == record.runtime_uid
        })
    }

    /// The pod's primary addresses from the best source that has any. The API may still list those of an earlier sandbox.
    fn primary_addresses<'s>(
        &'s self,
        pod: &Pod,
        in_kube: Option<&'s PodRecord>,
    ) -> Option<&'s [IpAddr]> {
        let sandbox = pod.container_id.as_deref();
        let runtimes = [&self.cri, &self.cni_cache].into_iter();
        runtimes
            .filter_map(|snapshot| snapshot.matcher.addresses_of_sandbox(sandbox?))
            .chain(in_kube.filter(|r| r.running).map(|r| &*r.addresses))
            .find(|addresses| !addresses.is_empty())
    }

    /// Replaces the snapshot of a source, taken in `round`.
    pub(in crate::pods) fn set(&mut self, via: Via, round: u64, matcher: DeviceMatcher) {
        let snapshot = LatestSnapshot { matcher, round };
        match via {
            Via::Cri => self.cri = snapshot,
            Via::CniCache => self.cni_cache = snapshot,
            Via::Kube => self.kube = snapshot,
            // Has no records of its own.
            Via::NameHash => {}
        }
    }

    /// The pod behind a device, from the best source that knows it, with details from the others. Snapshots
    /// taken before `first_round` are not matched by network: their namespace ids may belong to earlier devices.
    pub(in crate::pods) fn find(&self, device: &PodDevice, first_round: u64) -> Option<Arc<Pod>> {
        let pod = self.best_match(device, first_round)?;
        Some(self.with_details(Arc::new(pod)))
    }

    /// The name of the CNI network that a device is in, by a result that was read after the device appeared.
    pub(in crate::pods) fn network_of(&self, device: &PodDevice, first_round: u64) -> Option<&str> {
        let LatestSnapshot { matcher, round } = &self.cni_cache;
        if *round < first_round {
            return None;
        }
        matcher.network_of(device)
    }

    fn best_match(&self, device: &PodDevice, first_round: u64) -> Option<Pod> {
        for snapshot in [&self.cri, &self.cni_cache] {
            if snapshot.round >= first_round
                && let Some(pod) = snapshot.matcher.by_network(device)
            {
                return Some(pod.clone());
            }
        }
        let in_alias = device.alias.as_deref().and_then(pod_in_alias);
        let by_device_name = |matcher: &DeviceMatcher| {
            let pod = in_alias
                .and_then(|(namespace, name)| matcher.by_pod_name(namespace, name))
                .or_else(|| matcher.by_hash(device));
            pod.cloned()
        };
        if let Some(pod) = by_device_name(&self.kube.matcher) {
            return Some(pod);
        }
        // The round does not matter: the device's name or alias identifies the pod itself.
        for matcher in [&self.cri.matcher, &self.cni_cache.matcher] {
            if let Some(pod) = by_device_name(matcher) {
                let via = Via::NameHash;
                return Some(Pod { via, ..pod });
            }
        }
        let (namespace, name) = in_alias?;
        Some(Pod::named(namespace, name, Via::NameHash))
    }
}

/// Namespace and name in the alias that newer kindnet gives its devices: `link-pod <namespace>/<name>`.
pub(super) fn pod_in_alias(alias: &str) -> Option<(&str, &str)> {
    let (namespace, name) = alias.strip_prefix("link-pod ")?.split_once('/')?;
    let is_name = |part: &str| {
        let part = part.as_bytes();
        !part.is_empty()
            && part.len() <= 253
            && part
                .iter()
                .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.'))
    };
    (is_name(namespace) && is_name(name)).then_some((namespace, name))
}
