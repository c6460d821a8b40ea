//! Conflicts that come and go, an outbox on a disk that may fail, and a receiver that records everything.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::PathBuf,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use detector_engine::Confidence;
use detector_event::{AnyEvent, Change, Role, SubjectId, samples};
use tokio::time::Instant;

use super::{
    super::{Outbox, OutboxBounds, SinkSpec, worker::OutboxWorker},
    disk::Disk,
};
use crate::{
    health::{Health, Part},
    metrics::{Delivery, Metrics},
    persist::store::{Store, StoreError},
    sinks::{EventSink as _, digest::DigestRules, filter::Filter, message::Message},
};

/// One delivery, as the receiver saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) id: String,
    pub(super) change: Change,
}

/// The sinks: one that takes all, one with a filter, one that gets digests.
pub(super) const ALL: usize = 0;

pub(super) fn sinks() -> Vec<SinkSpec> {
    let certain = Filter {
        confidence: Confidence::Certain,
        ..Filter::default()
    };
    vec![
        SinkSpec {
            name: "all".to_owned(),
            filter: Filter::default(),
            digest: None,
        },
        SinkSpec {
            name: "certain".to_owned(),
            filter: certain,
            digest: None,
        },
        SinkSpec {
            name: "people".to_owned(),
            filter: Filter::default(),
            digest: Some(DigestRules {
                first: 1,
                every: Duration::ZERO,
                ..DigestRules::FOR_PEOPLE
            }),
        },
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
    /// Events whose commit succeeded.
    pub(super) stored: BTreeSet<String>,
    offered: Vec<String>,
    /// What each sink saw, by conflict.
    pub(super) seen: Vec<HashMap<SubjectId, Vec<Seen>>>,
    /// Whether a sink lost the `resolved` event of a conflict that it got, or may have got, to the bound.
    pub(super) lost_resolved: bool,
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
            stored: BTreeSet::new(),
            offered: Vec::new(),
            seen: sinks().iter().map(|_| HashMap::new()).collect(),
            lost_resolved: false,
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
        self.offered.clear();
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

    pub(super) fn offer(&mut self, change: Change, conflict: &str, certain: bool) {
        let event = self.event(change, conflict, certain);
        self.offered.push(event.id().to_owned());
        self.run().outbox.sink().offer(&event);
    }

    pub(super) fn raise(&mut self) -> String {
        self.conflicts += 1;
        let conflict = format!("c{}", self.conflicts);
        let certain = self.random.bool();
        self.active.insert(conflict.clone(), certain);
        self.offer(Change::Raised, &conflict, certain);
        conflict
    }

    pub(super) fn update(&mut self, conflict: &str) {
        let certain = self.random.bool();
        self.active.insert(conflict.to_owned(), certain);
        self.offer(Change::Updated, conflict, certain);
    }

    pub(super) fn resolve(&mut self, conflict: &str) {
        let certain = self.active.remove(conflict).unwrap();
        self.offer(Change::Resolved, conflict, certain);
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

    /// The outbox stores the offered events; `false` if that failed.
    pub(super) fn store(&mut self) -> bool {
        self.run().worker.turn(Some(Duration::ZERO));
        let run = self.run();
        // A failed commit may have reached the disk.
        let doubt = run.worker.commit_state.doubt.iter();
        let cost = doubt
            .flat_map(|changes| &changes.evicted)
            .any(|(_, outcome, _)| *outcome == "evicted_end");
        let done = run.worker.backpressure.queued.load(Ordering::Acquire) == 0;
        if done {
            self.stored.extend(self.offered.drain(..));
        }
        self.lost_resolved |= cost
            || ["all", "certain", "people"]
                .iter()
                .any(|sink| self.counted(sink, "evicted_end") > 0);
        done
    }

    /// The receivers take up to `most` events of each sink.
    pub(super) fn deliver(&mut self, most: usize, failing: u8) {
        for sink in 0..self.seen.len() {
            let sink_queue = Arc::clone(&self.run().outbox.sink_queues()[sink]);
            for _ in 0..most {
                let now = Instant::now();
                let Ok(job) = sink_queue.take(now) else { break };
                if job.is_superseded {
                    sink_queue.superseded(job.seq);
                    continue;
                }
                let event = match job.event {
                    Some(event) => event,
                    None => match sink_queue.read(job.seq) {
                        Ok(event) => event.expect("what waits is stored"),
                        Err(_) => {
                            sink_queue.failed(job.seq, now);
                            break;
                        }
                    },
                };
                if self.rejecting && self.random.u8(..4) == 0 && !self.has_seen(sink, &event) {
                    sink_queue.rejected(job.seq, now);
                    continue;
                }
                let fails = self.random.u8(..8) < failing;
                if !fails || (self.ambiguous && self.random.bool()) {
                    self.saw(sink, &event);
                }
                if fails {
                    sink_queue.failed(job.seq, now);
                } else {
                    sink_queue.delivered(job.seq);
                }
            }
        }
    }

    fn has_seen(&self, sink: usize, event: &Message) -> bool {
        let seen = self.seen[sink].get(&event.subject_id());
        seen.is_some_and(|seen| seen.iter().any(|seen| seen.id == event.id()))
    }

    fn saw(&mut self, sink: usize, event: &Message) {
        let seen = Seen {
            id: event.id().to_owned(),
            change: event.change(),
        };
        self.seen[sink]
            .entry(event.subject_id())
            .or_default()
            .push(seen);
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
        for (sink, conflicts) in self.seen.iter().enumerate() {
            for (conflict, seen) in conflicts {
                let mut once = seen.clone();
                once.dedup();
                let ids: BTreeSet<_> = once.iter().map(|s| &s.id).collect();
                let history = format!("sink {sink}, conflict {conflict}: {seen:?}");
                assert_eq!(
                    ids.len(),
                    once.len(),
                    "a repeat after a later event: {history}"
                );
                assert_eq!(once[0].change, Change::Raised, "{history}");
                let last = once.len() - 1;
                assert_eq!(once[last].change, Change::Resolved, "{history}");
                assert!(
                    once[1..last].iter().all(|s| s.change == Change::Updated),
                    "{history}"
                );
            }
        }
    }

    /// The sink without a filter has seen every event that was stored.
    pub(super) fn check_complete(&self) {
        let seen: BTreeSet<_> = self.seen[ALL]
            .values()
            .flatten()
            .map(|s| s.id.clone())
            .collect();
        let lost: Vec<_> = self.stored.difference(&seen).collect();
        assert!(lost.is_empty(), "stored and never delivered: {lost:?}");
    }
}
