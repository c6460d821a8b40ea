//! What the kernel answered when it was asked where the node sends the packets for an address, and
//! which addresses have to be asked about again (`docs/detection-rules.md`, section 11).
//!
//! Invariants: only addresses with an open conflict are tracked, so all of this is bounded by their
//! number; every answer is indexed by what it depends on, and a change of any of that makes it
//! looked up again, also if the change is reported while the lookup is in flight. The last answer
//! holds until the next one.

use std::{
    collections::{BTreeMap, HashMap, HashSet, hash_map::Entry},
    net::IpAddr,
};

use super::{
    observation::{IfIndex, Mac},
    routes::covers_prefix,
};

/// Where the kernel sends the node's packets for an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RouteTarget {
    /// To itself: an address of the node, or a route of type `local`.
    Host,
    /// Nowhere: there is no route, or one that discards or rejects them.
    Nowhere,
    /// Out of a device that is not a bridge.
    Device(IfIndex),
    /// Out of a bridge.
    Bridge(BridgePath),
}

/// The path of packets behind a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BridgePath {
    /// The bridge.
    pub bridge: IfIndex,
    /// The gateway, or the address itself.
    pub next_hop: IpAddr,
    /// The hardware address that the next hop resolves to; `None` if it is unresolved.
    pub mac: Option<Mac>,
    /// The port to that hardware address.
    pub port: BridgePort,
}

/// What a bridge does with frames to a hardware address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BridgePort {
    /// It sends them to this port.
    Forwarding(IfIndex),
    /// It drops them, because this port is down.
    Blocked(IfIndex),
    /// It has no forwarding entry, and floods them.
    Unknown,
}

/// The outcome of a batch of lookups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteAnswers {
    /// What the kernel answered.
    pub found: Vec<(IpAddr, RouteTarget)>,
    /// Addresses for which it could not be asked; they are looked up again.
    pub failed: Vec<IpAddr>,
}

/// A change that affects where packets go, beyond the routes that are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RoutingChange {
    /// Policy rules or next-hop objects.
    Policy,
    /// Some route of this destination and prefix length: another type than unicast, another type
    /// of service, several next hops.
    Destination(IpAddr, u8),
    /// The state of a bridge's port.
    Port(IfIndex),
}

/// What an answer depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Dependency {
    Link(IfIndex),
    Neighbour(IfIndex, IpAddr),
    Fdb(IfIndex, Mac),
}

/// Bound on the recorded changes during one batch; beyond it the entire batch is looked up again.
const MAX_CHANGES_IN_FLIGHT: usize = 4_096;

/// An address with an open conflict.
#[derive(Debug, Default)]
struct Tracked {
    answer: Option<RouteTarget>,
    /// Its place in the queue.
    queued: Option<u64>,
}

#[derive(Debug, Default)]
pub(super) struct RouteLookups {
    tracked: HashMap<IpAddr, Tracked>,
    queue: BTreeMap<u64, IpAddr>,
    last_place: u64,
    dependents: HashMap<Dependency, HashSet<IpAddr>>,
    in_flight: HashSet<IpAddr>,
    changed_in_flight: HashSet<Dependency>,
    too_many_changes: bool,
}

impl RouteLookups {
    /// The kernel's last answer about an address.
    pub(super) fn answer(&self, address: IpAddr) -> Option<&RouteTarget> {
        self.tracked.get(&address)?.answer.as_ref()
    }

    /// Whether a lookup is waiting to be made.
    pub(super) fn is_pending(&self) -> bool {
        !self.queue.is_empty()
    }

    /// A conflict about the address is open.
    pub(super) fn follow(&mut self, address: IpAddr) {
        if let Entry::Vacant(place) = self.tracked.entry(address) {
            place.insert(Tracked::default());
            self.request(address);
        }
    }

    /// No conflict about the address is open any more.
    pub(super) fn forget(&mut self, address: IpAddr) {
        let Some(tracked) = self.tracked.remove(&address) else {
            return;
        };
        if let Some(place) = tracked.queued {
            self.queue.remove(&place);
        }
        self.unindex(address, tracked.answer);
    }

