//! The state machine: inputs change an entry, and after every change the entry's next request is planned again.

use std::collections::BTreeMap;

use detector_engine::{ConflictId, Timestamp};
use detector_event::WallTime;

use super::{
    Call, CallId, Counts, Effect, Identity, LocalClaim, Memory, Mode, Request, Settings, Stored,
    Subject, Version,
    answers::PendingCall,
    cause::OwnCause,
    claim::{ClaimBelief, Holder},
    conflict::{bound_party, is_first, sanitized},
    contest::Proof,
    context::Context,
    entry::{Entry, Plan},
    nodes::Nodes,
    objects::{ConflictCause, ConflictSpec},
    queue::Queue,
    report::LastReport,
};

/// Subjects that this node does not have, but that a conflict connects with it. Only a faulty writer comes near. A conflict takes up to
/// 64 KiB.
pub(super) const MAX_CONNECTED: usize = 1_024;

/// The agent's side of the protocol. All times are of one monotonic clock, which never goes back.
#[derive(Debug)]
pub struct Protocol {
    pub(super) me: Identity,
    settings: Settings,
    pub(super) rng: fastrand::Rng,
    /// Boxed: the nodes of the tree are half empty.
    pub(super) entries: BTreeMap<Subject, Box<Entry>>,
    pub(super) nodes: Nodes,
    /// `metadata.uid` of this agent's Node; `None` if it does not exist. Not known before the watch has it.
    own_node: Option<Option<String>>,
    pub(super) queue: Queue,
    pub(super) pending_calls: BTreeMap<CallId, PendingCall>,
    pub(super) next_call: u64,
    /// Entries with a local claim.
    locals: usize,
    /// While a list is in progress: its versions of the subjects that have an entry.
    listing: Option<BTreeMap<Subject, Version>>,
    is_complete: bool,
    is_listed: bool,
    keeps_resolved: bool,
    effects: Vec<Effect>,
    pub(super) unusable: u64,
}

impl Protocol {
    /// A state machine that knows nothing yet. `seed` decides the jitter of repetitions and the ids of conflicts.
    #[must_use]
    pub fn new(identity: Identity, settings: Settings, seed: u64) -> Self {
        Self {
            me: identity,
            settings,
            rng: fastrand::Rng::with_seed(seed),
            entries: BTreeMap::new(),
            nodes: Nodes::default(),
            own_node: None,
            queue: Queue::default(),
            pending_calls: BTreeMap::new(),
            next_call: 0,
            locals: 0,
            listing: None,
            is_complete: false,
            is_listed: false,
            keeps_resolved: true,
            effects: Vec::new(),
            unusable: 0,
        }
    }

    /// Restores what the previous run remembered. To be called before everything else.
    pub fn restore(&mut self, now: Timestamp, memories: Vec<Memory>) {
        for memory in memories {
            let mut entry = Box::new(Entry::new(ClaimBelief::restored(now)));
            entry.may_be_registered = true;
            if let Some(conflict) = &memory.reported {
                entry.contest.proof = Some(Box::new(Proof {
                    conflict: conflict.conflict_id,
                    pair: None,
                    unconfirmed_because: None,
                }));
                let reported = LastReport::restored((**conflict).clone(), &self.me.node);
                entry.reported = Some(Box::new(reported));
            }
            let subject = memory.subject;
            entry.memory = Some(memory);
            self.entries.insert(subject, entry);
            self.refresh(subject, now);
        }
    }

    /// This node's claim on the subject changed; `None`: it ended.
    pub fn set_local(&mut self, now: Timestamp, subject: Subject, claim: Option<LocalClaim>) {
        let claim = claim.map(|mut claim| {
            claim.party.node.clone_from(&self.me.node);
            claim.party.boot_id.clone_from(&self.me.boot_id);
            bound_party(&mut claim.party);
            claim
        });
        if claim.is_none() && !self.entries.contains_key(&subject) {
            return;
        }
        let entry = self.entries.entry(subject).or_insert_with(|| {
            // A claim that is not there yet is created, which is the fastest way to find another's.
            let is_registered = claim.as_ref().is_some_and(|c| c.mode == Mode::Register);
            let holder = if is_registered {
                Holder::Absent
            } else {
                Holder::Unknown
            };
            Box::new(Entry::new(ClaimBelief::new(holder)))
        });
        let mode = |claim: &Option<LocalClaim>| claim.as_ref().map(|claim| claim.mode);
        if mode(&claim) == Some(Mode::Lookup) && mode(&entry.local) != Some(Mode::Lookup) {
            entry.claim.verify(now);
        }
        self.locals -= usize::from(entry.local.is_some());
        self.locals += usize::from(claim.is_some());
        if entry.local != claim {
            entry.pace.content_changed();
            entry.local = claim;
        }
        self.refresh(subject, now);
    }

