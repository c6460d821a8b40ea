//! The current answers to pod lookups, readable from any thread without waiting.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use arc_swap::ArcSwap;
use detector_engine::{Claimant, ClaimantId, IfIndex, KnownPod, PodDevice};
use detector_event::{Pod, PodAnswer, Via};
use tokio::sync::mpsc;

use super::{PodSources, SourceState, SourceStatus, resolver::LookupRequest};

/// Why a claimant that is the node itself has no pod.
const IS_THE_NODE: &str = "the claimant is the node itself";

/// The pod that the cluster's registry names.
fn registered_pod(claimant: &Claimant) -> PodAnswer {
    match claimant.registered.as_deref() {
        Some(there) if !there.pod.is_empty() => PodAnswer::Known(Arc::new(Pod {
            uid: there.pod_uid.clone(),
            container_id: there.container_id.clone(),
            ..Pod::named(&there.namespace, &there.pod, Via::Kube)
        })),
        _ => PodAnswer::Unknown("the cluster's registry names no pod".into()),
    }
}

/// A device by index and generation.
pub(crate) type DeviceId = (IfIndex, u64);

/// What is known of all devices.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// Looked up on the way to the event line.
    pub(super) pods: foldhash::HashMap<DeviceId, PodAnswer>,
    /// Devices for which another attempt is planned.
    pub(super) pending: HashSet<DeviceId>,
    /// Devices that were removed.
    pub(super) gone: HashSet<DeviceId>,
}

/// The pod behind each device, and the state of the sources. Written by the resolver alone; readers never wait.
#[derive(Debug, Default)]
pub struct PodDirectory {
    answers: ArcSwap<Answers>,
    sources: ArcSwap<Vec<SourceStatus>>,
}

impl PodDirectory {
    /// With these pods, each on a device.
    #[cfg(test)]
    pub(crate) fn of(pods: impl IntoIterator<Item = (IfIndex, Arc<Pod>)>) -> Self {
        let directory = Self::default();
        let known = |(ifindex, pod)| ((ifindex, 0), PodAnswer::Known(pod));
        directory.publish_answers(Answers {
            pods: pods.into_iter().map(known).collect(),
            ..Answers::default()
        });
        directory
    }

    /// The pod behind a claimant, or why it is not known.
    #[must_use]
    pub fn pod_of(&self, claimant: &Claimant) -> PodAnswer {
        match claimant.id {
            ClaimantId::Host => PodAnswer::Unknown(IS_THE_NODE.into()),
            ClaimantId::BehindBridge(..) => PodAnswer::Unknown(
                format!(
                    "only the neighbour table has this MAC behind {}: no pod there was seen to claim the address",
                    claimant.device
                )
                .into(),
            ),
            ClaimantId::Device(ifindex, generation) => self.pod_behind(ifindex, generation),
            ClaimantId::Registered(_) => registered_pod(claimant),
        }
    }

    /// The pod behind a device, or why it is not known.
    #[must_use]
    pub fn pod_behind(&self, ifindex: IfIndex, generation: u64) -> PodAnswer {
        match self.answers.load().pods.get(&(ifindex, generation)) {
            Some(answer) => answer.clone(),
            None => PodAnswer::Unknown(self.reason_before_first_lookup().into()),
        }
    }

    /// The pods that are known behind the devices that there are, by the device's index.
    #[must_use]
    pub fn present(&self) -> HashMap<IfIndex, Arc<Pod>> {
        let answers = self.answers.load();
        let present = answers.pods.iter();
        let present = present.filter(|(device, _)| !answers.gone.contains(device));
        let known = present.filter_map(|((ifindex, _), answer)| match answer {
            PodAnswer::Known(pod) => Some((*ifindex, Arc::clone(pod))),
            PodAnswer::Unknown(_) => None,
        });
        known.collect()
    }

