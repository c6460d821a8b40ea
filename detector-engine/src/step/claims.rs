//! Observations that support claims: addresses, neighbour entries and frames.

use std::net::IpAddr;

use crate::{
    limits::{
        in_flight_snapshots::{FinishedSnapshot, StateKey},
        reads::ReadTarget,
    },
    mirror::{
        StoreOutcome,
        facts::{NeighbourUpdateContext, Owner, RemovedAssignment},
    },
    model::{
        AssignedAddress, AssignmentId, BoundKind, ClaimantId, FrameClaim, FrameFact, IfIndex, Mac,
        Neighbour, NudState, Peer, Seen, Timestamp, Vlan, is_claimable, is_like,
    },
    step::Engine,
};

impl Engine {
    /// An address is assigned in a pod: reported live, or found by a snapshot.
    pub(super) fn pod_address(
        &mut self,
        peer: Peer,
        info: AssignedAddress,
        at: Timestamp,
        live: bool,
    ) {
        let Some(link) = self.mirror.links.pod_by_peer(peer) else {
            return;
        };
        let device = link.link.ifindex;
        let first = (
            at.max(link.since),
            self.address_beginning(link, &info, at, live),
        );
        if !is_claimable(info.address) {
            return;
        }
        let facts = self.mirror.facts.get(info.address);
        let is_new = !facts.is_some_and(|f| f.is_assigned_on(peer));
        let was_bare = !self.mirror.facts.has_address_like(peer, info.address);
        match self.mirror.facts.assign((device, peer), info, first) {
            StoreOutcome::Changed => {
                self.dirty.insert(info.address);
                if was_bare {
                    self.recheck_device_claims(device, Some(info.address), at);
                }
            }
            StoreOutcome::Refused => {
                self.drops.claims += 1;
                self.refused(ReadTarget::Device(device), BoundKind::Addresses);
            }
            StoreOutcome::Known | StoreOutcome::Outdated => {}
        }
        if is_new {
            self.record_move(info.address, device, Vlan::default(), at);
        }
    }

    /// An assignment of an address was removed; the address is gone with the last one. `read` is the snapshot that shows it,
    /// unless it was reported live.
    pub(super) fn address_gone(
        &mut self,
        owner: Owner,
        id: AssignmentId,
        at: Timestamp,
        read: Option<&FinishedSnapshot>,
    ) {
        match self.mirror.facts.remove_assignment(owner, id) {
            RemovedAssignment::Last => self.address_withdrawn(owner, id.address, at, read),
            RemovedAssignment::OthersRemain => {}
            RemovedAssignment::Unknown => match owner {
                Owner::Link(_) => self.refused(ReadTarget::Node, BoundKind::Assignments),
                Owner::Peer(peer) | Owner::Internal(peer) => {
                    if let Some(device) = self.mirror.links.index_by_peer(peer) {
                        self.refused(ReadTarget::Device(device), BoundKind::Assignments);
                    }
                }
            },
        }
    }

    /// An address is no longer assigned.
    pub(super) fn address_withdrawn(
        &mut self,
        owner: Owner,
        address: IpAddr,
        at: Timestamp,
        read: Option<&FinishedSnapshot>,
    ) {
        let of_pod = match owner {
            Owner::Link(_) => None,
            Owner::Peer(peer) | Owner::Internal(peer) => {
                let Some(device) = self.mirror.links.index_by_peer(peer) else {
                    return;
                };
                Some((device, peer))
            }
        };
        if self.mirror.facts.unassign(owner, address) {
            self.dirty.insert(address);
        }
        let Some((device, peer)) = of_pod else {
            return;
        };
        self.pod_evidence_withdrawn(device, address, at, read);
        self.withdraw_in_namespace(peer.nsid, address, at, read);
        if !self.mirror.facts.has_address_like(peer, address) {
            self.recheck_device_claims(device, Some(address), at);
        }
    }

