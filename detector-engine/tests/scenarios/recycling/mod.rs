//! Namespace ids and link indexes that the kernel assigns again, while the agent lags behind the
//! kernel by any number of notifications, loses some of them, and reads devices at any time in
//! between.
//!
//! At no time does a claim name a pod that never had the address; and once the agent has caught up
//! the claims are exactly the kernel's addresses.

mod kernel;

use std::collections::{BTreeMap, BTreeSet};

use detector_common::Budget;
use proptest::{prelude::*, test_runner::TestCaseResult};

use super::*;
use kernel::Kernel;

#[derive(Clone, Debug)]
enum Op {
    Create(Vec<IpAddr>),
    DeleteNamespace(usize),
    DeletePair(usize),
    MovePeer(usize, usize),
    Assign(usize, IpAddr),
    Unassign(usize, IpAddr),
    /// The agent receives this many notifications.
    Receive(usize),
    /// The worker completes the next part of a read: the link, its addresses, the merge.
    Read(usize),
    /// A self-check of a device starts.
    SelfCheck(usize),
    /// The last notifications find no room; the agent receives the others and starts a resync.
    Overrun(usize),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let address = || proptest::sample::select(vec![ip("10.0.0.1"), ip("10.0.0.2")]);
    let nth = || 0..4_usize;
    let op = prop_oneof![
        4 => proptest::collection::vec(address(), 0..2).prop_map(Op::Create),
        3 => nth().prop_map(Op::DeleteNamespace),
        1 => nth().prop_map(Op::DeletePair),
        1 => (nth(), nth()).prop_map(|(from, to)| Op::MovePeer(from, to)),
        3 => (nth(), address()).prop_map(|(n, a)| Op::Assign(n, a)),
        2 => (nth(), address()).prop_map(|(n, a)| Op::Unassign(n, a)),
        4 => (1..6_usize).prop_map(Op::Receive),
        6 => nth().prop_map(Op::Read),
        1 => nth().prop_map(Op::SelfCheck),
        1 => (1..12_usize).prop_map(Op::Overrun),
    ];
    proptest::collection::vec(op, 1..60)
}

/// A read of one device by the worker, or a read of the node.
#[derive(Debug)]
struct Read {
    token: SnapshotToken,
    scope: SnapshotScope,
    /// The peer that the engine knew, which is read if the link shows none.
    known_peer: Option<Peer>,
    links: Option<Vec<Link>>,
    pods: Option<Vec<PodAddresses>>,
}

struct Agent {
    engine: Engine,
    kernel: Kernel,
    reads: Vec<Read>,
    tokens: u64,
    now: Timestamp,
}

impl Agent {
    fn new(bounds: Bounds) -> Self {
        let settings = Settings {
            bounds,
            ..Settings::default()
        };
        Self {
            engine: Engine::new(settings),
            kernel: Kernel::default(),
            reads: Vec::new(),
            tokens: 0,
            now: Timestamp(1_000 * MS),
        }
    }

