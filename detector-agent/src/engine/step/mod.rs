//! The engine: one observation in, effects out.

mod anomalies;
mod claims;
mod decide;
mod gateways;
mod merge;
mod restore;
mod topology;

use std::{collections::BTreeSet, net::IpAddr};

use super::{
    anomaly::{Anomalies, AnomalyEffect},
    bridge::Fdb,
    claimants::ClaimContext,
    conflict::{Claimant, ClaimantId, Conflict, ConflictKind},
    expiry::ExpiryQueue,
    facts::Facts,
    in_flight_snapshots::{InFlightSnapshots, StateKey},
    lifecycle::{DecisionTime, Lifecycle},
    links::{LinkState, Links, PodDevice},
    moves::Moves,
    observation::{IfIndex, Observation, TimedObservation, Timestamp, Vlan},
    routes::Routes,
    scope::Scope,
    settings::Settings,
};

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
    Attach(PodDevice),
    /// A pod device has another name or alias now.
    Renamed(PodDevice),
    /// A pod device is gone, or is none any more.
    Detach(PodDevice),
    /// Read the whole node again: a reading could not be used because too much changed meanwhile, or something was told
    /// before the link that it stands on was known.
    Resync,
    /// Something about anomalies.
    Anomaly(AnomalyEffect),
}

/// What bounds turned away, by what it was. All counters only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DropCounters {
    /// Claims of devices that already hold [`Bounds::claims_per_device`](super::Bounds::claims_per_device).
    pub claims: u64,
    /// Links.
    pub links: u64,
    /// Neighbour entries, forwarding entries and routes.
    pub kernel_entries: u64,
    /// Conflicts.
    pub conflicts: u64,
    /// Frames of devices that are not known, not any more, or were not yet when the frame came in.
    pub unknown_device: u64,
}

/// One claim, for the list of all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedClaim {
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
    in_flight: InFlightSnapshots,
    expiry: ExpiryQueue,
    moves: Moves,
    lifecycle: Lifecycle,
    anomalies: Anomalies,
    /// Everything was read at least once.
    has_full_snapshot: bool,
    drops: DropCounters,
    /// Addresses whose facts changed in this step.
    dirty: BTreeSet<IpAddr>,
    /// Links that are not known, but that a neighbour was told on: a bridge among them has to be read when it is known.
    unresolved_links: BTreeSet<IfIndex>,
    /// Open conflicts of an earlier agent, until the first reading of everything.
    restored: restore::RestoredConflicts,
}

