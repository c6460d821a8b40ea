//! One agent, driven step by step.

use std::{collections::BTreeMap, time::Duration};

use detector_engine::Timestamp;
use detector_event::WallTime;

use super::{
    super::{
        Call, Effect, Identity, LocalClaim, Memory, Mode, NodeState, Outcome, Protocol, Report,
        Request, Settings, Stored,
    },
    server::{Event, Server},
};
use crate::{
    Subject,
    objects::{ConflictSpec, Party},
};

pub(super) const HANDOVER: Duration = Duration::from_secs(15);
pub(super) const CONFIRMATION: Duration = Duration::from_secs(5);

pub(super) fn address() -> Subject {
    "10.244.1.5".parse().unwrap()
}

pub(super) fn other_address() -> Subject {
    "10.244.1.6".parse().unwrap()
}

/// A server that knows these nodes, which are ready.
pub(super) fn server(nodes: &[&str]) -> Server {
    let mut server = Server::default();
    for node in nodes {
        set_node(&mut server, node, 0, true);
    }
    server
}

/// The Node of the `boot`th boot, the same object.
pub(super) fn set_node(server: &mut Server, node: &str, boot: u32, is_ready: bool) {
    let state = NodeState {
        uid: format!("uid-of-{node}"),
        boot_id: format!("{node}-{boot}"),
        is_ready,
    };
    server.nodes.insert(node.to_owned(), state);
}

/// An agent, its clock and its journal.
pub(super) struct Agent {
    pub(super) protocol: Protocol,
    pub(super) now: Timestamp,
    pub(super) journal: BTreeMap<Subject, Memory>,
    reports: Vec<Report>,
    /// The position of its watch; `None`: it has to list.
    watch: Option<usize>,
}

impl Agent {
    /// On its node's first boot, with nothing in the journal and nothing on the node.
    pub(super) fn new(node: &str) -> Self {
        let mut agent = Self::starting(node, 0, BTreeMap::new());
        agent.protocol.local_is_complete(agent.now);
        agent
    }

    /// One that does not know yet what the node has.
    pub(super) fn starting(node: &str, boot: u32, journal: BTreeMap<Subject, Memory>) -> Self {
        let identity = Identity {
            node: node.to_owned(),
            boot_id: format!("{node}-{boot}"),
        };
        let settings = Settings {
            handover: HANDOVER,
            confirmation: CONFIRMATION,
        };
        let mut agent = Self {
            protocol: Protocol::new(identity, settings, 7),
            now: Timestamp(1_000_000_000_000),
            journal,
            reports: Vec::new(),
            watch: None,
        };
        let memories = agent.journal.values().cloned().collect();
        agent.protocol.restore(agent.now, memories);
        agent
    }

    /// `pod` gets the address, instead of the one that has it.
    pub(super) fn claim(&mut self, subject: Subject, pod: &str) {
        let claim = self.local(pod);
        self.protocol.set_local(self.now, subject, Some(claim));
    }

    /// What the node has if `pod` gets an address now.
    pub(super) fn local(&self, pod: &str) -> LocalClaim {
        LocalClaim {
            party: Party {
                device: format!("veth-{pod}"),
                namespace: "shop".to_owned(),
                pod: pod.to_owned(),
                ..Party::default()
            },
            began: self.now,
            terminating: false,
            rightful: None,
            mode: Mode::Register,
        }
    }

    pub(super) fn release(&mut self, subject: Subject) {
        self.protocol.set_local(self.now, subject, None);
    }

    /// Gets what happened to conflicts since.
    pub(super) fn watch(&mut self, server: &Server) {
        let node = self.protocol.me.node.clone();
        let uid = server.nodes.get(&node).map(|state| state.uid.clone());
        self.protocol.own_node_changed(self.now, uid);
        let Some(position) = self.watch.replace(server.log.len()) else {
            self.list(server.conflicts_at(server.log.len(), &node));
            return;
        };
        for event in position..server.log.len() {
            let Some(event) = server.event(event, &node) else {
                continue;
            };
            match event {
                Event::Changed(stored) => self.protocol.conflict_changed(self.now, stored),
                Event::Deleted(stored) => self.protocol.conflict_deleted(self.now, stored),
            }
        }
    }