    /// Why a conflict came about, as this agent has found. It goes into the object, unless that has a cause which is as certain.
    pub fn set_cause(
        &mut self,
        now: Timestamp,
        subject: Subject,
        conflict: ConflictId,
        cause: ConflictCause,
    ) {
        let Some(entry) = self.entries.get_mut(&subject) else {
            return;
        };
        if let Some(local) = &entry.local {
            entry.contest.cause = Some(Box::new(OwnCause {
                conflict,
                began: local.began,
                cause: ConflictCause {
                    node: self.me.node.clone(),
                    ..cause
                },
            }));
            self.refresh(subject, now);
        }
    }

    /// All claims of this node have been set. Until then nothing is deleted that an earlier run registered.
    pub fn local_is_complete(&mut self, now: Timestamp) {
        if !self.is_complete {
            self.is_complete = true;
            self.refresh_all(now);
        }
    }

    /// The uid of this agent's Node changed; `None` if the Node does not exist. If it was deleted, perhaps created again, the claims
    /// that it owned are garbage-collected although the pods are alive.
    pub fn own_node_changed(&mut self, now: Timestamp, uid: Option<String>) {
        let before = self.own_node.replace(uid);
        if before.is_none_or(|before| Some(before) == self.own_node) {
            return;
        }
        for entry in self.entries.values_mut() {
            if matches!(entry.claim.holder, Holder::Us(..)) {
                entry.claim.may_be_collected(now);
            }
        }
        self.refresh_all(now);
    }

    /// Whether conflicts that this agent ends from now on are kept as resolved, which the caller deletes in the end.
    /// Otherwise they are deleted, as are those that were never active.
    pub fn keep_resolved(&mut self, keeps: bool) {
        self.keeps_resolved = keeps;
    }

    /// A list of the `IPConflict`s of scope `fleet` that name this node begins: each follows as changed. Those whose name is not
    /// [`Subject::object_name`] of their address are left out.
    pub fn list_begins(&mut self) {
        self.listing = Some(BTreeMap::new());
    }

    /// The list is complete.
    pub fn list_ends(&mut self, now: Timestamp) {
        let listed = self.listing.take().unwrap_or_default();
        self.is_listed = true;
        for (subject, entry) in &mut self.entries {
            // It may be older than an answer, or than what an earlier run reported, or the server was restored from a backup.
            let is_restored = entry.reported.as_ref().is_some_and(|r| r.is_restored);
            if is_restored || entry.conflict.version() != listed.get(subject) {
                entry.conflict.read_again();
            }
        }
        self.refresh_all(now);
    }

    /// An `IPConflict` of scope `fleet` was created or changed. A resolved one is none any more.
    pub fn conflict_changed(&mut self, now: Timestamp, conflict: Stored<ConflictSpec>) {
        if conflict.spec.is_resolved() {
            return self.conflict_deleted(now, conflict);
        }
        let subject = conflict.spec.address;
        let Some(conflict) = sanitized(conflict, &subject) else {
            self.unusable += 1;
            return;
        };
        let version = conflict.version.clone();
        if !self.entries.contains_key(&subject) {
            let me = &self.me.node;
            let names_us = conflict.spec.claimants.iter().any(|c| c.party.node == *me);
            let is_room = self.entries.len() - self.locals < MAX_CONNECTED;
            if !names_us || !is_room {
                self.unusable += u64::from(names_us);
                return;
            }
            let entry = Entry::new(ClaimBelief::new(Holder::Unknown));
            self.entries.insert(subject, Box::new(entry));
        }
        if let Some(listing) = &mut self.listing {
            listing.insert(subject, version);
        }
        self.update_conflict(subject, now, |entry, call| {
            entry.conflict.watched(conflict, call);
        });
    }

    /// An `IPConflict` was deleted, or names this node no longer; as the watch gives it, with the version of that.
    pub fn conflict_deleted(&mut self, now: Timestamp, conflict: Stored<ConflictSpec>) {
        let subject = conflict.spec.address;
        self.update_conflict(subject, now, |entry, _| {
            entry.conflict.unwatched(conflict.version);
        });
    }

    /// Changes the belief about a conflict. If others have ended this node's part as the holder, it verifies that it still is: they may
    /// have taken the claim over.
    pub(super) fn update_conflict(
        &mut self,
        subject: Subject,
        now: Timestamp,
        update: impl FnOnce(&mut Entry, u64),
    ) {
        let Some(entry) = self.entries.get_mut(&subject) else {
            return;
        };
        let me = &self.me.node;
        let is_ours = |entry: &Entry| entry.conflict.spec().is_some_and(|spec| is_first(spec, me));
        let was_ours = is_ours(entry);
        update(entry, self.next_call);
        if was_ours && !is_ours(entry) && matches!(entry.claim.holder, Holder::Us(..)) {
            entry.claim.verify(now);
        }
        self.refresh(subject, now);
    }

