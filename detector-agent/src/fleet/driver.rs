//! Runs the protocol: passes on what the node has and what the server answers, and sends the requests, at a pace.
//!
//! Everything is on the thread "fleet". Only the calls wait for the server, and only the journal for the disk.

use std::{collections::BTreeSet, panic::resume_unwind, sync::Arc, time::Duration};

use detector_event::WallTime;
use detector_fleet::{
    Effect, Identity, LocalClaim, Mode, Outcome, Protocol, Report, Request, Stored, Subject,
    objects::{ConflictSpec, Party},
};
use ipnet::IpNet;
use tokio::{sync::mpsc, task::JoinSet, time::Instant};

use super::{
    ConflictUpdate, FleetSettings, Inbox,
    calls::{Done, Origin, UPDATE, outcome_name, verb},
    clock::Clock,
    health::{FleetHealth, Way},
    journal::Journal,
    local_conflicts::LocalConflicts,
    pacing::Pacing,
    registry::{Problem, Registry},
    watch::{OwnNode, RECHECK, WatchUpdate, WatchedConflict},
};
use crate::{
    metrics::{FleetRequest, Metrics, gauge_value},
    process::timer::{sleep_until_some, with_jitter},
};

/// The shortest sleep, whatever the protocol wants.
const SHORTEST_SLEEP: Duration = Duration::from_millis(1);
/// The verb of the watch in metrics.
const WATCH: &str = "watch";
/// The source of a range in its claim.
const POD_CIDR: &str = "podCIDR";

/// What the driver works with.
pub(super) struct Parts {
    pub(super) identity: Identity,
    pub(super) settings: FleetSettings,
    pub(super) clock: Clock,
    pub(super) protocol: Protocol,
    pub(super) registry: Arc<Registry>,
    pub(super) journal: Journal,
    pub(super) health: FleetHealth,
    pub(super) inbox: Inbox,
    pub(super) metrics: Arc<Metrics>,
    /// Takes the reports.
    pub(super) emit: Box<dyn Fn(Report) + Send>,
}

/// Runs the protocol.
pub(super) struct Driver {
    identity: Identity,
    exclude: Vec<IpNet>,
    protocol: Protocol,
    local_conflicts: LocalConflicts,
    registry: Arc<Registry>,
    pacing: Pacing,
    journal: Journal,
    health: FleetHealth,
    inbox: Inbox,
    metrics: Arc<Metrics>,
    emit: Box<dyn Fn(Report) + Send>,
    clock: Clock,
    requests: JoinSet<Done>,
    /// This agent's Node was there: objects have an owner.
    has_node: bool,
    /// The ranges of this agent's Node that are registered.
    ranges: BTreeSet<Subject>,
    /// The conflicts that name this node were listed once.
    is_listed: bool,
    /// A list of them is being read: until its end it may still fail.
    is_listing: bool,
    /// The event loop has sent all that the node had at the start.
    is_fed: bool,
    /// The protocol has got all that the node had at the start.
    is_complete: bool,
    random: fastrand::Rng,
}

impl Driver {
    /// A driver of a protocol that was restored from the journal.
    pub(super) fn new(parts: Parts) -> Self {
        let now = Instant::now();
        let local_conflicts = LocalConflicts::new(parts.identity.node.clone());
        Self {
            identity: parts.identity,
            exclude: parts.settings.fleet_exclude,
            protocol: parts.protocol,
            local_conflicts,
            registry: parts.registry,
            pacing: Pacing::new(parts.settings.fleet_rate, now),
            journal: parts.journal,
            health: parts.health,
            inbox: parts.inbox,
            metrics: parts.metrics,
            emit: parts.emit,
            clock: parts.clock,
            requests: JoinSet::new(),
            has_node: false,
            ranges: BTreeSet::new(),
            is_listed: false,
            is_listing: false,
            is_fed: false,
            is_complete: false,
            random: fastrand::Rng::new(),
        }
    }

    /// Runs until the inbox is closed, and then returns the journal.
    pub(super) async fn run(mut self, mut updates: mpsc::Receiver<WatchUpdate>) -> Journal {
        loop {
            if self.receive() {
                return self.journal;
            }
            self.take_effects();
            self.send();
            self.report_health();
            let wake = self.wake_at();
            tokio::select! {
                () = self.inbox.changed() => {}
                Some(done) = self.requests.join_next() => {
                    // Nothing cancels a request, so the error is a panic.
                    match done {
                        Ok(done) => self.done(done),
                        Err(panic) => resume_unwind(panic.into_panic()),
                    }
                }
                Some(update) = updates.recv() => self.watched(update),
                () = self.journal.progress() => {}
                () = sleep_until_some(wake) => {}
            }
        }
    }

