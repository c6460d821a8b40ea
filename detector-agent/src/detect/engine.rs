//! The engine: one observation in, effects out.

use std::{collections::BTreeSet, net::IpAddr, time::Duration};

use super::{
    bridge::{Fdb, FdbChange},
    claimants::World,
    conflict::{Claimant, ClaimantId, Conflict, ConflictKind, Left},
    expiry::Expiry,
    facts::{Facts, FrameFact, Owner, Stored},
    lifecycle::{Lifecycle, Moment, Verdict, had_address},
    links::{Device, LinkChange, Links},
    moves::Moves,
    observation::{
        AssignedAddress, FdbEntry, FrameClaim, IfIndex, Link, Neighbour, NudState, Observation,
        Peer, ReadScope, ReadToken, Route, Snapshot, Stamped, Timestamp, Vlan,
    },
    reads::{Finished, Key, Reads},
    routes::Routes,
    scope::{Scope, claimable},
    settings::Settings,
};

/// How long a probe counts that nothing followed: RFC 5227 gives up or announces within ten seconds.
const TENTATIVE_TTL: Duration = Duration::from_secs(60);

/// What follows from an observation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A conflict was found.
    Raised(Conflict),
    /// Its claimants, kind, confidence or receiver changed.
    Updated(Conflict),
    /// Fewer than two claim the address now.
    Resolved(Conflict),
    /// A pod device appeared, or its pod's end became known or another: attach to it and read its namespace.
    Attach(Device),
    /// A pod device has another name or alias now.
    Renamed(Device),
    /// A pod device is gone, or is none any more.
    Detach(Device),
    /// A reading could not be used because too much changed meanwhile: read again.
    ReadAgain,
}

/// What bounds turned away, by what it was. All counters only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Claims of devices that already hold [`Bounds::claims_per_device`](super::Bounds::claims_per_device).
    pub claims: u64,
    /// Links.
    pub links: u64,
    /// Neighbour entries, forwarding entries and routes.
    pub kernel_entries: u64,
    /// Conflicts.
    pub conflicts: u64,
    /// Frames of devices that are not, or no longer, known.
    pub unknown_device: u64,
}

/// One claim, for the list of all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The claimed address.
    pub address: IpAddr,
    /// VLAN tags.
    pub vlan: Vlan,
    /// Who claims it, and why.
    pub claimant: Claimant,
}

/// Keeps the facts and decides. See the module's documentation for the way through it.
#[derive(Debug)]
pub struct Engine {
    settings: Settings,
    links: Links,
    facts: Facts,
    fdb: Fdb,
    routes: Routes,
    reads: Reads,
    expiry: Expiry,
    moves: Moves,
    lifecycle: Lifecycle,
    losses: Losses,
    /// Addresses whose facts changed in this step.
    dirty: BTreeSet<IpAddr>,
}

