//! Behaviour of the engine by theme, told in a few words: a [`Node`] says what the kernel would say, one millisecond
//! after the other, and what the engine makes of it is compared as text.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod allocations;
mod anomalies;
mod anomaly_life;
mod bounds;
mod bridge;
mod duplicates;
mod ends;
mod evidence;
mod expiry;
mod flapping;
mod forwarding;
mod gateways;
mod host;
mod ipv6_vlan;
mod kept;
mod kernel;
mod life;
mod links;
mod lladdrs;
mod merging;
mod model;
mod moves;
mod neighbours;
mod overtaken;
mod pods;
mod pools;
mod prefixes;
mod reads;
mod receivers;
mod restart;
mod routes;
mod same_pod;
mod tentative;
mod under_way;
mod updates;

use std::{net::IpAddr, time::Duration};

use super::*;
use kernel::*;
use updates::*;

const MS: u64 = 1_000_000;

/// An engine with a clock, and the means to talk to it.
struct Node {
    engine: Engine,
    now: Timestamp,
    effects: Vec<Effect>,
    tokens: u64,
}

impl Node {
    fn new() -> Self {
        Self::with(Settings::default())
    }

    fn within(bounds: Bounds) -> Self {
        Self::with(Settings {
            bounds,
            ..Settings::default()
        })
    }

    fn with(settings: Settings) -> Self {
        Self {
            engine: Engine::new(settings),
            now: Timestamp(1_000 * MS),
            effects: Vec::new(),
            tokens: 0,
        }
    }

    /// A node with pod devices `1..=count`, their namespaces not read yet.
    fn with_pods(count: IfIndex) -> Self {
        let mut node = Self::new();
        for ifindex in 1..=count {
            node.pod(ifindex);
        }
        node
    }

    /// One millisecond later, this is told.
    fn tell(&mut self, what: Observation) {
        self.now.0 += MS;
        self.tell_at(self.now, what);
    }

    /// Told now, with an earlier kernel time.
    fn tell_at(&mut self, at: Timestamp, what: Observation) {
        self.engine.step(
            self.now,
            TimedObservation {
                at,
                observation: what,
            },
            &mut self.effects,
        );
    }

    /// Time passes, and the engine is asked to expire whenever it wants to be.
    fn wait(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(next) = self.engine.next_expiry().filter(|next| *next <= until) {
            self.now = self.now.max(next);
            self.engine.expire(self.now, &mut self.effects);
        }
        self.now = until;
    }

    fn wait_secs(&mut self, secs: u64) {
        self.wait(Duration::from_secs(secs));
    }

    /// What the engine said about conflicts since last asked, as [`show`] has it.
    fn said(&mut self) -> Vec<String> {
        let effects = std::mem::take(&mut self.effects);
        effects.iter().filter_map(told).collect()
    }

    /// What it said about devices and readings since last asked.
    fn asked(&mut self) -> Vec<String> {
        let effects = std::mem::take(&mut self.effects);
        effects.iter().filter_map(wanted).collect()
    }

    /// What it said, conflicts themselves.
    fn conflicts_said(&mut self) -> Vec<Conflict> {
        let effects = std::mem::take(&mut self.effects);
        let conflict = |effect| match effect {
            Effect::Raised(c) | Effect::Updated(c) | Effect::Resolved(c) => Some(c),
            _ => None,
        };
        effects.into_iter().filter_map(conflict).collect()
    }

    /// The open conflicts, as [`show`] has them.
    fn open(&self) -> Vec<String> {
        let open = self.engine.conflicts(self.now);
        open.iter().map(show).collect()
    }

    fn link(&mut self, link: Link) {
        self.tell(Observation::Link(link));
    }

    fn pod(&mut self, ifindex: IfIndex) {
        self.link(pod(ifindex));
    }

    /// A pod device that is a port of a bridge.
    fn port(&mut self, ifindex: IfIndex, bridge: IfIndex) {
        self.link(Link {
            master: Some(bridge),
            ..pod(ifindex)
        });
    }

    fn bridge(&mut self, ifindex: IfIndex) {
        self.link(bridge(ifindex));
    }

