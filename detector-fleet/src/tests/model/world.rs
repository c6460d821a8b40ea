//! The nodes and the server, and everything under way between them.

use std::time::Duration;

use proptest::test_runner::TestCaseError;

use super::{
    agent::{Interval, Node, Pending},
    checks,
    ops::{NODES, Op},
};
use crate::{Call, Mode, NodeState, Outcome, Request, Subject, tests::server::Server};

/// How long a request whose sender has given up may still take effect.
const LATE: u64 = 60_000_000_000;
/// A list comes from the server's watch cache, and may lack the last few events. So may what a watch resumes from.
const STALE: usize = 4;
/// After so much time, agents have come to rest if nothing failed, and all that is needed was watched.
const PROMPT: Duration = Duration::from_secs(60);
/// After so much otherwise: what is only looked up, and Nodes, are read again within six minutes.
const REPEATED: Duration = Duration::from_secs(1_200);
/// So much later, agents have verified what they have registered.
const VERIFIED: Duration = Duration::from_secs(8_700);
/// How long they are watched at rest.
const QUIET: Duration = Duration::from_secs(600);
/// More exchanges than that at one moment are an endless loop.
const ENDLESS: usize = 20_000;

pub(super) struct World {
    pub(super) now: u64,
    pub(super) nodes: Vec<Node>,
    pub(super) server: Server,
    pub(super) rng: fastrand::Rng,
    faults_of_ten: u8,
    /// Requests that take effect although their sender has given up.
    late: Vec<(u64, Call)>,
    /// Something failed in this sequence, so that an agent may have been silent.
    pub(super) has_faults: bool,
    /// Something was only looked up, which is repeated rarely.
    has_lookups: bool,
    /// Objects were deleted unnoticed: only the verification every two hours finds that.
    pub(super) is_tampered: bool,
    /// Resolved conflicts were deleted, or not kept.
    pub(super) is_cleared: bool,
    /// Requests sent since the count was reset, other than reads.
    pub(super) writes: usize,
    pub(super) reads: usize,
}

