//! The node's routes: which device receives the traffic of an address, as far as plain routes
//! show it. A route is never a claim, and the kernel's own answer takes precedence
//! ([`route_lookups`](crate::mirror::route_lookups)).

use std::{collections::BTreeMap, net::IpAddr};

use ipnet::IpNet;

use crate::{
    hash::HashMap,
    index::Index,
    mirror::{StoreOutcome, topology::L3Presence},
    model::{IfIndex, Route, RouteKey, RoutePlace, host_prefix_len},
    small_set::push_compact,
};

/// `RT_TABLE_MAIN`: takes precedence over other tables, because policy rules are not read here.
const MAIN: u32 = 254;

/// By destination; few routes share one.
type Destinations = HashMap<IpAddr, Vec<Route>>;

#[derive(Debug, Default)]
pub(crate) struct Routes {
    /// By prefix length, both families together. Lengths and destinations without a route have no
    /// entry.
    by_length: BTreeMap<u8, Destinations>,
    count: usize,
    /// The destinations of host routes by the link that they lead to.
    hosts: Index<IfIndex, IpAddr>,
    /// The links that they lead to.
    pub(crate) presence: L3Presence,
}

impl Routes {
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Route> {
        self.by_length.values().flat_map(HashMap::values).flatten()
    }

    /// Adds a route in place of the first one of its destination, metric and table, within a bound
    /// on all of them: the kernel reports a replaced route only by its successor.
    pub(crate) fn replace(&mut self, route: Route, bound: usize) -> StoreOutcome {
        let (destination, length) = (route.destination, route.prefix_len);
        let known = self.by_length.get_mut(&length);
        let known = known.and_then(|known| known.get_mut(&destination));
        if let Some(known) = known.filter(|known| !known.contains(&route)) {
            let mut known = known.iter_mut();
            if let Some(first) = known.find(|known| known.key() == route.key()) {
                let replaced = std::mem::replace(first, route);
                self.unindex(&replaced);
                self.index(&route);
                return StoreOutcome::Changed;
            }
        }
        self.add(route, RoutePlace::Last, bound)
    }

    /// Adds a route to those of its destination, metric and table, within a bound on all of
    /// them.
    pub(crate) fn add(&mut self, route: Route, place: RoutePlace, bound: usize) -> StoreOutcome {
        let (destination, length) = (route.destination, route.prefix_len);
        let known = self.by_length.get(&length);
        let known = known.and_then(|known| known.get(&destination));
        if known.is_some_and(|known| known.contains(&route)) {
            return StoreOutcome::Known;
        }
        if self.count >= bound {
            return StoreOutcome::Refused;
        }
        let known = self.by_length.entry(length).or_default();
        let known = known.entry(destination).or_default();
        match place {
            RoutePlace::First => known.insert(0, route),
            RoutePlace::Last => push_compact(known, route),
        }
        self.count += 1;
        self.index(&route);
        StoreOutcome::Changed
    }

    fn index(&mut self, route: &Route) {
        self.presence.add(route.ifindex, route.destination);
        if route.is_to_host() {
            self.hosts.insert(route.ifindex, route.destination);
        }
    }

    fn unindex(&mut self, route: &Route) {
        self.presence.remove(route.ifindex, route.destination);
        let leads_there = |other: &Route| other.ifindex == route.ifindex;
        if route.is_to_host() && !self.host_routes(route.destination).any(leads_there) {
            self.hosts.remove(route.ifindex, &route.destination);
        }
    }

    /// The first route at a place, which one that is not stored may replace.
    pub(crate) fn first_at(&self, place: RouteKey) -> Option<Route> {
        let known = self.by_length.get(&place.prefix_len)?;
        let mut known = known.get(&place.destination)?.iter();
        known.find(|known| known.key() == place).copied()
    }

    pub(crate) fn remove(&mut self, route: &Route) -> bool {
        self.retain(route.destination, route.prefix_len, |known| known != route)
    }

    /// The kernel drops the routes of a link that is removed or down without a notification.
    pub(crate) fn remove_link(&mut self, ifindex: IfIndex) -> bool {
        let mut all_gone = Vec::new();
        self.by_length.retain(|_, destinations| {
            destinations.retain(|_, routes| {
                all_gone.append(&mut drop_others(routes, |known| known.ifindex != ifindex));
                !routes.is_empty()
            });
            !destinations.is_empty()
        });
        self.count -= all_gone.len();
        for route in &all_gone {
            self.unindex(route);
        }
        !all_gone.is_empty()
    }