    fn run(&mut self, op: Op) -> TestCaseResult {
        let kernel = &mut self.kernel;
        match op {
            Op::Create(addresses) => {
                if kernel.pairs.len() < 4 {
                    kernel.create(&addresses);
                }
            }
            Op::DeleteNamespace(n) => {
                if let Some(pair) = kernel.nth(n) {
                    kernel.delete_namespace(pair);
                }
            }
            Op::DeletePair(n) => {
                if let Some(pair) = kernel.nth(n) {
                    kernel.delete_pair(pair);
                }
            }
            Op::MovePeer(from, to) => {
                if let (Some(from), Some(to)) = (kernel.nth(from), kernel.nth(to)) {
                    kernel.move_peer(from, to);
                }
            }
            Op::Assign(n, address) => {
                if let Some(pair) = kernel.nth(n) {
                    kernel.assign(pair, address);
                }
            }
            Op::Unassign(n, address) => {
                if let Some(pair) = kernel.nth(n) {
                    kernel.unassign(pair, address);
                }
            }
            Op::Receive(count) => {
                for _ in 0..count {
                    self.receive()?;
                }
            }
            Op::Read(n) => {
                if !self.reads.is_empty() {
                    self.read(n % self.reads.len())?;
                }
            }
            Op::Overrun(count) => {
                let kept = self.kernel.queue.len().saturating_sub(count);
                self.kernel.queue.truncate(kept);
                while !self.kernel.queue.is_empty() {
                    self.receive()?;
                }
                self.step(Observation::NotificationsLost, false)?;
                self.start(SnapshotScope::Node, None, false)?;
            }
            Op::SelfCheck(n) => {
                let device = self
                    .kernel
                    .nth(n)
                    .and_then(|i| self.engine.view().device(i));
                // Like the worker's jobs, after the read that follows the attach; and not while a
                // resync is in flight.
                let scope = |d: &PodDevice| SnapshotScope::Device(d.ifindex);
                let others = [Some(SnapshotScope::Node), device.as_ref().map(scope)];
                let mut reads = self.reads.iter();
                if let Some(device) = device
                    && reads.all(|read| !others.contains(&Some(read.scope)))
                {
                    self.start(scope(&device), device.peer, true)?;
                }
            }
        }
        Ok(())
    }

    fn receive(&mut self) -> TestCaseResult {
        match self.kernel.queue.pop_front() {
            Some(observation) => self.step(observation, false),
            None => Ok(()),
        }
    }

    /// Steps the engine; `is_node_merge` as in the event loop: a snapshot of the node has read the
    /// devices that it finds.
    fn step(&mut self, observation: Observation, is_node_merge: bool) -> TestCaseResult {
        self.now.0 += MS;
        let at = self.now;
        let mut effects = Vec::new();
        let observation = TimedObservation { at, observation };
        self.engine.step(at, observation, &mut effects);
        self.apply(effects, is_node_merge)
    }

    fn apply(&mut self, effects: Vec<Effect>, is_node_merge: bool) -> TestCaseResult {
        for effect in effects {
            match effect {
                Effect::Attach(device) if !is_node_merge => {
                    self.start(SnapshotScope::Device(device.ifindex), device.peer, false)?;
                }
                Effect::ReadDevice(device) => {
                    self.start(SnapshotScope::Device(device.ifindex), device.peer, false)?;
                }
                Effect::Resync => self.start(SnapshotScope::Node, None, false)?,
                Effect::Corrected(found) => prop_assert!(false, "{found:?}"),
                _ => {}
            }
        }
        self.check_safety()
    }

    fn start(
        &mut self,
        scope: SnapshotScope,
        known_peer: Option<Peer>,
        is_self_check: bool,
    ) -> TestCaseResult {
        self.tokens += 1;
        let token = SnapshotToken(self.tokens);
        self.reads.push(Read {
            token,
            scope,
            known_peer,
            links: None,
            pods: None,
        });
        let started = if is_self_check {
            Observation::SelfCheckStarted(token)
        } else {
            Observation::SnapshotStarted(token)
        };
        self.step(started, false)
    }

    /// Does the next part of a read.
    fn read(&mut self, which: usize) -> TestCaseResult {
        let kernel = &self.kernel;
        let read = &mut self.reads[which];
        let Some(links) = &read.links else {
            read.links = Some(match read.scope {
                SnapshotScope::Node => {
                    let all = kernel.pairs.keys();
                    all.filter_map(|ifindex| kernel.link(*ifindex)).collect()
                }
                SnapshotScope::Device(ifindex) => kernel.link(ifindex).into_iter().collect(),
            });
            return Ok(());
        };
        if read.pods.is_none() {
            let peers: Vec<_> = links.iter().filter_map(|link| link.peer).collect();
            let pods = peers.into_iter().map(|peer| kernel.addresses_at(peer));
            let mut pods: Vec<_> = pods.collect();
            if links.is_empty() {
                pods.extend(read.known_peer.map(|peer| PodAddresses {
                    is_truncated: false,
                    internal: Vec::new(),
                    is_missing_internal: false,
                    peer,
                    mac: None,
                    addresses: None,
                }));
            }
            read.pods = Some(pods);
            return Ok(());
        }
        // The event loop receives everything before it merges.
        let read = self.reads.remove(which);
        while !self.kernel.queue.is_empty() {
            self.receive()?;
        }
        let snapshot = Snapshot {
            links: read.links.unwrap_or_default(),
            pods: read.pods.unwrap_or_default(),
            ..Snapshot::default()
        };
        let is_node = read.scope == SnapshotScope::Node;
        self.step(
            Observation::Snapshot(read.token, read.scope, Box::new(snapshot)),
            is_node,
        )
    }

