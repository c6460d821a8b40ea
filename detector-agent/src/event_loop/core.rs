//! The part of the event loop that does not know where observations come from: the engine and what depends on it.

use std::{collections::HashSet, sync::Arc};

use detector_engine::{
    ConflictKind, ConflictScope, DropCounters, Effect, Engine, FrameKind, IfIndex, Observation,
    PodsKnown, PoolRequest, TimedObservation, Timestamp,
};

use prometheus_client::metrics::gauge::Gauge;

use super::{
    FleetFeed, LoopMessage, Readiness, Reporter, claimed::ClaimedWrites,
    device_budgets::DeviceBudgets, device_jobs::DeviceJobs, fleet::FleetConflicts, resync::Resync,
    route_lookups::RouteLookupSchedule, self_check::SelfChecks,
};
use crate::{
    health::SourceHealth,
    metrics::{Kind, KindAndScope, Metrics, Reason},
    observe::{
        ebpf::{CounterReader, CounterValues},
        netlink::DeviceSelector,
        worker::{WorkerEvent, WorkerJob},
    },
    persist::PersistenceHandle,
    pods::LookupUpdate,
    process::{clock, mailbox::MailboxSender},
    sinks::lines::Lines,
};

/// Everything the event loop writes to.
#[derive(Debug)]
pub struct Outputs {
    /// Jobs of the kernel worker.
    pub worker_jobs: MailboxSender<WorkerJob>,
    /// Pools that the IPAM watcher must read again now.
    pub pool_reads: tokio::sync::mpsc::UnboundedSender<PoolRequest>,
    /// Conflict and anomaly events.
    pub reporter: Reporter,
    /// Persists what is open for the next run, with `--state-dir`.
    pub persistence: Option<PersistenceHandle>,
    /// The comparison with other nodes, with `--fleet`.
    pub fleet: Option<FleetFeed>,
    /// Counters and gauges.
    pub metrics: Arc<Metrics>,
    /// Whether the start has completed.
    pub readiness: Arc<Readiness>,
    /// Health of the kernel's sources.
    pub health: SourceHealth,
}

/// The engine and its surroundings.
#[derive(Debug)]
pub struct Core {
    pub(super) engine: Engine,
    pub(super) outputs: Outputs,
    /// The kernel programs' counters; `None` with `--no-ebpf`.
    pub(super) kernel_counters: Option<CounterReader>,
    pub(super) selector: DeviceSelector,
    /// Effects of the engine that are not applied yet.
    pub(super) effects: Vec<Effect>,
    pub(super) resync: Resync,
    pub(super) route_lookups: RouteLookupSchedule,
    pub(super) self_checks: SelfChecks,
    pub(super) device_jobs: DeviceJobs,
    /// Attached devices that still exist.
    pub(super) attached: HashSet<IfIndex>,
    /// How many devices have a filter of others before ours, or not ours because reattaching fails.
    pub(super) preempted: usize,
    /// The kernel programs' counters when they were read last.
    pub(super) kernel_counts: Option<CounterValues>,
    /// What the engine had dropped, and how many anomalies it had refused, when that was published last.
    pub(super) published_drops: Option<(DropCounters, u64)>,
    /// The last read of the kernel programs' counters failed.
    pub(super) counters_failed: bool,
    pub(super) device_budgets: DeviceBudgets,
    pub(super) claimed_writes: ClaimedWrites,
    pub(super) fleet: FleetConflicts,
    /// The gauges of open conflicts on this node, in the order of [`ConflictKind::ALL`]: each lookup by labels would be on the way to
    /// the event line.
    pub(super) conflicts_active: [Gauge; ConflictKind::ALL.len()],
    pub(super) next_tick: Timestamp,
    /// When what the start needed is returned to the kernel.
    pub(super) release_memory_at: Option<Timestamp>,
    is_stopping: bool,
}