    /// Withdraws what was seen of an address on a device, because it was removed in the pod. A removal that only a snapshot
    /// shows was before everything that was reported since the snapshot started.
    pub(super) fn pod_evidence_withdrawn(
        &mut self,
        device: IfIndex,
        address: IpAddr,
        at: Timestamp,
        read: Option<&FinishedSnapshot>,
    ) {
        let is_newer = |ifindex| {
            let evidence = StateKey::NeighbourEvidence(ifindex, address);
            read.is_some_and(|read| read.is_outdated(&evidence))
        };
        let mut changed = self.mirror.facts.withdraw_frames(device, address, at);
        if changed {
            self.noted.table.publish_again(address);
        }
        let newer = is_newer(device);
        changed |= self
            .mirror
            .facts
            .refute_neighbour(device, address, newer, |_| true);
        if let Some(bridge) = self.mirror.links.bridge_of(device) {
            let is_behind_pod = |mac| self.mirror.fdb.port(bridge, mac) == Some(device);
            let newer = is_newer(bridge);
            changed |= self
                .mirror
                .facts
                .refute_neighbour(bridge, address, newer, is_behind_pod);
        }
        if changed {
            self.dirty.insert(address);
        }
    }

    /// Whether the namespace behind a device is authoritative may have changed, because of an
    /// assignment of `by` if that is known: what it refutes now is over for good, and who owns the address of an open
    /// conflict may depend on it. A pod can cause this at any rate, so only what may depend on it is decided again, and
    /// counts as changes of the device's addresses.
    pub(super) fn recheck_device_claims(
        &mut self,
        device: IfIndex,
        by: Option<IpAddr>,
        at: Timestamp,
    ) {
        let context = self.claim_context();
        let depends = |address: &IpAddr| {
            let facts = self
                .mirror
                .facts
                .get(*address)
                .filter(|_| by.is_none_or(|by| is_like(by, *address)));
            facts.is_some_and(|facts| {
                let mut frames = facts.frames.iter().filter(|f| f.ifindex == device);
                let mut entries = facts.neighbours.iter().filter(|n| n.ifindex == device);
                self.tracked.lifecycle.has_open(*address)
                    || frames.any(|f| context.expires_at(f) <= at)
                    || entries.any(|n| n.confirmed)
            })
        };
        let mut dependent = self.mirror.facts.owned_by(Owner::Link(device));
        dependent.retain(depends);
        if let Some(link) = self.mirror.links.get_mut(device) {
            link.changes
                .charge(&self.settings.bounds, at, dependent.len());
        }
        for address in dependent {
            self.expire_claims(address, at);
        }
        let behind = self.mirror.fdb.behind_port(device);
        self.mark_behind_dirty(&behind);
        self.mark_routed_dirty(device);
    }

    /// A host route to a pod is only judged once the pod's addresses are known, which may be after the route.
    fn mark_routed_dirty(&mut self, device: IfIndex) {
        // The first snapshot has all addresses decided.
        if !self.mirror.is_complete {
            return;
        }
        let context = self.claim_context();
        let is_judged = |address: &IpAddr| {
            let target = self.mirror.links.pod(device);
            target.is_some_and(|link| context.is_authoritative(link, *address))
        };
        let routed: Vec<_> = self
            .mirror
            .routes
            .host_routes_to(device)
            .filter(is_judged)
            .collect();
        self.dirty.extend(routed);
    }

    /// An address is assigned on the node: reported live, or found by a snapshot.
    pub(super) fn host_address(
        &mut self,
        ifindex: IfIndex,
        info: AssignedAddress,
        at: Timestamp,
        live: bool,
    ) {
        if !is_claimable(info.address) {
            return;
        }
        let first = (at, self.host_beginning(&info, at, live));
        match self.mirror.facts.assign_host(ifindex, info, first) {
            StoreOutcome::Changed => {
                self.dirty.insert(info.address);
            }
            StoreOutcome::Refused => {
                self.drops.kernel_entries += 1;
                self.refused(ReadTarget::Node, BoundKind::HostAddresses);
            }
            StoreOutcome::Known | StoreOutcome::Outdated => {}
        }
    }