    /// Passes on what the event loop sent; `true` if nothing more will come.
    fn receive(&mut self) -> bool {
        let received = self.inbox.take();
        let now = self.clock.now();
        for (subject, claim) in received.claims {
            self.protocol.set_local(now, subject, claim);
        }
        for (subject, (id, cause)) in received.causes {
            self.protocol.set_cause(now, subject, id, cause);
        }
        for (name, spec) in received.conflicts {
            let spec = spec.map(|spec| self.signed_conflict(spec));
            self.local_conflicts.set(ConflictUpdate { name, spec });
        }
        self.is_fed |= received.is_complete;
        // The ranges are part of what the node has.
        if self.is_fed && self.has_node && !std::mem::replace(&mut self.is_complete, true) {
            self.protocol.local_is_complete(now);
            self.local_conflicts.complete();
        }
        received.is_closed
    }

    /// The conflict in this node's name.
    fn signed_conflict(&self, mut spec: Box<ConflictSpec>) -> Box<ConflictSpec> {
        let identity = &self.identity;
        for claimant in &mut spec.claimants {
            claimant.party.node.clone_from(&identity.node);
            claimant.party.boot_id.clone_from(&identity.boot_id);
        }
        spec.nodes.clone_from(&identity.node);
        spec
    }

    fn take_effects(&mut self) {
        for effect in self.protocol.take_effects() {
            match effect {
                Effect::Report(report) => (self.emit)(*report),
                Effect::Remember(memory) => self.journal.remember(&memory),
                Effect::Forget(subject) => self.journal.forget(subject),
            }
        }
    }

    /// Whether the protocol's requests may be sent: their objects need an owner.
    fn is_ready(&self) -> bool {
        self.has_node && self.journal.is_settled()
    }

    /// Sends what is due, as far as the pace allows.
    fn send(&mut self) {
        let now = Instant::now();
        while self.is_ready() && self.pacing.try_begin(now) {
            let Some((origin, name, request)) = self.next_request() else {
                self.pacing.withdraw();
                return;
            };
            let registry = Arc::clone(&self.registry);
            self.requests.spawn(async move {
                Done {
                    origin,
                    verb: verb(&request),
                    sent_at: now,
                    answer: Box::new(registry.execute(&name, &request).await),
                }
            });
            self.take_effects();
        }
    }

    /// The next request with the name of its object. Those of the comparison between nodes go first.
    fn next_request(&mut self) -> Option<(Origin, String, Request)> {
        let now = self.clock.now();
        let has_room = self.local_conflicts.has_room();
        self.protocol.keep_resolved(has_room);
        if let Some(call) = self.protocol.next_request(now, WallTime::now()) {
            let name = call.subject.object_name();
            return Some((Origin::Protocol(call.id), name, call.request));
        }
        let (name, request) = self.local_conflicts.next_request(now)?;
        Some((Origin::LocalConflict(name.clone()), name, request))
    }

    /// When there is something to do if nothing arrives.
    fn wake_at(&self) -> Option<Instant> {
        let calls = [self.protocol.next_due(), self.local_conflicts.next_due()];
        let call_due = calls.into_iter().flatten().min();
        let call_due = call_due
            .filter(|_| self.is_ready())
            .map(|due| self.clock.instant(due));
        let due = call_due?;
        let next = self.pacing.next()?;
        Some(due.max(next).max(Instant::now() + SHORTEST_SLEEP))
    }

    fn done(&mut self, done: Done) {
        let Done {
            origin,
            verb,
            sent_at,
            answer,
        } = done;
        self.count(verb, outcome_name(&answer.outcome));
        if answer.problem.is_none() {
            self.health.found(Way::Requests);
        }
        self.answered(sent_at, answer.problem.as_ref());
        let now = self.clock.now();
        match origin {
            Origin::Protocol(id) => {
                if let (UPDATE, Outcome::Conflict(stored)) = (verb, &answer.outcome) {
                    self.follow_resolved(stored);
                }
                self.protocol.answer(now, id, answer.outcome);
            }
            Origin::LocalConflict(name) => {
                let now = (now, WallTime::now());
                self.local_conflicts.answer(now, &name, answer.outcome);
            }
        }
    }

    /// If this conflict between nodes is one that this agent wrote as resolved, it has to be deleted.
    fn follow_resolved(&mut self, stored: &Stored<ConflictSpec>) {
        if stored.spec.is_resolved() {
            let now = (self.clock.now(), WallTime::now());
            let name = stored.spec.address.object_name();
            self.local_conflicts.found(now, name, stored.clone());
        }
    }

    fn count(&self, verb: &'static str, outcome: &'static str) {
        let labels = FleetRequest::new(verb, outcome);
        let counter = self.metrics.fleet_requests.get_or_create(&labels);
        counter.inc();
    }

