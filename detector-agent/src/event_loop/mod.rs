//! The detection thread: waits on the kernel, steps the engine, hands events out. Nothing here blocks.
//!
//! One thread does the whole way from the ring buffer to the event line, so no hand-over between threads costs time on
//! it. In each round netlink is drained before the ring buffer, because the kernel tells of a device before its frames.
//!
//! What comes in is taken here; what follows from it is in [`effects`], readings of the kernel's tables in [`resync`],
//! and what can wait a second in [`tick`].

mod effects;
mod inbox;
mod query;
mod resync;
mod tick;
mod wait;

use std::{
    collections::HashSet,
    io,
    sync::{Arc, mpsc},
    time::Duration,
};

use crate::{
    clock,
    engine::{
        Effect, Engine, FrameKind, IfIndex, Observation, PoolId, TimedObservation, Timestamp,
    },
    health::SourceHealth,
    metrics::{Kind, Metrics, Reason},
    observe::{
        ebpf::{CounterReader, LossCounters, RingReader},
        netlink::{DeviceSelector, NetlinkListener, NotificationSource},
        worker::{Job, Outcome},
    },
    persist::PersistenceHandle,
    sinks::Reporter,
};

pub use inbox::{Inbox, Mailbox, Message};
pub use query::Query;
pub use resync::Readiness;
use resync::Resync;
use wait::Waiting;

/// Datagrams and records taken in one round, so that no source starves another.
const DATAGRAMS: usize = 256;
const RECORDS: usize = 4096;

/// Everything the thread needs.
#[derive(Debug)]
pub struct Parts {
    /// Decides.
    pub engine: Engine,
    /// Netlink.
    pub live: NetlinkListener,
    /// The kernel programs' records; `None` with `--no-ebpf`.
    pub ring: Option<(RingReader, CounterReader)>,
    /// The worker's jobs.
    pub jobs: mpsc::Sender<Job>,
    /// What others say.
    pub mailbox: Mailbox,
    /// The pools whose books the reader of IPAM's books is to read now.
    pub books: tokio::sync::mpsc::UnboundedSender<PoolId>,
    /// Where events go.
    pub reporter: Reporter,
    /// Stores what is open for the next run, with `--state-dir`.
    pub persistence: Option<PersistenceHandle>,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Start-up.
    pub readiness: Arc<Readiness>,
    /// How the sources are.
    pub health: SourceHealth,
    /// Patterns of `--interfaces`, to say which of them match nothing.
    pub selector: DeviceSelector,
}

/// The running thread.
#[derive(Debug)]
pub struct EventLoop {
    parts: Parts,
    /// What the engine said in this step and is not done yet.
    effects: Vec<Effect>,
    readings: Resync,
    /// Devices the worker was asked to attach to and has not answered for.
    attaching: usize,
    /// Devices it has attached to and that are still there.
    attached: HashSet<IfIndex>,
    lost_in_kernel: LossCounters,
    /// The kernel programs' counters could not be read last time.
    counters_in_trouble: bool,
    next_housekeeping: Timestamp,
    stopping: bool,
}