    /// The address has to be looked up, if it is in conflict.
    pub(super) fn request(&mut self, address: IpAddr) {
        let Some(tracked) = self.tracked.get_mut(&address) else {
            return;
        };
        if tracked.queued.is_none() {
            self.last_place += 1;
            tracked.queued = Some(self.last_place);
            self.queue.insert(self.last_place, address);
        }
    }

    pub(super) fn request_all(&mut self) {
        if self.queue.len() < self.tracked.len() {
            self.request_if(|_| true);
        }
    }

    /// A route of this prefix changed.
    pub(super) fn request_covered(&mut self, destination: IpAddr, prefix_len: u8) {
        self.request_if(|address| covers_prefix(destination, prefix_len, address));
    }

    fn request_if(&mut self, is_affected: impl Fn(IpAddr) -> bool) {
        let affected = self.tracked.keys().copied().filter(|a| is_affected(*a));
        for address in affected.collect::<Vec<_>>() {
            self.request(address);
        }
    }

    /// Something changed that an answer may depend on.
    pub(super) fn changed(&mut self, what: Dependency) {
        if !self.in_flight.is_empty() {
            if self.changed_in_flight.len() < MAX_CHANGES_IN_FLIGHT {
                self.changed_in_flight.insert(what);
            } else {
                self.too_many_changes = true;
            }
        }
        if let Some(dependents) = self.dependents.get(&what) {
            for address in dependents.clone() {
                self.request(address);
            }
        }
    }

    /// The link is gone: its index may be another link's soon. Answers that name it are dropped.
    /// Returns their addresses.
    pub(super) fn link_gone(&mut self, ifindex: IfIndex) -> HashSet<IpAddr> {
        let dependents = self.dependents.get(&Dependency::Link(ifindex));
        let dependents = dependents.cloned().unwrap_or_default();
        for address in &dependents {
            self.set(*address, None);
        }
        dependents
    }

    /// Takes up to `limit` addresses to look up, those that wait longest first.
    pub(super) fn take(&mut self, limit: usize) -> Vec<IpAddr> {
        let mut taken = Vec::new();
        while taken.len() < limit
            && let Some((_, address)) = self.queue.pop_first()
        {
            if let Some(tracked) = self.tracked.get_mut(&address) {
                tracked.queued = None;
            }
            taken.push(address);
        }
        self.in_flight.extend(&taken);
        taken
    }

    /// Stores the answers of a batch. Returns the addresses whose answer changed.
    pub(super) fn finish(&mut self, answers: RouteAnswers) -> Vec<IpAddr> {
        let mut changed = Vec::new();
        for (address, target) in answers.found {
            let is_outdated = self.too_many_changes
                || dependencies(&target).any(|what| self.changed_in_flight.contains(&what));
            if is_outdated {
                self.request(address);
            }
            self.in_flight.remove(&address);
            if self.set(address, Some(target)) {
                changed.push(address);
            }
        }
        for address in answers.failed {
            self.in_flight.remove(&address);
            self.request(address);
        }
        if self.in_flight.is_empty() {
            self.changed_in_flight.clear();
            self.too_many_changes = false;
        }
        changed
    }

    /// Sets the answer about a tracked address; `true` if that changed it.
    fn set(&mut self, address: IpAddr, answer: Option<RouteTarget>) -> bool {
        let Some(tracked) = self.tracked.get_mut(&address) else {
            return false;
        };
        let before = std::mem::replace(&mut tracked.answer, answer);
        if before == answer {
            return false;
        }
        self.unindex(address, before);
        for what in answer.iter().flat_map(dependencies) {
            self.dependents.entry(what).or_default().insert(address);
        }
        true
    }

    fn unindex(&mut self, address: IpAddr, answer: Option<RouteTarget>) {
        for what in answer.iter().flat_map(dependencies) {
            if let Some(dependents) = self.dependents.get_mut(&what) {
                dependents.remove(&address);
                if dependents.is_empty() {
                    self.dependents.remove(&what);
                }
            }
        }
    }
}

