//! The detection thread: waits on the kernel, steps the engine, hands events out. Nothing here blocks.
//!
//! One thread does the whole way from the ring buffer to the event line, so no hand-over between threads costs time on
//! it. In each round netlink is drained before the ring buffer, because the kernel tells of a device before its frames.

use std::{
    collections::HashMap,
    io,
    os::fd::AsFd,
    sync::{Arc, mpsc},
    time::Duration,
};

use nix::{
    errno::Errno,
    sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
        eventfd::{EfdFlags, EventFd},
    },
};
use tracing::{error, info, warn};

use crate::{
    clock,
    detect::{
        Anomaly, AnomalyKind, Conflict, Effect, Engine, IfIndex, Observation, PoolNews, ReadScope,
        ReadToken, Said, Stamped, Timestamp,
    },
    health::{Situation, SourceHealth},
    ipam::Wanted,
    observe::{
        ebpf::{CounterReader, Counts, Losses, RingReader},
        netlink::{Live, Source},
        worker::{Job, Outcome},
    },
    query::Query,
    report::{
        Reporter,
        event::Change,
        metrics::{Kind, Metrics, Reason},
    },
    state::{AnomalyKeeper, Keeper},
};

/// How often loss counters are looked at and gauges are set; never on the way of an event.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// Datagrams and records taken in one round, so that no source starves another.
const DATAGRAMS: usize = 256;
const RECORDS: usize = 4096;
/// Least time between two readings of everything.
const RESYNC_PAUSE: Duration = Duration::from_secs(1);

/// What others say to the detection thread.
#[derive(Debug)]
pub enum Message {
    /// The worker did something.
    Kernel(Outcome),
    /// Something is asked about the present state.
    Query(Query),
    /// The pods behind these devices (index and generation) became known, or are known better.
    PodsKnown(Vec<(IfIndex, u64)>),
    /// IPAM's books were read.
    Books(PoolNews),
    /// End.
    Stop,
}

/// The way to the detection thread. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Inbox {
    messages: mpsc::Sender<Message>,
    wake: Arc<EventFd>,
}

impl Inbox {
    /// An inbox, and what the thread needs to read it.
    ///
    /// # Errors
    /// Where the kernel gives no eventfd.
    pub fn new() -> io::Result<(Self, Mailbox)> {
        let wake = Arc::new(EventFd::from_value_and_flags(
            0,
            EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC,
        )?);
        let (messages, received) = mpsc::channel();
        Ok((
            Self {
                messages,
                wake: Arc::clone(&wake),
            },
            Mailbox { received, wake },
        ))
    }

    /// Says something; `false` where the thread has ended.
    pub fn send(&self, message: Message) -> bool {
        self.messages.send(message).is_ok() && self.wake.write(1).is_ok()
    }
}

/// The reading end of an [`Inbox`].
#[derive(Debug)]
pub struct Mailbox {
    received: mpsc::Receiver<Message>,
    wake: Arc<EventFd>,
}

/// Says how far the start has come; shared with the endpoints.
#[derive(Debug, Default)]
pub struct Readiness {
    ready: std::sync::atomic::AtomicBool,
}

impl Readiness {
    /// The programs are attached and the first snapshot is merged.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ready.load(std::sync::atomic::Ordering::Acquire)
    }

    fn set(&self) {
        self.ready.store(true, std::sync::atomic::Ordering::Release);
    }
}

/// Everything the thread needs.
#[derive(Debug)]
pub struct Parts {
    /// Decides.
    pub engine: Engine,
    /// Netlink.
    pub live: Live,
    /// The kernel programs' records; `None` with `--no-ebpf`.
    pub ring: Option<(RingReader, CounterReader)>,
    /// The worker's jobs.
    pub jobs: mpsc::Sender<Job>,
    /// What others say.
    pub mailbox: Mailbox,
    /// The way to the reader of IPAM's books, where there is one.
    pub books: Option<tokio::sync::mpsc::UnboundedSender<Wanted>>,
    /// Where events go.
    pub reporter: Reporter,
    /// Keeps what is open over a restart, with `--state-dir`.
    pub keeper: Option<Keeper>,
    /// The same for anomalies.
    pub anomaly_keeper: Option<AnomalyKeeper>,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Start-up.
    pub readiness: Arc<Readiness>,
    /// How the sources are.
    pub health: SourceHealth,
    /// Patterns of `--interfaces`, to say which of them match nothing.
    pub selector: crate::observe::netlink::DeviceSelector,
}