pub(super) fn subject(number: usize) -> Subject {
    let text = ["10.244.1.5", "10.244.7.0/24"][number];
    text.parse().unwrap()
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut world = Self {
            now: 1_000_000_000,
            nodes: (0..NODES).map(Node::new).collect(),
            server: Server::default(),
            rng: fastrand::Rng::with_seed(seed),
            faults_of_ten: 0,
            late: Vec::new(),
            has_faults: false,
            has_lookups: false,
            is_tampered: false,
            is_cleared: false,
            writes: 0,
            reads: 0,
        };
        for node in 0..NODES {
            world.register_node(node);
            world.start(node);
            world.nodes[node].feed_all(world.now);
        }
        world
    }

    fn register_node(&mut self, node: usize) {
        let node = &self.nodes[node];
        let state = NodeState {
            uid: self.rng.u64(..).to_string(),
            boot_id: node.boot_id(),
            is_ready: true,
        };
        self.server.nodes.insert(node.name.clone(), state);
    }

    fn start(&mut self, node: usize) {
        let seed = self.rng.u64(..);
        if self.nodes[node].is_up && self.nodes[node].agent.is_none() {
            self.nodes[node].start(self.now, seed);
        }
    }

    /// The agent is gone at once; what it has sent may take effect yet.
    fn crash(&mut self, node: usize) {
        self.nodes[node].agent = None;
        for pending in std::mem::take(&mut self.nodes[node].pending) {
            if let Pending::Sent(call) = pending
                && self.rng.bool()
            {
                self.late.push((self.now + self.rng.u64(0..LATE), call));
            }
        }
    }

    pub(super) fn run(&mut self, op: &Op) -> Result<(), TestCaseError> {
        match *op {
            Op::Set {
                node,
                subject: s,
                pod,
                lookup,
            } => {
                let (now, subject) = (self.now, subject(s));
                let node = &mut self.nodes[node];
                if node.is_up {
                    self.has_lookups |= lookup;
                    node.end(subject, now);
                    let mode = if lookup { Mode::Lookup } else { Mode::Register };
                    node.history.entry(subject).or_default().push(Interval {
                        begin: now,
                        end: None,
                        pod,
                        terminating: None,
                        mode,
                    });
                    // No two claims begin at one moment.
                    self.now += 1;
                    node.feed(subject, now);
                }
            }
            Op::Clear { node, subject: s } => {
                self.nodes[node].end(subject(s), self.now);
                self.nodes[node].feed(subject(s), self.now);
            }
            Op::Terminate { node, subject: s } => {
                let (now, subject) = (self.now, subject(s));
                let node = &mut self.nodes[node];
                if let Some(last) = node
                    .history
                    .get_mut(&subject)
                    .and_then(|all| all.last_mut())
                {
                    last.terminating.get_or_insert(now);
                }
                node.feed(subject, now);
            }
            Op::Explain {
                node,
                subject: s,
                is_proven,
            } => {
                let subject = subject(s);
                let shown = self
                    .nodes
                    .iter_mut()
                    .filter(|n| n.shown.contains_key(&subject));
                let mut shown: Vec<_> = shown.collect();
                if !shown.is_empty() {
                    let node = node % shown.len();
                    shown[node].explain(subject, is_proven, self.now);
                }
            }
            Op::Crash { node } => {
                self.has_faults = true;
                self.crash(node);
            }
            Op::Start { node, journal } => {
                if self.nodes[node].agent.is_none() && !journal {
                    self.lose_journal(node);
                }
                self.start(node);
            }
            Op::Feed { node } => self.nodes[node].feed_all(self.now),
            Op::Reboot { node, journal } => {
                self.has_faults = true;
                if self.nodes[node].is_up {
                    self.crash(node);
                    self.end_all(node);
                    self.nodes[node].boot += 1;
                    if !journal {
                        self.lose_journal(node);
                    }
                    let (name, boot_id) =
                        (self.nodes[node].name.clone(), self.nodes[node].boot_id());
                    if let Some(state) = self.server.nodes.get_mut(&name) {
                        state.boot_id = boot_id;
                    }
                }
            }
            Op::Remove { node } => {
                (self.has_faults, self.is_cleared) = (true, true);
                self.crash(node);
                self.end_all(node);
                let node = &mut self.nodes[node];
                (node.is_up, node.may_leak) = (false, true);
                node.raised.clear();
                self.server.delete_node(&node.name);
            }
            Op::Recreate { node } => {
                if self.nodes[node].is_up {
                    (self.has_faults, self.is_cleared) = (true, true);
                    // An agent that did not know the Node before does not notice that it is another one.
                    let recreated = &self.nodes[node];
                    self.is_tampered |= recreated.agent.is_some() && recreated.own_uid.is_none();
                    self.server.delete_node(&recreated.name);
                    self.register_node(node);
                }
            }
            Op::Cut { node, cut } => {
                self.has_faults = true;
                self.nodes[node].is_cut = cut;
                self.nodes[node].watch = None;
            }
            Op::Resume { node } => {
                let back = self.rng.usize(0..STALE);
                let watch = &mut self.nodes[node].watch;
                *watch = watch.map(|position| position.saturating_sub(back));
            }
            Op::Ready { node, ready } => self.set_ready(node, ready),
            Op::Faults { of_ten } => {
                self.has_faults |= of_ten > 0;
                self.faults_of_ten = of_ten;
            }
            Op::DeleteClaim { subject: s } => {
                self.is_tampered = true;
                self.server.claims.remove(&subject(s).object_name());
            }
            Op::DeleteConflict { subject: s } => {
                self.is_tampered = true;
                self.server.delete_conflict(&subject(s).object_name());
            }
            Op::Expire { subject: s } => {
                self.is_cleared = true;
                let name = subject(s).object_name();
                let stored = self.server.conflicts.get(&name);
                if stored.is_some_and(|stored| stored.spec.is_resolved()) {
                    self.server.delete_conflict(&name);
                }
            }
            Op::Room { node, has_room } => {
                self.is_cleared = true;
                let node = &mut self.nodes[node];
                node.has_room = has_room;
                if let Some(agent) = &mut node.agent {
                    agent.keep_resolved(has_room);
                }
            }
            Op::Steps { count } => {
                for _ in 0..count {
                    self.step()?;
                }
            }
            Op::Wait { ms } => self.advance(Duration::from_millis(ms.into()))?,
        }
        self.take_effects()
    }

    fn set_ready(&mut self, node: usize, ready: bool) {
        let node = &mut self.nodes[node];
        if let Some(state) = self.server.nodes.get_mut(&node.name) {
            if !state.is_ready {
                node.not_ready_until = self.now;
            }
            state.is_ready = ready;
        }
    }

    fn lose_journal(&mut self, node: usize) {
        let node = &mut self.nodes[node];
        node.may_leak |= !node.journal.is_empty();
        node.journal.clear();
        node.raised.clear();
    }

    fn end_all(&mut self, node: usize) {
        for s in 0..super::ops::SUBJECTS {
            self.nodes[node].end(subject(s), self.now);
        }
    }

    pub(super) fn take_effects(&mut self) -> Result<(), TestCaseError> {
        for node in 0..self.nodes.len() {
            for report in self.nodes[node].take_effects() {
                checks::report(self, node, &report)?;
            }
        }
        Ok(())
    }

    /// One thing that is under way happens, whichever.
    fn step(&mut self) -> Result<bool, TestCaseError> {
        let first = self.rng.usize(0..self.nodes.len() * 5);
        for i in 0..self.nodes.len() * 5 {
            let chosen = (first + i) % (self.nodes.len() * 5);
            let (node, action) = (chosen / 5, chosen % 5);
            let happened = match action {
                0 => {
                    for report in self.nodes[node].take_effects() {
                        checks::report(self, node, &report)?;
                    }
                    self.pull(node)?
                }
                1 => self.serve(node),
                2 => self.deliver(node),
                3 => self.nodes[node].watch_own(&self.server, self.now),
                _ => {
                    let behind = self.rng.usize(0..STALE);
                    self.nodes[node].watch(&self.server, behind, self.now)
                }
            };
            if happened {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn pull(&mut self, node: usize) -> Result<bool, TestCaseError> {
        let Some(call) = self.nodes[node].pull(self.now) else {
            return Ok(false);
        };
        checks::request(self, node, &call)?;
        match call.request {
            Request::GetClaim | Request::GetConflict | Request::GetNode(_) => self.reads += 1,
            _ => self.writes += 1,
        }
        Ok(true)
    }

    /// The server gets one of the node's requests, or loses it.
    fn serve(&mut self, node: usize) -> bool {
        let Some(index) = self.pick(node, |pending| matches!(pending, Pending::Sent(_))) else {
            return false;
        };
        let Pending::Sent(call) = self.nodes[node].pending.swap_remove(index) else {
            return false;
        };
        let fails = self.nodes[node].is_cut || self.rng.u8(0..10) < self.faults_of_ten;
        let outcome = if fails {
            match self.rng.u8(0..3) {
                0 => {}
                1 => {
                    self.server.apply(call.subject, &call.request);
                }
                _ => self
                    .late
                    .push((self.now + self.rng.u64(0..LATE), call.clone())),
            }
            Outcome::Failed
        } else {
            let name = &self.nodes[node].name;
            self.server.apply_as(name, call.subject, &call.request)
        };
        self.nodes[node]
            .pending
            .push(Pending::Answered(call, outcome));
        true
    }

    fn deliver(&mut self, node: usize) -> bool {
        let answered = |pending: &Pending| matches!(pending, Pending::Answered(..));
        let Some(index) = self.pick(node, answered) else {
            return false;
        };
        self.nodes[node].answer(index, self.now);
        true
    }

    fn pick(&mut self, node: usize, matches: fn(&Pending) -> bool) -> Option<usize> {
        let pending = &self.nodes[node].pending;
        let found: Vec<_> = (0..pending.len())
            .filter(|i| matches(&pending[*i]))
            .collect();
        (!found.is_empty()).then(|| found[self.rng.usize(0..found.len())])
    }

    /// Time passes; whatever is due and under way happens in its time.
    pub(super) fn advance(&mut self, span: Duration) -> Result<(), TestCaseError> {
        let end = self.now + u64::try_from(span.as_nanos()).unwrap();
        loop {
            let mut steps = 0;
            while self.step()? {
                steps += 1;
                if steps > ENDLESS {
                    return Err(TestCaseError::fail("the agents never come to rest"));
                }
            }
            self.take_effects()?;
            let due = |node: &Node| {
                let due = node.agent.as_ref()?.next_due()?;
                Some(due.0.saturating_sub(node.ahead))
            };
            let next = self.nodes.iter().filter_map(due).min();
            let late = self.late.iter().map(|(at, _)| *at).min();
            let next = next
                .into_iter()
                .chain(late)
                .min()
                .unwrap_or(end)
                .max(self.now + 1);
            if next > end {
                self.now = end;
                return Ok(());
            }
            self.now = next;
            self.apply_late();
        }
    }

    fn apply_late(&mut self) {
        let now = self.now;
        let due: Vec<_> = self.late.extract_if(.., |(at, _)| *at <= now).collect();
        for (_, call) in due {
            self.server.apply(call.subject, &call.request);
        }
    }

    /// Everything works again, and as much time passes as agents need to come to rest.
    fn settle(&mut self) -> Result<(), TestCaseError> {
        self.faults_of_ten = 0;
        for node in 0..self.nodes.len() {
            self.nodes[node].is_cut = false;
            self.set_ready(node, true);
            self.start(node);
            if !self.nodes[node].is_fed {
                self.nodes[node].feed_all(self.now);
            }
        }
        let is_prompt = !self.has_faults && !self.has_lookups && !self.is_tampered;
        self.advance(if is_prompt { PROMPT } else { REPEATED })?;
        if self.is_tampered {
            // The machines are suspended, which costs less than what they do meanwhile.
            self.now += u64::try_from(VERIFIED.as_nanos()).unwrap();
            self.apply_late();
            self.advance(REPEATED)?;
        }
        Ok(())
    }

    /// The end of a sequence.
    pub(super) fn finish(mut self) -> Result<(), TestCaseError> {
        self.settle()?;
        checks::rest(&self)?;
        (self.writes, self.reads) = (0, 0);
        self.advance(QUIET)?;
        checks::quiet(&self)?;
        for node in 0..self.nodes.len() {
            for s in 0..super::ops::SUBJECTS {
                self.nodes[node].end(subject(s), self.now);
                self.nodes[node].feed(subject(s), self.now);
            }
        }
        self.advance(PROMPT)?;
        checks::rest(&self)?;
        checks::kept(&self)
    }
}