    /// Adapts the pace and the health to an answer.
    fn answered(&mut self, sent_at: Instant, problem: Option<&Problem>) {
        let now = Instant::now();
        match problem {
            Some(Problem::Away { retry_after, .. }) => {
                self.pacing.failed(sent_at, now, *retry_after);
            }
            Some(Problem::NoSuchResource) => {
                let wait = with_jitter(RECHECK, &mut self.random);
                self.pacing.pause(now + wait);
            }
            Some(Problem::Rejected(_)) | None => {
                self.pacing.answered();
                self.health.works(Way::Requests);
            }
        }
        if let Some(problem) = problem {
            self.health.fails(Way::Requests, sent_at, problem);
        }
    }

    /// This agent's Node is another one now, or its ranges are. Without a Node, its pods keep what they have.
    fn own_node_changed(&mut self, found: Option<OwnNode>) {
        self.watch_works(Way::Node);
        let missing = || "there is no such Node".to_owned();
        self.health.node(found.is_none().then(missing));
        let now = self.clock.now();
        let uid = found.as_ref().map(|node| node.uid.clone());
        if let Some(node) = found {
            self.has_node = true;
            self.set_ranges(&node.pod_cidrs);
        }
        self.protocol.own_node_changed(now, uid);
    }

    /// Registers the ranges of this agent's Node.
    fn set_ranges(&mut self, pod_cidrs: &[String]) {
        let now = self.clock.now();
        let nets = pod_cidrs.iter().filter_map(|cidr| cidr.parse().ok());
        let is_excluded = |net: &IpNet| self.exclude.iter().any(|range| range.contains(net));
        let ranges: BTreeSet<_> = nets
            .filter(|net| !is_excluded(net))
            .map(Subject::range)
            .collect();
        for gone in self.ranges.difference(&ranges) {
            self.protocol.set_local(now, *gone, None);
        }
        for new in ranges.difference(&self.ranges) {
            let claim = LocalClaim {
                party: Party {
                    source: POD_CIDR.to_owned(),
                    ..Party::default()
                },
                began: now,
                terminating: false,
                rightful: None,
                mode: Mode::Register,
            };
            self.protocol.set_local(now, *new, Some(claim));
        }
        self.ranges = ranges;
    }

    fn watched(&mut self, update: WatchUpdate) {
        let now = self.clock.now();
        match update {
            WatchUpdate::OwnNode(node) => self.own_node_changed(node),
            WatchUpdate::ListBegan => {
                self.is_listing = true;
                self.protocol.list_begins();
                self.local_conflicts.list_begins();
            }
            WatchUpdate::Listed => {
                (self.is_listed, self.is_listing) = (true, false);
                self.watch_works(Way::Watch);
                self.count(WATCH, "ok");
                self.protocol.list_ends(now);
                self.local_conflicts.list_ends();
            }
            WatchUpdate::Changed(conflict) => {
                self.watch_works(Way::Watch);
                match *conflict {
                    WatchedConflict::Fleet(stored) => {
                        self.follow_resolved(&stored);
                        self.protocol.conflict_changed(now, stored);
                    }
                    WatchedConflict::Local(name, stored) => {
                        let now = (now, WallTime::now());
                        self.local_conflicts.found(now, name, stored);
                    }
                }
            }
            WatchUpdate::Deleted(conflict) => {
                self.watch_works(Way::Watch);
                match *conflict {
                    WatchedConflict::Fleet(stored) => {
                        let name = stored.spec.address.object_name();
                        self.local_conflicts.gone(&name);
                        self.protocol.conflict_deleted(now, stored);
                    }
                    WatchedConflict::Local(name, _) => self.local_conflicts.gone(&name),
                }
            }
            WatchUpdate::Works(way) => {
                self.watch_works(way);
                self.count(WATCH, "ok");
            }
            WatchUpdate::Failed(Way::Node, Problem::Rejected(why)) => {
                self.count(WATCH, "rejected");
                self.health.node(Some(why));
            }
            WatchUpdate::Failed(way, problem) => {
                self.count(WATCH, "failed");
                self.health.fails(way, Instant::now(), &problem);
            }
        }
    }

    /// A watch works; if it did not before, the requests are tried now.
    fn watch_works(&mut self, way: Way) {
        if way == Way::Watch && self.is_listing {
            return;
        }
        let was_missing = self.health.found(way);
        if self.health.works(way) || was_missing {
            self.pacing.resume(Instant::now());
        }
    }

    fn report_health(&mut self) {
        let counts = self.protocol.counts();
        let claims = &self.metrics.fleet_claims;
        claims.set(gauge_value(counts.registered));
        let is_ready = self.has_node && self.is_listed;
        let is_working = self.health.report(counts, is_ready);
        self.metrics.fleet_blind.set((!is_working).into());
    }
}
