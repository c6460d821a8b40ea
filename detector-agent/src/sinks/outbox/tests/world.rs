//! Conflicts that come and go, an outbox on a disk that may fail, and a receiver that records everything.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    path::PathBuf,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use detector_engine::Confidence;
use detector_event::{AnyEvent, Change, Role, SubjectId, samples};
use tokio::time::Instant;

use super::{
    super::{Outbox, OutboxBounds, SinkSpec, Window, queue::SendJob, worker::OutboxWorker},
    disk::Disk,
};
use crate::{
    health::{Health, Part},
    metrics::{Delivery, Metrics},
    persist::store::{Store, StoreError},
    sinks::{EventSink as _, filter::Filter, message::Message},
};

/// One delivery, as the receiver saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) id: String,
    pub(super) change: Change,
}

/// The sinks: one that takes all, one with a filter, a chat and a pager.
pub(super) const ALL: usize = 0;
pub(super) const CHAT: usize = 2;
pub(super) const PAGER: usize = 3;

pub(super) fn sinks() -> Vec<SinkSpec> {
    let certain = Filter {
        confidence: Confidence::Certain,
        ..Filter::default()
    };
    let sink = |name: &str, filter, has_incidents: Option<bool>| SinkSpec {
        name: name.to_owned(),
        filter,
        window: has_incidents.map(|has_incidents| Window {
            lasts: Duration::ZERO,
            has_incidents,
        }),
    };
    vec![
        sink("all", Filter::default(), None),
        sink("certain", certain, None),
        sink("chat", Filter::default(), Some(false)),
        sink("pager", Filter::default(), Some(true)),
    ]
}

pub(super) fn health() -> Part {
    Health::default().part(Role::Sink, "outbox")
}

pub(super) fn store_on(disk: &Disk) -> Arc<Store> {
    let disk = disk.clone();
    Arc::new(Store::new(
        true,
        Box::new(move || {
            disk.open().map_err(|source| StoreError::Open {
                path: PathBuf::from("disk"),
                source: Box::new(source),
            })
        }),
    ))
}

/// One run of the agent, which ends with a crash.
pub(super) struct Run {
    pub(super) outbox: Outbox,
    pub(super) worker: OutboxWorker,
}

pub(super) struct Simulation {
    pub(super) disk: Disk,
    pub(super) random: fastrand::Rng,
    bounds: OutboxBounds,
    pub(super) metrics: Arc<Metrics>,
    pub(super) run: Option<Run>,
    /// Conflicts that are active: id → whether it is certain.
    pub(super) active: BTreeMap<String, bool>,
    serial: usize,
    conflicts: usize,
    /// Conflicts that ended, and may begin again.
    ended: Vec<String>,
    /// How often each conflict was raised.
    raises: HashMap<String, usize>,
    /// Conflicts and the ids of their raises, whose commit succeeded.
    pub(super) stored: BTreeSet<(String, String)>,
    accepted: Vec<(String, String)>,
    /// What each sink saw, by conflict.
    pub(super) seen: Vec<HashMap<SubjectId, Vec<Seen>>>,
    /// The open incidents of the pager, each with the conflicts that are open at the receiver as part of it.
    pub(super) incidents: HashMap<SubjectId, HashSet<SubjectId>>,
    /// Whether a failed attempt may have reached the receiver.
    pub(super) ambiguous: bool,
    /// Whether the receivers reject events at random.
    pub(super) rejecting: bool,
}

impl Simulation {
    pub(super) fn new(seed: u64, bounds: OutboxBounds) -> Self {
        Self {
            disk: Disk::default(),
            random: fastrand::Rng::with_seed(seed),
            bounds,
            metrics: Arc::new(Metrics::new()),
            run: None,
            active: BTreeMap::new(),
            serial: 0,
            conflicts: 0,
            ended: Vec::new(),
            raises: HashMap::new(),
            stored: BTreeSet::new(),
            accepted: Vec::new(),
            seen: sinks().iter().map(|_| HashMap::new()).collect(),
            incidents: HashMap::new(),
            ambiguous: true,
            rejecting: false,
        }
    }

    /// Starts the agent; an error is the crash.
    pub(super) fn start(&mut self) -> Result<(), String> {
        let store = store_on(&self.disk);
        let (outbox, worker) =
            Outbox::assemble(&store, sinks(), self.bounds, &self.metrics, health());
        if !worker.loaded {
            return Err("what is stored cannot be read".to_owned());
        }
        self.run = Some(Run { outbox, worker });
        self.accepted.clear();
        let events: Vec<_> = self
            .active
            .clone()
            .into_iter()
            .map(|(id, certain)| self.event(Change::Updated, &id, certain))
            .collect();
        self.run().outbox.sink().catch_up(&events);
        Ok(())
    }

