//! A node of the model: what its pods have, its agent, and what is under way between it and the server.

use std::collections::BTreeMap;

use detector_engine::{ConflictId, Timestamp};
use detector_event::WallTime;

use crate::{
    Call, Effect, Identity, LocalClaim, Memory, Mode, Outcome, Protocol, Report, Settings, Subject,
    objects::{ConflictCause, ConflictSpec, Party},
    samples,
    tests::server::{Event, Server},
};

pub(super) const SETTINGS: Settings = Settings {
    handover: std::time::Duration::from_secs(15),
    confirmation: std::time::Duration::from_secs(5),
};

/// What a node has or had of a subject.
#[derive(Clone, Debug)]
pub(super) struct Interval {
    pub(super) begin: u64,
    pub(super) end: Option<u64>,
    pub(super) pod: u8,
    pub(super) terminating: Option<u64>,
    pub(super) mode: Mode,
}

#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "a handful exist at a time, in tests"
)]
pub(super) enum Pending {
    Sent(Call),
    Answered(Call, Outcome),
}

pub(super) struct Node {
    pub(super) name: String,
    pub(super) boot: u32,
    pub(super) is_up: bool,
    pub(super) is_cut: bool,
    /// When its Node was last seen to become ready.
    pub(super) not_ready_until: u64,
    pub(super) agent: Option<Protocol>,
    /// Its agent knows what the node has.
    pub(super) is_fed: bool,
    /// The uid of its Node as its agent has watched it last.
    pub(super) own_uid: Option<Option<String>>,
    /// Its agent keeps the conflicts that it ends.
    pub(super) has_room: bool,
    /// This node's clock is ahead of the model's by so much.
    pub(super) ahead: u64,
    pub(super) journal: BTreeMap<Subject, Memory>,
    /// A claim of it may remain: its journal was lost, or it is gone.
    pub(super) may_leak: bool,
    pub(super) history: BTreeMap<Subject, Vec<Interval>>,
    pub(super) pending: Vec<Pending>,
    /// The position of its watch; `None`: it has to list.
    pub(super) watch: Option<usize>,
    /// What its sinks know to be open.
    pub(super) raised: BTreeMap<Subject, ConflictId>,
    /// What its agent has shown last of each open conflict, whichever agent reports that.
    pub(super) shown: BTreeMap<Subject, ConflictSpec>,
    /// What its agent knows of the cause of a conflict.
    pub(super) known_causes: BTreeMap<Subject, (ConflictId, ConflictCause)>,
}

impl Node {
    pub(super) fn new(number: usize) -> Self {
        Self {
            name: format!("node-{number}"),
            boot: 0,
            is_up: true,
            is_cut: false,
            not_ready_until: 0,
            agent: None,
            is_fed: false,
            own_uid: None,
            has_room: true,
            ahead: 1_000_000_000 * (1 + number as u64 * 37),
            journal: BTreeMap::new(),
            may_leak: false,
            history: BTreeMap::new(),
            pending: Vec::new(),
            watch: None,
            raised: BTreeMap::new(),
            shown: BTreeMap::new(),
            known_causes: BTreeMap::new(),
        }
    }

    pub(super) fn boot_id(&self) -> String {
        format!("{}-{}", self.name, self.boot)
    }

    pub(super) fn clock(&self, now: u64) -> Timestamp {
        Timestamp(now + self.ahead)
    }

    pub(super) fn start(&mut self, now: u64, seed: u64) {
        let identity = Identity {
            node: self.name.clone(),
            boot_id: self.boot_id(),
        };
        let mut agent = Protocol::new(identity, SETTINGS, seed);
        let at = self.clock(now);
        agent.restore(at, self.journal.values().cloned().collect());
        agent.keep_resolved(self.has_room);
        self.agent = Some(agent);
        (self.is_fed, self.own_uid) = (false, None);
        self.shown.clear();
        self.known_causes.clear();
        self.watch = None;
    }

    /// Its agent learns all that the node has.
    pub(super) fn feed_all(&mut self, now: u64) {
        for subject in self.history.keys().copied().collect::<Vec<_>>() {
            self.feed(subject, now);
        }
        let at = self.clock(now);
        if let Some(agent) = &mut self.agent {
            self.is_fed = true;
            agent.local_is_complete(at);
        }
    }

    pub(super) fn live(&self, subject: Subject) -> Option<&Interval> {
        let last = self.history.get(&subject)?.last()?;
        (self.is_up && last.end.is_none()).then_some(last)
    }

