//! Neighbour entries, FDB entries, and routes.

use super::*;

impl World {
    pub(in super::super) fn neighbour(
        &mut self,
        ifindex: IfIndex,
        address: IpAddr,
        mac: Mac,
        state: NudState,
    ) -> Option<Observation> {
        self.links.get(&ifindex)?;
        let now = self.now;
        let entry = self
            .neighbours
            .entry((ifindex, address))
            .or_insert_with(|| NeighbourEntry {
                mac,
                state,
                refuted: false,
                confirmed: false,
                history: vec![EntryEvent::Took(now, mac)],
                former: BTreeMap::new(),
            });
        if entry.mac != mac {
            entry.former.retain(|_, left| now.since(*left) < WINDOW);
            entry.former.insert(entry.mac, now);
            entry.former.remove(&mac);
            entry.history.push(EntryEvent::Took(now, mac));
            entry.refuted = false;
            entry.confirmed = false;
            entry.mac = mac;
        }
        if state == NudState::Reachable {
            entry.refuted = false;
            entry.confirmed = true;
            entry.history.push(EntryEvent::Confirmed(mac));
        }
        entry.state = state;
        self.purge_aged();
        Some(Observation::Neighbour(Neighbour {
            ifindex,
            address,
            lladdr: Some(mac),
            state,
        }))
    }

    pub(in super::super) fn neighbour_gone(
        &mut self,
        ifindex: IfIndex,
        address: IpAddr,
    ) -> Option<Observation> {
        self.neighbours.remove(&(ifindex, address))?;
        self.purge_aged();
        Some(Observation::NeighbourGone(ifindex, address))
    }

    pub(in super::super) fn learn(
        &mut self,
        bridge: IfIndex,
        port: IfIndex,
        mac: Mac,
    ) -> Option<Observation> {
        if self.bridge_of(port) != Some(bridge) {
            return None;
        }
        let entry = FdbPort { port, aged: false };
        self.fdb.insert((bridge, mac), entry);
        Some(Observation::Fdb(fdb(bridge, port, mac)))
    }

    pub(in super::super) fn age(&mut self, bridge: IfIndex, mac: Mac) -> Option<Observation> {
        let entry = self.fdb.get_mut(&(bridge, mac)).filter(|s| !s.aged)?;
        entry.aged = true;
        let port = entry.port;
        self.purge_aged();
        Some(Observation::FdbGone(fdb(bridge, port, mac)))
    }

    /// Drops aged FDB entries that no neighbour entry of the bridge refers to.
    pub(super) fn purge_aged(&mut self) {
        let neighbours = &self.neighbours;
        self.fdb.retain(|(bridge, mac), entry| {
            let refers = |e: &NeighbourEntry| e.mac == *mac || e.former.contains_key(mac);
            let mut on_bridge = neighbours.iter().filter(|((i, _), _)| i == bridge);
            !entry.aged || on_bridge.any(|(_, e)| refers(e))
        });
    }

    pub(in super::super) fn route(
        &mut self,
        address: IpAddr,
        ifindex: IfIndex,
    ) -> Option<Observation> {
        if ifindex != Route::NOWHERE {
            self.links.get(&ifindex).filter(|d| d.link.up)?;
        }
        self.routes.insert(address, ifindex);
        Some(Observation::Route(host_route(address, ifindex)))
    }

    pub(in super::super) fn route_gone(&mut self, address: IpAddr) -> Option<Observation> {
        let ifindex = self.routes.remove(&address)?;
        Some(Observation::RouteGone(host_route(address, ifindex)))
    }

    /// Several next hops take its place.
    pub(in super::super) fn route_replaced(&mut self, address: IpAddr) -> Option<Observation> {
        let ifindex = self.routes.remove(&address)?;
        let place = host_route(address, ifindex).key();
        Some(Observation::RoutingChanged(RoutingChange::Replaced(place)))
    }

    pub(in super::super) fn rule(
        &mut self,
        address: IpAddr,
        ifindex: Option<IfIndex>,
    ) -> Option<Observation> {
        if let Some(ifindex) = ifindex {
            self.links.get(&ifindex).filter(|d| d.link.up)?;
        }
        self.rules.insert(address, ifindex);
        Some(Observation::RoutingChanged(RoutingChange::Policy))
    }

    pub(in super::super) fn rule_gone(&mut self, address: IpAddr) -> Option<Observation> {
        self.rules.remove(&address)?;
        Some(Observation::RoutingChanged(RoutingChange::Policy))
    }

    /// What the kernel answers to a lookup. As with `ignore_routes_with_linkdown`, nothing is sent over a link without a
    /// carrier.
    pub(in super::super) fn look_up_route(&self, address: IpAddr) -> RouteTarget {
        let out = match self.rules.get(&address) {
            Some(target) => *target,
            None if self.hosts.iter().any(|(_, a)| *a == address) => return RouteTarget::Host,
            None => self.routes.get(&address).copied(),
        };
        let has_carrier = |out: &IfIndex| self.links.get(out).is_none_or(|d| d.link.running);
        let Some(out) = out.filter(|out| *out != Route::NOWHERE && has_carrier(out)) else {
            return RouteTarget::Nowhere;
        };
        if !self.is_bridge(out) {
            return RouteTarget::Device(out);
        }
        let mac = self.neighbours.get(&(out, address)).map(|entry| entry.mac);
        let entry = mac.and_then(|mac| self.fdb.get(&(out, mac)));
        RouteTarget::Bridge(BridgePath {
            interface: out,
            bridge: out,
            next_hop: address,
            mac,
            port: match entry {
                Some(entry) if entry.aged => BridgePort::Unknown,
                Some(entry) if self.links[&entry.port].link.running => {
                    BridgePort::Forwarding(entry.port)
                }
                Some(entry) => BridgePort::Blocked(entry.port),
                None => BridgePort::Unknown,
            },
        })
    }
}