    /// No claim names a pod that never had the address.
    fn check_safety(&self) -> TestCaseResult {
        for (address, devices) in self.claims() {
            for ifindex in devices {
                let had = self.kernel.history.get(&ifindex);
                prop_assert!(
                    had.is_some_and(|had| had.contains(&address)),
                    "device {ifindex} never had {address}"
                );
            }
        }
        Ok(())
    }

    fn claims(&self) -> BTreeMap<IpAddr, BTreeSet<IfIndex>> {
        let mut claims = BTreeMap::<_, BTreeSet<_>>::new();
        for address in self.engine.view().addresses() {
            for claim in self.engine.view().claims_of(address, self.now) {
                let devices = claims.entry(address).or_default();
                devices.insert(claim.claimant.ifindex);
            }
        }
        claims
    }

    /// Everything is received and read.
    fn catch_up(&mut self) -> TestCaseResult {
        loop {
            while !self.kernel.queue.is_empty() {
                self.receive()?;
            }
            if self.reads.is_empty() {
                return Ok(());
            }
            self.read(0)?;
        }
    }

    fn wait(&mut self, time: Duration) -> TestCaseResult {
        self.now = self.now + time;
        let mut effects = Vec::new();
        self.engine.step(
            self.now,
            TimedObservation::new(self.now, Observation::DeadlineReached),
            &mut effects,
        );
        self.apply(effects, false)
    }

    /// The agent catches up, and every device is checked.
    fn finish(mut self) -> TestCaseResult {
        self.catch_up()?;
        // What was beyond a budget is read within eight seconds, four devices in each.
        for _ in 0..10 {
            self.wait(Duration::from_secs(1))?;
            self.catch_up()?;
        }
        let mut expected = BTreeMap::<_, BTreeSet<_>>::new();
        for (ifindex, pair) in &self.kernel.pairs {
            for address in &pair.addresses {
                expected.entry(*address).or_default().insert(*ifindex);
            }
        }
        prop_assert_eq!(self.claims(), expected);
        for ifindex in self.kernel.pairs.keys().copied().collect::<Vec<_>>() {
            let device = self.engine.view().device(ifindex).expect("a known device");
            self.start(SnapshotScope::Device(ifindex), device.peer, true)?;
            for _ in 0..3 {
                self.read(0)?;
            }
        }
        self.wait(Duration::from_secs(5))
    }
}

/// Runs a sequence of operations, and lets the agent catch up.
fn run(ops: Vec<Op>, bounds: Bounds) -> TestCaseResult {
    let mut agent = Agent::new(bounds);
    for op in ops {
        agent.run(op)?;
    }
    agent.finish()
}

#[test]
fn move_of_a_peer_is_not_lost_while_only_an_older_snapshot_shows_the_device() {
    let empty = || Op::Create(Vec::new());
    let lost = [empty(), Op::Overrun(3), empty()];
    let moved = [Op::Read(0), Op::MovePeer(0, 1)];
    let ops = lost.into_iter().chain(moved).collect();
    run(ops, Bounds::default()).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 4_000,
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..ProptestConfig::default()
    })]

    #[test]
    fn claims_never_move_to_the_next_holder_of_an_id(ops in ops()) {
        run(ops, Bounds::default())?;
    }

    #[test]
    fn addresses_of_a_device_beyond_its_budget_are_read(ops in ops()) {
        let bounds = Bounds {
            address_changes: Budget::new(1, 50),
            contested_address_changes: Budget::new(1, 20),
            ..Bounds::default()
        };
        run(ops, bounds)?;
    }
}