    fn gone(&mut self, ifindex: IfIndex) {
        self.tell(Observation::LinkGone(ifindex));
    }

    fn address(&mut self, ifindex: IfIndex, address: &str) {
        self.tell(Observation::PodAddress(peer(ifindex), assigned(address)));
    }

    fn address_gone(&mut self, ifindex: IfIndex, address: &str) {
        self.tell(Observation::PodAddressGone(
            peer(ifindex),
            ip(address),
            assigned(address).prefix_len,
        ));
    }

    fn host(&mut self, ifindex: IfIndex, address: &str) {
        self.tell(Observation::HostAddress(ifindex, assigned(address)));
    }

    fn host_gone(&mut self, ifindex: IfIndex, address: &str) {
        self.tell(Observation::HostAddressGone(
            ifindex,
            ip(address),
            assigned(address).prefix_len,
        ));
    }

    fn neighbour(&mut self, ifindex: IfIndex, address: &str, lladdr: Mac, state: NudState) {
        self.tell(Observation::Neighbour(neighbour(
            ifindex, address, lladdr, state,
        )));
    }

    fn neighbour_gone(&mut self, ifindex: IfIndex, address: &str) {
        self.tell(Observation::NeighbourGone(ifindex, ip(address)));
    }

    fn fdb(&mut self, bridge: IfIndex, port: IfIndex, mac: Mac) {
        self.tell(Observation::Fdb(fdb(bridge, port, mac)));
    }

    fn fdb_gone(&mut self, bridge: IfIndex, port: IfIndex, mac: Mac) {
        self.tell(Observation::FdbGone(fdb(bridge, port, mac)));
    }

    fn route(&mut self, destination: &str, ifindex: IfIndex) {
        self.tell(Observation::Route(route(destination, ifindex)));
    }

    fn route_gone(&mut self, destination: &str, ifindex: IfIndex) {
        self.tell(Observation::RouteGone(route(destination, ifindex)));
    }

    /// The pod sends a plain ARP claim (or NDP for IPv6).
    fn frame(&mut self, ifindex: IfIndex, address: &str) {
        self.tell(Observation::Frame(frame(ifindex, address)));
    }

    /// The pod asks whether the address is free.
    fn probe(&mut self, ifindex: IfIndex, address: &str) {
        self.tell(Observation::Frame(FrameClaim {
            tentative: true,
            ..frame(ifindex, address)
        }));
    }

    fn begin(&mut self) -> SnapshotToken {
        self.tokens += 1;
        self.tell(Observation::SnapshotStarted(SnapshotToken(self.tokens)));
        SnapshotToken(self.tokens)
    }

    fn finish_node(&mut self, token: SnapshotToken, snapshot: Snapshot) {
        self.tell(Observation::Snapshot(
            token,
            SnapshotScope::Node,
            Box::new(snapshot),
        ));
    }

    fn finish_device(&mut self, token: SnapshotToken, ifindex: IfIndex, snapshot: Snapshot) {
        self.tell(Observation::Snapshot(
            token,
            SnapshotScope::Device(ifindex),
            Box::new(snapshot),
        ));
    }

    fn read_node(&mut self, snapshot: Snapshot) {
        let token = self.begin();
        self.finish_node(token, snapshot);
    }

    /// The pod's namespace is read and holds exactly these addresses.
    fn read_pod(&mut self, ifindex: IfIndex, addresses: &[&str]) {
        let token = self.begin();
        let snapshot = Snapshot {
            pods: vec![holds(ifindex, addresses)],
            ..Snapshot::default()
        };
        self.finish_device(token, ifindex, snapshot);
    }
}

/// A bridge whose neighbour entry went from one of two ports to the other and back.
fn back_and_forth() -> Node {
    let mut node = Node::new();
    node.bridge(9);
    for port in 1..=2u8 {
        node.port(port.into(), 9);
        node.fdb(9, port.into(), mac(port));
    }
    for port in [1, 2, 1] {
        node.neighbour(9, "10.0.0.1", mac(port), NudState::Reachable);
    }
    node
}
