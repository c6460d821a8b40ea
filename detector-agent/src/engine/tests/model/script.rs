//! Random sequences of what happens on a node, and how the agent comes to know of it.

use std::collections::{BTreeSet, HashMap, HashSet};

use proptest::{
    prelude::*,
    sample::select,
    test_runner::{TestCaseError, TestCaseResult},
};

use super::super::*;
use super::claims::Expected;
use super::world::{BRIDGES, Dump, PODS, UPLINK, World};

/// How a new pod device's other end comes about.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    /// In a namespace of its own; the kernel has numbered it already, or will later.
    Own { told: bool },
    /// A second interface of the pod of another device.
    Second(IfIndex),
    /// In a namespace with the number of a dying one.
    Reused(IfIndex),
    /// None that the node sees, as behind a tap.
    None,
}

#[derive(Clone, Debug)]
pub(super) enum Op {
    Create {
        ifindex: IfIndex,
        end: End,
        readable: bool,
        master: Option<IfIndex>,
        has: Vec<IpAddr>,
    },
    Delete(IfIndex),
    TellEnd(IfIndex),
    Enslave(IfIndex, Option<IfIndex>),
    SetUp(IfIndex, bool),
    CreateBridge(IfIndex),
    DeleteBridge(IfIndex, bool),
    Assign(IfIndex, IpAddr),
    Unassign(IfIndex, IpAddr),
    Host(IfIndex, IpAddr),
    Unhost(IfIndex, IpAddr),
    Neighbour(IfIndex, IpAddr, Mac, NudState),
    NeighbourGone(IfIndex, IpAddr),
    Learn(IfIndex, IfIndex, Mac),
    Age(IfIndex, Mac),
    Route(IpAddr, IfIndex),
    RouteGone(IpAddr),
    Frame {
        ifindex: IfIndex,
        address: IpAddr,
        vlan: Vlan,
        tentative: bool,
        late: u64,
    },
    Begin(SnapshotScope),
    Dump(usize),
    Finish(usize),
    Fail(usize),
    Wait(u64),
    /// From here on nothing reaches the agent.
    Lose,
    /// The agent is down for this many seconds.
    Restart(u64),
    /// The next step on the way back from a loss or a restart.
    Recover,
}

fn addresses() -> [IpAddr; 4] {
    ["10.0.0.1", "10.0.0.2", "2001:db8::1", "fe80::1"].map(ip)
}

/// What a sequence is mostly about: few enough things happen to few enough devices that they meet.
#[derive(Clone, Copy, Debug)]
struct Theme {
    pods: IfIndex,
    addresses: usize,
    hardware: u8,
    topology: u32,
    assigned: u32,
    host: u32,
    neighbours: u32,
    forwarding: u32,
    frames: u32,
    readings: u32,
    waits: u32,
    lapses: u32,
}

const EVERYTHING: Theme = Theme {
    pods: 5,
    addresses: 4,
    hardware: 4,
    topology: 10,
    assigned: 8,
    host: 4,
    neighbours: 7,
    forwarding: 6,
    frames: 5,
    readings: 6,
    waits: 2,
    lapses: 6,
};

const THEMES: [Theme; 5] = [
    EVERYTHING,
    // Pods behind bridges.
    Theme {
        pods: 3,
        addresses: 1,
        hardware: 3,
        topology: 4,
        neighbours: 14,
        forwarding: 10,
        frames: 2,
        lapses: 1,
        ..EVERYTHING
    },
    // What is heard, asked, and lapses.
    Theme {
        pods: 3,
        addresses: 1,
        topology: 3,
        neighbours: 2,
        forwarding: 1,
        frames: 20,
        waits: 5,
        lapses: 1,
        ..EVERYTHING
    },
    // Devices that come and go, with everything on them read and lost.
    Theme {
        pods: 2,
        addresses: 1,
        topology: 14,
        forwarding: 3,
        readings: 14,
        waits: 1,
        lapses: 10,
        ..EVERYTHING
    },
    // Pods without bridges.
    Theme {
        pods: 3,
        addresses: 2,
        hardware: 2,
        topology: 5,
        assigned: 12,
        neighbours: 12,
        forwarding: 0,
        lapses: 2,
        ..EVERYTHING
    },
];