impl Core {
    /// A core before its first observation; `engine` may have been restored. `selector` is only used to report patterns without a device.
    #[must_use]
    pub fn new(
        engine: Engine,
        outputs: Outputs,
        kernel_counters: Option<CounterReader>,
        selector: DeviceSelector,
    ) -> Self {
        let active = &outputs.metrics.active;
        let conflicts_active = ConflictKind::ALL
            .map(|kind| active.get_or_create_owned(&KindAndScope::new(kind, ConflictScope::Node)));
        let mut core = Self {
            conflicts_active,
            engine,
            outputs,
            kernel_counters,
            selector,
            effects: Vec::new(),
            resync: Resync::new(),
            route_lookups: RouteLookupSchedule::default(),
            self_checks: SelfChecks::new(),
            device_jobs: DeviceJobs::default(),
            attached: HashSet::new(),
            preempted: 0,
            kernel_counts: None,
            published_drops: None,
            counters_failed: false,
            device_budgets: DeviceBudgets::new(),
            claimed_writes: ClaimedWrites::default(),
            fleet: FleetConflicts::default(),
            next_tick: Timestamp(0),
            release_memory_at: None,
            is_stopping: false,
        };
        if core.outputs.fleet.is_some() {
            core.fleet.await_restored();
        }
        // Restored anomalies are open already and have no event.
        core.set_anomalies_active();
        for anomaly in core.engine.view().anomalies() {
            core.outputs.reporter.report_state(&anomaly);
        }
        core
    }

    /// Steps the engine and applies the effects.
    pub(super) fn step(&mut self, observation: TimedObservation) {
        let kind = kind(&observation.observation);
        self.engine
            .step(clock::now(), observation, &mut self.effects);
        if !self.effects.is_empty() {
            self.apply_effects();
        }
        // Looked up by labels: after the event line.
        if let Some(kind) = kind {
            let observations = &self.outputs.metrics.observations;
            observations.get_or_create(&Kind::observation(kind)).inc();
        }
    }

    /// Handles a message of another thread.
    pub(super) fn handle(&mut self, message: LoopMessage) {
        match message {
            LoopMessage::Worker(event) => self.handle_worker_event(event),
            LoopMessage::Query(query) => query.answer(&self.engine, &self.fleet),
            LoopMessage::Lookups(update) => self.apply_lookups(update),
            LoopMessage::Pool(update) => {
                self.feed_ranges(&update, clock::now());
                self.step(update.observed(clock::now()));
            }
            LoopMessage::Diagnosed(id, address, is_news) => {
                self.report_diagnosis(id, address, is_news);
            }
            LoopMessage::Fleet(message) => self.apply_fleet_message(message),
            LoopMessage::Stop => self.stop(),
        }
    }

    fn apply_lookups(&mut self, mut update: LookupUpdate) {
        let devices = update.pods.iter().chain(&update.details);
        let known = PodsKnown {
            records: self.outputs.reporter.known_pods(devices),
            devices: update.pods.clone(),
        };
        for observation in [
            Observation::NetworksKnown(std::mem::take(&mut update.networks)),
            Observation::PodsKnown(known),
        ] {
            self.step(TimedObservation::new(clock::now(), observation));
        }
        self.recheck_fleet_pods(&update);
        // An anomaly has no event when its pod becomes known, and its series names the pod.
        for anomaly in self.engine.view().anomalies_held_by(&update.pods) {
            self.outputs.reporter.report_state(anomaly);
        }
    }

    fn handle_worker_event(&mut self, event: WorkerEvent) {
        match event {
            WorkerEvent::AttachDone(ifindex, ok) => {
                self.finish_attach(ifindex);
                // Without programs there is nothing to attach. If the device is gone by now, no effect would remove it
                // from the set again.
                let is_attached = ok && self.kernel_counters.is_some();
                if is_attached && self.engine.view().device(ifindex).is_some() {
                    self.attached.insert(ifindex);
                } else {
                    self.attached.remove(&ifindex);
                }
                self.check_ready();
            }
            WorkerEvent::Unobserved => self.count_dropped("not_attached", 1),
            WorkerEvent::Reattached(ifindex) => self.read_reattached(ifindex),
            WorkerEvent::Displaced => self.request_resync("displaced"),
            WorkerEvent::Preempted(devices) => self.preempted = devices,
            WorkerEvent::Snapshot(snapshot, omitted) => self.merge_snapshot(snapshot, omitted),
            WorkerEvent::RoutesLookedUp(lookup) => self.finish_route_lookups(lookup),
            WorkerEvent::ClaimedWritten(outcome) => self.finish_claimed(outcome, clock::now()),
            WorkerEvent::OverBudget(devices) => self.name_devices_over_budget(devices),
        }
    }