impl Engine {
    /// An engine that knows nothing yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            lifecycle: Lifecycle::new(settings.id_seed),
            anomalies: Anomalies::new(settings.anomalies, settings.id_seed),
            has_full_snapshot: false,
            settings,
            links: Links::default(),
            facts: Facts::default(),
            fdb: Fdb::default(),
            routes: Routes::default(),
            in_flight: InFlightSnapshots::default(),
            expiry: ExpiryQueue::default(),
            moves: Moves::default(),
            drops: DropCounters::default(),
            dirty: BTreeSet::new(),
            unresolved_links: BTreeSet::new(),
            restored: restore::RestoredConflicts::default(),
        }
    }

    /// Takes one observation at `now` (not before its own time) and appends what follows to `effects`.
    pub fn step(
        &mut self,
        now: Timestamp,
        observation: TimedObservation,
        effects: &mut Vec<Effect>,
    ) {
        let at = observation.at;
        match observation.observation {
            Observation::Link(link) => {
                self.in_flight.touch(StateKey::Link(link.ifindex));
                self.link(link, false, at, effects);
            }
            Observation::LinkGone(ifindex) => {
                self.in_flight.touch(StateKey::Link(ifindex));
                self.link_gone(ifindex, effects);
            }
            Observation::PodAddress(peer, info) => {
                self.in_flight
                    .touch(StateKey::PodAddress(peer, info.address, info.prefix_len));
                self.pod_address(peer, info, at);
            }
            Observation::PodAddressGone(peer, address, prefix_len) => {
                self.in_flight
                    .touch(StateKey::PodAddress(peer, address, prefix_len));
                self.pod_address_gone(peer, address, prefix_len, at);
            }
            Observation::HostAddress(ifindex, info) => {
                self.in_flight.touch(StateKey::HostAddress(
                    ifindex,
                    info.address,
                    info.prefix_len,
                ));
                self.host_address(ifindex, info, at);
            }
            Observation::HostAddressGone(ifindex, address, prefix_len) => {
                self.in_flight
                    .touch(StateKey::HostAddress(ifindex, address, prefix_len));
                self.host_address_gone(ifindex, address, prefix_len);
            }
            Observation::Neighbour(neighbour) => {
                self.in_flight
                    .touch(StateKey::Neighbour(neighbour.ifindex, neighbour.address));
                self.neighbour(neighbour, at, true);
            }
            Observation::NeighbourGone(ifindex, address) => {
                self.in_flight.touch(StateKey::Neighbour(ifindex, address));
                self.neighbour_gone(ifindex, address);
            }
            Observation::Fdb(entry) => {
                self.in_flight.touch(StateKey::from(&entry));
                self.fdb(entry);
            }
            Observation::FdbGone(entry) => {
                self.in_flight.touch(StateKey::from(&entry));
                self.fdb_gone(entry);
            }
            Observation::Route(route) => {
                self.in_flight.touch(StateKey::from(&route));
                self.route(route);
            }
            Observation::RouteGone(route) => {
                self.in_flight.touch(StateKey::from(&route));
                self.route_gone(&route);
            }
            Observation::Frame(frame) => self.frame(frame, at),
            Observation::UnansweredProbe(probe) => {
                let at = DecisionTime {
                    now,
                    decided_at: at,
                };
                self.unanswered_probe(&probe, at, effects);
            }
            Observation::SnapshotStarted(token) => self.in_flight.start(token),
            Observation::SnapshotFailed(token) => self.in_flight.fail(token),
            Observation::Snapshot(token, scope, snapshot) => {
                self.merge_snapshot(token, scope, *snapshot, at, effects)
            }
        }
        self.apply_pending(
            DecisionTime {
                now,
                decided_at: at,
            },
            effects,
        );
    }

    /// When [`Engine::expire`] next has something to look at.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Timestamp> {
        match (self.expiry.next_due(), self.anomalies.next_due()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Ends what nobody will say the end of: claims that were only heard, and flapping.
    pub fn expire(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        while let Some(address) = self.expiry.pop_due(now) {
            self.expire_claims(address, now);
        }
        self.expire_anomalies(now, effects);
        self.apply_pending(
            DecisionTime {
                now,
                decided_at: now,
            },
            effects,
        );
    }

    /// The open conflicts with their claimants' newest evidence, the one raised first at the front.
    #[must_use]
    pub fn conflicts(&self, now: Timestamp) -> Vec<Conflict> {
        let mut conflicts: Vec<_> = self
            .conflict_addresses()
            .into_iter()
            .flat_map(|address| self.conflicts_of(address, now))
            .collect();
        conflicts.sort_by_key(|c| (c.raised_at, c.address, c.vlan));
        conflicts
    }

    /// The addresses with an open conflict, the one raised first at the front: ask [`Engine::conflicts_of`] about each.
    #[must_use]
    pub fn conflict_addresses(&self) -> Vec<IpAddr> {
        let open = self.lifecycle.open();
        let mut addresses: Vec<_> = open.map(|(_, c)| (c.raised_at, c.address)).collect();
        addresses.sort_unstable();
        let mut seen = BTreeSet::new();
        addresses.retain(|(_, address)| seen.insert(*address));
        addresses.into_iter().map(|(_, address)| address).collect()
    }

    /// The open conflicts of one address, with their claimants' newest evidence.
    #[must_use]
    pub fn conflicts_of(&self, address: IpAddr, now: Timestamp) -> Vec<Conflict> {
        let derived = self.claim_context().derive(address, now);
        let refreshed = |(scope, conflict): (Scope, &Conflict)| {
            let mut conflict = conflict.clone();
            for fresh in derived.get(&scope).into_iter().flatten() {
                if let Some(shown) = conflict.claimants.iter_mut().find(|c| c.id == fresh.id) {
                    shown.clone_from(fresh);
                }
            }
            conflict
        };
        self.lifecycle.open_of(address).map(refreshed).collect()
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
    pub fn address_count(&self) -> usize {
        self.facts.len()
    }

    /// The pods' claims of one address.
    #[must_use]
    pub fn claims_of(&self, address: IpAddr, now: Timestamp) -> Vec<ListedClaim> {
        let derived = self.claim_context().derive(address, now);
        let claims = derived.into_iter().flat_map(|(scope, claimants)| {
            claimants.into_iter().map(move |claimant| ListedClaim {
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
    pub fn devices(&self) -> Vec<PodDevice> {
        self.links
            .iter()
            .filter(|l| l.is_pod())
            .map(LinkState::device)
            .collect()
    }

    /// The pod device of an index, if it is one now.
    #[must_use]
    pub fn device(&self, ifindex: IfIndex) -> Option<PodDevice> {
        self.links.pod(ifindex).map(LinkState::device)
    }

    /// What the bounds turned away so far.
    #[must_use]
    pub fn drop_counters(&self) -> DropCounters {
        self.drops
    }

    #[cfg(test)]
    pub(super) fn facts(&self) -> &Facts {
        &self.facts
    }

    fn claim_context(&self) -> ClaimContext<'_> {
        ClaimContext {
            links: &self.links,
            facts: &self.facts,
            fdb: &self.fdb,
            routes: &self.routes,
            settings: &self.settings,
        }
    }
}