fn dependencies(target: &RouteTarget) -> impl Iterator<Item = Dependency> + use<> {
    let (link, path) = match *target {
        RouteTarget::Host | RouteTarget::Nowhere => (None, None),
        RouteTarget::Device(ifindex) => (Some(ifindex), None),
        RouteTarget::Bridge(path) => (Some(path.bridge), Some(path)),
    };
    let port = path.and_then(|path| match path.port {
        BridgePort::Forwarding(port) | BridgePort::Blocked(port) => Some(port),
        BridgePort::Unknown => None,
    });
    let neighbour = path.map(|path| Dependency::Neighbour(path.bridge, path.next_hop));
    let fdb = path.and_then(|path| Some(Dependency::Fdb(path.bridge, path.mac?)));
    let links = [link, port].into_iter().flatten().map(Dependency::Link);
    links.chain(neighbour).chain(fdb)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    fn path(port: IfIndex) -> RouteTarget {
        RouteTarget::Bridge(BridgePath {
            bridge: 9,
            next_hop: ip(1),
            mac: Some(Mac([2, 0, 0, 0, 0, 1])),
            port: BridgePort::Forwarding(port),
        })
    }

    fn found(address: IpAddr, target: RouteTarget) -> RouteAnswers {
        RouteAnswers {
            found: vec![(address, target)],
            failed: Vec::new(),
        }
    }

    #[test]
    fn forgotten_addresses_leave_nothing_behind() {
        let mut lookups = RouteLookups::default();
        lookups.follow(ip(1));
        assert_eq!(lookups.take(10), [ip(1)]);
        assert_eq!(lookups.finish(found(ip(1), path(3))), [ip(1)]);
        lookups.request_all();
        lookups.forget(ip(1));
        assert!(lookups.tracked.is_empty() && lookups.dependents.is_empty());
        assert!(lookups.queue.is_empty() && lookups.in_flight.is_empty());
        // An answer that comes too late is not stored.
        assert!(lookups.finish(found(ip(1), path(3))).is_empty());
        assert!(lookups.dependents.is_empty());
    }

    #[test]
    fn a_change_during_the_lookup_makes_it_repeated() {
        let depends_on = [
            Dependency::Link(9),
            Dependency::Link(3),
            Dependency::Neighbour(9, ip(1)),
            Dependency::Fdb(9, Mac([2, 0, 0, 0, 0, 1])),
        ];
        let others = [Dependency::Link(4), Dependency::Neighbour(9, ip(2))];
        let repeated = [true; 4].into_iter().chain([false; 2]);
        for (what, is_repeated) in depends_on.into_iter().chain(others).zip(repeated) {
            let mut lookups = RouteLookups::default();
            lookups.follow(ip(1));
            lookups.take(10);
            lookups.changed(what);
            lookups.finish(found(ip(1), path(3)));
            assert_eq!(lookups.is_pending(), is_repeated, "{what:?}");
            assert!(lookups.changed_in_flight.is_empty());
        }
    }

    #[test]
    fn too_many_changes_during_a_lookup_make_it_repeated() {
        let mut lookups = RouteLookups::default();
        lookups.follow(ip(1));
        lookups.take(10);
        for ifindex in (100..).take(MAX_CHANGES_IN_FLIGHT + 1) {
            lookups.changed(Dependency::Link(ifindex));
        }
        lookups.finish(found(ip(1), path(3)));
        assert_eq!(lookups.take(10), [ip(1)]);
        lookups.finish(found(ip(1), path(3)));
        assert!(!lookups.is_pending());
    }

    #[test]
    fn addresses_that_wait_longest_come_first() {
        let mut lookups = RouteLookups::default();
        for last in [3, 1, 2] {
            lookups.follow(ip(last));
        }
        assert_eq!(lookups.take(2), [ip(3), ip(1)]);
        lookups.request(ip(1));
        assert_eq!(lookups.take(2), [ip(2), ip(1)]);
    }
}