    /// Keeps only these routes of one destination; `true` if others were removed.
    fn retain(&mut self, destination: IpAddr, length: u8, keep: impl Fn(&Route) -> bool) -> bool {
        let Some(destinations) = self.by_length.get_mut(&length) else {
            return false;
        };
        let Some(routes) = destinations.get_mut(&destination) else {
            return false;
        };
        let gone = drop_others(routes, keep);
        if routes.is_empty() {
            destinations.remove(&destination);
        }
        if destinations.is_empty() {
            self.by_length.remove(&length);
        }
        self.count -= gone.len();
        for route in &gone {
            self.unindex(route);
        }
        !gone.is_empty()
    }

    /// The output device for `address` by these tables, or [`Route::NOWHERE`]: longest prefix, then
    /// the main table, then the lowest metric.
    pub(crate) fn lookup(
        &self,
        address: IpAddr,
        in_table: impl Fn(u32) -> bool,
    ) -> Option<IfIndex> {
        let lengths = self.by_length.iter().rev();
        let mut matching =
            lengths.filter_map(|(length, known)| known.get(&network(address, *length)));
        matching.find_map(|routes| best(routes.iter().filter(|r| in_table(r.table))))
    }

    /// The output device of the host route for `address` by these tables, or [`Route::NOWHERE`]:
    /// main table first, then the lowest metric.
    pub(crate) fn host_route(
        &self,
        address: IpAddr,
        in_table: impl Fn(u32) -> bool,
    ) -> Option<IfIndex> {
        best(self.host_routes(address).filter(|r| in_table(r.table)))
    }

    /// The host routes for `address`, of all tables.
    pub(crate) fn host_routes(&self, address: IpAddr) -> impl Iterator<Item = &Route> {
        let known = self.by_length.get(&host_prefix_len(address));
        known
            .and_then(|known| known.get(&address))
            .into_iter()
            .flatten()
    }

    /// The destinations of the host routes to a link, of all tables.
    pub(crate) fn host_routes_to(&self, ifindex: IfIndex) -> impl Iterator<Item = IpAddr> {
        self.hosts.of(&ifindex).copied()
    }

    /// Whether a route covers `address`.
    pub(crate) fn covers(route: &Route, address: IpAddr) -> bool {
        covers_prefix(route.destination, route.prefix_len, address)
    }
}

/// Whether `address` is in the prefix.
pub(crate) fn covers_prefix(destination: IpAddr, prefix_len: u8, address: IpAddr) -> bool {
    network(address, prefix_len) == destination
}

/// The first of those with the best table and metric, as in the kernel.
fn best<'r>(routes: impl Iterator<Item = &'r Route>) -> Option<IfIndex> {
    let best = routes.min_by_key(|r| (r.table != MAIN, r.metric, r.table));
    best.map(|r| r.ifindex)
}

/// Returns those that were removed.
fn drop_others(routes: &mut Vec<Route>, keep: impl Fn(&Route) -> bool) -> Vec<Route> {
    routes.extract_if(.., |route| !keep(route)).collect()
}