    /// The next request, if one is due. `None` while there are effects, which have to be taken first. `wall` is the time that is
    /// written for people.
    pub fn next_request(&mut self, now: Timestamp, wall: WallTime) -> Option<Call> {
        while let Some(subject) = self.queue.pop_due(now) {
            self.refresh(subject, now);
        }
        while self.effects.is_empty() {
            let subject = self.queue.pop_ready()?;
            // Time has passed since it was queued.
            if !self.refresh(subject, now) || !self.effects.is_empty() {
                continue;
            }
            self.queue.remove(&subject);
            let fresh_id = ConflictId(self.rng.u128(1..));
            let entry = self.entries.get_mut(&subject)?;
            let cx = Context {
                subject,
                me: &self.me,
                settings: &self.settings,
                nodes: &self.nodes,
                now,
                is_complete: self.is_complete,
                is_listed: self.is_listed,
                keeps_resolved: self.keeps_resolved,
                wall: Some(wall),
                fresh_id,
            };
            let plan = entry.plan(&cx);
            let Some((_, request)) = &plan.request else {
                continue;
            };
            let id = CallId(self.next_call);
            self.next_call += 1;
            entry.pace.sent(now, &mut self.rng);
            entry.in_flight = Some(id);
            if let Request::GetNode(node) = request {
                self.nodes.sent(node);
            }
            let pending = PendingCall::new(subject, entry, &plan, request, now);
            self.pending_calls.insert(id, pending);
            let request = plan.request?.1;
            return Some(Call {
                id,
                subject,
                request,
            });
        }
        None
    }

    /// When [`Self::next_request`] has something to send if nothing arrives until then; in the past if it has already.
    #[must_use]
    pub fn next_due(&self) -> Option<Timestamp> {
        if !self.effects.is_empty() || self.queue.has_ready() {
            return Some(Timestamp::default());
        }
        self.queue.next_timer()
    }

    /// Takes what has to be done in addition to requests, in order.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// The numbers for metrics and health.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let count =
            |matches: fn(&Entry) -> bool| self.entries.values().filter(|e| matches(e)).count();
        Counts {
            registered: count(|e| matches!(e.claim.holder, Holder::Us(..))),
            unregistered: count(|e| {
                let is_open = matches!(e.claim.holder, Holder::Absent | Holder::Unknown);
                is_open && e.local.as_ref().is_some_and(|l| l.mode == Mode::Register)
            }),
            contested: count(|e| e.local.is_some() && matches!(e.claim.holder, Holder::Other(..))),
            waiting: self.queue.ready_count(),
            conflicts: count(|e| e.reported.is_some()),
            unusable_objects: self.unusable,
        }
    }

    pub(super) fn refresh_all(&mut self, now: Timestamp) {
        let subjects: Vec<_> = self.entries.keys().copied().collect();
        for subject in subjects {
            self.refresh(subject, now);
        }
    }

    /// Plans what the entry needs: appends its effects, and queues its next request. Returns whether one may be sent now.
    pub(super) fn refresh(&mut self, subject: Subject, now: Timestamp) -> bool {
        let Some(entry) = self.entries.get_mut(&subject) else {
            self.queue.remove(&subject);
            return false;
        };
        for party in entry.polled(&self.me.node) {
            self.nodes.poll(&party.node, now, &mut self.rng);
        }
        let cx = Context {
            subject,
            me: &self.me,
            settings: &self.settings,
            nodes: &self.nodes,
            now,
            is_complete: self.is_complete,
            is_listed: self.is_listed,
            keeps_resolved: self.keeps_resolved,
            wall: None,
            fresh_id: ConflictId(0),
        };
        entry.progress(&cx);
        if entry.report(&cx, &mut self.effects) {
            // A proof for an earlier claim counts only while this agent reports the conflict.
            entry.progress(&cx);
        }
        let plan = entry.plan(&cx);
        let registers = matches!(
            plan.request,
            Some((_, Request::CreateClaim(_) | Request::ReplaceClaim(..)))
        );
        entry.may_be_registered |= registers;
        let is_finished = entry.is_finished(&self.me.node);
        let memory = entry.wanted_memory(subject).filter(|_| !is_finished);
        if entry.memory != memory {
            self.effects.push(match &memory {
                Some(memory) => Effect::Remember(Box::new(memory.clone())),
                None => Effect::Forget(subject),
            });
            entry.memory = memory;
        }
        if is_finished {
            self.entries.remove(&subject);
            self.queue.remove(&subject);
            return false;
        }
        let not_before = entry.pace.not_before();
        self.place(subject, &plan, not_before, now)
    }

    fn place(
        &mut self,
        subject: Subject,
        plan: &Plan,
        not_before: Timestamp,
        now: Timestamp,
    ) -> bool {
        match (&plan.request, plan.wake) {
            (Some((priority, _)), _) if not_before <= now => {
                self.queue.ready(subject, *priority);
                return true;
            }
            (Some(_), _) => self.queue.at(subject, not_before),
            (None, Some(wake)) => self.queue.at(subject, wake),
            (None, None) => self.queue.remove(&subject),
        }
        false
    }
}
