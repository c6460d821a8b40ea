//! The engine: one observation in, effects out.

mod anomalies;
mod beginnings;
mod bounds;
mod claimed;
mod claims;
mod decide;
mod gateways;
mod internal;
mod loss;
mod macs;
mod merge;
mod networks;
mod pods;
mod restore;
mod routers;
mod routing;
mod self_check;
mod sweep;
mod topology;
mod view;

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use crate::{
    limits::{
        claimed_addresses::ClaimedAddresses,
        expiry::ExpiryQueue,
        in_flight_snapshots::{InFlightSnapshots, StateKey},
        reads::ReadSchedule,
        self_check::PendingDiscrepancies,
    },
    mirror::Mirror,
    model::{
        Anomaly, Conflict, DeviceKey, DropCounters, Effect, IfIndex, Neighbour, NudState,
        Observation, Owner, Peer, Reported, Settings, TimedObservation, Timestamp,
    },
    small_set::SmallSet,
    track::{Step, anomaly::Anomalies, counts::ClaimCounts, lifecycle::Lifecycle, moves::Moves},
};

pub use view::View;

/// Stores the facts and decides. The flow is described in the documentation of
/// [`engine`](crate).
#[derive(Debug)]
pub struct Engine {
    settings: Arc<Settings>,
    mirror: Mirror,
    reads: Reads,
    tracked: Tracked,
    noted: NotedClaims,
    timers: Timers,
    drops: DropCounters,
    /// Addresses whose facts changed in this step.
    dirty: SmallSet<IpAddr>,
}

/// What has to be read from the kernel, and what is being read.
#[derive(Debug, Default)]
struct Reads {
    in_flight: InFlightSnapshots,
    discrepancies: PendingDiscrepancies,
    schedule: ReadSchedule,
    /// Unknown links for which a neighbour was reported: if one turns out to be a bridge, a resync
    /// is needed.
    unresolved_links: BTreeSet<IfIndex>,
}

/// What is open, and what may become so.
#[derive(Debug)]
struct Tracked {
    lifecycle: Lifecycle,
    moves: Moves,
    anomalies: Anomalies,
    /// Open conflicts of the previous run, until the first full snapshot.
    restored: restore::RestoredConflicts,
}

/// What others follow of the claims: they take it after a step.
#[derive(Debug, Default)]
struct NotedClaims {
    /// Live claims, without the node's own.
    counts: ClaimCounts,
    /// The addresses that facts name claimants of, for the kernel programs.
    table: ClaimedAddresses,
    /// Addresses whose facts changed since that table was last brought up to date.
    outdated: SmallSet<IpAddr>,
    /// Addresses whose claims may have changed since they were last taken; `None` if they are not followed.
    changed: Option<BTreeSet<IpAddr>>,
}

/// What is due without an observation, apart from what [`Tracked`] and [`Reads`] wait for.
#[derive(Debug, Default)]
struct Timers {
    expiry: ExpiryQueue,
    /// New pod devices that wait for the name of their network until then.
    awaiting_networks: ExpiryQueue<DeviceKey>,
}