pub(super) fn ops() -> impl Strategy<Value = Vec<Op>> {
    select(THEMES.to_vec()).prop_flat_map(|theme| proptest::collection::vec(op(theme), 1..80))
}

fn op(theme: Theme) -> impl Strategy<Value = Op> {
    let pod = move || 1..=theme.pods;
    let bridge = || select(BRIDGES.to_vec());
    let anywhere = move || prop_oneof![2 => pod(), 1 => Just(UPLINK), 1 => bridge()];
    let followed =
        move || prop_oneof![u32::from(theme.forwarding > 0) => bridge(), 1 => pod()].boxed();
    let address = move || select(addresses()[4 - theme.addresses..].to_vec());
    let address = move || {
        // The first is a plain one in every theme.
        prop_oneof![1 => Just(addresses()[0]), 1 => address()]
    };
    let hardware = move || (1..=theme.hardware).prop_map(mac);
    let vlan = select(vec![
        Vlan::default(),
        Vlan::default(),
        Vlan::default(),
        Vlan {
            outer: Some(5),
            inner: None,
        },
        Vlan {
            outer: Some(5),
            inner: Some(6),
        },
    ]);
    let state = select(vec![
        NudState::Reachable,
        NudState::Reachable,
        NudState::Stale,
        NudState::Stale,
        NudState::Delay,
        NudState::Probe,
        NudState::Permanent,
        NudState::NoArp,
    ]);
    let end = prop_oneof![
        6 => Just(End::Own { told: true }),
        1 => Just(End::Own { told: false }),
        2 => pod().prop_map(End::Second),
        1 => pod().prop_map(End::Reused),
        1 => Just(End::None),
    ];
    let scope = prop_oneof![
        Just(SnapshotScope::Node),
        pod().prop_map(SnapshotScope::Device)
    ];
    let create = (
        pod(),
        end,
        proptest::bool::weighted(0.8),
        proptest::option::of(bridge()),
        proptest::collection::vec(address(), 0..2),
    );
    let topology = prop_oneof![
        8 => create.prop_map(|(ifindex, end, readable, master, has)| Op::Create {
            ifindex, end, readable, master, has,
        }),
        3 => pod().prop_map(Op::Delete),
        1 => pod().prop_map(Op::TellEnd),
        2 => (pod(), proptest::option::of(bridge())).prop_map(|(p, b)| Op::Enslave(p, b)),
        1 => (anywhere(), any::<bool>()).prop_map(|(i, up)| Op::SetUp(i, up)),
        2 => bridge().prop_map(Op::CreateBridge),
        1 => (bridge(), any::<bool>()).prop_map(|(b, first)| Op::DeleteBridge(b, first)),
    ];
    let assigned = prop_oneof![
        3 => (pod(), address()).prop_map(|(i, a)| Op::Assign(i, a)),
        2 => (pod(), address()).prop_map(|(i, a)| Op::Unassign(i, a)),
    ];
    let host = prop_oneof![
        2 => (anywhere(), address()).prop_map(|(i, a)| Op::Host(i, a)),
        2 => (anywhere(), address()).prop_map(|(i, a)| Op::Unhost(i, a)),
        2 => (address(), anywhere()).prop_map(|(a, i)| Op::Route(a, i)),
        1 => address().prop_map(Op::RouteGone),
    ];
    let neighbours = prop_oneof![
        4 => (followed(), address(), hardware(), state)
            .prop_map(|(i, a, m, s)| Op::Neighbour(i, a, m, s)),
        1 => (followed(), address()).prop_map(|(i, a)| Op::NeighbourGone(i, a)),
    ];
    let forwarding = prop_oneof![
        5 => (bridge(), pod(), hardware()).prop_map(|(b, p, m)| Op::Learn(b, p, m)),
        2 => (bridge(), hardware()).prop_map(|(b, m)| Op::Age(b, m)),
    ];
    let frames = (
        pod(),
        address(),
        vlan,
        proptest::bool::weighted(0.4),
        0..4u64,
    )
        .prop_map(|(ifindex, address, vlan, tentative, late)| Op::Frame {
            ifindex,
            address,
            vlan,
            tentative,
            late,
        });
    let readings = prop_oneof![
        2 => scope.prop_map(Op::Begin),
        2 => (0..3usize).prop_map(Op::Dump),
        2 => (0..3usize).prop_map(Op::Finish),
        1 => (0..3usize).prop_map(Op::Fail),
    ];
    let lapses = prop_oneof![
        1 => Just(Op::Lose),
        1 => select(vec![0, 30, 120, 650]).prop_map(Op::Restart),
        4 => Just(Op::Recover),
    ];
    prop_oneof![
        theme.topology => topology,
        theme.assigned => assigned,
        theme.host => host,
        theme.neighbours => neighbours,
        theme.forwarding => forwarding,
        theme.frames => frames,
        theme.readings => readings,
        theme.waits => select(vec![1, 30, 61, 120, 181, 301, 601]).prop_map(Op::Wait),
        theme.lapses => lapses,
    ]
}