impl EventLoop {
    /// A thread's state before it runs.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        Self {
            parts,
            effects: Vec::new(),
            readings: Resync::new(),
            attaching: 0,
            attached: HashSet::new(),
            lost_in_kernel: LossCounters::default(),
            counters_in_trouble: false,
            next_housekeeping: Timestamp(0),
            stopping: false,
        }
    }

    /// Works until it is told to stop, then flushes what the sinks take without waiting.
    ///
    /// # Errors
    /// Where waiting on the kernel, or listening to it, fails for good.
    pub fn run(mut self) -> io::Result<()> {
        let mut waiting = Waiting::on(&self.parts)?;
        let mut more = false;
        while !self.stopping {
            waiting.wait((!more).then(|| self.until_something_is_due()))?;
            more = self.round()?;
            if let Some(lines) = self.parts.reporter.lines() {
                waiting.watch(lines)?;
            }
        }
        if let Some(persistence) = &mut self.parts.persistence {
            persistence.flush_anomalies(&self.parts.engine);
        }
        self.parts.reporter.flush();
        Ok(())
    }

    fn until_something_is_due(&self) -> Duration {
        let due = self.next_housekeeping;
        let due = self.parts.engine.next_expiry().map_or(due, |e| e.min(due));
        due.since(clock::now())
    }

    /// One round over all sources; `true` where one of them holds more.
    fn round(&mut self) -> io::Result<bool> {
        let mut more = self.drain_netlink()?;
        more |= self.drain_ring();
        self.read_mail();
        let now = clock::now();
        if self.parts.engine.next_expiry().is_some_and(|at| at <= now) {
            self.parts.engine.expire(now, &mut self.effects);
            self.apply_effects();
        }
        if now >= self.next_housekeeping {
            self.tick(now);
        }
        self.read_all_where_due(now);
        self.parts.reporter.flush();
        Ok(more)
    }

    fn drain_netlink(&mut self) -> io::Result<bool> {
        let mut more = false;
        for source in NotificationSource::ALL {
            let mut heard = Vec::new();
            let drained = self
                .parts
                .live
                .drain(source, DATAGRAMS, |stamped| heard.push(stamped))
                .map_err(io::Error::other)?;
            for stamped in heard {
                self.step(stamped);
            }
            more |= drained.more;
            if drained.overrun {
                self.lost("netlink_overrun", 1);
                self.readings.want("netlink_overrun");
            }
            if drained.undecodable > 0 {
                self.lost("netlink_undecodable", drained.undecodable);
            }
        }
        Ok(more)
    }

    fn drain_ring(&mut self) -> bool {
        let Some((mut ring, counters)) = self.parts.ring.take() else {
            return false;
        };
        let outcome = ring.drain(RECORDS, |stamped| self.step(stamped));
        if outcome.undecodable > 0 {
            self.lost("ring_undecodable", outcome.undecodable);
        }
        self.parts.ring = Some((ring, counters));
        outcome.more
    }

    fn read_mail(&mut self) {
        self.parts.mailbox.open();
        while let Some(message) = self.parts.mailbox.next() {
            match message {
                Message::Worker(outcome) => self.worker_did(outcome),
                Message::Query(query) => query.answer(&self.parts.engine),
                Message::PodsKnown(devices) => self.pods_known(&devices),
                Message::Pools(news) => {
                    self.parts
                        .engine
                        .update_pool(clock::now(), news, &mut self.effects);
                    self.apply_effects();
                }
                Message::Stop => self.stopping = true,
            }
        }
    }

    fn worker_did(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Attached(ifindex, ok) => {
                self.attaching = self.attaching.saturating_sub(1);
                // The device may have gone meanwhile; then nobody would take it out again.
                if ok && self.parts.engine.device(ifindex).is_some() {
                    self.attached.insert(ifindex);
                } else {
                    self.attached.remove(&ifindex);
                }
                self.perhaps_ready();
            }
            Outcome::Displaced(_) => self.readings.want("displaced"),
            Outcome::Observed(reading, omitted) => self.merge(reading, omitted),
        }
    }

    fn step(&mut self, stamped: TimedObservation) {
        if let Some(kind) = kind(&stamped.observation) {
            self.parts
                .metrics
                .observations
                .get_or_create(&Kind { kind })
                .inc();
        }
        self.parts
            .engine
            .step(clock::now(), stamped, &mut self.effects);
        if !self.effects.is_empty() {
            self.apply_effects();
        }
    }

    /// Counts what did not come in.
    fn lost(&self, reason: &'static str, count: u64) {
        self.parts
            .metrics
            .dropped
            .get_or_create(&Reason { reason })
            .inc_by(count);
    }
}

/// The `kind` label of an observation; frames are counted in the kernel.
fn kind(what: &Observation) -> Option<&'static str> {
    match what {
        Observation::Link(_) | Observation::LinkGone(_) => Some("link"),
        Observation::PodAddress(..) | Observation::PodAddressGone(..) => Some("address"),
        Observation::HostAddress(..) | Observation::HostAddressGone(..) => Some("host_address"),
        Observation::Neighbour(_) | Observation::NeighbourGone(..) => Some("neighbour"),
        Observation::Fdb(_) | Observation::FdbGone(_) => Some("fdb"),
        Observation::Route(_) | Observation::RouteGone(_) => Some("route"),
        Observation::Frame(frame) => Some(match frame.kind {
            FrameKind::Arp => "arp",
            FrameKind::Ndp => "ndp",
        }),
        Observation::UnansweredProbe(_) => Some("question"),
        Observation::Snapshot(..) => Some("snapshot"),
        Observation::SnapshotStarted(_) | Observation::SnapshotFailed(_) => None,
    }
}
