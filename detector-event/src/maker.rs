//! Creates events from what the engine reports.

use std::{net::IpAddr, sync::Arc};

use detector_engine::{Anomaly, Claimant, Conflict};

use super::{
    AnomalyData, AnomalyEvent, AnyEvent, Change, ConflictData, DataContentType, Event, EventType,
    Explanations, SpecVersion,
};
use crate::{Moment, PodAnswer};

/// A conflict or an anomaly as the engine reports it.
#[derive(Clone, Copy, Debug)]
pub enum EventSubject<'a> {
    /// A conflict.
    Conflict(&'a Conflict),
    /// An anomaly.
    Anomaly(&'a Anomaly),
}

impl<'a> From<&'a Conflict> for EventSubject<'a> {
    fn from(conflict: &'a Conflict) -> Self {
        Self::Conflict(conflict)
    }
}

impl<'a> From<&'a Anomaly> for EventSubject<'a> {
    fn from(anomaly: &'a Anomaly) -> Self {
        Self::Anomaly(anomaly)
    }
}

impl<'a> EventSubject<'a> {
    /// The claimants whose pods the event names: of a conflict those that have not left, of an anomaly the holder.
    pub fn claimants(self) -> impl Iterator<Item = &'a Claimant> {
        let (conflict, anomaly) = match self {
            Self::Conflict(conflict) => (Some(conflict), None),
            Self::Anomaly(anomaly) => (None, Some(anomaly)),
        };
        let present = conflict.into_iter().flat_map(Conflict::present);
        present.chain(anomaly.and_then(|anomaly| anomaly.holder.as_ref()))
    }
}

/// Creates the events of one node.
#[derive(Clone, Debug)]
pub struct EventMaker {
    node: Arc<str>,
    cluster: Option<String>,
    /// The `source` of the events.
    source: Arc<str>,
    explanations: Arc<Explanations>,
    /// How the ids of this run's events begin, unlike those of earlier runs.
    run: String,
    serial: u64,
}

impl EventMaker {
    /// `run` should be random.
    #[must_use]
    pub fn new(node: &str, run: u64) -> Self {
        Self {
            source: format!("ip-conflict-detector/{node}").into(),
            node: node.into(),
            cluster: None,
            explanations: Arc::default(),
            run: format!("{run:016x}-"),
            serial: 0,
        }
    }

    /// The name of the node.
    #[must_use]
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Names the cluster in every event.
    #[must_use]
    pub fn in_cluster(self, cluster: Option<String>) -> Self {
        Self { cluster, ..self }
    }

    /// Adds these explanations to its events.
    #[must_use]
    pub fn explained_by(self, explanations: Arc<Explanations>) -> Self {
        Self {
            explanations,
            ..self
        }
    }

    /// The explanations that it adds.
    #[must_use]
    pub fn explanations(&self) -> &Explanations {
        &self.explanations
    }

    /// The event for `change` of `subject` at `moment`, which is now. `pods` looks up a claimant's pod without waiting.
    pub fn any_event(
        &mut self,
        moment: &Moment,
        change: Change,
        subject: EventSubject<'_>,
        pods: impl Fn(&Claimant) -> PodAnswer,
    ) -> AnyEvent {
        match subject {
            EventSubject::Conflict(conflict) => self.event(moment, change, conflict, pods).into(),
            EventSubject::Anomaly(anomaly) => {
                self.anomaly_event(moment, change, anomaly, pods).into()
            }
        }
    }

    /// The event for `change` of `conflict`; see [`EventMaker::any_event`].
    pub fn event(
        &mut self,
        moment: &Moment,
        change: Change,
        conflict: &Conflict,
        pods: impl Fn(&Claimant) -> PodAnswer,
    ) -> Event {
        let mut data = ConflictData::new(&self.node, moment, conflict, pods);
        data.cluster.clone_from(&self.cluster);
        data.explain(&self.explanations);
        self.envelope(EventType::conflict(change), conflict.address, moment, data)
    }

    /// The event for `change` of `anomaly`; see [`EventMaker::any_event`].
    pub fn anomaly_event(
        &mut self,
        moment: &Moment,
        change: Change,
        anomaly: &Anomaly,
        pods: impl Fn(&Claimant) -> PodAnswer,
    ) -> AnomalyEvent {
        let mut data = AnomalyData::new(&self.node, moment, anomaly, pods);
        data.cluster.clone_from(&self.cluster);
        data.explain(&self.explanations);
        self.envelope(EventType::anomaly(change), anomaly.address, moment, data)
    }

    fn envelope<D>(
        &mut self,
        event_type: EventType,
        subject: IpAddr,
        moment: &Moment,
        data: D,
    ) -> Event<D> {
        self.serial += 1;
        let serial = self.serial.to_string();
        // Formatting or joining would take several times as many instructions.
        let mut id = String::with_capacity(self.run.len() + serial.len());
        id.push_str(&self.run);
        id.push_str(&serial);
        Event {
            specversion: SpecVersion::V1,
            id,
            source: Arc::clone(&self.source),
            event_type,
            subject,
            time: moment.wall(),
            datacontenttype: DataContentType::Json,
            data,
        }
    }
}
