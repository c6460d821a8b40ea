//! What claims are made of: addresses, neighbour entries and frames.

use std::net::IpAddr;

use super::Engine;
use crate::engine::{
    conflict::ClaimantId,
    facts::{FrameFact, Stored, Telling},
    observation::{
        AssignedAddress, FrameClaim, IfIndex, Mac, Neighbour, NudState, Peer, Timestamp, Vlan,
    },
    scope::claimable,
};

impl Engine {
    pub(super) fn pod_address(&mut self, peer: Peer, info: AssignedAddress, at: Timestamp) {
        let Some(device) = self.links.pod_by_peer(peer).map(|l| l.link.ifindex) else {
            return;
        };
        if !claimable(info.address) {
            return;
        }
        let facts = self.facts.get(info.address);
        let news = !facts.is_some_and(|f| f.assigned_on(peer));
        match self.facts.assign(peer, info, at, &self.settings.bounds) {
            Stored::Changed => {
                self.dirty.insert(info.address);
            }
            Stored::Refused => self.drops.claims += 1,
            Stored::Refreshed => {}
        }
        if news {
            self.note_move(info.address, device, Vlan::default(), at);
        }
    }

    pub(super) fn pod_address_gone(
        &mut self,
        peer: Peer,
        address: IpAddr,
        prefix_len: u8,
        at: Timestamp,
    ) {
        let Some(device) = self.links.pod_by_peer(peer).map(|l| l.link.ifindex) else {
            return;
        };
        if self.facts.unassign_one_of(peer, address, prefix_len) {
            return;
        }
        let mut changed = self.facts.unassign(peer, address, device, at);
        changed |= self.facts.refute_neighbour(device, address, |_| true);
        if let Some(bridge) = self.links.bridge_of(device) {
            let leads_there = |mac| self.fdb.port(bridge, mac) == Some(device);
            changed |= self.facts.refute_neighbour(bridge, address, leads_there);
        }
        if changed {
            self.dirty.insert(address);
        }
    }

    pub(super) fn host_address(&mut self, ifindex: IfIndex, info: AssignedAddress, at: Timestamp) {
        if !claimable(info.address) {
            return;
        }
        match self
            .facts
            .assign_host(ifindex, info, at, &self.settings.bounds)
        {
            Stored::Changed => {
                self.dirty.insert(info.address);
            }
            Stored::Refused => self.drops.kernel_entries += 1,
            Stored::Refreshed => {}
        }
    }

    pub(super) fn host_address_gone(&mut self, ifindex: IfIndex, address: IpAddr, prefix_len: u8) {
        if self
            .facts
            .unassign_host_one_of(ifindex, address, prefix_len)
        {
            return;
        }
        if self.facts.unassign_host(ifindex, address) {
            self.dirty.insert(address);
        }
    }

    pub(super) fn neighbour(&mut self, neighbour: Neighbour, at: Timestamp, live: bool) {
        let lladdr = neighbour.lladdr.filter(|mac| is_one_station(*mac));
        let (Some(lladdr), true) = (lladdr, neighbour.state != NudState::Invalid) else {
            self.neighbour_gone(neighbour.ifindex, neighbour.address);
            return;
        };
        let on_bridge = self.links.is_bridge(neighbour.ifindex);
        let followed = on_bridge || self.links.pod(neighbour.ifindex).is_some();
        if !followed || !claimable(neighbour.address) {
            if live {
                self.unresolved_links(neighbour.ifindex);
            }
            return;
        }
        let telling = Telling {
            at,
            live,
            former: on_bridge.then_some(self.settings.flap_window),
        };
        match self
            .facts
            .neighbour(neighbour, lladdr, telling, &self.settings.bounds)
        {
            Stored::Changed => {}
            Stored::Refused => {
                self.drops.kernel_entries += 1;
                return;
            }
            Stored::Refreshed => return,
        }
        self.dirty.insert(neighbour.address);
        if on_bridge {
            self.expiry
                .look_at(neighbour.address, at + self.settings.flap_window);
        }
        let device = if on_bridge {
            self.fdb.port(neighbour.ifindex, lladdr)
        } else {
            Some(neighbour.ifindex)
        };
        if let Some(device) = device.filter(|_| neighbour.state == NudState::Reachable) {
            self.note_move(neighbour.address, device, Vlan::default(), at);
        }
    }