/// How far the agent's knowledge is from the truth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Synced,
    /// Nothing reaches the agent.
    Losing,
    /// Live words reach it again.
    Noticed,
    /// A reading of everything is under way that will put it right.
    Reading(SnapshotToken),
    /// The same, and the kernel has given its answer.
    Answered(SnapshotToken),
}

struct Pending {
    token: SnapshotToken,
    scope: SnapshotScope,
    begun: u64,
    dump: Option<Dump>,
}

pub(super) struct Script {
    engine: Engine,
    world: World,
    stage: Stage,
    pending: Vec<Pending>,
    /// Where the newest merged reading of everything began.
    newest: u64,
    open: HashMap<ConflictId, Conflict>,
    closed: HashSet<ConflictId>,
    /// What the engine asked for while its knowledge was put right.
    attach: BTreeSet<IfIndex>,
    read_again: bool,
    starts: u64,
    restarted: bool,
}

impl Script {
    pub(super) fn new() -> Self {
        let mut script = Self {
            engine: Engine::new(Settings::default()),
            world: World {
                now: Timestamp(1_000 * MS),
                ..World::default()
            },
            stage: Stage::Synced,
            pending: Vec::new(),
            newest: 0,
            open: HashMap::new(),
            closed: HashSet::new(),
            attach: BTreeSet::new(),
            read_again: false,
            starts: 0,
            restarted: false,
        };
        let uplink = script.world.create(uplink(UPLINK), None, true);
        script.tell(uplink).expect("an uplink is no conflict");
        script
    }

    /// All is put right, and then once more by an agent that knows nothing of the past.
    pub(super) fn finish(mut self) -> TestCaseResult {
        self.recover_fully()?;
        self.run(Op::Restart(1))?;
        self.recover_fully()
    }

    fn recover_fully(&mut self) -> TestCaseResult {
        while self.stage != Stage::Synced {
            self.run(Op::Recover)?;
        }
        Ok(())
    }

