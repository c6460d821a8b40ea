//! Links and forwarding tables. Neither is a claim.

use std::collections::BTreeSet;

use crate::{
    limits::{in_flight_snapshots::StateKey, reads::ReadTarget},
    mirror::{
        StoreOutcome,
        facts::Owner,
        links::{LinkChange, LinkState, pod_peer},
    },
    model::{
        BoundKind, ConflictKind, Effect, FdbEntry, IfIndex, Link, LinkKind, Mac, NsId, Peer,
        PodDevice, PortVlan, RereadReason, Timestamp,
    },
    step::Engine,
    track::Step,
};

impl Engine {
    /// A link appeared or changed. With `complete` it comes from a snapshot, and absent attributes
    /// are treated as unset.
    pub(super) fn link(&mut self, link: Link, complete: bool, step: &mut Step<'_>) {
        let ifindex = link.ifindex;
        if self.mirror.links.get(ifindex).is_none()
            && self.mirror.links.len() >= self.settings.bounds.links
        {
            self.drops.links += 1;
            self.mirror.links.set_complete(false);
            self.refused(ReadTarget::Node, BoundKind::Links);
            return;
        }
        let up = link.up;
        let was_bridge = self.mirror.links.is_bridge(ifindex);
        let mut dependents = self.mirror.links.depending_on(ifindex);
        let filtering = link.vlan_filtering;
        let filtering_before = self
            .mirror
            .links
            .get(ifindex)
            .map(|l| l.link.vlan_filtering);
        let before = self.mirror.links.pod(ifindex).map(LinkState::device);
        let upserted = self.mirror.links.upsert(link, complete, step.at);
        if let Some((older, peer)) = upserted.displaced {
            self.remove_peer_claims(older, peer, step.at);
            self.mark_link_dirty(older);
            self.recheck_device_claims(older, None, step.at);
        }
        match upserted.change {
            LinkChange::Unchanged => return,
            // A route may have been reported before its link was known.
            LinkChange::New if !up => self.on_link_down(ifindex),
            LinkChange::New => {}
            LinkChange::Replaced(old) => {
                self.reads.in_flight.touch(StateKey::LinkIdentity(ifindex));
                self.remove_link_facts(ifindex, pod_peer(&old));
                self.reads.schedule.remove(ifindex);
                self.mark_flapping_dirty(ifindex);
                // Entries of the new link may have been reported before it was known to be another
                // one.
                step.effects.push(Effect::Resync);
            }
            LinkChange::Changed(old) => self.link_changed(&old, up, step.at),
        }
        self.mark_link_dirty(ifindex);
        dependents.extend(self.mirror.links.depending_on(ifindex));
        self.mark_links_dirty(dependents);
        let is_bridge = self.mirror.links.is_bridge(ifindex);
        if was_bridge != is_bridge && self.reads.unresolved_links.remove(&ifindex) && is_bridge {
            step.effects
                .push(Effect::ReadNode(RereadReason::LateBridge));
        }
        // Notifications name a PVID only when it is changed for one port.
        if filtering.is_some() && !complete && filtering_before != Some(filtering) {
            step.effects
                .push(Effect::ReadNode(RereadReason::VlanFiltering));
        }
        let after = self.mirror.links.pod(ifindex).map(LinkState::device);
        match (before, after) {
            (Some(device), None) => {
                let was_up = self
                    .mirror
                    .links
                    .get(ifindex)
                    .is_some_and(|link| link.was_up);
                step.effects.push(Effect::Detach { device, was_up });
            }
            (before, Some(after)) => {
                let same = |b: &PodDevice| b.generation == after.generation && b.peer == after.peer;
                if before.as_ref().map(|b| b.generation) != Some(after.generation) {
                    self.await_network(ifindex, step.at);
                }
                if !before.as_ref().is_some_and(same) {
                    step.effects.push(Effect::Attach(after));
                } else if before.as_ref() != Some(&after) {
                    step.effects.push(Effect::Renamed(after));
                }
            }
            (None, None) => {}
        }
    }

    /// Removes what depended on the previous state of a link.
    fn link_changed(&mut self, old: &Link, up: bool, at: Timestamp) {
        let ifindex = old.ifindex;
        let now = self.mirror.links.get(ifindex).map(|l| &l.link);
        let (peer, master) = now.map_or((None, None), |l| (pod_peer(l), l.master));
        let is_renamed = now.is_some_and(|now| now.name != old.name);
        let is_running = |link: &Link| link.up && link.running;
        let runs_again = now.is_some_and(is_running) && !is_running(old);
        if let Some(before) = pod_peer(old).filter(|before| Some(*before) != peer) {
            self.remove_peer_claims(ifindex, before, at);
            self.recheck_device_claims(ifindex, None, at);
        }
        if old.kind == LinkKind::Pod && self.mirror.links.pod(ifindex).is_none() {
            self.dirty
                .extend(self.mirror.facts.remove_pod_claims(ifindex));
            self.mark_flapping_dirty(ifindex);
        }
        if is_renamed {
            self.mark_flapping_dirty(ifindex);
        }
        if let Some(bridge) = old.master.filter(|before| Some(*before) != master) {
            self.reads.in_flight.touch(StateKey::PortFdb(ifindex));
            let behind = self.mirror.fdb.remove_port(bridge, ifindex);
            self.mark_behind_dirty(&behind);
        }
        if old.up && !up {
            self.on_link_down(ifindex);
        }
        if runs_again {
            // Next hops over the link count again; without a carrier, they did not if the node ignores such routes
            // (`ignore_routes_with_linkdown`).
            self.mirror.route_lookups.request_all();
        }
    }