    /// Its agent learns what the node has.
    pub(super) fn feed(&mut self, subject: Subject, now: u64) {
        let claim = self.live(subject).map(|interval| LocalClaim {
            party: Party {
                device: format!("veth-{}", interval.begin),
                namespace: "shop".to_owned(),
                pod: format!("pod-{}", interval.pod),
                ..Party::default()
            },
            began: self.clock(interval.begin),
            terminating: interval.terminating.is_some(),
            rightful: Some(interval.mode == Mode::Register),
            mode: interval.mode,
        });
        let at = self.clock(now);
        if let Some(agent) = &mut self.agent {
            agent.set_local(at, subject, claim);
        }
    }

    /// The cause that its agent finds for a conflict of this claim.
    pub(super) fn cause(&self, of: &Interval, is_proven: bool) -> ConflictCause {
        let confidence = if is_proven { "proven" } else { "likely" };
        ConflictCause {
            node: self.name.clone(),
            confidence: confidence.to_owned(),
            summary: format!("found on {} for {}", self.name, of.begin),
            ..samples::cause()
        }
    }

    /// Its agent learns why a conflict that it shows came about.
    pub(super) fn explain(&mut self, subject: Subject, is_proven: bool, now: u64) {
        let at = self.clock(now);
        let Some(cause) = self.live(subject).map(|live| self.cause(live, is_proven)) else {
            return;
        };
        if let (Some(agent), Some(shown)) = (&mut self.agent, self.shown.get(&subject)) {
            let id = shown.conflict_id;
            agent.set_cause(at, subject, id, cause.clone());
            self.known_causes.insert(subject, (id, cause));
        }
    }

    pub(super) fn end(&mut self, subject: Subject, now: u64) {
        if let Some(last) = self
            .history
            .get_mut(&subject)
            .and_then(|all| all.last_mut())
        {
            last.end.get_or_insert(now);
        }
    }

    /// Journal and sinks; returns what was reported.
    pub(super) fn take_effects(&mut self) -> Vec<Report> {
        let Some(agent) = &mut self.agent else {
            return Vec::new();
        };
        let mut reports = Vec::new();
        for effect in agent.take_effects() {
            match effect {
                Effect::Remember(memory) => {
                    self.journal.insert(memory.subject, *memory);
                }
                Effect::Forget(subject) => {
                    self.journal.remove(&subject);
                }
                Effect::Report(report) => {
                    let subject = report.conflict.address;
                    if report.is_resolved {
                        self.shown.remove(&subject);
                    } else {
                        self.shown.insert(subject, report.conflict.clone());
                    }
                    if report.is_reporter && report.is_resolved {
                        self.raised.remove(&subject);
                    } else if report.is_reporter {
                        self.raised.insert(subject, report.conflict.conflict_id);
                    }
                    reports.push(*report);
                }
            }
        }
        reports
    }

    pub(super) fn pull(&mut self, now: u64) -> Option<Call> {
        let at = self.clock(now);
        let wall =
            WallTime::from_unix_nanos(1_000 * (1 + i64::try_from(now / 1_000).unwrap())).unwrap();
        let call = self.agent.as_mut()?.next_request(at, wall)?;
        self.pending.push(Pending::Sent(call.clone()));
        Some(call)
    }

    /// Its agent gets its own Node. Returns whether that is news.
    pub(super) fn watch_own(&mut self, server: &Server, now: u64) -> bool {
        let at = self.clock(now);
        let uid = server.nodes.get(&self.name).map(|state| state.uid.clone());
        let Some(agent) = self.agent.as_mut().filter(|_| !self.is_cut) else {
            return false;
        };
        if self.own_uid.as_ref() == Some(&uid) {
            return false;
        }
        agent.own_node_changed(at, uid.clone());
        self.own_uid = Some(uid);
        true
    }

    /// One event of the watch, or the list, which may be `behind` by so many events. Returns whether there was one.
    pub(super) fn watch(&mut self, server: &Server, behind: usize, now: u64) -> bool {
        let at = self.clock(now);
        let Some(agent) = self.agent.as_mut().filter(|_| !self.is_cut) else {
            return false;
        };
        let Some(position) = &mut self.watch else {
            let position = server.log.len().saturating_sub(behind);
            agent.list_begins();
            for stored in server.conflicts_at(position, &self.name) {
                agent.conflict_changed(at, stored);
            }
            agent.list_ends(at);
            self.watch = Some(position);
            return true;
        };
        if *position == server.log.len() {
            return false;
        }
        let event = server.event(*position, &self.name);
        *position += 1;
        let Some(event) = event else {
            return true;
        };
        match event {
            Event::Changed(stored) => agent.conflict_changed(at, stored),
            Event::Deleted(stored) => agent.conflict_deleted(at, stored),
        }
        true
    }

    pub(super) fn answer(&mut self, index: usize, now: u64) {
        let Pending::Answered(call, outcome) = self.pending.swap_remove(index) else {
            return;
        };
        let at = self.clock(now);
        if let Some(agent) = &mut self.agent {
            agent.answer(at, call.id, outcome);
        }
    }
}