    pub(super) fn run(&mut self, op: Op) -> TestCaseResult {
        self.world.now.0 += MS;
        match op {
            Op::Create {
                ifindex,
                end,
                readable,
                master,
                has,
            } => self.create(ifindex, end, readable, master, &has),
            Op::Delete(ifindex) => self.word(|w| w.gone(ifindex)),
            Op::TellEnd(ifindex) => self.word(|w| w.tell_end(ifindex)),
            Op::Enslave(ifindex, master) => self.word(|w| w.enslave(ifindex, master)),
            Op::SetUp(ifindex, up) => self.word(|w| w.set_up(ifindex, up)),
            Op::CreateBridge(ifindex) => {
                if self.world.is_bridge(ifindex) {
                    return Ok(());
                }
                self.word(|w| Some(w.create(bridge(ifindex), None, true)))
            }
            Op::DeleteBridge(ifindex, ports_first) => {
                if ports_first && self.world.is_bridge(ifindex) {
                    for port in PODS {
                        if self.world.bridge_of(port) == Some(ifindex) {
                            self.word(|w| w.enslave(port, None))?;
                            self.world.now.0 += MS;
                        }
                    }
                }
                self.word(|w| w.gone(ifindex))
            }
            Op::Assign(ifindex, address) => self.word(|w| w.assign(ifindex, address)),
            Op::Unassign(ifindex, address) => {
                if self.stage == Stage::Synced || self.leaves_no_trace(ifindex, address) {
                    self.word(|w| w.unassign(ifindex, address))
                } else {
                    Ok(())
                }
            }
            Op::Host(ifindex, address) => self.word(|w| w.host(ifindex, address)),
            Op::Unhost(ifindex, address) => self.word(|w| w.unhost(ifindex, address)),
            Op::Neighbour(ifindex, address, mac, state) => {
                self.neighbour(ifindex, address, mac, state)
            }
            Op::NeighbourGone(ifindex, address) => {
                self.word(|w| w.neighbour_gone(ifindex, address))
            }
            Op::Learn(bridge, port, mac) => self.word(|w| w.learn(bridge, port, mac)),
            Op::Age(bridge, mac) => {
                // Behind which port it stood the agent can know only if it missed nothing.
                if self.stage == Stage::Synced {
                    self.word(|w| w.age(bridge, mac))
                } else {
                    Ok(())
                }
            }
            Op::Route(address, ifindex) => self.word(|w| w.route(address, ifindex)),
            Op::RouteGone(address) => self.word(|w| w.route_gone(address)),
            Op::Frame {
                ifindex,
                address,
                vlan,
                tentative,
                late,
            } => {
                let claim = FrameClaim {
                    ifindex,
                    kind: if address.is_ipv4() {
                        FrameKind::Arp
                    } else {
                        FrameKind::Ndp
                    },
                    tentative,
                    address,
                    mac: mac(u8::try_from(ifindex).unwrap()),
                    ether_source: mac(u8::try_from(ifindex).unwrap()),
                    vlan,
                };
                self.frame(claim, late)
            }
            Op::Begin(scope) => self.begin(scope).map(drop),
            Op::Dump(which) => {
                if let Some(pending) = self.pending.get_mut(which) {
                    pending.dump = Some(self.world.dump(pending.scope));
                }
                Ok(())
            }
            Op::Finish(which) => {
                if self.pending.get(which).is_some_and(|p| p.dump.is_some()) {
                    self.finish_reading(which)?;
                }
                Ok(())
            }
            Op::Fail(which) => {
                if which < self.pending.len() {
                    let failed = self.pending.remove(which);
                    self.tell(Observation::SnapshotFailed(failed.token))?;
                }
                Ok(())
            }
            Op::Wait(secs) => self.wait(Duration::from_secs(secs)),
            Op::Lose => {
                if self.stage == Stage::Synced {
                    self.stage = Stage::Losing;
                    self.restarted = false;
                    self.attach.clear();
                    self.read_again = false;
                }
                Ok(())
            }
            Op::Restart(secs) => {
                if self.stage == Stage::Synced {
                    self.restart(Duration::from_secs(secs))?;
                }
                Ok(())
            }
            Op::Recover => self.recover(),
        }
    }

    // ---- what happens ----