    fn unresolved_links(&mut self, ifindex: IfIndex) {
        let known = self.links.get(ifindex).is_some();
        if !known && self.unresolved_links.len() < self.settings.bounds.links {
            self.unresolved_links.insert(ifindex);
        }
    }

    pub(super) fn neighbour_gone(&mut self, ifindex: IfIndex, address: IpAddr) {
        if self.facts.forget_neighbour(ifindex, address) {
            self.dirty.insert(address);
        }
    }

    pub(super) fn frame(&mut self, frame: FrameClaim, at: Timestamp) {
        if !claimable(frame.address) {
            return;
        }
        // A frame from before the device was known came in on an earlier one of that index.
        let link = self.links.pod(frame.ifindex).filter(|l| l.since <= at);
        let Some(link) = link else {
            self.drops.unknown_device += 1;
            return;
        };
        let generation = link.generation;
        if frame.tentative && !self.is_contested(frame, generation, at) {
            return;
        }
        if frame.tentative {
            // A probe makes nothing live again that is over.
            self.lapse(frame.address, at);
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
        let end = self.world().end(&fact);
        match self.facts.frame(fact, frame.address, &self.settings.bounds) {
            Stored::Changed => {
                self.dirty.insert(frame.address);
                self.expiry.look_at(frame.address, end);
            }
            Stored::Refused => self.drops.claims += 1,
            Stored::Refreshed => {}
        }
        if !frame.tentative {
            self.note_move(frame.address, frame.ifindex, frame.vlan, at);
        }
    }

    /// Whether somebody other than the sender of a probe claims the address.
    fn is_contested(&self, frame: FrameClaim, generation: u64, now: Timestamp) -> bool {
        let own = ClaimantId::Device(frame.ifindex, generation);
        let world = self.world();
        let scope = world.scope(frame.address, frame.vlan, frame.ifindex);
        let derived = world.derive(frame.address, now);
        let claimants = derived.get(&scope).into_iter().flatten();
        claimants.into_iter().any(|c| c.id != own)
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
        let world = self.world();
        let scope = world.scope(address, vlan, device);
        let mut derived = world.derive(address, at);
        let claimants = derived.remove(&scope).unwrap_or_default();
        let Some(claimant) = claimants.iter().find(|c| c.id == id) else {
            return;
        };
        self.expiry.look_at(address, at + self.settings.flap_window);
        if self
            .moves
            .claimed(address, scope, claimant, at, &self.settings)
        {
            self.dirty.insert(address);
        }
    }

    /// Ends what nobody says the end of, and plans the next look.
    pub(super) fn lapse(&mut self, address: IpAddr, now: Timestamp) {
        self.dirty.insert(address);
        let mut next = self
            .moves
            .next_lapse(address, now, self.settings.flap_window);
        let mut look = |at: Timestamp| next = Some(next.map_or(at, |n| n.min(at)));
        let mut lapsed = Vec::new();
        let world = self.world();
        if let Some(facts) = self.facts.get(address) {
            for frame in &facts.frames {
                let link = self.links.pod(frame.ifindex);
                if !link.is_some_and(|link| world.lives(frame, link, facts, now)) {
                    lapsed.push((frame.ifindex, frame.vlan, frame.kind));
                    continue;
                }
                let end = world.end(frame);
                look(if end > now {
                    end
                } else {
                    now + self.settings.claim_ttl
                });
            }
            for former in facts.neighbours.iter().flat_map(|n| &n.former) {
                let end = former.last + self.settings.flap_window;
                if end > now {
                    look(end);
                }
            }
        }
        if let Some(next) = next {
            self.expiry.look_at(address, next);
        }
        for (ifindex, vlan, kind) in lapsed {
            self.facts
                .forget_frames(ifindex, address, |f| f.vlan == vlan && f.kind == kind);
        }
    }
}

/// Whether a hardware address is one station's: not zero, and without the group bit of broadcast and multicast.
fn is_one_station(mac: Mac) -> bool {
    mac != Mac::default() && mac.0[0] & 1 == 0
}
