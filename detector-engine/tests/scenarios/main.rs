//! Behaviour of the engine by theme, through its public interface only. A [`Node`] feeds the engine observations one millisecond
//! apart, and its effects are compared as text.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot continue fails"
)]

mod address_changes;
mod anomalies;
mod anomaly_fixtures;
mod anomaly_lifecycle;
mod beginnings;
mod bounds;
mod bridge;
mod certain_claims;
mod conflict_records;
mod device_peers;
mod duplicates;
mod effect_text;
mod evidence;
mod expiry;
mod fdb;
mod fixtures;
mod flapping;
mod framing;
mod gateway_anomalies;
mod host;
mod internal_interfaces;
mod ipam_anomalies;
mod lifecycle;
mod links;
mod macs;
mod multi_interface_pods;
mod neighbours;
mod networks;
mod own_stacks;
mod pod_macs;
mod pods;
mod pool_coverage;
mod prefix_lengths;
mod probes;
mod recycling;
mod refusals;
mod repeats;
mod restart;
mod rightful;
mod route_anomalies;
mod route_answers;
mod router_anomalies;
mod scopes;
mod self_checks;
mod snapshot_merge;
mod snapshots;
mod superseded_snapshots;
mod sweeps;
mod traffic_receiver;
mod unusable_addresses;
mod update_pace;

use std::{net::IpAddr, sync::Arc, time::Duration};

use detector_engine::*;

use effect_text::*;
use fixtures::*;

const MS: u64 = 1_000_000;

