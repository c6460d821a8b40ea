//! Behaviour of the engine by theme, told in a few words: a [`Node`] says what the kernel would say, one millisecond
//! after the other, and what the engine makes of it is compared as text.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod anomalies;
mod anomaly_life;
mod books;
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
mod life;
mod links;
mod lladdrs;
mod merging;
mod model;
mod moves;
mod neighbours;
mod overtaken;
mod pools;
mod prefixes;
mod reads;
mod receivers;
mod restart;
mod routes;
mod same_pod;
mod tentative;
mod under_way;

use std::{net::IpAddr, time::Duration};

use super::*;

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
        self.engine
            .step(self.now, Stamped { at, what }, &mut self.effects);
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

    fn begin(&mut self) -> ReadToken {
        self.tokens += 1;
        self.tell(Observation::ReadBegun(ReadToken(self.tokens)));
        ReadToken(self.tokens)
    }

    fn finish_node(&mut self, token: ReadToken, snapshot: Snapshot) {
        self.tell(Observation::Read(
            token,
            ReadScope::Node,
            Box::new(snapshot),
        ));
    }

    fn finish_device(&mut self, token: ReadToken, ifindex: IfIndex, snapshot: Snapshot) {
        self.tell(Observation::Read(
            token,
            ReadScope::Device(ifindex),
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

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}

/// The hardware address of the pod behind device `n`.
fn mac(n: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, n])
}

/// The other end of pod device `n`, in a namespace of its own.
fn peer(ifindex: IfIndex) -> Peer {
    Peer {
        nsid: i32::try_from(ifindex).unwrap(),
        ifindex: 2,
    }
}

fn pod(ifindex: IfIndex) -> Link {
    Link {
        ifindex,
        name: format!("veth{ifindex}"),
        alias: None,
        kind: LinkKind::Pod,
        mac: Some(Mac([0xee; 6])),
        master: None,
        peer: Some(peer(ifindex)),
        up: true,
    }
}

/// Untagged it is [`frame`].
fn tagged(ifindex: IfIndex, address: &str) -> Observation {
    Observation::Frame(FrameClaim {
        vlan: Vlan {
            outer: Some(5),
            inner: None,
        },
        ..frame(ifindex, address)
    })
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

fn bridge(ifindex: IfIndex) -> Link {
    Link {
        name: format!("br{ifindex}"),
        kind: LinkKind::Bridge,
        peer: None,
        ..pod(ifindex)
    }
}

/// A link of the node itself.
fn uplink(ifindex: IfIndex) -> Link {
    Link {
        name: format!("eth{ifindex}"),
        kind: LinkKind::Other,
        peer: None,
        ..pod(ifindex)
    }
}

fn assigned(address: &str) -> AssignedAddress {
    AssignedAddress {
        address: ip(address),
        prefix_len: 32,
        tentative: false,
        dad_failed: false,
    }
}

fn holds(ifindex: IfIndex, addresses: &[&str]) -> PodAddresses {
    PodAddresses {
        peer: peer(ifindex),
        mac: Some(mac(u8::try_from(ifindex).unwrap())),
        addresses: Some(addresses.iter().map(|a| assigned(a)).collect()),
    }
}

fn neighbour(ifindex: IfIndex, address: &str, lladdr: Mac, state: NudState) -> Neighbour {
    Neighbour {
        ifindex,
        address: ip(address),
        lladdr: Some(lladdr),
        state,
    }
}

fn fdb(bridge: IfIndex, port: IfIndex, mac: Mac) -> FdbEntry {
    FdbEntry {
        bridge,
        port,
        mac,
        vlan: None,
    }
}

fn route(destination: &str, ifindex: IfIndex) -> Route {
    let destination = ip(destination);
    Route {
        destination,
        prefix_len: if destination.is_ipv4() { 32 } else { 128 },
        ifindex,
        metric: 0,
        table: 254,
    }
}

fn frame(ifindex: IfIndex, address: &str) -> FrameClaim {
    let address = ip(address);
    let mac = mac(u8::try_from(ifindex).unwrap());
    FrameClaim {
        ifindex,
        kind: if address.is_ipv4() {
            FrameKind::Arp
        } else {
            FrameKind::Ndp
        },
        tentative: false,
        address,
        mac,
        ether_source: mac,
        vlan: Vlan::default(),
    }
}

fn told(effect: &Effect) -> Option<String> {
    match effect {
        Effect::Raised(c) => Some(format!("raised {}", show(c))),
        Effect::Updated(c) => Some(format!("updated {}", show(c))),
        Effect::Resolved(c) => Some(format!("resolved {}", show(c))),
        Effect::Attach(_)
        | Effect::Renamed(_)
        | Effect::Detach(_)
        | Effect::ReadAgain
        | Effect::Anomaly(_) => None,
    }
}

fn wanted(effect: &Effect) -> Option<String> {
    match effect {
        Effect::Attach(d) => Some(format!("attach {}#{}", d.name, d.generation)),
        Effect::Renamed(d) => Some(format!("rename {}#{}", d.name, d.generation)),
        Effect::Detach(d) => Some(format!("detach {}#{}", d.name, d.generation)),
        Effect::ReadAgain => Some("read again".to_owned()),
        Effect::Raised(_) | Effect::Updated(_) | Effect::Resolved(_) | Effect::Anomaly(_) => None,
    }
}

/// `ADDRESS[@VLAN[.INNER]] KIND CONFIDENCE: CLAIMANT… [left NAME(REASON)…] [-> RECEIVER]`
fn show(c: &Conflict) -> String {
    let mut text = c.address.to_string();
    if let Some(outer) = c.vlan.outer {
        text += &format!("@{outer}");
    }
    if let Some(inner) = c.vlan.inner {
        text += &format!(".{inner}");
    }
    text += &format!(" {} {}:", c.kind.name(), c.confidence.name());
    for claimant in c.present() {
        text += &format!(" {}", name(claimant));
    }
    if c.claimants_omitted > 0 {
        text += &format!(" +{}", c.claimants_omitted);
    }
    for claimant in &c.claimants {
        if let Some(left) = claimant.left {
            text += &format!(" left {}({})", name(claimant), left.name());
        }
    }
    if let Some(receiver) = &c.traffic_goes_to {
        text += &format!(" -> {receiver}");
    }
    text
}

fn name(claimant: &Claimant) -> String {
    match claimant.id {
        ClaimantId::Host => format!("node/{}", claimant.device),
        ClaimantId::Device(..) => claimant.device.clone(),
        ClaimantId::BehindBridge(_, mac) => format!("{}/{mac}", claimant.device),
    }
}

/// The kinds and details of a claimant's evidence.
fn evidence(claimant: &Claimant) -> Vec<String> {
    let word = |e: &Evidence| match &e.detail {
        Some(detail) => format!("{} {detail}", e.kind.name()),
        None => e.kind.name().to_owned(),
    };
    claimant.evidence.iter().map(word).collect()
}