    pub(super) fn neighbour(&mut self, neighbour: Neighbour, at: Timestamp, live: bool) {
        let on_bridge = self.mirror.links.is_bridge(neighbour.ifindex);
        // The kernel learns any hardware address (`neigh_update` in net/core/neighbour.c). Only a
        // unicast one belongs to one port of a bridge; in a static entry, another one is no pod's.
        let accepts_any = !on_bridge && neighbour.state != NudState::Permanent;
        let lladdr = neighbour
            .lladdr
            .filter(|mac| accepts_any || is_unicast(*mac));
        let (Some(lladdr), true) = (lladdr, neighbour.state != NudState::Invalid) else {
            self.neighbour_gone(neighbour.ifindex, neighbour.address, live.then_some(at));
            return;
        };
        let is_tracked = on_bridge || self.mirror.links.pod(neighbour.ifindex).is_some();
        if !is_tracked || !is_claimable(neighbour.address) {
            if live {
                self.note_unresolved_link(neighbour.ifindex);
            }
            return;
        }
        let link = self.mirror.links.pod(neighbour.ifindex);
        let context = NeighbourUpdateContext {
            at,
            beginning: self.neighbour_beginning(link, live),
            live,
            former: on_bridge.then_some(self.settings.flap_window),
            peer: link.and_then(|l| l.link.peer),
        };
        match self.mirror.facts.set_neighbour(neighbour, lladdr, context) {
            StoreOutcome::Changed => {}
            StoreOutcome::Refused => {
                self.neighbour_refused(neighbour.ifindex);
                return;
            }
            StoreOutcome::Known | StoreOutcome::Outdated => return,
        }
        self.dirty.insert(neighbour.address);
        if on_bridge {
            self.timers
                .expiry
                .schedule(neighbour.address, at + self.settings.flap_window);
        }
        let device = if on_bridge {
            self.mirror.fdb.port(neighbour.ifindex, lladdr)
        } else {
            Some(neighbour.ifindex)
        };
        if let Some(device) = device.filter(|_| neighbour.state == NudState::Reachable) {
            self.record_move(neighbour.address, device, Vlan::default(), at);
        }
    }

    fn note_unresolved_link(&mut self, ifindex: IfIndex) {
        let known = self.mirror.links.get(ifindex).is_some();
        if !known && self.reads.unresolved_links.len() < self.settings.bounds.links {
            self.reads.unresolved_links.insert(ifindex);
        }
    }

    /// `reported`: when, if it was reported live.
    pub(super) fn neighbour_gone(
        &mut self,
        ifindex: IfIndex,
        address: IpAddr,
        reported: Option<Timestamp>,
    ) {
        let is_removed = match reported {
            Some(at) => self.mirror.facts.withdraw_neighbour(ifindex, address, at),
            None => self.mirror.facts.remove_neighbour(ifindex, address),
        };
        if is_removed {
            self.dirty.insert(address);
        }
    }

    pub(super) fn frame(&mut self, frame: FrameClaim, at: Timestamp) {
        if !is_claimable(frame.address) {
            return;
        }
        // A frame from before the device was known came in on an earlier device of that index.
        let link = self
            .mirror
            .links
            .pod(frame.ifindex)
            .filter(|l| l.since <= at);
        let Some(link) = link else {
            self.drops.unknown_device += 1;
            return;
        };
        let (id, peer) = (link.id(), link.link.peer);
        let beginning = self.frame_beginning(link, frame.address, at);
        if frame.tentative && !self.is_contested(frame, id, at) {
            return;
        }
        if frame.tentative {
            // A probe does not revive an expired claim.
            self.expire_claims(frame.address, at);
        }
        let fact = FrameFact {
            ifindex: frame.ifindex,
            vlan: frame.vlan,
            kind: frame.kind,
            mac: frame.mac,
            ether_source: frame.ether_source,
            tentative: frame.tentative,
            seen: Seen::once(at, beginning),
        };
        let end = self.claim_context().expires_at(&fact);
        let address = frame.address;
        let mut outcome = self.mirror.facts.add_frame(fact.clone(), address, peer);
        if outcome == StoreOutcome::Refused && self.evict_frames(frame.ifindex) {
            outcome = self.mirror.facts.add_frame(fact, address, peer);
        }
        match outcome {
            StoreOutcome::Changed => {
                self.dirty.insert(frame.address);
                self.timers.expiry.schedule(frame.address, end);
            }
            StoreOutcome::Refused => {
                self.drops.claims += 1;
                self.refused(ReadTarget::Device(frame.ifindex), BoundKind::FrameClaims);
            }
            StoreOutcome::Outdated => self.noted.table.publish_again(frame.address),
            StoreOutcome::Known => {}
        }
        if !frame.tentative {
            let facts = self.mirror.facts.get(frame.address);
            if facts.is_some_and(|f| f.frames.len() > 1) {
                // It may supersede another one.
                self.expire_claims(frame.address, at);
            }
            self.record_move(frame.address, frame.ifindex, frame.vlan, at);
        }
    }