    /// What the engine compares with the claims of these devices, of those whose pod is known.
    pub fn known_pods<'d>(
        &self,
        devices: impl Iterator<Item = &'d DeviceId>,
    ) -> Vec<(IfIndex, u64, KnownPod)> {
        let known = |(ifindex, generation): &DeviceId| match self.pod_behind(*ifindex, *generation)
        {
            PodAnswer::Known(pod) => Some((*ifindex, *generation, pod.to_known())),
            PodAnswer::Unknown(_) => None,
        };
        devices.filter_map(known).collect()
    }

    /// Whether the answer about a device will stay unless something changes: no further attempt is planned, a source works, and none fails.
    #[must_use]
    pub fn is_settled(&self, ifindex: IfIndex, generation: u64) -> bool {
        let id = (ifindex, generation);
        let answers = self.answers.load();
        let sources = self.sources.load();
        let has = |wanted: fn(&SourceState) -> bool| sources.iter().any(|s| wanted(&s.state));
        let is_failing = |state: &SourceState| {
            !matches!(
                state,
                SourceState::Off | SourceState::Missing | SourceState::Working
            )
        };
        answers.pods.contains_key(&id)
            && !answers.pending.contains(&id)
            && has(|state| *state == SourceState::Working)
            && !has(is_failing)
    }

    /// The reason for a device that the resolver has not processed yet.
    fn reason_before_first_lookup(&self) -> String {
        let sources = self.sources.load();
        if sources.is_empty() || sources.iter().any(|s| s.state != SourceState::Off) {
            return "the pod is being looked up".to_owned();
        }
        let off = sources.iter().map(|s| format!("{} is off", s.via));
        off.collect::<Vec<_>>().join("; ")
    }

    /// The state of each source, best first.
    #[must_use]
    pub fn sources(&self) -> Arc<Vec<SourceStatus>> {
        self.sources.load_full()
    }

    /// Publishes which sources there are, before the first query.
    pub fn announce(&self, sources: &PodSources) {
        self.publish_sources(sources.statuses());
    }

    pub(super) fn publish_answers(&self, answers: Answers) {
        self.answers.store(Arc::new(answers));
    }

    pub(super) fn publish_sources(&self, sources: Vec<SourceStatus>) {
        self.sources.store(Arc::new(sources));
    }
}

/// The event loop's access to pod lookups: reads the directory, sends requests to the resolver. Never waits.
#[derive(Debug)]
pub struct PodLookups {
    directory: Arc<PodDirectory>,
    requests: mpsc::Sender<LookupRequest>,
}

impl PodLookups {
    /// Answers from `directory`, which the resolver at the other end of `requests` keeps up to date.
    #[must_use]
    pub fn new(directory: Arc<PodDirectory>, requests: mpsc::Sender<LookupRequest>) -> Self {
        Self {
            directory,
            requests,
        }
    }

    pub(crate) fn pod_of(&self, claimant: &Claimant) -> PodAnswer {
        self.directory.pod_of(claimant)
    }

    /// A request for another lookup if the claimant is a present device without a known pod.
    pub(crate) fn wanted_lookup(&self, claimant: &Claimant) -> Option<LookupRequest> {
        let (ClaimantId::Device(ifindex, generation), None) = (claimant.id, claimant.left) else {
            return None;
        };
        let is_unknown = matches!(self.directory.pod_of(claimant), PodAnswer::Unknown(_));
        is_unknown.then(|| {
            LookupRequest::PodWanted(PodDevice {
                ifindex,
                generation,
                name: claimant.device.clone(),
                alias: None,
                peer: claimant.peer,
            })
        })
    }

    /// What the engine compares with the claims of these devices, of those whose pod is known.
    pub(crate) fn known_pods<'d>(
        &self,
        devices: impl Iterator<Item = &'d DeviceId>,
    ) -> Vec<(IfIndex, u64, KnownPod)> {
        self.directory.known_pods(devices)
    }

    pub(crate) fn device_appeared(&self, device: &PodDevice) {
        self.send(LookupRequest::DeviceAppeared(device.clone()));
    }

    pub(crate) fn device_gone(&self, ifindex: IfIndex, generation: u64) {
        self.send(LookupRequest::DeviceGone(ifindex, generation));
    }

    pub(crate) fn send(&self, request: LookupRequest) {
        // If the queue is full the request is dropped: a device missed here is requested again once a conflict
        // names it.
        let _ = self.requests.try_send(request);
    }
}