    /// A device that stays has lost its peer.
    fn remove_peer_claims(&mut self, device: IfIndex, peer: Peer, at: Timestamp) {
        // What was seen of an address on an internal interface followed from that. Without the interface it would count against
        // others that share the address.
        for address in self.mirror.facts.owned_by(Owner::Internal(peer)) {
            self.pod_evidence_withdrawn(device, address, at, None);
        }
        for address in self.mirror.facts.remove_peer(peer) {
            // Expired frame claims counted only while the address was assigned there.
            self.expire_claims(address, at);
        }
    }

    /// A link went down.
    fn on_link_down(&mut self, ifindex: IfIndex) {
        self.reads.in_flight.touch(StateKey::LinkRoutes(ifindex));
        self.remove_link_routes(ifindex);
    }

    pub(super) fn link_gone(&mut self, ifindex: IfIndex, step: &mut Step<'_>) {
        self.reads.in_flight.touch(StateKey::LinkIdentity(ifindex));
        self.reads.discrepancies.explain_device(ifindex);
        let dependents = self.mirror.links.depending_on(ifindex);
        let state = self.mirror.links.remove(ifindex);
        // Entries may have been reported for a link whose appearance was missed.
        self.remove_link_facts(ifindex, state.as_ref().and_then(|s| pod_peer(&s.link)));
        self.reads.schedule.remove(ifindex);
        self.tracked.anomalies.sweeps.device_changed(ifindex);
        self.mark_links_dirty(dependents);
        self.mark_flapping_dirty(ifindex);
        if let Some(state) = state.filter(|state| state.is_pod()) {
            step.effects.push(Effect::Detach {
                device: state.device(),
                was_up: state.was_up,
            });
        }
    }

    /// The namespace that had this id is gone: nothing reported before holds for the next one, which
    /// may get the same id and link index at once. The kernel is about to remove its devices.
    pub(super) fn namespace_id_freed(&mut self, nsid: NsId, at: Timestamp) {
        for peer in self.mirror.links.peers_in(nsid).collect::<Vec<_>>() {
            let Some(device) = self.mirror.links.unset_peer(peer) else {
                continue;
            };
            device.is_dying = true;
            let ifindex = device.link.ifindex;
            self.mirror.links.has_lost_pods = true;
            // A snapshot that is in flight may still show the device as the peer's.
            self.reads.in_flight.touch(StateKey::Link(ifindex));
            self.reads.in_flight.touch(StateKey::LinkIdentity(ifindex));
            self.reads.discrepancies.explain_device(ifindex);
            self.remove_peer_claims(ifindex, peer, at);
            self.mark_link_dirty(ifindex);
            self.mark_flapping_dirty(ifindex);
        }
        self.mirror.links.forget_namespace(nsid);
    }

    /// The pod's end of a device is in another namespace now. Which one, and which addresses it has
    /// there, only a snapshot of the device shows.
    pub(super) fn peer_moved(&mut self, peer: Peer, step: &mut Step<'_>) {
        let device = self
            .mirror
            .links
            .unset_peer(peer)
            .map(|state| state.device());
        let Some(device) = device else {
            // A snapshot in flight may still show this peer, at a device that is unknown so far.
            self.touch(StateKey::UnappliedUpdate(peer));
            return;
        };
        self.remove_peer_claims(device.ifindex, peer, step.at);
        self.reads.in_flight.touch(StateKey::Link(device.ifindex));
        self.reads.discrepancies.explain_device(device.ifindex);
        self.mark_link_dirty(device.ifindex);
        self.recheck_device_claims(device.ifindex, None, step.at);
        step.effects.push(Effect::Attach(device));
    }

    /// The hardware address of the pod's end of a device. A device whose peer is unknown or uncertain is read in any case.
    pub(super) fn pod_link(&mut self, peer: Peer, mac: Mac) {
        let Some(link) = self
            .mirror
            .links
            .pod_by_peer(peer)
            .filter(|link| !link.is_stale)
        else {
            return;
        };
        let device = link.link.ifindex;
        match link.peer_mac {
            Some(known) if known == mac => {}
            // A pod can change it all the time, and each change is one of all its conflicts.
            Some(_) => self.reads.schedule.changed(device),
            None => {
                self.touch(StateKey::PodLink(peer));
                self.mirror.links.set_peer_mac(device, Some(mac));
                self.mark_link_dirty(device);
            }
        }
    }

