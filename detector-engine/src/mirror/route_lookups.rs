//! What the kernel answered when it was asked where the node sends the packets for an address, and
//! which addresses have to be asked about again (`docs/detection-rules.md`, section 11).
//!
//! Invariants: only addresses with an open conflict are tracked, so all of this is bounded by their
//! number; every answer is indexed by what it depends on, and a change of any of that makes it
//! looked up again, even if the change is reported while the lookup is in flight. The last answer
//! holds until the next one.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    net::IpAddr,
};

use crate::{
    hash::HashSet,
    index::Index,
    mirror::routes::covers_prefix,
    model::{
        BridgePort, IfIndex, Mac, Observation, RouteAnswers, RouteQuery, RouteTarget, RoutingChange,
    },
};

/// What an answer depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Dependency {
    Link(IfIndex),
    Neighbour(IfIndex, IpAddr),
    Fdb(IfIndex, Mac),
}

/// Bound on the recorded changes during one batch; beyond it the entire batch is looked up again.
const MAX_CHANGES_IN_FLIGHT: usize = 4_096;

/// The state of a query about an address with an open conflict.
#[derive(Debug, Default)]
struct QueryState {
    answer: Option<RouteTarget>,
    /// Its place in the queue.
    queued: Option<u64>,
}

#[derive(Debug, Default)]
pub(crate) struct RouteLookups {
    queries: BTreeMap<RouteQuery, QueryState>,
    queue: BTreeMap<u64, RouteQuery>,
    last_place: u64,
    dependents: Index<Dependency, RouteQuery>,
    in_flight: HashSet<RouteQuery>,
    changed_in_flight: HashSet<Dependency>,
    too_many_changes: bool,
}

impl RouteLookups {
    /// Asks again about the addresses whose answers may depend on what was observed.
    pub(crate) fn observe(&mut self, observation: &Observation) {
        match observation {
            Observation::Link(link) => self.changed(Dependency::Link(link.ifindex)),
            Observation::HostAddress(_, info) => self.request(info.address),
            Observation::HostAddressGone(_, id) => self.request(id.address),
            Observation::Neighbour(n) => {
                self.changed(Dependency::Neighbour(n.ifindex, n.address));
            }
            Observation::NeighbourGone(ifindex, address) => {
                self.changed(Dependency::Neighbour(*ifindex, *address));
            }
            Observation::Fdb(entry) | Observation::FdbGone(entry) => {
                self.changed(Dependency::Fdb(entry.bridge, entry.mac));
            }
            Observation::Route(route)
            | Observation::RouteInserted(route, _)
            | Observation::RouteGone(route) => {
                self.request_covered(route.destination, route.prefix_len);
            }
            Observation::RoutingChanged(change) => match change {
                RoutingChange::Policy => self.request_all(),
                RoutingChange::Destination(destination, prefix_len) => {
                    self.request_covered(*destination, *prefix_len);
                }
                RoutingChange::Replaced(place) => {
                    self.request_covered(place.destination, place.prefix_len);
                }
                RoutingChange::Port(port) => self.changed(Dependency::Link(*port)),
            },
            // What else decides is an answer itself, or has it asked where it is applied.
            _ => {}
        }
    }

    /// The kernel's last answer.
    pub(crate) fn answer(&self, query: RouteQuery) -> Option<&RouteTarget> {
        self.queries.get(&query)?.answer.as_ref()
    }

    /// Whether a lookup is waiting to be made.
    pub(crate) fn is_pending(&self) -> bool {
        !self.queue.is_empty()
    }

    /// These are the queries about an address in conflict; none if no conflict is open.
    pub(crate) fn follow(
        &mut self,
        address: IpAddr,
        queries: impl Iterator<Item = RouteQuery> + Clone,
    ) {
        let mut unwanted = self.queries_about(address);
        unwanted.retain(|known| queries.clone().all(|wanted| wanted != *known));
        for query in unwanted {
            self.forget(query);
        }
        for query in queries {
            if let Entry::Vacant(place) = self.queries.entry(query) {
                place.insert(QueryState::default());
                self.enqueue(query);
            }
        }
    }