    fn create(
        &mut self,
        ifindex: IfIndex,
        end: End,
        readable: bool,
        master: Option<IfIndex>,
        has: &[IpAddr],
    ) -> TestCaseResult {
        if self.world.links.contains_key(&ifindex) {
            return Ok(());
        }
        let taken: HashSet<Peer> = self.world.links.values().filter_map(|d| d.end).collect();
        let first = |nsid| Peer { nsid, ifindex: 2 };
        let fresh = (0..)
            .find(|n| taken.iter().all(|p| p.nsid != *n))
            .map(first);
        let of = |other| self.world.links.get(&other).and_then(|d| d.link.peer);
        let (peer, told) = match end {
            End::Own { told } => (fresh, told),
            End::Second(other) => {
                let second = of(other).map(|p| Peer { ifindex: 3, ..p });
                (second.filter(|p| !taken.contains(p)).or(fresh), true)
            }
            End::Reused(other) => (of(other).or(fresh), true),
            End::None => (None, true),
        };
        let link = Link {
            master: master.filter(|m| self.world.is_bridge(*m)),
            ..pod(ifindex)
        };
        let observation = self.world.create(link, peer, told);
        if let Some(device) = self.world.links.get_mut(&ifindex) {
            device.readable &= readable;
            if device.readable {
                // Set before the node sees the device: nobody says so.
                device.ever.extend(has);
                device.addresses.extend(has.iter().map(|a| (*a, false)));
            }
        }
        self.tell(observation)
    }

    /// While the agent's knowledge is not the truth, an address that goes must leave nothing that depends on whether the
    /// agent saw it go.
    fn leaves_no_trace(&self, ifindex: IfIndex, address: IpAddr) -> bool {
        let heard = self.world.heard.iter().any(|h| {
            (h.claim.ifindex, h.claim.address) == (ifindex, address)
                && h.claim.vlan == Vlan::default()
        });
        let mut entries = self.world.neighbours.iter();
        let entry = entries.any(|((_, a), e)| *a == address && e.state != NudState::Permanent);
        !heard && !entry
    }

    fn neighbour(
        &mut self,
        ifindex: IfIndex,
        address: IpAddr,
        mac: Mac,
        state: NudState,
    ) -> TestCaseResult {
        let known = self.world.neighbours.get(&(ifindex, address));
        // Whoever sets an entry removes it before the kernel has it for its own again.
        if known.is_some_and(|e| e.state == NudState::Permanent) && state != NudState::Permanent {
            return Ok(());
        }
        let known_by_agent = self
            .engine
            .facts()
            .get(address)
            .is_some_and(|f| f.neighbours.iter().any(|n| n.ifindex == ifindex));
        let fresh = known.is_none() && !known_by_agent;
        let lossy = self.stage != Stage::Synced && self.stage != Stage::Losing;
        if lossy && self.world.is_bridge(ifindex) && !fresh {
            return Ok(());
        }
        self.word(|w| w.neighbour(ifindex, address, mac, state))
    }

    fn frame(&mut self, claim: FrameClaim, late: u64) -> TestCaseResult {
        let at = if self.stage == Stage::Synced {
            Timestamp(self.world.now.0 - late * MS * u64::from(!claim.tentative))
        } else {
            let Some(device) = self.world.pod(claim.ifindex) else {
                return Ok(());
            };
            let same = |d: PodDevice| d.name == device.link.name;
            let known = self.engine.device(claim.ifindex).is_some_and(same);
            let sure = !device.ever.contains(&claim.address)
                || device.addresses.contains_key(&claim.address);
            if claim.tentative || !known || !sure || self.stage == Stage::Losing {
                return Ok(());
            }
            self.world.now
        };
        let contested = claim.tentative && self.world.contested(&claim);
        match self.world.hear(claim, at, contested) {
            Some(observation) => self.tell_at(at, observation),
            None => Ok(()),
        }
    }

    fn wait(&mut self, time: Duration) -> TestCaseResult {
        let until = self.world.now + time;
        while let Some(next) = self.engine.next_expiry().filter(|next| *next <= until) {
            self.world.now = self.world.now.max(next);
            let mut effects = Vec::new();
            self.engine.expire(self.world.now, &mut effects);
            self.check(effects)?;
        }
        self.world.now = until;
        self.check(Vec::new())
    }

    // ---- how the agent comes to know ----

    fn word(&mut self, change: impl FnOnce(&mut World) -> Option<Observation>) -> TestCaseResult {
        match change(&mut self.world) {
            Some(observation) => self.tell(observation),
            None => self.check(Vec::new()),
        }
    }

    fn tell(&mut self, what: Observation) -> TestCaseResult {
        self.tell_at(self.world.now, what)
    }

