//! The node's routes: which device receives the traffic of an address. A route is never a claim.

use std::{collections::HashMap, net::IpAddr};

use super::observation::{IfIndex, Route};

/// `RT_TABLE_MAIN`: wins over other tables, as no policy rules are read.
const MAIN: u32 = 254;

/// What following a route came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Added {
    New,
    Known,
    Refused,
}

#[derive(Debug, Default)]
pub(super) struct Routes {
    /// By destination; few routes share one.
    by_prefix: HashMap<(IpAddr, u8), Vec<Route>>,
    /// How many destinations there are per prefix length, for each family: which lengths are worth a look.
    lengths: [HashMap<u8, usize>; 2],
    count: usize,
}

impl Routes {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Route> {
        self.by_prefix.values().flatten()
    }

    /// Follows a route, within a bound on all of them.
    pub(super) fn add(&mut self, route: Route, bound: usize) -> Added {
        if let Some(known) = self.by_prefix.get(&(route.destination, route.prefix_len))
            && known.contains(&route)
        {
            return Added::Known;
        }
        // One route per destination, metric and table: the kernel tells a replaced one's end by its successor alone. Of
        // routes appended beside each other the last told is followed.
        let replaced = |k: &Route| (k.metric, k.table) == (route.metric, route.table);
        let prefix = (route.destination, route.prefix_len);
        self.retain(Some(prefix), |known| !replaced(known));
        if self.count >= bound {
            return Added::Refused;
        }
        let known = self.by_prefix.entry(prefix).or_default();
        if known.is_empty() {
            *self.lengths[family(route.destination)]
                .entry(route.prefix_len)
                .or_default() += 1;
        }
        known.push(route);
        self.count += 1;
        Added::New
    }

    pub(super) fn remove(&mut self, route: &Route) -> bool {
        self.retain(Some((route.destination, route.prefix_len)), |known| {
            known != route
        })
    }

    /// The kernel drops the routes of a link that is gone or down without saying so.
    pub(super) fn forget_link(&mut self, ifindex: IfIndex) -> bool {
        self.retain(None, |known| known.ifindex != ifindex)
    }

    fn retain(&mut self, only: Option<(IpAddr, u8)>, keep: impl Fn(&Route) -> bool) -> bool {
        let mut gone = 0;
        let lengths = &mut self.lengths;
        let mut prune = |key: &(IpAddr, u8), routes: &mut Vec<Route>| {
            let before = routes.len();
            routes.retain(&keep);
            gone += before - routes.len();
            if routes.is_empty() && before > 0 {
                let lengths = &mut lengths[family(key.0)];
                if let Some(left) = lengths.get_mut(&key.1) {
                    *left -= 1;
                    if *left == 0 {
                        lengths.remove(&key.1);
                    }
                }
            }
            !routes.is_empty()
        };
        match only {
            Some(key) => {
                if let Some(routes) = self.by_prefix.get_mut(&key)
                    && !prune(&key, routes)
                {
                    self.by_prefix.remove(&key);
                }
            }
            None => self.by_prefix.retain(|key, routes| prune(key, routes)),
        }
        self.count -= gone;
        gone > 0
    }

    /// The device that packets for `address` leave by: longest prefix, main table first, lowest metric.
    pub(super) fn lookup(&self, address: IpAddr) -> Option<IfIndex> {
        let mut lengths: Vec<u8> = self.lengths[family(address)].keys().copied().collect();
        lengths.sort_unstable_by(|a, b| b.cmp(a));
        lengths.into_iter().find_map(|length| {
            let routes = self.by_prefix.get(&(network(address, length), length))?;
            routes
                .iter()
                .min_by_key(|r| (r.table != MAIN, r.metric, r.table))
                .map(|r| r.ifindex)
        })
    }

    /// The device of the route for this address alone: main table first, lowest metric.
    pub(super) fn host_route(&self, address: IpAddr) -> Option<IfIndex> {
        let length = if address.is_ipv4() { 32 } else { 128 };
        let routes = self.by_prefix.get(&(address, length))?;
        let best = routes
            .iter()
            .min_by_key(|r| (r.table != MAIN, r.metric, r.table));
        best.map(|r| r.ifindex)
    }

    /// Whether a route for `destination/prefix_len` matters to `address`.
    pub(super) fn covers(route: &Route, address: IpAddr) -> bool {
        route.destination.is_ipv4() == address.is_ipv4()
            && network(address, route.prefix_len) == route.destination
    }
}

fn family(address: IpAddr) -> usize {
    usize::from(address.is_ipv6())
}

/// `address` with all but its first `length` bits cleared.
fn network(address: IpAddr, length: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX
                .checked_shl(32 - u32::from(length.min(32)))
                .unwrap_or(0);
            IpAddr::V4((u32::from(v4) & mask).into())
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX
                .checked_shl(128 - u32::from(length.min(128)))
                .unwrap_or(0);
            IpAddr::V6((u128::from(v6) & mask).into())
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic, reason = "a test that cannot go on fails")]

    use super::*;

    fn route(destination: &str, prefix_len: u8, ifindex: IfIndex, metric: u32) -> Route {
        let destination = destination
            .parse()
            .unwrap_or_else(|e| panic!("{destination}: {e}"));
        Route {
            destination,
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
            assert_eq!(routes.add(r, 10), Added::New);
        }
        assert_eq!(routes.lookup([10, 0, 0, 7].into()), Some(4));
        assert_eq!(routes.lookup([10, 0, 0, 8].into()), Some(2));
        assert_eq!(routes.lookup([10, 0, 1, 8].into()), Some(1));
        assert!(routes.forget_link(4));
        assert_eq!(routes.lookup([10, 0, 0, 7].into()), Some(3));
        assert!(routes.remove(&route("10.0.0.7", 32, 3, 1024)));
        assert_eq!(routes.lookup([10, 0, 0, 7].into()), Some(2));
    }

    #[test]
    fn another_table_never_wins_over_main() {
        let mut routes = Routes::default();
        let other = Route {
            table: 100,
            ..route("10.0.0.7", 32, 9, 0)
        };
        assert_eq!(routes.add(other, 10), Added::New);
        let main = route("10.0.0.7", 32, 3, 50);
        assert_eq!(routes.add(main, 10), Added::New);
        assert_eq!(routes.lookup([10, 0, 0, 7].into()), Some(3));
    }

    #[test]
    fn a_route_told_for_a_known_destination_metric_and_table_replaces_the_other() {
        let mut routes = Routes::default();
        for (destination, length) in [("10.0.0.7", 32), ("2001:db8::7", 128)] {
            assert_eq!(routes.add(route(destination, length, 3, 0), 10), Added::New);
            assert_eq!(routes.add(route(destination, length, 4, 0), 10), Added::New);
            let address = route(destination, length, 0, 0).destination;
            assert_eq!(routes.lookup(address), Some(4));
            assert!(!routes.remove(&route(destination, length, 3, 0)));
        }
        assert_eq!(routes.iter().count(), 2);
    }

    #[test]
    fn the_bound_refuses_the_newest() {
        let mut routes = Routes::default();
        assert_eq!(routes.add(route("10.0.0.1", 32, 1, 0), 1), Added::New);
        assert_eq!(routes.add(route("10.0.0.2", 32, 1, 0), 1), Added::Refused);
        assert_eq!(
            routes.add(route("10.0.0.1", 32, 1, 0), 1),
            Added::Known,
            "a known one is no growth"
        );
        assert_eq!(
            routes.add(route("10.0.0.1", 32, 2, 0), 1),
            Added::New,
            "nor is a replaced one"
        );
    }
}