/// A table row: its label, and what happens to the node.
type NodeCase = (&'static str, fn(&mut Node));

/// An engine with a virtual clock, and helpers that feed it observations.
struct Node {
    engine: Engine,
    now: Timestamp,
    effects: Vec<Effect>,
    tokens: u64,
}

impl Node {
    fn new() -> Self {
        Self::with_settings(Settings::default())
    }

    fn with_bounds(bounds: Bounds) -> Self {
        Self::with_settings(Settings {
            bounds,
            ..Settings::default()
        })
    }

    fn with_settings(settings: Settings) -> Self {
        Self {
            engine: Engine::new(settings),
            now: Timestamp(1_000 * MS),
            effects: Vec::new(),
            tokens: 0,
        }
    }

    /// A node with pod devices `1..=count` whose namespaces have not been read.
    fn with_pods(count: IfIndex) -> Self {
        let mut node = Self::new();
        node.pods(count);
        node
    }

    /// Two pods with the assigned address 10.0.0.1.
    fn with_duplicate() -> Self {
        let mut node = Self::with_pods(2);
        node.addresses(1..=2, "10.0.0.1");
        node
    }

    /// Two pods that claim 10.0.0.1 in frames only.
    fn with_observed_duplicate() -> Self {
        let mut node = Self::with_pods(2);
        node.frames(1..=2, "10.0.0.1");
        node
    }

    /// Bridge 9 with ports `1..=ports` and an FDB entry for the MAC of each port's pod.
    fn with_bridge(ports: u8) -> Self {
        let mut node = Self::new();
        node.bridge_with_ports(ports);
        node
    }

    /// One millisecond passes.
    fn tick(&mut self) {
        self.now.0 += MS;
    }

    /// Feeds an observation to the engine, one millisecond later.
    fn observe(&mut self, observation: Observation) {
        self.tick();
        self.observe_at(self.now, observation);
    }

    /// Feeds an observation now, with an earlier kernel timestamp.
    fn observe_at(&mut self, at: Timestamp, observation: Observation) {
        let observation = TimedObservation { at, observation };
        self.engine.step(self.now, observation, &mut self.effects);
        // With many addresses, that takes long.
        if self.engine.view().claim_count() < 100 || self.now.0.is_multiple_of(64 * MS) {
            assert_counts(&self.engine, self.now);
        }
    }

    /// Time passes; `expire` runs whenever the engine has scheduled it.
    fn wait(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(next) = self.engine.next_deadline().filter(|next| *next <= until) {
            self.now = self.now.max(next);
            self.engine.step(
                self.now,
                TimedObservation::new(self.now, Observation::DeadlineReached),
                &mut self.effects,
            );
        }
        self.now = until;
        assert_counts(&self.engine, self.now);
    }

    fn wait_secs(&mut self, secs: u64) {
        self.wait(Duration::from_secs(secs));
    }

    /// The conflict events since effects were last taken, as [`conflict_effect_text`].
    fn conflict_events(&mut self) -> Vec<String> {
        let effects = std::mem::take(&mut self.effects);
        effects.iter().filter_map(conflict_effect_text).collect()
    }

    /// The conflict events since effects were last taken are these.
    #[track_caller]
    fn expect<const N: usize>(&mut self, events: [&str; N]) {
        assert_eq!(self.conflict_events(), events);
    }

    /// The device effects and resync requests since effects were last taken.
    fn device_effects(&mut self) -> Vec<String> {
        let effects = std::mem::take(&mut self.effects);
        effects.iter().filter_map(device_effect_text).collect()
    }

    /// The conflicts in events since effects were last taken.
    fn reported_conflicts(&mut self) -> Vec<Conflict> {
        let effects = std::mem::take(&mut self.effects);
        let conflict = |effect| match effect {
            Effect::Raised(c) | Effect::Updated(c) | Effect::Resolved(c) => {
                Some(Arc::unwrap_or_clone(c))
            }
            _ => None,
        };
        effects.into_iter().filter_map(conflict).collect()
    }

    /// The open conflicts, as [`conflict_text`].
    fn open_conflicts(&self) -> Vec<String> {
        let open = self.engine.view().conflicts(self.now);
        open.iter().map(conflict_text).collect()
    }

    /// The open conflicts are these.
    #[track_caller]
    fn expect_open<const N: usize>(&self, conflicts: [&str; N]) {
        assert_eq!(self.open_conflicts(), conflicts);
    }

    fn link(&mut self, link: Link) {
        self.observe(Observation::Link(link));
    }

    fn pod(&mut self, ifindex: IfIndex) {
        self.link(pod(ifindex));
    }

    /// Pod devices `1..=count`.
    fn pods(&mut self, count: IfIndex) {
        for ifindex in 1..=count {
            self.pod(ifindex);
        }
    }

    /// A pod device that is a port of a bridge.
    fn port(&mut self, ifindex: IfIndex, bridge: IfIndex) {
        self.link(bridge_port(ifindex, bridge));
    }

    /// A bridge that the node routes.
    fn bridge(&mut self, ifindex: IfIndex) {
        self.link(bridge(ifindex));
        self.route_bridge(ifindex);
    }

    /// Gives a bridge an address of each family.
    fn route_bridge(&mut self, ifindex: IfIndex) {
        for (ifindex, address) in bridge_addresses(ifindex) {
            self.observe(Observation::HostAddress(ifindex, address));
        }
    }

    /// As [`Node::with_bridge`], on this node.
    fn bridge_with_ports(&mut self, ports: u8) {
        self.bridge(9);
        for port in 1..=ports {
            self.port(port.into(), 9);
            self.fdb(9, port.into(), mac(port));
        }
    }

    fn remove_link(&mut self, ifindex: IfIndex) {
        self.observe(Observation::LinkGone(ifindex));
    }

    fn address(&mut self, ifindex: IfIndex, address: &str) {
        self.observe(Observation::PodAddress(peer(ifindex), assigned(address)));
    }

    /// Several pods have the address.
    fn addresses(&mut self, pods: impl IntoIterator<Item = IfIndex>, address: &str) {
        for ifindex in pods {
            self.address(ifindex, address);
        }
    }

    fn address_gone(&mut self, ifindex: IfIndex, address: &str) {
        let id = assigned(address).id();
        self.observe(Observation::PodAddressGone(peer(ifindex), id));
    }

    /// The pod's end of a device has this hardware address.
    fn pod_link(&mut self, ifindex: IfIndex, mac: Mac) {
        self.observe(Observation::PodLink(peer(ifindex), mac));
    }

    fn host(&mut self, ifindex: IfIndex, address: &str) {
        self.observe(Observation::HostAddress(ifindex, assigned(address)));
    }

    fn host_gone(&mut self, ifindex: IfIndex, address: &str) {
        let id = assigned(address).id();
        self.observe(Observation::HostAddressGone(ifindex, id));
    }

    fn neighbour(&mut self, ifindex: IfIndex, address: &str, lladdr: Mac, state: NudState) {
        self.observe(Observation::Neighbour(neighbour(
            ifindex, address, lladdr, state,
        )));
    }

    fn neighbour_gone(&mut self, ifindex: IfIndex, address: &str) {
        self.observe(Observation::NeighbourGone(ifindex, ip(address)));
    }

    fn fdb(&mut self, bridge: IfIndex, port: IfIndex, mac: Mac) {
        self.observe(Observation::Fdb(fdb(bridge, port, mac)));
    }

    fn fdb_gone(&mut self, bridge: IfIndex, port: IfIndex, mac: Mac) {
        self.observe(Observation::FdbGone(fdb(bridge, port, mac)));
    }

    fn route(&mut self, destination: &str, ifindex: IfIndex) {
        self.observe(Observation::Route(route(destination, ifindex)));
    }

    fn route_gone(&mut self, destination: &str, ifindex: IfIndex) {
        self.observe(Observation::RouteGone(route(destination, ifindex)));
    }

    /// The pod sends an ARP claim (NDP for IPv6).
    fn frame(&mut self, ifindex: IfIndex, address: &str) {
        self.observe(Observation::Frame(frame(ifindex, address)));
    }

    /// Several pods send [`Node::frame`].
    fn frames(&mut self, pods: impl IntoIterator<Item = IfIndex>, address: &str) {
        for ifindex in pods {
            self.frame(ifindex, address);
        }
    }

    /// The pod probes whether the address is free.
    fn probe(&mut self, ifindex: IfIndex, address: &str) {
        self.observe(Observation::Frame(FrameClaim {
            tentative: true,
            ..frame(ifindex, address)
        }));
    }

    fn begin_snapshot(&mut self) -> SnapshotToken {
        self.tokens += 1;
        self.observe(Observation::SnapshotStarted(SnapshotToken(self.tokens)));
        SnapshotToken(self.tokens)
    }

    fn finish_node_snapshot(&mut self, token: SnapshotToken, snapshot: Snapshot) {
        self.observe(Observation::Snapshot(
            token,
            SnapshotScope::Node,
            Box::new(snapshot),
        ));
    }

    fn finish_device_snapshot(
        &mut self,
        token: SnapshotToken,
        ifindex: IfIndex,
        snapshot: Snapshot,
    ) {
        self.observe(Observation::Snapshot(
            token,
            SnapshotScope::Device(ifindex),
            Box::new(snapshot),
        ));
    }

    /// A snapshot of the node that nothing else happens during.
    fn resync(&mut self, snapshot: Snapshot) {
        let token = self.begin_snapshot();
        self.finish_node_snapshot(token, snapshot);
    }

    /// A snapshot of one pod device whose namespace has exactly these addresses.
    fn read_pod_addresses(&mut self, ifindex: IfIndex, addresses: &[&str]) {
        let token = self.begin_snapshot();
        let snapshot = Snapshot {
            pods: vec![pod_addresses(ifindex, addresses)],
            ..Snapshot::default()
        };
        self.finish_device_snapshot(token, ifindex, snapshot);
    }
}

/// What the engine keeps counted equals what it lists.
fn assert_counts(engine: &Engine, now: Timestamp) {
    let addresses = engine.view().addresses().into_iter();
    let claims = addresses.map(|a| engine.view().claims_of(a, now).len());
    assert_eq!(engine.view().claim_count(), claims.sum::<usize>(), "claims");
    let conflicts = engine.view().conflicts(now);
    for kind in ConflictKind::ALL {
        let listed = conflicts.iter().filter(|c| c.kind == kind).count();
        assert_eq!(engine.view().open_conflicts(kind), listed, "{kind:?}");
    }
    let anomalies = engine.view().anomalies();
    for kind in AnomalyKind::ALL {
        let listed = anomalies.iter().filter(|a| a.kind == kind).count();
        assert_eq!(engine.view().open_anomalies(kind), listed, "{kind:?}");
    }
}

/// A bridge whose neighbour entry moved from one of two ports to the other and back.
fn with_flapping_bridge_entry() -> Node {
    let mut node = Node::with_bridge(2);
    for port in [1, 2, 1] {
        node.neighbour(9, "10.0.0.1", mac(port), NudState::Reachable);
    }
    node
}