/// The running thread.
#[derive(Debug)]
pub struct Detection {
    parts: Parts,
    effects: Vec<Effect>,
    next_token: u64,
    /// Readings of everything that are under way, with nothing else to tell them by.
    reading: Option<ReadToken>,
    resync_wanted: Option<&'static str>,
    last_read: Timestamp,
    attaching: usize,
    first_read: bool,
    merging: bool,
    attached: HashMap<IfIndex, bool>,
    lost_in_kernel: Losses,
    next_housekeeping: Timestamp,
    stopping: bool,
}

const NODE: u64 = 0;
const PODS: u64 = 1;
const RING: u64 = 2;
const MAIL: u64 = 3;
const LINES: u64 = 4;

impl Detection {
    /// A thread's state before it runs.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        Self {
            parts,
            effects: Vec::new(),
            next_token: 0,
            reading: None,
            resync_wanted: Some("start"),
            last_read: Timestamp(0),
            attaching: 0,
            first_read: false,
            merging: false,
            attached: HashMap::new(),
            lost_in_kernel: Losses::default(),
            next_housekeeping: Timestamp(0),
            stopping: false,
        }
    }

    /// Works until it is told to stop, then flushes what the sinks take without waiting.
    ///
    /// # Errors
    /// Where waiting on the kernel, or listening to it, fails for good.
    pub fn run(mut self) -> io::Result<()> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let readable = |token| EpollEvent::new(EpollFlags::EPOLLIN, token);
        epoll.add(self.parts.live.fd(Source::Node), readable(NODE))?;
        epoll.add(self.parts.live.fd(Source::Pods), readable(PODS))?;
        epoll.add(self.parts.mailbox.wake.as_fd(), readable(MAIL))?;
        if let Some((ring, _)) = &self.parts.ring {
            epoll.add(ring.as_fd(), readable(RING))?;
        }
        let mut waiting_for_room = false;
        let mut more = false;
        while !self.stopping {
            let mut events = [EpollEvent::empty(); 8];
            let timeout = if more {
                EpollTimeout::ZERO
            } else {
                self.timeout()
            };
            match epoll.wait(&mut events, timeout) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(e) => return Err(e.into()),
            }
            more = self.round()?;
            self.watch_lines(&epoll, &mut waiting_for_room)?;
        }
        if let Some(keeper) = &mut self.parts.anomaly_keeper {
            keeper.tick(&self.parts.engine);
        }
        self.parts.reporter.flush();
        Ok(())
    }

    /// One round over all sources; `true` where one of them holds more.
    fn round(&mut self) -> io::Result<bool> {
        let mut more = self.drain_netlink()?;
        more |= self.drain_ring();
        self.read_mail();
        let now = clock::now();
        if self.parts.engine.next_expiry().is_some_and(|at| at <= now) {
            self.parts.engine.expire(now, &mut self.effects);
            self.act();
        }
        if now >= self.next_housekeeping {
            self.keep_house(now);
        }
        self.resync(now);
        self.parts.reporter.flush();
        Ok(more)
    }

    fn drain_netlink(&mut self) -> io::Result<bool> {
        let mut more = false;
        for source in Source::ALL {
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
                self.want_resync("netlink_overrun");
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
        // Reading empties the counter; a spurious wake-up finds it empty.
        let _ = self.parts.mailbox.wake.read();
        while let Ok(message) = self.parts.mailbox.received.try_recv() {
            match message {
                Message::Kernel(outcome) => self.kernel(outcome),
                Message::Query(query) => self.answer(query),
                Message::PodsKnown(devices) => self.pods_known(&devices),
                Message::Books(news) => {
                    self.parts
                        .engine
                        .books(clock::now(), news, &mut self.effects);
                    self.act();
                }
                Message::Stop => self.stopping = true,
            }
        }
    }

    fn step(&mut self, stamped: Stamped) {
        if let Some(kind) = kind(&stamped.what) {
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
            self.act();
        }
    }

    fn act(&mut self) {
        for effect in std::mem::take(&mut self.effects) {
            match effect {
                Effect::Raised(conflict) => self.changed(Change::Raised, &conflict),
                Effect::Updated(conflict) => self.changed(Change::Updated, &conflict),
                Effect::Resolved(conflict) => self.changed(Change::Resolved, &conflict),
                Effect::Attach(device) => {
                    self.attaching += 1;
                    self.parts.reporter.device_appeared(&device);
                    // A device found by a reading of everything has been read with it.
                    let token = (!self.merging).then(|| self.begin_reading());
                    self.ask(Job::Attach(device, token));
                }
                Effect::Renamed(device) => self.parts.reporter.device_appeared(&device),
                Effect::Detach(device) => {
                    self.attached.remove(&device.ifindex);
                    self.parts
                        .reporter
                        .device_gone(device.ifindex, device.generation);
                    self.ask(Job::Detach(device.ifindex));
                }
                Effect::ReadAgain => self.want_resync("read_outdated"),
                Effect::Anomaly(said) => self.anomaly(said),
            }
        }
    }

    fn anomaly(&mut self, said: Said) {
        match said {
            Said::Raised(anomaly) => self.anomaly_changed(Change::Raised, &anomaly),
            Said::Resolved(anomaly) => self.anomaly_changed(Change::Resolved, &anomaly),
            Said::LookInside(look) => self.ask(Job::LookInside(look)),
            Said::ReadBooks(pool) => {
                if let Some(books) = &self.parts.books {
                    // Where the reader has ended, nothing is raised by books that are too old.
                    let _ = books.send(Wanted::Pool(pool));
                }
            }
        }
    }

    fn changed(&mut self, change: Change, conflict: &Conflict) {
        self.parts.reporter.report(change, conflict);
        if let Some(keeper) = &mut self.parts.keeper {
            keeper.changed(&self.parts.engine, conflict);
        }
    }

    fn anomaly_changed(&mut self, change: Change, anomaly: &Anomaly) {
        self.parts.reporter.report_anomaly(change, anomaly);
        if let Some(keeper) = &mut self.parts.anomaly_keeper {
            keeper.changed();
        }
    }

    fn ask(&mut self, job: Job) {
        if self.parts.jobs.send(job).is_err() {
            error!("the thread that attaches and reads has ended; the agent stops");
            self.stopping = true;
        }
    }

    fn begin_reading(&mut self) -> ReadToken {
        self.next_token += 1;
        let token = ReadToken(self.next_token);
        let begun = Stamped {
            at: clock::now(),
            what: Observation::ReadBegun(token),
        };
        self.parts.engine.step(begun.at, begun, &mut self.effects);
        token
    }

    fn kernel(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Attached(ifindex, ok) => {
                self.attaching = self.attaching.saturating_sub(1);
                self.attached.insert(ifindex, ok);
                self.perhaps_ready();
            }
            Outcome::Inside(look, inside) => {
                self.parts
                    .engine
                    .looked_inside(clock::now(), &look, inside, &mut self.effects);
                self.act();
            }
            Outcome::Displaced(_) => self.want_resync("displaced"),
            Outcome::Observed(stamped, left_out) => {
                let node = match &stamped.what {
                    Observation::Read(token, ReadScope::Node, _)
                    | Observation::ReadFailed(token) => self.reading == Some(*token),
                    _ => false,
                };
                let failed = matches!(stamped.what, Observation::ReadFailed(_));
                if node {
                    self.reading = None;
                }
                self.merging = node;
                self.step(stamped);
                self.merging = false;
                if left_out.over_bound > 0 {
                    self.lost("bound", left_out.over_bound);
                }
                if failed {
                    self.want_resync("read_failed");
                } else if node && !self.first_read {
                    self.first_read = true;
                    self.warn_of_patterns_without_device();
                    self.go_on();
                }
                self.perhaps_ready();
            }
        }
    }

    /// The first reading of everything is merged: what an earlier agent left open and is still there goes on.
    fn go_on(&mut self) {
        let Some(keeper) = &mut self.parts.keeper else {
            return;
        };
        keeper.tell_all();
        let now = clock::now();
        for conflict in self.parts.engine.conflicts(now) {
            self.parts.reporter.show(&conflict);
        }
    }

    fn warn_of_patterns_without_device(&self) {
        let devices = self.parts.engine.devices();
        for pattern in self
            .parts
            .selector
            .unmatched(devices.iter().map(|d| d.name.as_str()))
        {
            warn!(
                "no device matches --interfaces {pattern} now; devices that appear later and match will be watched"
            );
        }
    }

    fn perhaps_ready(&mut self) {
        if self.first_read && self.attaching == 0 && !self.parts.readiness.is_ready() {
            self.parts.readiness.set();
            let devices = self.parts.engine.devices().len();
            info!(devices, "ready: watching {devices} pod devices");
            self.next_housekeeping = Timestamp(0);
        }
    }

    fn answer(&mut self, query: Query) {
        // Whoever asked may have gone; then nobody misses the answer.
        let now = clock::now();
        let engine = &self.parts.engine;
        match query {
            Query::ConflictAddresses(reply) => drop(reply.send(engine.conflict_addresses())),
            Query::Conflicts(addresses, reply) => {
                let conflicts = addresses.iter().flat_map(|a| engine.conflicts_of(*a, now));
                drop(reply.send(conflicts.collect()));
            }
            Query::AnomalyIds(reply) => drop(reply.send(engine.anomaly_ids())),
            Query::Anomalies(ids, reply) => drop(reply.send(engine.anomalies_of(&ids))),
            Query::Addresses(reply) => drop(reply.send(engine.addresses())),
            Query::Claims(addresses, reply) => {
                let claims = addresses.iter().flat_map(|a| engine.claims_of(*a, now));
                drop(reply.send(claims.collect()));
            }
        }
    }

    fn pods_known(&mut self, devices: &[(IfIndex, u64)]) {
        let now = clock::now();
        for conflict in self.parts.engine.conflicts(now) {
            let concerned = conflict.present().any(|c| {
                matches!(c.id, crate::detect::ClaimantId::Device(ifindex, generation) if devices.contains(&(ifindex, generation)))
            });
            if concerned {
                let conflict = Conflict {
                    updated_at: now,
                    decided_at: now,
                    ..conflict
                };
                self.parts.reporter.report(Change::Updated, &conflict);
            }
        }
    }

    fn lost(&self, reason: &'static str, count: u64) {
        self.parts
            .metrics
            .dropped
            .get_or_create(&Reason { reason })
            .inc_by(count);
    }

    fn want_resync(&mut self, reason: &'static str) {
        self.resync_wanted.get_or_insert(reason);
    }

    /// Begins a reading of everything where one is wanted, none is under way and the last is not too young.
    fn resync(&mut self, now: Timestamp) {
        if self.reading.is_some() || (self.first_read && now.since(self.last_read) < RESYNC_PAUSE) {
            return;
        }
        let Some(reason) = self.resync_wanted.take() else {
            return;
        };
        self.parts
            .metrics
            .resyncs
            .get_or_create(&Reason { reason })
            .inc();
        if self.first_read {
            warn!(reason, "something was missed; reading the whole state anew");
        }
        self.last_read = now;
        let token = self.begin_reading();
        self.reading = Some(token);
        self.ask(Job::ReadNode(token));
    }

    fn keep_house(&mut self, now: Timestamp) {
        self.next_housekeeping = now + HOUSEKEEPING;
        self.tell_health(now);
        if let Some(keeper) = &mut self.parts.keeper {
            keeper.tick(&self.parts.engine, now);
        }
        if let Some(keeper) = &mut self.parts.anomaly_keeper {
            keeper.tick(&self.parts.engine);
        }
        if let Some((_, counters)) = &self.parts.ring {
            match counters.read() {
                Ok(counts) => {
                    publish(&counts, &self.parts.metrics);
                    let lost = counts.losses();
                    if lost.ring_full > self.lost_in_kernel.ring_full {
                        self.want_resync("ring_full");
                    } else if lost.neighbour_budget > self.lost_in_kernel.neighbour_budget {
                        self.want_resync("neighbour_budget");
                    }
                    self.lost_in_kernel = lost;
                }
                Err(error) => warn!("the kernel programs' counters cannot be read: {error}"),
            }
        }
        let metrics = &self.parts.metrics;
        let losses = self.parts.engine.losses();
        for (reason, total) in [
            ("claims_per_device", losses.claims),
            ("links", losses.links),
            ("kernel_entries", losses.kernel_entries),
            ("open_conflicts", losses.conflicts),
            ("open_anomalies", self.parts.engine.anomalies_refused()),
            ("unknown_device", losses.unknown_device),
        ] {
            Metrics::set_total(&metrics.dropped.get_or_create(&Reason { reason }), total);
        }
        for kind in crate::detect::ConflictKind::ALL {
            let open = self.parts.engine.open_conflicts(kind);
            metrics
                .active
                .get_or_create(&Kind { kind: kind.name() })
                .set(open.try_into().unwrap_or(i64::MAX));
        }
        for kind in AnomalyKind::ALL {
            let open = self.parts.engine.open_anomalies(kind);
            metrics
                .anomalies
                .get_or_create(&Kind { kind: kind.name() })
                .set(open.try_into().unwrap_or(i64::MAX));
        }
        let attached = self.attached.values().filter(|ok| **ok).count();
        metrics
            .attached
            .set(attached.try_into().unwrap_or(i64::MAX));
        metrics.claims.set(
            self.parts
                .engine
                .claim_count()
                .try_into()
                .unwrap_or(i64::MAX),
        );
        if self.parts.readiness.is_ready() {
            let engine = &self.parts.engine;
            self.parts
                .reporter
                .catch_up(|| (engine.conflicts(now), engine.anomalies()));
        }
    }

    fn tell_health(&mut self, now: Timestamp) {
        let devices = self.parts.engine.devices().len();
        let attached = self.attached.values().filter(|ok| **ok).count();
        self.parts.health.tell(
            now,
            &Situation {
                devices,
                attached,
                attaching: self.attaching,
                first_read: self.first_read,
                reading: self.reading.is_some(),
                resync: self.resync_wanted,
            },
        );
    }

    fn timeout(&self) -> EpollTimeout {
        let now = clock::now();
        let until = |at: Timestamp| at.since(now);
        let mut wait = until(self.next_housekeeping);
        if let Some(at) = self.parts.engine.next_expiry() {
            wait = wait.min(until(at));
        }
        // Rounded up, so that a wait does not end just before its time over and over.
        let millis = wait.as_millis().saturating_add(1).min(60_000);
        EpollTimeout::from(u16::try_from(millis).unwrap_or(u16::MAX))
    }

    /// Waits for room on the event lines only while some wait to be written.
    fn watch_lines(&self, epoll: &Epoll, waiting: &mut bool) -> io::Result<()> {
        let Some(lines) = self.parts.reporter.lines() else {
            return Ok(());
        };
        if lines.is_waiting() == *waiting {
            return Ok(());
        }
        if *waiting {
            epoll.delete(lines.as_fd())?;
            *waiting = false;
        } else {
            epoll.add(lines.as_fd(), EpollEvent::new(EpollFlags::EPOLLOUT, LINES))?;
            *waiting = true;
        }
        Ok(())
    }
}

/// The kernel programs' counters as metrics.
fn publish(counts: &Counts, metrics: &Metrics) {
    // Claims by frames are counted where they are seen first; what was published comes up as an observation.
    for (kind, total) in counts.known() {
        let kind = match kind {
            "arp" => "arp_known",
            "ndp" => "ndp_known",
            _ => "neighbour_known",
        };
        Metrics::set_total(&metrics.observations.get_or_create(&Kind { kind }), total);
    }
    for (reason, total) in counts.dropped() {
        Metrics::set_total(&metrics.dropped.get_or_create(&Reason { reason }), total);
    }
    for (reason, total) in counts.rejected() {
        Metrics::set_total(&metrics.rejected.get_or_create(&Reason { reason }), total);
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
            crate::detect::FrameKind::Arp => "arp",
            crate::detect::FrameKind::Ndp => "ndp",
        }),
        Observation::Question(_) => Some("question"),
        Observation::Read(..) => Some("snapshot"),
        Observation::ReadBegun(_) | Observation::ReadFailed(_) => None,
    }
}