    fn queries_about(&self, address: IpAddr) -> Vec<RouteQuery> {
        let query = |vrf| RouteQuery { address, vrf };
        let known = self.queries.range(query(None)..=query(Some(IfIndex::MAX)));
        known.map(|(query, _)| *query).collect()
    }

    fn forget(&mut self, query: RouteQuery) {
        let Some(state) = self.queries.remove(&query) else {
            return;
        };
        if let Some(place) = state.queued {
            self.queue.remove(&place);
        }
        self.unindex(query, state.answer);
    }

    /// The address has to be looked up, if it is in conflict.
    pub(crate) fn request(&mut self, address: IpAddr) {
        for query in self.queries_about(address) {
            self.enqueue(query);
        }
    }

    fn enqueue(&mut self, query: RouteQuery) {
        let Some(state) = self.queries.get_mut(&query) else {
            return;
        };
        if state.queued.is_none() {
            self.last_place += 1;
            state.queued = Some(self.last_place);
            self.queue.insert(self.last_place, query);
        }
    }

    pub(crate) fn request_all(&mut self) {
        if self.queue.len() < self.queries.len() {
            self.request_if(|_| true);
        }
    }

    /// A route of this prefix changed.
    pub(crate) fn request_covered(&mut self, destination: IpAddr, prefix_len: u8) {
        self.request_if(|address| covers_prefix(destination, prefix_len, address));
    }

    fn request_if(&mut self, is_affected: impl Fn(IpAddr) -> bool) {
        let queries = self.queries.keys().copied();
        let affected = queries.filter(|query| is_affected(query.address));
        for query in affected.collect::<Vec<_>>() {
            self.enqueue(query);
        }
    }

    /// Something changed that an answer may depend on.
    pub(crate) fn changed(&mut self, what: Dependency) {
        if !self.in_flight.is_empty() {
            if self.changed_in_flight.len() < MAX_CHANGES_IN_FLIGHT {
                self.changed_in_flight.insert(what);
            } else {
                self.too_many_changes = true;
            }
        }
        for query in self.dependents.of(&what).copied().collect::<Vec<_>>() {
            self.enqueue(query);
        }
    }

    /// The link is gone: its index may be another link's soon. Answers that name it are dropped.
    /// Returns their addresses.
    pub(crate) fn link_gone(&mut self, ifindex: IfIndex) -> Vec<IpAddr> {
        let dependents = self.dependents.of(&Dependency::Link(ifindex));
        let dependents: Vec<_> = dependents.copied().collect();
        for query in &dependents {
            self.set(*query, None);
        }
        dependents.iter().map(|query| query.address).collect()
    }

    /// Takes up to `limit` queries, those that wait longest first.
    pub(crate) fn take(&mut self, limit: usize) -> Vec<RouteQuery> {
        let mut taken = Vec::new();
        while taken.len() < limit
            && let Some((_, query)) = self.queue.pop_first()
        {
            if let Some(state) = self.queries.get_mut(&query) {
                state.queued = None;
            }
            taken.push(query);
        }
        self.in_flight.extend(&taken);
        taken
    }

    /// Stores the answers of a batch. Returns the addresses whose answer changed.
    pub(crate) fn finish(&mut self, answers: RouteAnswers) -> Vec<IpAddr> {
        let mut changed = Vec::new();
        for (query, target) in answers.found {
            let is_outdated = self.too_many_changes
                || dependencies(&target).any(|what| self.changed_in_flight.contains(&what));
            if is_outdated {
                self.enqueue(query);
            }
            self.in_flight.remove(&query);
            if self.set(query, Some(target)) {
                changed.push(query.address);
            }
        }
        for query in answers.failed {
            self.in_flight.remove(&query);
            self.enqueue(query);
        }
        if self.in_flight.is_empty() {
            self.changed_in_flight.clear();
            self.too_many_changes = false;
        }
        changed
    }

