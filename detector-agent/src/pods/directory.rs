//! What is known now of the pods behind devices, readable from any thread at once.

use std::{collections::HashMap, sync::Arc};

use arc_swap::ArcSwap;
use tokio::sync::mpsc;

use super::{Pod, PodAnswer, SourceState, SourceStatus, Sources, resolver::Note};
use crate::engine::{Claimant, ClaimantId, IfIndex, PodDevice};

/// A device by index and generation.
pub(super) type DeviceId = (IfIndex, u64);

/// What is known of one device.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    Known(Arc<Pod>),
    Unknown(Arc<str>),
}

/// What is known now, and how the sources fare. One writer (the task), any number of readers, none of whom waits.
#[derive(Debug, Default)]
pub struct PodDirectory {
    answers: ArcSwap<HashMap<DeviceId, Answer>>,
    sources: ArcSwap<Vec<SourceStatus>>,
}

impl PodDirectory {
    /// The pod behind a claimant, or why it is not known.
    #[must_use]
    pub fn pod_of(&self, claimant: &Claimant) -> PodAnswer {
        match claimant.id {
            ClaimantId::Host => PodAnswer::Unknown("it is the node itself".into()),
            ClaimantId::BehindBridge(..) => PodAnswer::Unknown(
                format!("no port of {} is known to lead there", claimant.device).into(),
            ),
            ClaimantId::Device(ifindex, generation) => self.pod_behind(ifindex, generation),
        }
    }

    /// The pod behind a device, or why it is not known.
    #[must_use]
    pub fn pod_behind(&self, ifindex: IfIndex, generation: u64) -> PodAnswer {
        match self.answers.load().get(&(ifindex, generation)) {
            Some(Answer::Known(pod)) => PodAnswer::Known(Arc::clone(pod)),
            Some(Answer::Unknown(because)) => PodAnswer::Unknown(because.to_string().into()),
            None => PodAnswer::Unknown(self.unlisted().into()),
        }
    }

    /// Why nothing is said of a device that the task has not heard of yet.
    fn unlisted(&self) -> String {
        let sources = self.sources.load();
        if sources.is_empty() || sources.iter().any(|s| s.state != SourceState::Off) {
            return "it is being looked up".to_owned();
        }
        let off = sources.iter().map(|s| format!("{} is off", s.via));
        off.collect::<Vec<_>>().join("; ")
    }

    /// How the sources fare, best first.
    #[must_use]
    pub fn sources(&self) -> Arc<Vec<SourceStatus>> {
        self.sources.load_full()
    }

    /// Shows which sources there will be, before the first is asked.
    pub fn announce(&self, sources: &Sources) {
        self.publish_sources(sources.statuses());
    }

    pub(super) fn publish_answers(&self, answers: HashMap<DeviceId, Answer>) {
        self.answers.store(Arc::new(answers));
    }

    pub(super) fn publish_sources(&self, sources: Vec<SourceStatus>) {
        self.sources.store(Arc::new(sources));
    }
}

/// The detection thread's end: answers from the book, and tells the task of devices.
#[derive(Debug)]
pub struct PodLookups {
    book: Arc<PodDirectory>,
    notes: mpsc::Sender<Note>,
}

impl PodLookups {
    /// Answers from `book`; `notes` lead to the task that keeps it.
    #[must_use]
    pub fn new(book: Arc<PodDirectory>, notes: mpsc::Sender<Note>) -> Self {
        Self { book, notes }
    }

    fn note(&self, note: Note) {
        // Full: the task is far behind. A device that is lost so is told again when a conflict names it.
        let _ = self.notes.try_send(note);
    }
}

impl PodLookups {
    pub(crate) fn pod_of(&self, claimant: &Claimant) -> PodAnswer {
        self.book.pod_of(claimant)
    }

    pub(crate) fn look_for(&self, claimant: &Claimant) {
        if let (PodAnswer::Unknown(_), ClaimantId::Device(ifindex, generation), None) =
            (self.book.pod_of(claimant), claimant.id, claimant.left)
        {
            self.note(Note::Wanted(PodDevice {
                ifindex,
                generation,
                name: claimant.device.clone(),
                alias: None,
                peer: claimant.peer,
            }));
        }
    }

    pub(crate) fn device_appeared(&self, device: &PodDevice) {
        self.note(Note::Appeared(device.clone()));
    }

    pub(crate) fn device_gone(&self, ifindex: IfIndex, generation: u64) {
        self.note(Note::Gone(ifindex, generation));
    }
}
