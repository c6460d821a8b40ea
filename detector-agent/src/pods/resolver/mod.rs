//! The task that keeps the [`PodDirectory`] up to date: it takes lookup requests, has the sources queried, and matches
//! their snapshots with the devices.
//!
//! A round is one query to every source. A device takes part from the first round that begins after its request.
//! A new device gets several rounds in quick succession, because a runtime lists a pod only some 70 ms after its device
//! appeared (its CNI cache after 12 ms), then a few slow ones. After that only a conflict with the device, or a source
//! that works again, starts another.

mod device_lookup;
mod matching;

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use detector_engine::{IfIndex, PodDevice};
use detector_event::{PodAnswer, Via};
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};

use super::{
    DeviceMatcher, PodDirectory, PodSources, SourceState, SourceStatus,
    directory::{Answers, DeviceId},
    matcher::SourceMatchers,
    netns::NetnsQueries,
    source::{SourceReport, StatusChange},
};
use crate::{
    metrics::{Lookup, Metrics},
    process::timer::sleep_until_some,
};
use device_lookup::DeviceLookup;

/// Capacity of the queue of lookup requests.
pub const LOOKUP_QUEUE: usize = 16_384;

/// A request to the resolver.
#[derive(Clone, Debug)]
pub enum LookupRequest {
    /// A device appeared or changed.
    DeviceAppeared(PodDevice),
    /// A conflict includes this device, and its pod is not known.
    PodWanted(PodDevice),
    /// A device (ifindex, generation) was removed.
    DeviceGone(IfIndex, u64),
}

/// What became known about devices (index and generation).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LookupUpdate {
    /// The names of CNI networks that devices are in.
    pub networks: Vec<(IfIndex, u64, Arc<str>)>,
    /// Devices whose pod became known, or changed; the directory has it.
    pub pods: Vec<(IfIndex, u64)>,
    /// Devices with the same pod as before but other details.
    pub details: Vec<(IfIndex, u64)>,
}

/// Resolves devices to pods; the only writer of the directory.
#[derive(Debug)]
pub struct PodResolver {
    directory: Arc<PodDirectory>,
    metrics: Arc<Metrics>,
    /// Boxed: a table has up to twice as many places as entries.
    devices: HashMap<DeviceId, Box<DeviceLookup>>,
    /// Removed devices, oldest first.
    gone: VecDeque<DeviceId>,
    matchers: SourceMatchers,
    netns: NetnsQueries,
    sources: Vec<SourceStatus>,
    round: u64,
    /// Devices whose pod became known or changed since the last notification.
    changed: Vec<DeviceId>,
    /// Devices of whose pod only details changed since then.
    detailed: Vec<DeviceId>,
    /// Devices whose CNI network became known since then.
    named_networks: Vec<(IfIndex, u64, Arc<str>)>,
    /// The published answers are out of date.
    is_stale: bool,
    logs_sources: bool,
}

impl PodResolver {
    /// A resolver without devices or sources.
    #[must_use]
    pub fn new(directory: Arc<PodDirectory>, metrics: Arc<Metrics>) -> Self {
        Self {
            directory,
            metrics,
            devices: HashMap::new(),
            gone: VecDeque::new(),
            matchers: SourceMatchers::default(),
            netns: NetnsQueries::default(),
            sources: Vec::new(),
            round: 0,
            changed: Vec::new(),
            detailed: Vec::new(),
            named_networks: Vec::new(),
            is_stale: false,
            logs_sources: true,
        }
    }

    /// A resolver that does not log the state of the sources, for a single lookup.
    pub(super) fn without_log(directory: Arc<PodDirectory>) -> Self {
        Self {
            logs_sources: false,
            ..Self::new(directory, Arc::new(Metrics::new()))
        }
    }