    /// Sets the answer to a tracked query; `true` if that changed it.
    fn set(&mut self, query: RouteQuery, answer: Option<RouteTarget>) -> bool {
        let Some(state) = self.queries.get_mut(&query) else {
            return false;
        };
        let before = std::mem::replace(&mut state.answer, answer);
        if before == answer {
            return false;
        }
        self.unindex(query, before);
        for what in answer.iter().flat_map(dependencies) {
            self.dependents.insert(what, query);
        }
        true
    }

    fn unindex(&mut self, query: RouteQuery, answer: Option<RouteTarget>) {
        for what in answer.iter().flat_map(dependencies) {
            self.dependents.remove(what, &query);
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
    let neighbour = path.map(|path| Dependency::Neighbour(path.interface, path.next_hop));
    let fdb = path.and_then(|path| Some(Dependency::Fdb(path.bridge, path.mac?)));
    let links = [link, port].into_iter().flatten().map(Dependency::Link);
    links.chain(neighbour).chain(fdb)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::BridgePath;

    fn ip(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    fn query(last: u8) -> RouteQuery {
        RouteQuery {
            address: ip(last),
            vrf: None,
        }
    }

    fn follow(lookups: &mut RouteLookups, last: u8) {
        lookups.follow(ip(last), [query(last)].into_iter());
    }

    fn path(port: IfIndex) -> RouteTarget {
        RouteTarget::Bridge(BridgePath {
            interface: 9,
            bridge: 9,
            next_hop: ip(1),
            mac: Some(Mac([2, 0, 0, 0, 0, 1])),
            port: BridgePort::Forwarding(port),
        })
    }

    fn found(query: RouteQuery, target: RouteTarget) -> RouteAnswers {
        RouteAnswers {
            found: vec![(query, target)],
            failed: Vec::new(),
        }
    }

    #[test]
    fn forgotten_addresses_leave_nothing_behind() {
        let mut lookups = RouteLookups::default();
        follow(&mut lookups, 1);
        assert_eq!(lookups.take(10), [query(1)]);
        assert_eq!(lookups.finish(found(query(1), path(3))), [ip(1)]);
        lookups.request_all();
        lookups.follow(ip(1), [].into_iter());
        assert!(lookups.queries.is_empty() && lookups.dependents.is_empty());
        assert!(lookups.queue.is_empty() && lookups.in_flight.is_empty());
        // An answer that comes too late is not stored.
        assert!(lookups.finish(found(query(1), path(3))).is_empty());
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
            follow(&mut lookups, 1);
            lookups.take(10);
            lookups.changed(what);
            lookups.finish(found(query(1), path(3)));
            assert_eq!(lookups.is_pending(), is_repeated, "{what:?}");
            assert!(lookups.changed_in_flight.is_empty());
        }
    }

    #[test]
    fn too_many_changes_during_a_lookup_make_it_repeated() {
        let mut lookups = RouteLookups::default();
        follow(&mut lookups, 1);
        lookups.take(10);
        for ifindex in (100..).take(MAX_CHANGES_IN_FLIGHT + 1) {
            lookups.changed(Dependency::Link(ifindex));
        }
        lookups.finish(found(query(1), path(3)));
        assert_eq!(lookups.take(10), [query(1)]);
        lookups.finish(found(query(1), path(3)));
        assert!(!lookups.is_pending());
    }

    #[test]
    fn addresses_that_wait_longest_come_first() {
        let mut lookups = RouteLookups::default();
        for last in [3, 1, 2] {
            follow(&mut lookups, last);
        }
        assert_eq!(lookups.take(2), [query(3), query(1)]);
        lookups.request(ip(1));
        assert_eq!(lookups.take(2), [query(2), query(1)]);
    }
}
