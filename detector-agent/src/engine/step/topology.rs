//! Links, forwarding tables and routes: who is where. None of them is a claim.

use std::net::IpAddr;

use super::{Effect, Engine};
use crate::engine::{
    bridge::FdbChange,
    conflict::ConflictKind,
    facts::Owner,
    in_flight_snapshots::Key,
    links::{LinkChange, LinkState, PodDevice, pods_end},
    observation::{FdbEntry, IfIndex, Link, LinkKind, Mac, Peer, Route, Timestamp},
    routes::{Added, Routes},
};

impl Engine {
    /// A link appeared or changed. `whole`: it was read, not told, and what it lacks it has not got.
    pub(super) fn link(
        &mut self,
        link: Link,
        whole: bool,
        at: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        let ifindex = link.ifindex;
        if self.links.get(ifindex).is_none() && self.links.len() >= self.settings.bounds.links {
            self.drops.links += 1;
            return;
        }
        let up = link.up;
        let was_bridge = self.links.is_bridge(ifindex);
        let before = self.links.pod(ifindex).map(LinkState::device);
        let upserted = self.links.upsert(link, whole, at);
        if let Some((older, peer)) = upserted.displaced {
            self.forget_end(peer, at);
            self.dirty_link(older);
        }
        match upserted.change {
            LinkChange::Same => return,
            // A route may have been told before its link was known.
            LinkChange::New if !up => self.routes_end(ifindex),
            LinkChange::New => {}
            LinkChange::Replaced(old) => {
                self.reads.touch(Key::Life(ifindex));
                self.forget_facts_of(ifindex, pods_end(&old));
                self.dirty_flapping(ifindex);
                // What the kernel holds for the new one may have been said before it was known to be another.
                effects.push(Effect::Resync);
            }
            LinkChange::Changed(old) => self.changed(&old, up, at),
        }
        self.dirty_link(ifindex);
        let is_bridge = self.links.is_bridge(ifindex);
        if was_bridge != is_bridge {
            self.dirty_ports(ifindex);
            if self.unresolved_links.remove(&ifindex) && is_bridge {
                effects.push(Effect::Resync);
            }
        }
        let after = self.links.pod(ifindex).map(LinkState::device);
        match (before, after) {
            (Some(before), None) => effects.push(Effect::Detach(before)),
            (before, Some(after)) => {
                let same = |b: &PodDevice| b.generation == after.generation && b.peer == after.peer;
                if !before.as_ref().is_some_and(same) {
                    effects.push(Effect::Attach(after));
                } else if before.as_ref() != Some(&after) {
                    effects.push(Effect::Renamed(after));
                }
            }
            (None, None) => {}
        }
    }

    /// What a known link's change ends.
    fn changed(&mut self, old: &Link, up: bool, at: Timestamp) {
        let ifindex = old.ifindex;
        let now = self.links.get(ifindex).map(|l| &l.link);
        let (peer, master) = now.map_or((None, None), |l| (pods_end(l), l.master));
        if let Some(before) = pods_end(old).filter(|before| Some(*before) != peer) {
            self.forget_end(before, at);
        }
        if old.kind == LinkKind::Pod && self.links.pod(ifindex).is_none() {
            self.dirty.extend(self.facts.forget_pod(ifindex));
            self.dirty_flapping(ifindex);
        }
        if let Some(bridge) = old.master.filter(|before| Some(*before) != master) {
            self.reads.touch(Key::StationsOf(ifindex));
            let behind = self.fdb.forget_port(bridge, ifindex);
            self.dirty_behind(&behind);
        }
        if old.up && !up {
            self.routes_end(ifindex);
        }
    }

    /// A device that stays has lost its other end.
    fn forget_end(&mut self, peer: Peer, at: Timestamp) {
        for address in self.facts.forget_peer(peer) {
            // What was heard long ago counted only while the address was assigned there.
            self.lapse(address, at);
        }
    }

    /// A link is down.
    fn routes_end(&mut self, ifindex: IfIndex) {
        self.reads.touch(Key::RoutesOf(ifindex));
        self.forget_routes_of(ifindex);
    }

    fn forget_routes_of(&mut self, ifindex: IfIndex) {
        if self.routes.forget_link(ifindex) {
            self.dirty.extend(self.anomalies.with_routes());
            self.dirty_open(|_| true);
        }
    }