impl Engine {
    /// An engine that knows nothing yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            lifecycle: Lifecycle::new(settings.id_seed),
            settings,
            links: Links::default(),
            facts: Facts::default(),
            fdb: Fdb::default(),
            routes: Routes::default(),
            reads: Reads::default(),
            expiry: Expiry::default(),
            moves: Moves::default(),
            losses: Losses::default(),
            dirty: BTreeSet::new(),
        }
    }

    /// Takes one observation at `now` (not before its own time) and appends what follows to `effects`.
    pub fn step(&mut self, now: Timestamp, observation: Stamped, effects: &mut Vec<Effect>) {
        let at = observation.at;
        match observation.what {
            Observation::Link(link) => {
                self.reads.touch(Key::Link(link.ifindex));
                self.link(link, at, effects);
            }
            Observation::LinkGone(ifindex) => {
                self.reads.touch(Key::Link(ifindex));
                self.link_gone(ifindex, effects);
            }
            Observation::PodAddress(peer, info) => {
                self.reads.touch(Key::Pod(peer, info.address));
                self.pod_address(peer, info, at);
            }
            Observation::PodAddressGone(peer, address) => {
                self.reads.touch(Key::Pod(peer, address));
                self.pod_address_gone(peer, address, at);
            }
            Observation::HostAddress(ifindex, info) => {
                self.reads.touch(Key::Host(ifindex, info.address));
                self.host_address(ifindex, info, at);
            }
            Observation::HostAddressGone(ifindex, address) => {
                self.reads.touch(Key::Host(ifindex, address));
                if self.facts.unhost(ifindex, address) {
                    self.dirty.insert(address);
                }
            }
            Observation::Neighbour(neighbour) => {
                self.reads
                    .touch(Key::Neighbour(neighbour.ifindex, neighbour.address));
                self.neighbour(neighbour, at, true);
            }
            Observation::NeighbourGone(ifindex, address) => {
                self.reads.touch(Key::Neighbour(ifindex, address));
                self.neighbour_gone(ifindex, address);
            }
            Observation::Fdb(entry) => {
                self.reads.touch(Key::Fdb(entry.bridge, entry.mac));
                self.fdb(entry);
            }
            Observation::FdbGone(entry) => {
                self.reads.touch(Key::Fdb(entry.bridge, entry.mac));
                self.fdb_gone(entry);
            }
            Observation::Route(route) => {
                self.reads.touch(Key::Route(route));
                self.route(route);
            }
            Observation::RouteGone(route) => {
                self.reads.touch(Key::Route(route));
                self.route_gone(&route);
            }
            Observation::Frame(frame) => self.frame(frame, at),
            Observation::ReadBegun(token) => self.reads.begin(token),
            Observation::ReadFailed(token) => {
                let _ = self.reads.finish(token);
            }
            Observation::Read(token, scope, snapshot) => {
                self.read(token, scope, *snapshot, at, effects)
            }
        }
        self.settle(
            Moment {
                now,
                decided_at: at,
            },
            effects,
        );
    }

    /// When [`Engine::expire`] next has something to look at.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Timestamp> {
        self.expiry.next()
    }

    /// Ends what nobody will say the end of: claims that were only heard, and flapping.
    pub fn expire(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        while let Some(address) = self.expiry.due(now) {
            self.lapse(address, now);
            self.dirty.insert(address);
        }
        self.settle(
            Moment {
                now,
                decided_at: now,
            },
            effects,
        );
    }

    /// The open conflicts with their claimants' newest evidence.
    #[must_use]
    pub fn conflicts(&self, now: Timestamp) -> Vec<Conflict> {
        let world = self.world();
        let refreshed = |(scope, conflict): (Scope, &Conflict)| {
            let mut conflict = conflict.clone();
            let derived = world.derive(conflict.address, now);
            for fresh in derived.get(&scope).into_iter().flatten() {
                if let Some(shown) = conflict.claimants.iter_mut().find(|c| c.id == fresh.id) {
                    shown.clone_from(fresh);
                }
            }
            conflict
        };
        let mut conflicts: Vec<_> = self.lifecycle.open().map(refreshed).collect();
        conflicts.sort_by_key(|c| (c.raised_at, c.address, c.vlan));
        conflicts
    }

    /// How many conflicts of `kind` are open.
    #[must_use]
    pub fn open_conflicts(&self, kind: ConflictKind) -> usize {
        self.lifecycle
            .open()
            .filter(|(_, c)| c.kind == kind)
            .count()
    }

    /// Every address that something is known of, in no order: ask [`Engine::claims_of`] about each.
    #[must_use]
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.facts.addresses().collect()
    }

    /// How many addresses something is known of.
    #[must_use]
    pub fn claim_count(&self) -> usize {
        self.facts.len()
    }

    /// The pods' claims of one address.
    #[must_use]
    pub fn claims_of(&self, address: IpAddr, now: Timestamp) -> Vec<Claim> {
        let derived = self.world().derive(address, now);
        let claims = derived.into_iter().flat_map(|(scope, claimants)| {
            claimants.into_iter().map(move |claimant| Claim {
                address,
                vlan: scope.vlan,
                claimant,
            })
        });
        claims
            .filter(|c| c.claimant.id != ClaimantId::Host)
            .collect()
    }

    /// The pod devices known now.
    #[must_use]
    pub fn devices(&self) -> Vec<Device> {
        self.links
            .iter()
            .filter(|l| l.is_pod())
            .map(super::links::LinkState::device)
            .collect()
    }

    /// The pod device of an index, if it is one now.
    #[must_use]
    pub fn device(&self, ifindex: IfIndex) -> Option<Device> {
        self.links.pod(ifindex).map(super::links::LinkState::device)
    }

    /// What the bounds turned away so far.
    #[must_use]
    pub fn losses(&self) -> Losses {
        self.losses
    }

    fn world(&self) -> World<'_> {
        World {
            links: &self.links,
            facts: &self.facts,
            fdb: &self.fdb,
            routes: &self.routes,
            settings: &self.settings,
        }
    }

    // ---- links ----

    fn link(&mut self, link: Link, at: Timestamp, effects: &mut Vec<Effect>) {
        let ifindex = link.ifindex;
        if self.links.get(ifindex).is_none() && self.links.len() >= self.settings.bounds.links {
            self.losses.links += 1;
            return;
        }
        let went_down = !link.up && self.links.get(ifindex).is_some_and(|l| l.link.up);
        let before = self
            .links
            .get(ifindex)
            .filter(|l| l.is_pod())
            .map(super::links::LinkState::device);
        match self.links.upsert(link, at) {
            LinkChange::Same => return,
            LinkChange::New => {}
            LinkChange::Replaced(old) => self.forget_facts_of(&old),
            LinkChange::Changed { before: old } => {
                if let Some(peer) = old.peer {
                    if self.links.get(ifindex).and_then(|l| l.link.peer) != Some(peer) {
                        self.dirty.extend(self.facts.forget_peer(peer));
                    } else {
                        self.dirty.extend(self.facts.owned_by(Owner::Peer(peer)));
                    }
                }
            }
        }
        if went_down && self.routes.forget_link(ifindex) {
            self.dirty_open(|_| true);
        }
        self.dirty.extend(self.facts.owned_by(Owner::Link(ifindex)));
        self.dirty_behind_port(ifindex);
        let after = self.links.pod(ifindex).map(super::links::LinkState::device);
        match (before, after) {
            (Some(before), None) => effects.push(Effect::Detach(before)),
            (before, Some(after)) => {
                let same = |b: &Device| b.generation == after.generation && b.peer == after.peer;
                if !before.as_ref().is_some_and(same) {
                    effects.push(Effect::Attach(after));
                } else if before.as_ref() != Some(&after) {
                    effects.push(Effect::Renamed(after));
                }
            }
            (None, None) => {}
        }
    }

    fn link_gone(&mut self, ifindex: IfIndex, effects: &mut Vec<Effect>) {
        // What stood behind the port is looked at before the port is forgotten.
        self.dirty_behind_port(ifindex);
        let Some(state) = self.links.remove(ifindex) else {
            return;
        };
        self.forget_facts_of(&state.link);
        if state.is_pod() {
            effects.push(Effect::Detach(state.device()));
        }
    }

    /// Everything that was known through a link that is gone.
    fn forget_facts_of(&mut self, link: &Link) {
        self.dirty.extend(self.facts.forget_link(link.ifindex));
        if let Some(peer) = link.peer {
            self.dirty.extend(self.facts.forget_peer(peer));
        }
        for (bridge, mac) in self.fdb.forget_link(link.ifindex) {
            self.dirty.extend(self.facts.behind(bridge, mac));
        }
        if self.routes.forget_link(link.ifindex) {
            self.dirty_open(|_| true);
        }
    }

    fn dirty_behind_port(&mut self, port: IfIndex) {
        let Some(bridge) = self.links.bridge_of(port) else {
            return;
        };
        let macs: Vec<_> = self
            .fdb
            .entries()
            .filter(|e| e.port == port && e.bridge == bridge)
            .map(|e| e.mac)
            .collect();
        for mac in macs {
            self.dirty.extend(self.facts.behind(bridge, mac));
        }
    }

    fn dirty_open(&mut self, which: impl Fn(IpAddr) -> bool) {
        let open = self
            .lifecycle
            .open()
            .map(|(_, c)| c.address)
            .filter(|a| which(*a));
        self.dirty.extend(open);
    }

    // ---- addresses ----

    fn pod_address(&mut self, peer: Peer, info: AssignedAddress, at: Timestamp) {
        let Some(device) = self.links.pod_by_peer(peer).map(|l| l.link.ifindex) else {
            return;
        };
        if !claimable(info.address) {
            return;
        }
        let news = !self
            .facts
            .get(info.address)
            .is_some_and(|f| f.assigned_on(peer));
        match self.facts.assign(peer, info, at, &self.settings.bounds) {
            Stored::Changed => {
                self.dirty.insert(info.address);
            }
            Stored::Refused => self.losses.claims += 1,
            Stored::Refreshed => {}
        }
        if news {
            self.note_move(info.address, device, Vlan::default(), at);
        }
    }

    fn pod_address_gone(&mut self, peer: Peer, address: IpAddr, at: Timestamp) {
        let device = self.links.pod_by_peer(peer).map(|l| l.link.ifindex);
        if !self.facts.unassign(peer, address, device, at) {
            return;
        }
        if let Some(device) = device {
            self.facts.refute_neighbour(device, address);
            // On a bridge the entry stands on the bridge; it is refuted if it leads to this port.
            if let Some(bridge) = self.links.bridge_of(device) {
                let leads_here = self.facts.get(address).is_some_and(|f| {
                    f.neighbours.iter().any(|n| {
                        n.ifindex == bridge && self.fdb.port(bridge, n.lladdr) == Some(device)
                    })
                });
                if leads_here {
                    self.facts.refute_neighbour(bridge, address);
                }
            }
        }
        self.dirty.insert(address);
    }

    fn host_address(&mut self, ifindex: IfIndex, info: AssignedAddress, at: Timestamp) {
        if claimable(info.address) && self.facts.host(ifindex, info, at) == Stored::Changed {
            self.dirty.insert(info.address);
        }
    }

    // ---- neighbours and forwarding ----

    fn neighbour(&mut self, neighbour: Neighbour, at: Timestamp, live: bool) {
        let followed = self
            .links
            .get(neighbour.ifindex)
            .is_some_and(|l| l.is_pod())
            || self.links.is_bridge(neighbour.ifindex);
        let (Some(lladdr), true) = (neighbour.lladdr, neighbour.state != NudState::Invalid) else {
            self.neighbour_gone(neighbour.ifindex, neighbour.address);
            return;
        };
        if !followed || !claimable(neighbour.address) {
            return;
        }
        let former = self
            .links
            .is_bridge(neighbour.ifindex)
            .then_some(self.settings.flap_window);
        match self
            .facts
            .neighbour(neighbour, lladdr, at, live, former, &self.settings.bounds)
        {
            Stored::Changed => {
                self.dirty.insert(neighbour.address);
                if former.is_some() {
                    self.expiry
                        .look_at(neighbour.address, at + self.settings.flap_window);
                }
                let device = match former {
                    Some(_) => self.fdb.port(neighbour.ifindex, lladdr),
                    None => Some(neighbour.ifindex),
                };
                if let Some(device) = device.filter(|_| neighbour.state == NudState::Reachable) {
                    self.note_move(neighbour.address, device, Vlan::default(), at);
                }
            }
            Stored::Refused => self.losses.kernel_entries += 1,
            Stored::Refreshed => {}
        }
    }

    fn neighbour_gone(&mut self, ifindex: IfIndex, address: IpAddr) {
        if self.facts.forget_neighbour(ifindex, address) {
            self.dirty.insert(address);
        }
    }

    fn fdb(&mut self, entry: FdbEntry) {
        match self.fdb.set(entry, self.settings.bounds.kernel_entries) {
            FdbChange::Moved => self
                .dirty
                .extend(self.facts.behind(entry.bridge, entry.mac)),
            FdbChange::Refused => self.losses.kernel_entries += 1,
            FdbChange::Same => {}
        }
    }

    fn fdb_gone(&mut self, entry: FdbEntry) {
        self.fdb.unset(entry, self.settings.bounds.kernel_entries);
    }

    // ---- routes ----

    fn route(&mut self, route: Route) {
        if !self.routes.add(route, self.settings.bounds.kernel_entries) {
            self.losses.kernel_entries += 1;
        }
        self.dirty_open(|address| Routes::covers(&route, address));
    }

    fn route_gone(&mut self, route: &Route) {
        if self.routes.remove(route) {
            self.dirty_open(|address| Routes::covers(route, address));
        }
    }

    // ---- frames ----

    fn frame(&mut self, frame: FrameClaim, at: Timestamp) {
        if !claimable(frame.address) {
            return;
        }
        let Some(link) = self.links.pod(frame.ifindex) else {
            self.losses.unknown_device += 1;
            return;
        };
        let generation = link.generation;
        if frame.tentative && !self.is_contested(frame, generation, at) {
            return;
        }
        let fact = FrameFact {
            ifindex: frame.ifindex,
            vlan: frame.vlan,
            kind: frame.kind,
            mac: frame.mac,
            ether_source: frame.ether_source,
            tentative: frame.tentative,
            first: at,
            last: at,
        };
        match self.facts.frame(fact, frame.address, &self.settings.bounds) {
            Stored::Changed => {
                self.dirty.insert(frame.address);
                let ttl = if frame.tentative {
                    TENTATIVE_TTL
                } else {
                    self.settings.claim_ttl
                };
                self.expiry.look_at(frame.address, at + ttl);
            }
            Stored::Refused => self.losses.claims += 1,
            Stored::Refreshed => {}
        }
        if !frame.tentative {
            self.note_move(frame.address, frame.ifindex, frame.vlan, at);
        }
    }

    /// Whether somebody other than the sender of a probe claims the address.
    fn is_contested(&self, frame: FrameClaim, generation: u64, now: Timestamp) -> bool {
        let own = ClaimantId::Device(frame.ifindex, generation);
        let derived = self.world().derive(frame.address, now);
        derived.iter().any(|(scope, claimants)| {
            scope.vlan == frame.vlan
                && scope
                    .domain
                    .is_none_or(|domain| domain == self.links.domain(frame.ifindex))
                && claimants.iter().any(|c| c.id != own)
        })
    }

    /// An allowed address was claimed by a device: perhaps it moved.
    fn note_move(&mut self, address: IpAddr, device: IfIndex, vlan: Vlan, at: Timestamp) {
        if !self.settings.is_allowed(address) {
            return;
        }
        let Some(generation) = self.links.pod(device).map(|l| l.generation) else {
            return;
        };
        let id = ClaimantId::Device(device, generation);
        let derived = self.world().derive(address, at);
        let found = derived
            .iter()
            .filter(|(scope, _)| scope.vlan == vlan)
            .find_map(|(scope, claimants)| {
                claimants
                    .iter()
                    .find(|c| c.id == id)
                    .map(|c| (*scope, c.clone()))
            });
        let Some((scope, claimant)) = found else {
            return;
        };
        if self
            .moves
            .claimed(address, scope, &claimant, at, &self.settings)
        {
            self.expiry.look_at(address, at + self.settings.flap_window);
            self.dirty.insert(address);
        }
    }

    // ---- snapshots ----

    fn read(
        &mut self,
        token: ReadToken,
        scope: ReadScope,
        snapshot: Snapshot,
        at: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        let Some(finished) = self.reads.finish(token) else {
            effects.push(Effect::ReadAgain);
            return;
        };
        match scope {
            ReadScope::Node => self.merge_node(&finished, snapshot, at, effects),
            ReadScope::Device(ifindex) => self.merge_device(&finished, ifindex, snapshot, at),
        }
    }

    fn merge_node(
        &mut self,
        finished: &Finished,
        snapshot: Snapshot,
        at: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        let present: BTreeSet<_> = snapshot.links.iter().map(|l| l.ifindex).collect();
        let gone: Vec<_> = self
            .links
            .iter()
            .map(|l| l.link.ifindex)
            .filter(|i| !present.contains(i) && !finished.outdated(&Key::Link(*i)))
            .collect();
        for ifindex in gone {
            self.link_gone(ifindex, effects);
        }
        // Bridges first, so that ports find theirs.
        let mut links = snapshot.links;
        links.sort_by_key(|l| l.kind != super::LinkKind::Bridge);
        for link in links {
            if !finished.outdated(&Key::Link(link.ifindex)) {
                self.link(link, at, effects);
            }
        }
        self.merge_fdb(finished, &snapshot.fdb);
        self.merge_routes(finished, &snapshot.routes);
        self.merge_host(finished, &snapshot.host, at);
        self.merge_pods(finished, snapshot.pods, at);
        let followed: Vec<_> = self.links.iter().map(|l| l.link.ifindex).collect();
        self.merge_neighbours(finished, &followed, &snapshot.neighbours, at);
    }

    fn merge_device(
        &mut self,
        finished: &Finished,
        ifindex: IfIndex,
        snapshot: Snapshot,
        at: Timestamp,
    ) {
        if self.links.get(ifindex).is_none() {
            return;
        }
        self.merge_pods(finished, snapshot.pods, at);
        self.merge_neighbours(finished, &[ifindex], &snapshot.neighbours, at);
    }

    fn merge_pods(&mut self, finished: &Finished, pods: Vec<super::PodAddresses>, at: Timestamp) {
        for pod in pods {
            let Some(device) = self.links.pod_by_peer(pod.peer).map(|l| l.link.ifindex) else {
                continue;
            };
            if let Some(link) = self.links.get_mut(device) {
                let known = (link.namespace_readable, link.peer_mac);
                link.namespace_readable = Some(pod.addresses.is_some());
                link.peer_mac = pod.mac.or(link.peer_mac);
                if known != (link.namespace_readable, link.peer_mac) {
                    self.dirty
                        .extend(self.facts.owned_by(Owner::Peer(pod.peer)));
                    self.dirty.extend(self.facts.owned_by(Owner::Link(device)));
                }
            }
            let Some(addresses) = pod.addresses else {
                continue;
            };
            for gone in self.facts.owned_by(Owner::Peer(pod.peer)) {
                let absent = !addresses.iter().any(|a| a.address == gone);
                if absent && !finished.outdated(&Key::Pod(pod.peer, gone)) {
                    self.pod_address_gone(pod.peer, gone, at);
                }
            }
            for info in addresses {
                if !finished.outdated(&Key::Pod(pod.peer, info.address)) {
                    self.pod_address(pod.peer, info, at);
                }
            }
        }
    }

    fn merge_host(
        &mut self,
        finished: &Finished,
        host: &[(IfIndex, AssignedAddress)],
        at: Timestamp,
    ) {
        let present: BTreeSet<_> = host
            .iter()
            .map(|(ifindex, info)| (*ifindex, info.address))
            .collect();
        let known = self.facts.addresses().flat_map(|address| {
            let standing = self
                .facts
                .get(address)
                .map(|f| f.host.as_slice())
                .unwrap_or_default();
            standing.iter().map(move |h| (h.ifindex, address))
        });
        let gone: Vec<_> = known
            .filter(|(i, a)| !present.contains(&(*i, *a)) && !finished.outdated(&Key::Host(*i, *a)))
            .collect();
        for (ifindex, address) in gone {
            if self.facts.unhost(ifindex, address) {
                self.dirty.insert(address);
            }
        }
        for (ifindex, info) in host {
            if !finished.outdated(&Key::Host(*ifindex, info.address)) {
                self.host_address(*ifindex, *info, at);
            }
        }
    }

    fn merge_neighbours(
        &mut self,
        finished: &Finished,
        of: &[IfIndex],
        neighbours: &[Neighbour],
        at: Timestamp,
    ) {
        let present: BTreeSet<_> = neighbours.iter().map(|n| (n.ifindex, n.address)).collect();
        for ifindex in of {
            for address in self.facts.owned_by(Owner::Link(*ifindex)) {
                let key = Key::Neighbour(*ifindex, address);
                if !present.contains(&(*ifindex, address)) && !finished.outdated(&key) {
                    self.neighbour_gone(*ifindex, address);
                }
            }
        }
        for neighbour in neighbours {
            if !finished.outdated(&Key::Neighbour(neighbour.ifindex, neighbour.address)) {
                self.neighbour(*neighbour, at, false);
            }
        }
    }

    fn merge_fdb(&mut self, finished: &Finished, entries: &[FdbEntry]) {
        let present: BTreeSet<_> = entries.iter().map(|e| (e.bridge, e.mac)).collect();
        let gone: Vec<_> = self
            .fdb
            .entries()
            .filter(|e| {
                !present.contains(&(e.bridge, e.mac))
                    && !finished.outdated(&Key::Fdb(e.bridge, e.mac))
            })
            .collect();
        for entry in gone {
            self.fdb_gone(entry);
        }
        for entry in entries {
            if !finished.outdated(&Key::Fdb(entry.bridge, entry.mac)) {
                self.fdb(*entry);
            }
        }
    }

    fn merge_routes(&mut self, finished: &Finished, routes: &[Route]) {
        let present: std::collections::HashSet<_> = routes.iter().collect();
        let gone: Vec<_> = self
            .routes
            .iter()
            .filter(|r| !present.contains(r) && !finished.outdated(&Key::Route(**r)))
            .copied()
            .collect();
        for route in gone {
            self.route_gone(&route);
        }
        for route in routes {
            if !finished.outdated(&Key::Route(*route)) {
                self.route(*route);
            }
        }
    }

    // ---- decisions ----

    /// Forgets the frames of an address that lapsed, and plans the next look.
    fn lapse(&mut self, address: IpAddr, now: Timestamp) {
        let Some(facts) = self.facts.get(address) else {
            return;
        };
        let mut lapsed = Vec::new();
        let mut next: Option<Timestamp> = None;
        for frame in &facts.frames {
            let ttl = if frame.tentative {
                TENTATIVE_TTL
            } else {
                self.settings.claim_ttl
            };
            let supported = !frame.tentative
                && self
                    .links
                    .pod(frame.ifindex)
                    .and_then(|l| l.link.peer)
                    .is_some_and(|peer| facts.assigned_on(peer));
            let end = frame.last + ttl;
            if !supported && end <= now {
                lapsed.push((frame.ifindex, frame.vlan, frame.kind));
            } else {
                let look = if end > now { end } else { now + ttl };
                next = Some(next.map_or(look, |n| n.min(look)));
            }
        }
        for (ifindex, vlan, kind) in lapsed {
            self.facts
                .forget_frames(ifindex, address, |f| f.vlan == vlan && f.kind == kind);
        }
        if let Some(next) = next {
            self.expiry.look_at(address, next);
        }
    }

    /// Decides anew about every address whose facts changed.
    fn settle(&mut self, at: Moment, effects: &mut Vec<Effect>) {
        if self.lifecycle.turned_away && self.lifecycle.len() < self.settings.bounds.open_conflicts
        {
            self.lifecycle.turned_away = false;
            self.dirty.extend(self.facts.addresses());
        }
        while let Some(address) = self.dirty.pop_first() {
            let few = self.facts.get(address).is_none_or(|f| f.len() < 2);
            let allowed = self.settings.is_allowed(address);
            if few && !allowed && !self.lifecycle.has_open(address) {
                continue;
            }
            let world = World {
                links: &self.links,
                facts: &self.facts,
                fdb: &self.fdb,
                routes: &self.routes,
                settings: &self.settings,
            };
            let derived = world.derive(address, at.now);
            let mut verdicts: Vec<(Scope, Verdict)> = if allowed {
                let flapping = self.moves.flapping(address, at.now, &self.settings);
                if derived.is_empty() && flapping.is_empty() {
                    self.moves.forget(address);
                }
                flapping
                    .into_iter()
                    .map(|(scope, who)| (scope, flap(&world, address, who)))
                    .collect()
            } else {
                derived
                    .into_iter()
                    .map(|(scope, who)| (scope, judge(&world, address, who)))
                    .collect()
            };
            verdicts.sort_by_key(|(scope, _)| *scope);
            let links = &self.links;
            let leaving = |claimant: &Claimant| match claimant.id {
                ClaimantId::Device(ifindex, generation)
                    if !links
                        .pod(ifindex)
                        .is_some_and(|l| l.generation == generation) =>
                {
                    Left::DeviceRemoved
                }
                ClaimantId::BehindBridge(bridge, _) if links.get(bridge).is_none() => {
                    Left::DeviceRemoved
                }
                _ if had_address(claimant) => Left::AddressRemoved,
                _ => Left::Expired,
            };
            self.losses.conflicts += self.lifecycle.settle(
                address,
                verdicts,
                leaving,
                at,
                &self.settings.bounds,
                effects,
            );
        }
    }
}

/// Rule 1: two or more live claims in one scope.
fn judge(world: &World<'_>, address: IpAddr, claimants: Vec<Claimant>) -> Verdict {
    let pods = claimants
        .iter()
        .filter(|c| c.id != ClaimantId::Host)
        .count();
    let kind = match (pods, claimants.len() - pods) {
        (1.., 1..) => Some(ConflictKind::Host),
        (2.., 0) => Some(ConflictKind::Duplicate),
        _ => None,
    };
    let traffic_goes_to = kind
        .and_then(|_| world.receives(address, &claimants))
        .map(|claimant| claimant.device.clone());
    Verdict {
        kind,
        claimants,
        traffic_goes_to,
    }
}

/// Rule 8: an allowed address that moves too often.
fn flap(world: &World<'_>, address: IpAddr, claimants: Vec<Claimant>) -> Verdict {
    let traffic_goes_to = world
        .receives(address, &claimants)
        .map(|claimant| claimant.device.clone());
    Verdict {
        kind: Some(ConflictKind::Flapping),
        claimants,
        traffic_goes_to,
    }
}