    /// When [`Core::run_timers`] has something to do.
    pub(super) fn next_deadline(&self) -> Timestamp {
        if self.has_claims_to_feed() {
            return Timestamp(0);
        }
        let others = [self.engine.next_deadline(), self.next_route_lookups()];
        let earliest = others.into_iter().flatten().min();
        earliest.map_or(self.next_tick, |at| at.min(self.next_tick))
    }

    /// Does what is due by now.
    pub(super) fn run_timers(&mut self, now: Timestamp) {
        if self.engine.next_deadline().is_some_and(|at| at <= now) {
            self.step(TimedObservation::new(now, Observation::DeadlineReached));
        }
        if now >= self.next_tick {
            self.tick(now);
        }
        self.start_resync_if_due(now);
        self.start_route_lookups_if_due(now);
        self.start_self_checks();
        self.deliver();
        self.write_claimed();
        self.outputs.reporter.flush();
        self.feed_fleet(now);
    }

    /// Passes on the events whose lines are written, before queries of those who read the lines are answered.
    pub(super) fn deliver(&mut self) {
        self.outputs.reporter.deliver();
    }

    pub(super) fn stop(&mut self) {
        self.is_stopping = true;
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping
    }

    /// Flushes what can be written without waiting.
    pub(super) fn finish(&mut self) {
        self.outputs.reporter.deliver();
        self.outputs.reporter.flush();
    }

    /// The event lines, to wait until they are writable.
    pub(super) fn event_lines(&self) -> Option<&Lines> {
        self.outputs.reporter.lines()
    }

    pub(super) fn request_resync(&mut self, reason: &'static str) {
        self.resync.request(reason);
    }

    pub(super) fn count_dropped(&self, reason: &'static str, count: u64) {
        let dropped = &self.outputs.metrics.dropped;
        dropped
            .get_or_create(&Reason::dropped(reason))
            .inc_by(count);
    }
}

/// The `kind` label of an observation.
fn kind(observation: &Observation) -> Option<&'static str> {
    match observation {
        Observation::Link(_)
        | Observation::LinkGone(_)
        | Observation::PortVlan(_)
        | Observation::NamespaceIdFreed(_)
        | Observation::PeerMoved(_)
        | Observation::PodLink(..) => Some("link"),
        Observation::PodAddress(..) | Observation::PodAddressGone(..) => Some("address"),
        Observation::HostAddress(..) | Observation::HostAddressGone(..) => Some("host_address"),
        Observation::Neighbour(_) | Observation::NeighbourGone(..) => Some("neighbour"),
        Observation::Fdb(_) | Observation::FdbGone(_) => Some("fdb"),
        Observation::Route(_)
        | Observation::RouteInserted(..)
        | Observation::RouteGone(_)
        | Observation::RoutingChanged(_) => Some("route"),
        Observation::Frame(frame) => Some(match frame.kind {
            FrameKind::Arp => "arp",
            FrameKind::Ndp => "ndp",
        }),
        Observation::UnansweredProbe(_) => Some("question"),
        Observation::RouterAdvertisement(_) => Some("router"),
        Observation::Snapshot(..) => Some("snapshot"),
        Observation::SnapshotStarted(_)
        | Observation::SelfCheckStarted(_)
        | Observation::NotificationsLost
        | Observation::SnapshotFailed(_)
        | Observation::RoutesLookedUp(_)
        | Observation::Pool(_)
        | Observation::PodsKnown(_)
        | Observation::NetworksKnown(_)
        | Observation::ClaimedTableLost
        | Observation::DeadlineReached => None,
    }
}