    /// Runs until the sender of `requests` is dropped. `notify` is called with what became known about which devices.
    pub async fn run(
        mut self,
        sources: PodSources,
        mut requests: mpsc::Receiver<LookupRequest>,
        notify: impl Fn(LookupUpdate),
    ) {
        let (rounds, watched) = watch::channel(0);
        let (sender, mut reports) = mpsc::channel(8);
        self.set_sources(sources.start(&watched, &sender));
        loop {
            let due = self.next_due();
            tokio::select! {
                request = requests.recv() => match request {
                    Some(request) => self.handle(request, Instant::now()),
                    None => return,
                },
                // Never `None`: this function holds a sender.
                Some(report) = reports.recv() => {
                    // First the requests: a device removed meanwhile must not be matched.
                    self.handle_queued(&mut requests);
                    self.apply_report(report);
                }
                () = sleep_until_some(due) => {}
            }
            self.handle_queued(&mut requests);
            if self.begin_round(Instant::now()) {
                rounds.send_replace(self.round);
            }
            self.publish();
            let update = self.take_update();
            if update != LookupUpdate::default() {
                notify(update);
            }
        }
    }

    /// What became known since the last call.
    pub(super) fn take_update(&mut self) -> LookupUpdate {
        LookupUpdate {
            networks: std::mem::take(&mut self.named_networks),
            pods: std::mem::take(&mut self.changed),
            details: std::mem::take(&mut self.detailed),
        }
    }

    pub(super) fn round(&self) -> u64 {
        self.round
    }

    pub(super) fn set_sources(&mut self, sources: Vec<SourceStatus>) {
        self.sources = sources;
        self.directory.publish_sources(self.sources.clone());
        self.is_stale = true;
    }

    fn handle_queued(&mut self, requests: &mut mpsc::Receiver<LookupRequest>) {
        while let Ok(request) = requests.try_recv() {
            self.handle(request, Instant::now());
        }
    }

    pub(super) fn handle(&mut self, request: LookupRequest, now: Instant) {
        match request {
            LookupRequest::DeviceAppeared(device) => self.device_appeared(device, now),
            LookupRequest::PodWanted(device) => self.pod_wanted(device, now),
            LookupRequest::DeviceGone(ifindex, generation) => {
                self.device_gone((ifindex, generation));
            }
        }
    }

    /// Applies the outcome of a query to a source.
    pub(super) fn apply_report(&mut self, report: SourceReport) {
        let SourceReport {
            via,
            target,
            round,
            outcome,
        } = report;
        let Some(status) = self.sources.iter_mut().find(|status| status.via == via) else {
            return;
        };
        let previous = status.state;
        let change = status.update(&target, &outcome);
        let state = status.state;
        if self.logs_sources {
            status.log(change);
        }
        if change != StatusChange::None {
            self.is_stale = true;
            self.directory.publish_sources(self.sources.clone());
        }
        match outcome {
            Ok(snapshot) => {
                self.matchers
                    .set(via, round, DeviceMatcher::new(snapshot.records));
                self.match_devices(Some((via, round)));
            }
            Err(_) => {
                let lookups = self.open_lookups(via, round);
                self.count(via, state.name(), lookups);
            }
        }
        if !previous.is_usable() && state == SourceState::Working {
            self.retry_lookups(via);
        }
    }

    fn count(&self, via: Via, outcome: &'static str, lookups: usize) {
        if lookups > 0 {
            self.metrics
                .lookups
                .get_or_create(&Lookup::new(via, outcome))
                .inc_by(lookups as u64);
        }
    }

    /// Publishes the answers if they changed.
    pub(super) fn publish(&mut self) {
        if !std::mem::take(&mut self.is_stale) {
            return;
        }
        let reason = self.unknown_reason();
        let pending: Arc<str> = format!("the pod is being looked up; so far {reason}").into();
        let finished: Arc<str> = reason.into();
        let answers = self.devices.iter().map(|(id, lookup)| {
            let answer = match &lookup.pod {
                Some(pod) => PodAnswer::Known(Arc::clone(pod)),
                None => {
                    let reason = match lookup.next_attempt {
                        Some(_) => &pending,
                        None => &finished,
                    };
                    PodAnswer::Unknown(match &lookup.ambiguity {
                        Some(ambiguity) => format!("{ambiguity}; {reason}").into(),
                        None => Arc::clone(reason),
                    })
                }
            };
            (*id, answer)
        });
        let pending = self
            .devices
            .iter()
            .filter(|(_, l)| l.next_attempt.is_some());
        let gone = self.devices.iter().filter(|(_, l)| l.is_gone);
        self.directory.publish_answers(Answers {
            gone: gone.map(|(id, _)| *id).collect(),
            pods: answers.collect(),
            pending: pending.map(|(id, _)| *id).collect(),
        });
    }
}

#[cfg(test)]
mod tests;
