//! The pod behind a device, out of what all sources told. Pure.

use std::sync::Arc;

use super::DeviceMatcher;
use crate::{
    engine::PodDevice,
    pods::{Pod, Via},
};

/// The catalogues of all sources, each with the round it was read in.
#[derive(Debug, Default)]
pub(in crate::pods) struct Catalogues {
    cri: Dated,
    cni_cache: Dated,
    kube: Dated,
}

#[derive(Debug, Default)]
struct Dated {
    catalogue: DeviceMatcher,
    round: u64,
}

impl Catalogues {
    /// What the Kubernetes API told, where it told anything.
    pub(in crate::pods) fn kube(&self) -> Option<&DeviceMatcher> {
        Some(&self.kube.catalogue).filter(|catalogue| !catalogue.records.is_empty())
    }

    /// Adds what the Kubernetes API knows of the same pod.
    pub(in crate::pods) fn complete(&self, pod: Arc<Pod>) -> Arc<Pod> {
        let record = self
            .kube
            .catalogue
            .record_by_name(&pod.namespace, &pod.name);
        let Some(record) = record else {
            return pod;
        };
        let known = &record.pod;
        let same = pod.uid.is_none() || pod.uid == known.uid || pod.uid == record.known_as;
        let complete = Pod {
            uid: known.uid.clone(),
            labels: known.labels.clone(),
            owner: known.owner.clone(),
            terminating: known.terminating,
            ..Pod::clone(&pod)
        };
        if same && complete != *pod {
            Arc::new(complete)
        } else {
            pod
        }
    }

    pub(in crate::pods) fn set(&mut self, via: Via, round: u64, catalogue: DeviceMatcher) {
        let dated = Dated { catalogue, round };
        match via {
            Via::Cri => self.cri = dated,
            Via::CniCache => self.cni_cache = dated,
            Via::Kube => self.kube = dated,
            // Has no records of its own.
            Via::NameHash => {}
        }
    }

    /// The pod behind a device, by the best source that knows it. A catalogue read before round `since` says nothing
    /// of the device's network: what it holds may be of an earlier device.
    pub(in crate::pods) fn name(&self, device: &PodDevice, since: u64) -> Option<Arc<Pod>> {
        self.told(device, since).map(|pod| self.complete(pod))
    }

    fn told(&self, device: &PodDevice, since: u64) -> Option<Arc<Pod>> {
        for dated in [&self.cri, &self.cni_cache] {
            let fresh = Some(&dated.catalogue).filter(|_| dated.round >= since);
            if let Some(pod) = fresh.and_then(|catalogue| catalogue.by_network(device)) {
                return Some(Arc::new(pod.clone()));
            }
        }
        let spelled = device.alias.as_deref().and_then(spelled_out);
        let kube = &self.kube.catalogue;
        let in_kube = spelled
            .and_then(|(namespace, name)| kube.by_pod_name(namespace, name))
            .or_else(|| kube.by_hash(device));
        if let Some(pod) = in_kube {
            return Some(Arc::new(pod.clone()));
        }
        // The device's own word: good whenever the candidate was read, as it holds the pod's name or container id.
        for catalogue in [&self.cri.catalogue, &self.cni_cache.catalogue] {
            let told = spelled
                .and_then(|(namespace, name)| catalogue.by_pod_name(namespace, name))
                .or_else(|| catalogue.by_hash(device));
            if let Some(pod) = told {
                let via = Via::NameHash;
                return Some(Arc::new(Pod { via, ..pod.clone() }));
            }
        }
        let (namespace, name) = spelled?;
        Some(Arc::new(Pod::named(namespace, name, Via::NameHash)))
    }
}

/// Namespace and name out of the alias that newer kindnet gives its devices: `link-pod <namespace>/<name>`.
pub(super) fn spelled_out(alias: &str) -> Option<(&str, &str)> {
    let (namespace, name) = alias.strip_prefix("link-pod ")?.split_once('/')?;
    let fits = |part: &str| {
        let part = part.as_bytes();
        !part.is_empty()
            && part.len() <= 253
            && part
                .iter()
                .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.'))
    };
    (fits(namespace) && fits(name)).then_some((namespace, name))
}