    fn tell_at(&mut self, at: Timestamp, what: Observation) -> TestCaseResult {
        if self.stage == Stage::Losing {
            return Ok(());
        }
        let mut effects = Vec::new();
        self.engine.step(
            self.world.now,
            TimedObservation {
                at,
                observation: what,
            },
            &mut effects,
        );
        self.check(effects)
    }

    fn begin(&mut self, scope: SnapshotScope) -> Result<SnapshotToken, TestCaseError> {
        self.world.readings += 1;
        let token = SnapshotToken(self.world.readings);
        self.pending.push(Pending {
            token,
            scope,
            begun: self.world.readings,
            dump: None,
        });
        // What the agent itself begins is never lost.
        let mut effects = Vec::new();
        let begun = TimedObservation {
            at: self.world.now,
            observation: Observation::SnapshotStarted(token),
        };
        self.engine.step(self.world.now, begun, &mut effects);
        self.check(effects)?;
        Ok(token)
    }

    fn finish_reading(&mut self, which: usize) -> TestCaseResult {
        let pending = self.pending.remove(which);
        let dump = pending.dump.expect("answered");
        if pending.begun > self.newest {
            if pending.scope == SnapshotScope::Node {
                self.newest = pending.begun;
            }
            self.world.taken_over(&dump, pending.begun);
        }
        let what = Observation::Snapshot(
            pending.token,
            pending.scope,
            Box::new(dump.snapshot.clone()),
        );
        let mut effects = Vec::new();
        let read = TimedObservation {
            at: self.world.now,
            observation: what,
        };
        self.engine.step(self.world.now, read, &mut effects);
        self.check(effects)
    }

    /// A reading that nothing happens during.
    fn read(&mut self, scope: SnapshotScope) -> TestCaseResult {
        self.world.now.0 += MS;
        self.begin(scope)?;
        let last = self.pending.len() - 1;
        self.pending[last].dump = Some(self.world.dump(scope));
        self.finish_reading(last)
    }

    fn restart(&mut self, down: Duration) -> TestCaseResult {
        self.starts += 1;
        self.restarted = true;
        self.attach.clear();
        self.read_again = false;
        self.pending.clear();
        self.newest = 0;
        let kept = self.engine.open_records(self.world.now);
        prop_assert_eq!(kept.len(), self.open.len());
        self.world.forget_history(&addresses());
        self.engine = Engine::new(Settings {
            id_seed: self.starts,
            ..Settings::default()
        });
        // As it comes back from the disk.
        let text = serde_json::to_vec(&kept).expect("plain data");
        let back: Vec<OpenConflict> = serde_json::from_slice(&text).expect("the same data");
        prop_assert_eq!(&kept, &back);
        self.engine.restore(back);
        self.world.now = self.world.now + down;
        self.stage = Stage::Noticed;
        let token = self.begin(SnapshotScope::Node)?;
        self.stage = Stage::Reading(token);
        Ok(())
    }

    fn recover(&mut self) -> TestCaseResult {
        match self.stage {
            Stage::Synced => Ok(()),
            Stage::Losing => {
                self.stage = Stage::Noticed;
                Ok(())
            }
            Stage::Noticed => {
                let token = self.begin(SnapshotScope::Node)?;
                self.stage = Stage::Reading(token);
                Ok(())
            }
            Stage::Reading(token) => {
                self.forget_what_depends_on_the_loss()?;
                if let Some(pending) = self.pending.iter_mut().find(|p| p.token == token) {
                    pending.dump = Some(self.world.dump(SnapshotScope::Node));
                    self.stage = Stage::Answered(token);
                } else {
                    // It was failed or finished before its time: begin anew.
                    self.stage = Stage::Noticed;
                }
                Ok(())
            }
            Stage::Answered(token) => {
                let Some(which) = self.pending.iter().position(|p| p.token == token) else {
                    self.stage = Stage::Noticed;
                    return Ok(());
                };
                self.finish_reading(which)?;
                while self.read_again || !self.attach.is_empty() {
                    if std::mem::take(&mut self.read_again) {
                        self.read(SnapshotScope::Node)?;
                    }
                    if let Some(ifindex) = self.attach.pop_first() {
                        self.read(SnapshotScope::Device(ifindex))?;
                    }
                }
                // What bridges' entries held before is over then.
                self.wait(Duration::from_secs(181))?;
                self.stage = Stage::Synced;
                self.check(Vec::new())
            }
        }
    }