    pub(super) fn run(&mut self) -> &mut Run {
        self.run.as_mut().unwrap()
    }

    /// The agent crashes.
    pub(super) fn die(&mut self) {
        self.run = None;
    }

    fn event(&mut self, change: Change, conflict: &str, certain: bool) -> AnyEvent {
        self.serial += 1;
        let id = format!("e{}", self.serial);
        let mut event = samples::event(&id, change, conflict, "10.0.0.1");
        event.data.confidence = if certain {
            Confidence::Certain
        } else {
            Confidence::Observed
        };
        // Some conflicts have the same claimants.
        let pair = conflict.bytes().last().unwrap_or_default() % 4;
        for claimant in &mut event.data.claimants {
            claimant.device += &pair.to_string();
        }
        // Each state of a conflict differs from the one before.
        event.data.traffic_goes_to = Some(format!("veth{}", self.serial));
        event.into()
    }

    pub(super) fn report(&mut self, change: Change, conflict: &str, certain: bool) {
        let event = self.event(change, conflict, certain);
        if change == Change::Raised {
            self.accepted
                .push((conflict.to_owned(), event.id().to_owned()));
        }
        self.run().outbox.sink().on_event(&event);
    }

    pub(super) fn raise(&mut self) -> String {
        let again = self.random.usize(..4);
        let conflict = if self.ended.len() > again {
            self.ended.swap_remove(again)
        } else {
            self.conflicts += 1;
            format!("c{}", self.conflicts)
        };
        *self.raises.entry(conflict.clone()).or_default() += 1;
        let certain = self.random.bool();
        self.active.insert(conflict.clone(), certain);
        self.report(Change::Raised, &conflict, certain);
        conflict
    }

    pub(super) fn update(&mut self, conflict: &str) {
        let certain = self.random.bool();
        self.active.insert(conflict.to_owned(), certain);
        self.report(Change::Updated, conflict, certain);
    }

    pub(super) fn resolve(&mut self, conflict: &str) {
        let certain = self.active.remove(conflict).unwrap();
        self.report(Change::Resolved, conflict, certain);
        self.ended.push(conflict.to_owned());
    }

    /// Something happens to some conflict.
    pub(super) fn happen(&mut self, most: usize) {
        let ids: Vec<_> = self.active.keys().cloned().collect();
        let choice = self.random.u8(..4);
        if ids.is_empty() || (choice == 0 && ids.len() < most) {
            self.raise();
            return;
        }
        let id = ids[self.random.usize(..ids.len())].clone();
        if choice <= 2 {
            self.update(&id);
        } else {
            self.resolve(&id);
        }
    }

    /// The outbox stores the accepted events; `false` if that failed.
    pub(super) fn store(&mut self) -> bool {
        self.run().worker.turn(Some(Duration::ZERO));
        let queued = &self.run().worker.backpressure.queued;
        let done = queued.load(Ordering::Acquire) == 0;
        if done {
            self.stored.extend(self.accepted.drain(..));
        }
        done
    }

    /// The receivers take up to `most` messages of each sink.
    pub(super) fn deliver(&mut self, most: usize, failing: u8) {
        for sink in 0..self.seen.len() {
            let sink_queue = Arc::clone(&self.run().outbox.sink_queues()[sink]);
            for _ in 0..most {
                let now = Instant::now();
                let Ok(job) = sink_queue.take(now) else { break };
                if job.is_superseded {
                    if sink == PAGER && job.change == Change::Resolved {
                        self.ended_in_incident(&job);
                    }
                    sink_queue.superseded(&job);
                    continue;
                }
                let Ok(message) = sink_queue.read(&job) else {
                    sink_queue.failed(&job.members, now);
                    break;
                };
                let message = message.expect("what waits is stored");
                if self.rejecting && self.random.u8(..4) == 0 && !self.has_seen(sink, &message) {
                    sink_queue.rejected(&job, now);
                    continue;
                }
                let fails = self.random.u8(..8) < failing;
                if !fails || (self.ambiguous && self.random.bool()) {
                    self.saw(sink, &message);
                }
                if fails {
                    sink_queue.failed(&job.members, now);
                } else {
                    sink_queue.delivered(&job);
                }
            }
        }
    }