    pub(super) fn link_gone(&mut self, ifindex: IfIndex, effects: &mut Vec<Effect>) {
        self.reads.touch(Key::Life(ifindex));
        let state = self.links.remove(ifindex);
        // Something may have been told on a link whose beginning was missed.
        self.forget_facts_of(ifindex, state.as_ref().and_then(|s| pods_end(&s.link)));
        self.dirty_ports(ifindex);
        self.dirty_flapping(ifindex);
        if let Some(state) = state.filter(LinkState::is_pod) {
            effects.push(Effect::Detach(state.device()));
        }
    }

    /// Everything that was known through a link that is gone.
    fn forget_facts_of(&mut self, ifindex: IfIndex, peer: Option<Peer>) {
        self.dirty.extend(self.facts.forget_link(ifindex));
        if let Some(peer) = peer {
            self.dirty.extend(self.facts.forget_peer(peer));
        }
        let behind = self.fdb.forget_link(ifindex);
        self.dirty_behind(&behind);
        self.forget_routes_of(ifindex);
    }

    /// Everything that is claimed through a link.
    pub(super) fn dirty_link(&mut self, ifindex: IfIndex) {
        self.dirty.extend(self.facts.owned_by(Owner::Link(ifindex)));
        if let Some(peer) = self.links.pod(ifindex).and_then(|l| l.link.peer) {
            self.dirty.extend(self.facts.owned_by(Owner::Peer(peer)));
        }
        let behind = self.fdb.behind_port(ifindex);
        self.dirty_behind(&behind);
    }

    /// A bridge came or went: its ports' L2 domains are others now.
    fn dirty_ports(&mut self, bridge: IfIndex) {
        let ports = self.links.iter().map(|l| &l.link);
        let ports = ports.filter(|l| l.master == Some(bridge));
        for port in ports.map(|l| l.ifindex).collect::<Vec<_>>() {
            self.dirty_link(port);
        }
    }

    fn dirty_behind(&mut self, hardware: &[(IfIndex, Mac)]) {
        for (bridge, mac) in hardware {
            self.dirty.extend(self.facts.behind(*bridge, *mac));
        }
    }

    /// Who took part in flapping need not claim the address now.
    fn dirty_flapping(&mut self, ifindex: IfIndex) {
        let open = self.lifecycle.open().map(|(_, conflict)| conflict);
        let flapping = open.filter(|c| c.kind == ConflictKind::Flapping);
        let with = flapping.filter(|c| c.present().any(|p| p.ifindex == ifindex));
        self.dirty.extend(with.map(|c| c.address));
    }

    pub(super) fn dirty_open(&mut self, which: impl Fn(IpAddr) -> bool) {
        let open = self.lifecycle.open().map(|(_, c)| c.address);
        self.dirty.extend(open.filter(|a| which(*a)));
    }

    pub(super) fn fdb(&mut self, entry: FdbEntry) {
        let bounds = &self.settings.bounds;
        let share = if self.links.pod(entry.port).is_some() {
            bounds.claims_per_device
        } else {
            bounds.kernel_entries
        };
        match self.fdb.set(entry, bounds.kernel_entries, share) {
            FdbChange::Same => return,
            FdbChange::Moved => {}
            FdbChange::Refused => self.drops.kernel_entries += 1,
        }
        self.dirty_behind(&[(entry.bridge, entry.mac)]);
    }

    pub(super) fn fdb_gone(&mut self, entry: FdbEntry) {
        let still_port = self.links.bridge_of(entry.port) == Some(entry.bridge);
        let keep = still_port && self.facts.asks_for(entry.bridge, entry.mac);
        if self.fdb.unset(entry, keep) == FdbChange::Moved {
            self.dirty_behind(&[(entry.bridge, entry.mac)]);
        }
    }

    pub(super) fn route(&mut self, route: Route) {
        match self.routes.add(route, self.settings.bounds.kernel_entries) {
            Added::New => {}
            Added::Known => return,
            Added::Refused => self.drops.kernel_entries += 1,
        }
        self.dirty_host_route(&route);
        self.dirty_open(|address| Routes::covers(&route, address));
    }

    /// A route for one address alone: does it lead to whoever has it?
    fn dirty_host_route(&mut self, route: &Route) {
        if route.prefix_len == if route.destination.is_ipv4() { 32 } else { 128 } {
            self.dirty.insert(route.destination);
        }
    }

    pub(super) fn route_gone(&mut self, route: &Route) {
        if self.routes.remove(route) {
            self.dirty_host_route(route);
            self.dirty_open(|address| Routes::covers(route, address));
        }
    }
}