    /// Removes everything that depends on a link that is gone.
    fn remove_link_facts(&mut self, ifindex: IfIndex, peer: Option<Peer>) {
        self.dirty.extend(self.mirror.facts.remove_link(ifindex));
        if let Some(peer) = peer {
            self.dirty.extend(self.mirror.facts.remove_peer(peer));
        }
        let behind = self.mirror.fdb.remove_link(ifindex);
        self.mark_behind_dirty(&behind);
        self.dirty
            .extend(self.mirror.route_lookups.link_gone(ifindex));
        self.remove_link_routes(ifindex);
    }

    fn mark_links_dirty(&mut self, links: BTreeSet<IfIndex>) {
        for ifindex in links {
            self.mark_link_dirty(ifindex);
        }
    }

    /// Marks every address dirty that is claimed through a link.
    pub(super) fn mark_link_dirty(&mut self, ifindex: IfIndex) {
        self.tracked.anomalies.sweeps.device_changed(ifindex);
        if let Some(mac) = self
            .mirror
            .links
            .get(ifindex)
            .and_then(|link| link.peer_mac)
        {
            self.mirror.links.mac_affected(mac);
        }
        self.dirty
            .extend(self.mirror.facts.owned_by(Owner::Link(ifindex)));
        if let Some(peer) = self.mirror.links.pod(ifindex).and_then(|l| l.link.peer) {
            for owner in [Owner::Peer(peer), Owner::Internal(peer)] {
                self.dirty.extend(self.mirror.facts.owned_by(owner));
            }
        }
        let behind = self.mirror.fdb.behind_port(ifindex);
        self.mark_behind_dirty(&behind);
        self.mark_routed_link_local_dirty(ifindex);
    }

    /// Links by which the node takes part in an L2 domain got their first address or route, or lost
    /// the last one: the claims there are in another network now.
    pub(super) fn mark_presence_dirty(&mut self) {
        let changed = self.mirror.facts.presence.take_changed();
        let routed = self.mirror.routes.presence.take_changed();
        for ifindex in changed.into_iter().chain(routed) {
            self.mark_links_dirty(self.mirror.links.depending_on(ifindex));
        }
    }

    /// The PVID of a port, or of a bridge itself.
    pub(super) fn port_vlan(&mut self, vlan: PortVlan) {
        let ifindex = vlan.ifindex;
        if !self.mirror.links.set_pvid(vlan, self.settings.bounds.links) {
            return;
        }
        self.mark_link_dirty(ifindex);
        self.mark_links_dirty(self.mirror.links.depending_on(ifindex));
    }

    pub(super) fn mark_behind_dirty(&mut self, hardware: &[(IfIndex, Mac)]) {
        for (bridge, mac) in hardware {
            self.mirror.links.mac_affected(*mac);
            self.dirty
                .extend(self.mirror.facts.addresses_behind(*bridge, *mac));
        }
    }

    /// Participants of flapping, and those of a conflict that may begin again, need not claim the address now.
    fn mark_flapping_dirty(&mut self, ifindex: IfIndex) {
        let open = self.tracked.lifecycle.open().map(|(_, conflict)| conflict);
        let flapping = open.filter(|c| c.kind == ConflictKind::Flapping || c.quiet_since.is_some());
        let with = flapping.filter(|c| c.present().any(|p| p.ifindex == ifindex));
        self.dirty.extend(with.map(|c| c.address));
    }

    pub(super) fn fdb(&mut self, entry: FdbEntry) {
        let bounds = &self.settings.bounds;
        self.mirror.links.mac_affected(entry.mac);
        // Where a pod's hardware address is must not be hidden by a flood of others.
        let is_of_pod = self.mirror.links.pods_with_mac(entry.mac).next().is_some();
        let share = if self.mirror.links.pod(entry.port).is_some() && !is_of_pod {
            bounds.claims_per_device
        } else {
            bounds.kernel_entries
        };
        match self.mirror.fdb.set(entry, bounds.kernel_entries, share) {
            StoreOutcome::Known | StoreOutcome::Outdated => return,
            StoreOutcome::Changed => {}
            StoreOutcome::Refused => self.forwarding_refused(entry.port),
        }
        self.mark_behind_dirty(&[(entry.bridge, entry.mac)]);
    }

    pub(super) fn fdb_gone(&mut self, entry: FdbEntry) {
        let still_port = self.mirror.links.bridge_of(entry.port) == Some(entry.bridge);
        self.mirror.links.mac_affected(entry.mac);
        let keep = still_port && self.mirror.facts.is_mac_referenced(entry.bridge, entry.mac);
        if self.mirror.fdb.unset(entry, keep) == StoreOutcome::Changed {
            self.mark_behind_dirty(&[(entry.bridge, entry.mac)]);
        }
    }
}