    /// Whether the receiver may have one of the events.
    fn has_seen(&self, sink: usize, message: &Message) -> bool {
        message.events.iter().any(|event| {
            let seen = self.seen[sink].get(&event.subject_id());
            seen.is_some_and(|seen| seen.iter().any(|seen| seen.id == event.id()))
        })
    }

    fn saw(&mut self, sink: usize, message: &Message) {
        let subjects = message.events.iter().map(AnyEvent::subject_id);
        if sink == PAGER {
            self.paged(message, subjects.collect());
        }
        for event in &message.events {
            let seen = Seen {
                id: event.id().to_owned(),
                change: message.change,
            };
            self.seen[sink]
                .entry(event.subject_id())
                .or_default()
                .push(seen);
        }
    }

    /// The pager triggers or resolves an incident.
    fn paged(&mut self, message: &Message, subjects: HashSet<SubjectId>) {
        if message.change == Change::Resolved {
            let members = self.incidents.remove(&message.incident).unwrap_or_default();
            let active: Vec<_> = members.difference(&subjects).collect();
            assert!(
                active.is_empty(),
                "incident {} is resolved with active members {active:?}",
                message.incident
            );
        } else {
            let members = self.incidents.entry(message.incident).or_default();
            members.extend(subjects);
        }
    }

    /// Ends that the pager does not get, because the incident has further members.
    fn ended_in_incident(&mut self, job: &SendJob) {
        for member in &job.members {
            for members in self.incidents.values_mut() {
                members.remove(&member.subject);
            }
        }
    }

    /// All conflicts end and everything is delivered.
    pub(super) fn finish(&mut self) {
        for conflict in self.active.keys().cloned().collect::<Vec<_>>() {
            self.resolve(&conflict);
        }
        let mut rounds = 0;
        while !self.store() || self.pending() > 0 || self.run().worker.due.next().is_some() {
            self.deliver(100, 0);
            rounds += 1;
            assert!(rounds < 1000, "the queues do not drain");
        }
    }

    pub(super) fn pending(&mut self) -> usize {
        let sink_queues = self.run().outbox.sink_queues();
        sink_queues
            .iter()
            .map(|sink_queue| sink_queue.pending())
            .sum()
    }

    pub(super) fn counted(&self, sink: &str, outcome: &'static str) -> u64 {
        let labels = Delivery::new(sink, outcome);
        self.metrics.deliveries.get_or_create(&labels).get()
    }

    /// Each conflict, as each sink saw it: raised first, resolved last, repeats only side by side.
    pub(super) fn check_order(&self) {
        for (sink, conflicts) in self.seen.iter().enumerate().take(PAGER) {
            for (conflict, seen) in conflicts {
                let mut once = seen.clone();
                once.dedup();
                let history = format!("sink {sink}, conflict {conflict}: {seen:?}");
                let ids: BTreeSet<_> = once.iter().map(|s| &s.id).collect();
                assert!(
                    ids.len() == once.len() || sink == CHAT,
                    "a repeat after a later event: {history}"
                );
                // A chat may get a raise again with a newer state.
                once.dedup_by_key(|seen| {
                    (sink == CHAT).then_some(seen.change).ok_or(seen.id.clone())
                });
                assert_eq!(once[0].change, Change::Raised, "{history}");
                for pair in once.windows(2) {
                    let is_open = pair[0].change != Change::Resolved;
                    assert_eq!(is_open, pair[1].change != Change::Raised, "{history}");
                }
                let last = once.last().map(|seen| seen.change);
                assert_eq!(last, Some(Change::Resolved), "{history}");
            }
        }
        assert!(self.incidents.is_empty(), "open: {:?}", self.incidents);
    }

    /// The sinks without a filter have seen every conflict whose raise was stored.
    pub(super) fn check_complete(&self) {
        for sink in [ALL, CHAT, PAGER] {
            for (conflict, id) in &self.stored {
                let seen = self.seen[sink].get(&samples::subject_id(conflict));
                assert!(seen.is_some(), "sink {sink}: {conflict} never delivered");
                // What begins and ends again while its first end is pending is nothing new.
                let is_only = self.raises[conflict] == 1;
                let has_raise = |seen: &Vec<Seen>| seen.iter().any(|seen| seen.id == *id);
                assert!(
                    sink != ALL || !is_only || seen.is_some_and(has_raise),
                    "{id}, the raise of {conflict}, never delivered: {seen:?}"
                );
            }
        }
    }
}