impl Engine {
    /// An engine without any state.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let settings = Arc::new(settings);
        Self {
            tracked: Tracked {
                lifecycle: Lifecycle::new(&settings),
                moves: Moves::new(&settings),
                anomalies: Anomalies::new(&settings),
                restored: restore::RestoredConflicts::default(),
            },
            noted: NotedClaims {
                changed: settings.follow_claims.then(BTreeSet::new),
                ..NotedClaims::default()
            },
            mirror: Mirror::new(settings.bounds),
            settings,
            reads: Reads::default(),
            timers: Timers::default(),
            drops: DropCounters::default(),
            dirty: SmallSet::default(),
        }
    }

    /// Processes one observation at `now` (not before its own timestamp) and appends what follows
    /// to `effects`.
    pub fn step(
        &mut self,
        now: Timestamp,
        observation: TimedObservation,
        effects: &mut Vec<Effect>,
    ) {
        let TimedObservation { at, observation } = observation;
        let step = &mut Step { now, at, effects };
        for key in StateKey::of(&observation).into_iter().flatten() {
            self.touch(key);
        }
        self.mirror.route_lookups.observe(&observation);
        match observation {
            Observation::Link(link) => self.link(link, false, step),
            Observation::LinkGone(ifindex) => self.link_gone(ifindex, step),
            Observation::PortVlan(vlan) => self.port_vlan(vlan),
            Observation::NotificationsLost => self.notifications_lost(),
            Observation::NamespaceIdFreed(nsid) => self.namespace_id_freed(nsid, at),
            Observation::PeerMoved(peer) => self.peer_moved(peer, step),
            Observation::PodLink(peer, mac) => self.pod_link(peer, mac),
            Observation::PodAddress(peer, info) => {
                if self.may_change(peer, info.address, now) {
                    self.pod_address(peer, info, at, true);
                }
            }
            Observation::PodAddressGone(peer, id) => {
                if self.may_change(peer, id.address, now) {
                    self.address_gone(Owner::Peer(peer), id, at, None);
                }
            }
            Observation::HostAddress(ifindex, info) => self.host_address(ifindex, info, at, true),
            Observation::HostAddressGone(ifindex, id) => {
                self.address_gone(Owner::Link(ifindex), id, at, None);
            }
            Observation::Neighbour(neighbour) => {
                self.touch_evidence(&neighbour);
                self.neighbour(neighbour, at, true);
            }
            Observation::NeighbourGone(ifindex, address) => {
                self.neighbour_gone(ifindex, address, Some(at));
            }
            Observation::Fdb(entry) => self.fdb(entry),
            Observation::FdbGone(entry) => self.fdb_gone(entry),
            Observation::Route(route) => self.route(route, None),
            Observation::RouteInserted(route, place) => self.route(route, Some(place)),
            Observation::RouteGone(route) => self.route_gone(&route),
            Observation::RoutingChanged(change) => self.routing_changed(change),
            Observation::RoutesLookedUp(answers) => self.routes_looked_up(answers),
            Observation::Frame(frame) => self.frame(frame, at),
            Observation::UnansweredProbe(probe) => self.unanswered_probe(&probe, step),
            Observation::RouterAdvertisement(advertisement) => {
                self.router_advertisement(advertisement, step);
            }
            Observation::SnapshotStarted(token) => self.reads.in_flight.start(token, false),
            Observation::SelfCheckStarted(token) => self.reads.in_flight.start(token, true),
            Observation::SnapshotFailed(token) => self.reads.in_flight.fail(token),
            Observation::Snapshot(token, scope, snapshot) => {
                self.merge_snapshot(token, scope, *snapshot, step)
            }
            Observation::Pool(update) => self.update_pool(update, step),
            Observation::PodsKnown(known) => self.pods_known(known, step),
            Observation::NetworksKnown(devices) => self.networks_known(&devices),
            Observation::ClaimedTableLost => self.noted.table.request_rewrite(),
            Observation::DeadlineReached => self.expire(step),
        }
        self.apply_pending(step);
    }

    /// Notes that an entry is other evidence than before. Only a snapshot in flight needs to know, and each update would cost a
    /// lookup.
    fn touch_evidence(&mut self, neighbour: &Neighbour) {
        if !self.reads.in_flight.is_any() {
            return;
        }
        let (ifindex, address) = (neighbour.ifindex, neighbour.address);
        let facts = self.mirror.facts.get(address);
        let known = facts.and_then(|facts| facts.neighbour_on(ifindex));
        let is_other = known.map(|known| known.lladdr) != neighbour.lladdr;
        if neighbour.state == NudState::Reachable || is_other {
            self.reads
                .in_flight
                .touch(StateKey::NeighbourEvidence(ifindex, address));
        }
    }

    /// Whether a change of an address in a namespace is to be applied now. Otherwise the device
    /// concerned is read, at once or later.
    fn may_change(&mut self, peer: Peer, address: IpAddr, now: Timestamp) -> bool {
        self.internal_changed(peer, now);
        self.is_applicable(peer) && self.spend_change(peer, address, now)
    }

    /// A live update of `key` is about to be applied.
    fn touch(&mut self, key: StateKey) {
        self.reads.discrepancies.explain(&key);
        self.reads.in_flight.touch(key);
    }

    /// When [`Observation::DeadlineReached`] is due.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let due = [
            self.timers.expiry.next_due(),
            self.tracked.lifecycle.next_due(),
            self.tracked.anomalies.next_due(),
            self.reads.discrepancies.next_due(),
            self.reads.schedule.next_check(),
            self.timers.awaiting_networks.next_due(),
        ];
        due.into_iter().flatten().min()
    }

    /// Stores what the last event about a conflict contained.
    pub fn set_reported(&mut self, conflict: &Conflict, reported: Reported) {
        self.tracked
            .lifecycle
            .set_reported(conflict.address, conflict.id, reported);
    }

    /// Stores the latency of the last event about an anomaly, and the hash of its diagnosis.
    pub fn set_reported_anomaly(&mut self, anomaly: &Anomaly, latency_us: u64, diagnosis: u64) {
        let which = (anomaly.kind, anomaly.address, anomaly.id);
        self.tracked
            .anomalies
            .set_reported(which, latency_us, diagnosis);
    }

    /// Expires what has no removal event: claims seen only in frames, flapping, and anomalies.
    fn expire(&mut self, step: &mut Step<'_>) {
        while let Some(address) = self.timers.expiry.pop_due(step.now) {
            self.expire_claims(address, step.now);
        }
        while let Some(address) = self.tracked.lifecycle.pop_due(step.now) {
            self.dirty.insert(address);
        }
        self.expire_anomalies(step);
        self.expire_network_waits(step.now);
        while let Some(discrepancy) = self.reads.discrepancies.pop_due(step.now) {
            step.effects.push(Effect::Corrected(discrepancy));
        }
    }
}