    /// Whether another pod than the sender of a probe, or the node, claims the address.
    fn is_contested(&self, frame: FrameClaim, own: ClaimantId, now: Timestamp) -> bool {
        let context = self.claim_context();
        let Some(link) = self.mirror.links.pod(frame.ifindex) else {
            return false;
        };
        let scope = context.scope(frame.address, frame.vlan, link);
        let derived = context.derive(frame.address, now);
        let claimants = derived.get(&scope).into_iter().flatten();
        claimants
            .into_iter()
            .any(|c| !self.mirror.links.is_one_pod(c.id, own))
    }

    /// Records a claim of an allowed address, which may be a move.
    fn record_move(&mut self, address: IpAddr, device: IfIndex, vlan: Vlan, at: Timestamp) {
        if !self.settings.is_allowed(address) {
            return;
        }
        let Some(link) = self.mirror.links.pod(device) else {
            return;
        };
        let context = self.claim_context();
        let (id, scope) = (link.id(), context.scope(address, vlan, link));
        let mut derived = context.derive(address, at);
        let claimants = derived.remove(&scope).unwrap_or_default();
        let Some(claimant) = claimants.iter().find(|c| c.id == id) else {
            return;
        };
        self.timers
            .expiry
            .schedule(address, at + self.settings.flap_window);
        let is_one_pod = |a, b| self.mirror.links.is_one_pod(a, b);
        if self
            .tracked
            .moves
            .record_claim(address, scope, claimant, is_one_pod, at)
        {
            self.dirty.insert(address);
        }
    }

    /// Expires claims that have no removal event, and schedules the next check.
    pub(super) fn expire_claims(&mut self, address: IpAddr, now: Timestamp) {
        self.dirty.insert(address);
        let mut next = self.tracked.moves.next_expiry(address, now);
        let mut schedule = |at: Timestamp| next = Some(next.map_or(at, |n| n.min(at)));
        let mut expired = Vec::new();
        let context = self.claim_context();
        if let Some(facts) = self.mirror.facts.get(address) {
            for frame in &facts.frames {
                let link = self.mirror.links.pod(frame.ifindex);
                if !link.is_some_and(|link| context.is_frame_live(address, frame, link, facts, now))
                {
                    expired.push((frame.ifindex, frame.vlan, frame.kind));
                    continue;
                }
                let end = context.expires_at(frame);
                schedule(if end > now {
                    end
                } else {
                    now + self.settings.claim_ttl
                });
            }
            for former in facts.neighbours.iter().flat_map(|n| &n.former) {
                let end = former.seen.last + self.settings.flap_window;
                if end > now {
                    schedule(end);
                }
            }
        }
        if let Some(next) = next {
            self.timers.expiry.schedule(address, next);
        }
        for (ifindex, vlan, kind) in expired {
            self.mirror
                .facts
                .remove_frames(ifindex, address, |f| f.vlan == vlan && f.kind == kind);
        }
    }
}

/// Whether a hardware address is not zero and not a group address (broadcast, multicast).
fn is_unicast(mac: Mac) -> bool {
    mac != Mac::default() && mac.0[0] & 1 == 0
}