/// `address` with all but its first `length` bits cleared. An IPv4 length above 32 leaves it
/// unchanged and matches no route.
fn network(address: IpAddr, length: u8) -> IpAddr {
    IpNet::new(address, length).map_or(address, |net| net.trunc().addr())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic, reason = "a test that cannot continue fails")]

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    fn route(destination: &str, prefix_len: u8, ifindex: IfIndex, metric: u32) -> Route {
        Route {
            destination: ip(destination),
            prefix_len,
            ifindex,
            metric,
            table: MAIN,
        }
    }

    #[test]
    fn longest_prefix_then_lowest_metric_wins() {
        let mut routes = Routes::default();
        for r in [
            route("0.0.0.0", 0, 1, 0),
            route("10.0.0.0", 24, 2, 0),
            route("10.0.0.7", 32, 3, 1024),
            route("10.0.0.7", 32, 4, 0),
        ] {
            assert_eq!(routes.replace(r, 10), StoreOutcome::Changed);
        }
        assert_eq!(routes.lookup([10, 0, 0, 7].into(), |_| true), Some(4));
        assert_eq!(routes.lookup([10, 0, 0, 8].into(), |_| true), Some(2));
        assert_eq!(routes.lookup([10, 0, 1, 8].into(), |_| true), Some(1));
        assert!(routes.remove_link(4));
        assert_eq!(routes.lookup([10, 0, 0, 7].into(), |_| true), Some(3));
        assert!(routes.remove(&route("10.0.0.7", 32, 3, 1024)));
        assert_eq!(routes.lookup([10, 0, 0, 7].into(), |_| true), Some(2));
    }

    #[test]
    fn main_table_takes_precedence() {
        let mut routes = Routes::default();
        let other = Route {
            table: 100,
            ..route("10.0.0.7", 32, 9, 0)
        };
        assert_eq!(routes.replace(other, 10), StoreOutcome::Changed);
        let main = route("10.0.0.7", 32, 3, 50);
        assert_eq!(routes.replace(main, 10), StoreOutcome::Changed);
        assert_eq!(routes.lookup([10, 0, 0, 7].into(), |_| true), Some(3));
    }

    #[test]
    fn route_with_same_destination_metric_and_table_is_replaced() {
        let mut routes = Routes::default();
        for (destination, length) in [("10.0.0.7", 32), ("2001:db8::7", 128)] {
            assert_eq!(
                routes.replace(route(destination, length, 3, 0), 10),
                StoreOutcome::Changed
            );
            assert_eq!(
                routes.replace(route(destination, length, 4, 0), 10),
                StoreOutcome::Changed
            );
            let address = route(destination, length, 0, 0).destination;
            assert_eq!(routes.lookup(address, |_| true), Some(4));
            assert!(!routes.remove(&route(destination, length, 3, 0)));
        }
        assert_eq!(routes.iter().count(), 2);
    }

    #[test]
    fn first_of_equal_routes_counts() {
        let address = IpAddr::from([10, 0, 0, 7]);
        let to = |ifindex| route("10.0.0.7", 32, ifindex, 0);
        let mut routes = Routes::default();
        for (ifindex, place, winner) in [
            (1, RoutePlace::First, 1),
            (2, RoutePlace::Last, 1),
            (3, RoutePlace::First, 3),
        ] {
            assert_eq!(routes.add(to(ifindex), place, 10), StoreOutcome::Changed);
            assert_eq!(routes.lookup(address, |_| true), Some(winner));
        }
        // `ip route replace` replaces the first one and keeps the others.
        assert_eq!(routes.replace(to(4), 10), StoreOutcome::Changed);
        for winner in [4, 1, 2] {
            assert_eq!(routes.lookup(address, |_| true), Some(winner));
            assert!(routes.remove(&to(winner)));
        }
        assert_eq!(routes.lookup(address, |_| true), None);
    }

    #[test]
    fn host_routes_are_found_by_their_link() {
        let mut routes = Routes::default();
        let other_table = Route {
            table: 100,
            ..route("10.0.0.7", 32, 3, 0)
        };
        let added = [
            route("10.0.0.7", 32, 3, 0),
            other_table,
            route("2001:db8::7", 128, 3, 0),
            route("10.0.0.0", 24, 3, 0),
            route("10.0.0.8", 32, 4, 0),
        ];
        for route in added {
            assert_eq!(routes.replace(route, 10), StoreOutcome::Changed);
        }
        let to = |routes: &Routes, ifindex| {
            let found = routes
                .host_routes_to(ifindex)
                .map(|address| address.to_string());
            found.collect::<Vec<_>>()
        };
        assert_eq!(to(&routes, 3), ["10.0.0.7", "2001:db8::7"]);
        assert!(routes.remove(&other_table));
        assert_eq!(to(&routes, 3), ["10.0.0.7", "2001:db8::7"]);
        assert_eq!(
            routes.replace(route("10.0.0.7", 32, 4, 0), 10),
            StoreOutcome::Changed
        );
        assert_eq!(to(&routes, 3), ["2001:db8::7"]);
        assert_eq!(to(&routes, 4), ["10.0.0.7", "10.0.0.8"]);
    }

    #[test]
    fn removed_routes_leave_no_entries() {
        let mut routes = Routes::default();
        for added in [route("10.0.0.7", 32, 1, 0), route("2001:db8::", 64, 1, 0)] {
            let ends: [fn(&mut Routes, &Route) -> bool; 2] = [
                |routes, added| routes.remove(added),
                |routes, _| routes.remove_link(1),
            ];
            for end in ends {
                assert_eq!(routes.replace(added, 1), StoreOutcome::Changed);
                assert!(end(&mut routes, &added));
                assert!(routes.by_length.is_empty() && routes.hosts.is_empty());
                assert!(!end(&mut routes, &added));
            }
        }
    }

    #[test]
    fn unknown_route_is_not_removed() {
        let mut routes = Routes::default();
        assert_eq!(
            routes.replace(route("10.0.0.7", 32, 1, 0), 1),
            StoreOutcome::Changed
        );
        for unknown in [
            route("10.0.0.8", 32, 1, 0),
            route("10.0.0.0", 24, 1, 0),
            route("10.0.0.7", 32, 1, 5),
        ] {
            assert!(!routes.remove(&unknown));
        }
        assert!(!routes.remove_link(2));
        assert_eq!(routes.iter().count(), 1);
    }

    #[test]
    fn newest_route_is_refused_at_the_bound() {
        let mut routes = Routes::default();
        assert_eq!(
            routes.replace(route("10.0.0.1", 32, 1, 0), 1),
            StoreOutcome::Changed
        );
        assert_eq!(
            routes.replace(route("10.0.0.2", 32, 1, 0), 1),
            StoreOutcome::Refused
        );
        assert_eq!(
            routes.replace(route("10.0.0.1", 32, 1, 0), 1),
            StoreOutcome::Known,
            "a known route takes no room"
        );
        assert_eq!(
            routes.replace(route("10.0.0.1", 32, 2, 0), 1),
            StoreOutcome::Changed,
            "nor does a replaced one"
        );
    }

    #[test]
    fn address_families_are_routed_separately() {
        let of = |destination, prefix_len, ifindex| route(destination, prefix_len, ifindex, 0);
        let mut routes = Routes::default();
        for route in [
            of("0.0.0.0", 0, 1),
            of("2001:db8::", 64, 2),
            of("2001:db8::7", 128, 3),
        ] {
            assert_eq!(routes.replace(route, 10), StoreOutcome::Changed);
        }
        assert_eq!(routes.lookup(ip("2001:db8::7"), |_| true), Some(3));
        assert_eq!(routes.lookup(ip("2001:db8::8"), |_| true), Some(2));
        assert_eq!(routes.lookup(ip("2001:db8:1::8"), |_| true), None);
        assert_eq!(routes.host_route(ip("2001:db8::7"), |_| true), Some(3));
        assert_eq!(routes.host_route(ip("2001:db8::8"), |_| true), None);
        assert!(!Routes::covers(&of("0.0.0.0", 0, 1), ip("2001:db8::7")));
        assert!(!Routes::covers(&of("::", 0, 1), ip("10.0.0.1")));
        assert!(Routes::covers(&of("::", 0, 1), ip("2001:db8::7")));
    }

    #[test]
    fn host_route_of_the_main_table_counts() {
        let mut routes = Routes::default();
        let other = Route {
            table: 100,
            ..route("10.0.0.2", 32, 9, 0)
        };
        let main = route("10.0.0.2", 32, 3, 50);
        routes.replace(other, 10);
        routes.replace(main, 10);
        assert_eq!(routes.host_route(ip("10.0.0.2"), |_| true), Some(3));
    }

    #[test]
    fn default_route_covers_all_and_a_one_bit_prefix_half() {
        let mut routes = Routes::default();
        for (prefix_len, ifindex) in [(0, 1), (1, 2)] {
            let wide = route("0.0.0.0", prefix_len, ifindex, 0);
            assert_eq!(
                routes.replace(wide, 10),
                StoreOutcome::Changed,
                "/{prefix_len}"
            );
        }
        assert_eq!(routes.lookup(ip("255.255.255.255"), |_| true), Some(1));
        assert_eq!(routes.lookup(ip("127.255.255.255"), |_| true), Some(2));
    }
}