    /// Where the agent's answer depends on whether it saw something that was lost, the kernel drops the entry, live.
    fn forget_what_depends_on_the_loss(&mut self) -> TestCaseResult {
        let world = &self.world;
        let restarted = self.restarted;
        let doubtful = world.neighbours.iter().filter(|((ifindex, address), e)| {
            if restarted {
                return e.refuted;
            }
            let holder = world.links.get(ifindex);
            let held = holder.is_some_and(|d| d.addresses.contains_key(address));
            world.is_bridge(*ifindex) || (e.state != NudState::Permanent && !held)
        });
        for (ifindex, address) in doubtful.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.word(|w| w.neighbour_gone(ifindex, address))?;
        }
        Ok(())
    }

    // ---- what must hold ----

    /// Effects follow one another as they must; with nothing lost, the open conflicts are the expected ones.
    fn check(&mut self, effects: Vec<Effect>) -> TestCaseResult {
        for effect in effects {
            match effect {
                Effect::Raised(conflict) => {
                    prop_assert!(!self.closed.contains(&conflict.id), "raised again");
                    prop_assert!(conflict.resolved_at.is_none());
                    let key = |c: &Conflict| (c.address, c.vlan);
                    let elsewhere = conflict.address == ip("fe80::1");
                    prop_assert!(
                        elsewhere || self.open.values().all(|c| key(c) != key(&conflict)),
                        "raised although it is open"
                    );
                    let before = self.open.insert(conflict.id, conflict);
                    prop_assert!(before.is_none(), "raised twice");
                }
                Effect::Updated(conflict) => {
                    let before = self.open.insert(conflict.id, conflict.clone());
                    prop_assert!(before.is_some(), "updated before it was raised");
                    let before = before.expect("is some");
                    prop_assert_ne!(seen(&before), seen(&conflict), "nothing changed");
                    prop_assert_eq!(before.raised_at, conflict.raised_at);
                }
                Effect::Resolved(conflict) => {
                    prop_assert!(
                        self.open.remove(&conflict.id).is_some(),
                        "resolved unraised"
                    );
                    prop_assert!(self.closed.insert(conflict.id), "resolved twice");
                    prop_assert!(conflict.resolved_at.is_some());
                }
                Effect::Attach(device) => {
                    if self.stage != Stage::Synced {
                        self.attach.insert(device.ifindex);
                    }
                }
                Effect::Renamed(_) | Effect::Detach(_) | Effect::Anomaly(_) => {}
                Effect::Resync => self.read_again = true,
            }
        }
        if self.engine.is_restoring() {
            return Ok(());
        }
        let mut shown: Vec<_> = self.open.values().map(seen).collect();
        shown.sort();
        let mut open: Vec<_> = self
            .engine
            .conflicts(self.world.now)
            .iter()
            .map(seen)
            .collect();
        open.sort();
        prop_assert_eq!(&shown, &open, "what was said is not what is open");
        if self.stage == Stage::Synced {
            prop_assert_eq!(open, self.world.expected(&addresses()));
        }
        Ok(())
    }
}

fn seen(conflict: &Conflict) -> Expected {
    Expected {
        address: conflict.address,
        vlan: (conflict.vlan.outer, conflict.vlan.inner),
        kind: conflict.kind,
        confidence: conflict.confidence,
        claimants: conflict
            .present()
            .map(|c| match c.id {
                ClaimantId::Host => "node".to_owned(),
                _ => claimant_text(c),
            })
            .collect(),
        traffic_goes_to: conflict.traffic_goes_to.clone(),
    }
}