    /// A list of the watch.
    pub(super) fn list(&mut self, conflicts: Vec<Stored<ConflictSpec>>) {
        self.protocol.list_begins();
        for conflict in conflicts {
            self.protocol.conflict_changed(self.now, conflict);
        }
        self.protocol.list_ends(self.now);
    }

    /// The next request, if one is due now.
    pub(super) fn next(&mut self) -> Option<Call> {
        self.take_effects();
        let wall = WallTime::from_unix_nanos(1_000_000).unwrap();
        let call = self.protocol.next_request(self.now, wall);
        self.take_effects();
        call
    }

    pub(super) fn answer(&mut self, call: &Call, outcome: Outcome) {
        self.protocol.answer(self.now, call.id, outcome);
        self.take_effects();
    }

    /// Sends the next request, and gets its answer. Returns what it was.
    pub(super) fn exchange(&mut self, server: &mut Server) -> Option<Request> {
        let call = self.next()?;
        let outcome = server.apply(call.subject, &call.request);
        self.answer(&call, outcome);
        Some(call.request)
    }

    /// Watches, and sends everything that is due now. Returns what was sent.
    pub(super) fn run(&mut self, server: &mut Server) -> Vec<Request> {
        let mut sent = Vec::new();
        self.watch(server);
        while let Some(request) = self.exchange(server) {
            sent.push(request);
            assert!(sent.len() < 1_000, "endless: {sent:?}");
            self.watch(server);
        }
        sent
    }

    /// The same, while so much time passes. Returns what was sent, and when, counted from the beginning.
    pub(super) fn run_for(
        &mut self,
        server: &mut Server,
        span: Duration,
    ) -> Vec<(Duration, Request)> {
        let (begin, end) = (self.now, self.now + span);
        let mut sent = Vec::new();
        loop {
            let at = self.now.since(begin);
            sent.extend(self.run(server).into_iter().map(|request| (at, request)));
            let due = self.protocol.next_due().filter(|due| *due <= end);
            let Some(due) = due else {
                self.now = end;
                return sent;
            };
            self.now = due.max(self.now + Duration::from_nanos(1));
        }
    }

    pub(super) fn sleep(&mut self, span: Duration) {
        self.now = self.now + span;
    }

    /// What it has reported since it was asked last.
    pub(super) fn reports(&mut self) -> Vec<Report> {
        self.take_effects();
        std::mem::take(&mut self.reports)
    }

    fn take_effects(&mut self) {
        for effect in self.protocol.take_effects() {
            match effect {
                Effect::Remember(memory) => {
                    self.journal.insert(memory.subject, *memory);
                }
                Effect::Forget(subject) => {
                    self.journal.remove(&subject);
                }
                Effect::Report(report) => self.reports.push(*report),
            }
        }
    }
}

/// Nodes `a` and `b`: `a` has registered the address for `pod`.
pub(super) fn registered(pod: &str) -> (Server, Agent, Agent) {
    let mut server = server(&["a", "b"]);
    let (mut a, b) = (Agent::new("a"), Agent::new("b"));
    a.claim(address(), pod);
    a.run(&mut server);
    (server, a, b)
}

/// `a` has registered the address for `first`, and `b` has asked about it for `second`; `a` does not know that yet.
pub(super) fn asked(first: &str, second: &str) -> (Server, Agent, Agent) {
    let (mut server, a, mut b) = registered(first);
    b.claim(address(), second);
    b.run(&mut server);
    (server, a, b)
}

/// Whether any of these writes an `IPClaim`.
pub(super) fn writes_claim(requests: &[Request]) -> bool {
    requests.iter().any(|request| {
        matches!(
            request,
            Request::CreateClaim(_) | Request::ReplaceClaim(..) | Request::DeleteClaim(_)
        )
    })
}

/// Who holds the `IPClaim`.
pub(super) fn holder(server: &Server, subject: Subject) -> Option<&Party> {
    let stored = server.claims.get(&subject.object_name())?;
    Some(&stored.spec.party)
}
