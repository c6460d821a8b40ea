//! The current answers to pod lookups, readable from any thread without waiting.

use std::{collections::HashMap, sync::Arc};

use arc_swap::ArcSwap;
use tokio::sync::mpsc;

use super::{PodAnswer, PodSources, SourceState, SourceStatus, resolver::LookupRequest};
use crate::engine::{Claimant, ClaimantId, IfIndex, PodDevice};

/// A device by index and generation.
pub(super) type DeviceId = (IfIndex, u64);

/// The pod behind each device, and the state of the sources. Written by the resolver alone; readers never wait.
#[derive(Debug, Default)]
pub struct PodDirectory {
    answers: ArcSwap<HashMap<DeviceId, PodAnswer>>,
    sources: ArcSwap<Vec<SourceStatus>>,
}

impl PodDirectory {
    /// The pod behind a claimant, or why it is not known.
    #[must_use]
    pub fn pod_of(&self, claimant: &Claimant) -> PodAnswer {
        match claimant.id {
            ClaimantId::Host => PodAnswer::Unknown("the claimant is the node itself".into()),
            ClaimantId::BehindBridge(..) => PodAnswer::Unknown(
                format!("no port of {} is known for this MAC", claimant.device).into(),
            ),
            ClaimantId::Device(ifindex, generation) => self.pod_behind(ifindex, generation),
        }
    }

    /// The pod behind a device, or why it is not known.
    #[must_use]
    pub fn pod_behind(&self, ifindex: IfIndex, generation: u64) -> PodAnswer {
        match self.answers.load().get(&(ifindex, generation)) {
            Some(answer) => answer.clone(),
            None => PodAnswer::Unknown(self.reason_before_first_lookup().into()),
        }
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

    pub(super) fn publish_answers(&self, answers: HashMap<DeviceId, PodAnswer>) {
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

    /// Requests another lookup if the claimant is a present device without a known pod.
    pub(crate) fn request_lookup(&self, claimant: &Claimant) {
        if let (PodAnswer::Unknown(_), ClaimantId::Device(ifindex, generation), None) =
            (self.directory.pod_of(claimant), claimant.id, claimant.left)
        {
            self.send(LookupRequest::PodWanted(PodDevice {
                ifindex,
                generation,
                name: claimant.device.clone(),
                alias: None,
                peer: claimant.peer,
            }));
        }
    }

    pub(crate) fn device_appeared(&self, device: &PodDevice) {
        self.send(LookupRequest::DeviceAppeared(device.clone()));
    }

    pub(crate) fn device_gone(&self, ifindex: IfIndex, generation: u64) {
        self.send(LookupRequest::DeviceGone(ifindex, generation));
    }

    fn send(&self, request: LookupRequest) {
        // If the queue is full the request is dropped: a device missed here is requested again once a conflict
        // names it.
        let _ = self.requests.try_send(request);
    }
}
