//! Merges a snapshot: what it contains is added, what it does not contain is removed, except where
//! a live update is newer. Decisions follow once all of it is merged.

use std::collections::BTreeSet;

use crate::{
    hash::{HashMap, HashSet},
    limits::{
        in_flight_snapshots::{FinishedSnapshot, SnapshotOutcome, StateKey},
        reads::ReadTarget,
    },
    mirror::{facts::Owner, links::NamespaceAccess},
    model::{
        AssignedAddress, AssignmentId, BoundKind, Effect, FdbEntry, IfIndex, Neighbour, Peer,
        PodAddresses, Route, RoutePlace, Snapshot, SnapshotScope, SnapshotToken, Timestamp,
        TruncatedLists,
    },
    step::Engine,
    track::Step,
};

/// Whether a live update of an assignment, or of the link that had it, is newer than a snapshot.
fn is_outdated(finished: &FinishedSnapshot, owner: Owner, id: AssignmentId) -> bool {
    let is_of_earlier_link = match owner {
        Owner::Link(ifindex) => finished.is_outdated(&StateKey::LinkIdentity(ifindex)),
        Owner::Peer(_) | Owner::Internal(_) => false,
    };
    is_of_earlier_link || finished.is_outdated(&StateKey::Assignment(owner, id))
}

impl Engine {
    pub(super) fn merge_snapshot(
        &mut self,
        token: SnapshotToken,
        scope: SnapshotScope,
        snapshot: Snapshot,
        step: &mut Step<'_>,
    ) {
        let finished = match self.reads.in_flight.finish(token, scope) {
            SnapshotOutcome::Usable(finished) => finished,
            SnapshotOutcome::Superseded => return,
            SnapshotOutcome::Unusable => {
                step.effects.push(Effect::Resync);
                return;
            }
        };
        match scope {
            SnapshotScope::Node => {
                self.merge_node(&finished, snapshot, step);
                // Notifications may have been lost.
                self.mirror.route_lookups.request_all();
                self.mark_full_snapshot(step.at);
            }
            SnapshotScope::Device(ifindex) => {
                let before = finished.is_self_check.then(|| self.device_state(ifindex));
                self.merge_device(&finished, ifindex, snapshot, step);
                if let Some(before) = before.flatten() {
                    self.compare_device(ifindex, &before, step);
                }
            }
        }
        self.reads.in_flight.merged(finished);
    }

    fn merge_node(&mut self, finished: &FinishedSnapshot, snapshot: Snapshot, step: &mut Step<'_>) {
        let truncated = snapshot.truncated;
        self.reads.schedule.node_read(finished.started());
        self.note_truncated(truncated);
        let present: BTreeSet<_> = snapshot.links.iter().map(|l| l.ifindex).collect();
        let known = self.mirror.links.iter().map(|l| l.link.ifindex);
        let gone: Vec<_> = known
            .filter(|_| !truncated.links)
            .filter(|i| !present.contains(i) && !finished.is_outdated(&StateKey::Link(*i)))
            .collect();
        for ifindex in gone {
            self.link_gone(ifindex, step);
        }
        // The number of a pod's namespace may be an earlier pod's in this snapshot: remember which
        // device had it then.
        let device_by_peer: HashMap<_, _> = snapshot
            .links
            .iter()
            .filter_map(|l| Some((l.peer?, l.ifindex)))
            .collect();
        for mut link in snapshot.links {
            if finished.is_outdated(&StateKey::Link(link.ifindex)) {
                continue;
            }
            // A live update gave this peer to another device since: this one is dying.
            let holder = link
                .peer
                .and_then(|peer| self.mirror.links.index_by_peer(peer));
            if holder.is_some_and(|h| finished.is_outdated(&StateKey::Link(h))) {
                link.peer = None;
            }
            self.link(link, true, step);
        }
        for vlan in snapshot.port_vlans {
            let replaced = finished.is_outdated(&StateKey::LinkIdentity(vlan.ifindex));
            if !replaced && !finished.is_outdated(&StateKey::PortVlan(vlan.ifindex)) {
                self.port_vlan(vlan);
            }
        }
        self.merge_fdb(finished, &snapshot.fdb, truncated.fdb);
        self.merge_routes(finished, &snapshot.routes, truncated.routes);
        self.merge_host(finished, &snapshot.host, truncated.host, step.at);
        let same = |peer: Peer, device| device_by_peer.get(&peer) == Some(&device);
        let read = self.merge_pods(finished, snapshot.pods, same, step.at);
        let followed: Vec<_> = if truncated.neighbours {
            Vec::new()
        } else {
            self.mirror.links.iter().map(|l| l.link.ifindex).collect()
        };
        self.merge_neighbours(finished, &followed, &snapshot.neighbours, step.at);
        self.mark_read(&read);
        self.mirror.links.set_complete(!truncated.links);
        self.apply_restored(finished, step.at);
    }

    fn merge_device(
        &mut self,
        finished: &FinishedSnapshot,
        ifindex: IfIndex,
        snapshot: Snapshot,
        step: &mut Step<'_>,
    ) {
        if self.mirror.links.get(ifindex).is_none() {
            return;
        }
        self.reads.schedule.device_read(ifindex, finished.started());
        // Possibly no message reported the peer: the link's own is sent before the pair is joined.
        let link = snapshot.links.into_iter().find(|l| l.ifindex == ifindex);
        if let Some(link) = link.filter(|_| !finished.is_outdated(&StateKey::Link(ifindex))) {
            self.link(link, true, step);
        }
        let read = self.merge_pods(
            finished,
            snapshot.pods,
            |_, device| device == ifindex,
            step.at,
        );
        let mut neighbours = snapshot.neighbours;
        neighbours.retain(|n| n.ifindex == ifindex);
        self.merge_neighbours(finished, &[ifindex], &neighbours, step.at);
        self.mark_read(&read);
    }

    /// What a snapshot omits is treated like what is refused.
    fn note_truncated(&mut self, truncated: TruncatedLists) {
        let lists = [
            (truncated.links, BoundKind::Links),
            (truncated.host, BoundKind::HostAddresses),
            (truncated.neighbours, BoundKind::Neighbours),
            (truncated.fdb, BoundKind::Forwarding),
            (truncated.routes, BoundKind::Routes),
        ];
        for (_, bound) in lists.into_iter().filter(|(is_truncated, _)| *is_truncated) {
            self.refused(ReadTarget::Node, bound);
        }
    }

    /// `same`: whether the snapshot has this peer at the device that has it now. Returns the devices whose pods'
    /// addresses were merged.
    fn merge_pods(
        &mut self,
        finished: &FinishedSnapshot,
        pods: Vec<PodAddresses>,
        same: impl Fn(Peer, IfIndex) -> bool,
        at: Timestamp,
    ) -> Vec<IfIndex> {
        let mut read = Vec::new();
        for pod in pods {
            let Some(device) = self.mirror.links.index_by_peer(pod.peer) else {
                continue;
            };
            if finished.is_outdated(&StateKey::UnappliedUpdate(pod.peer)) {
                self.reads.schedule.changed(device);
            }
            if !same(pod.peer, device) || finished.is_outdated(&StateKey::LinkIdentity(device)) {
                continue;
            }
            if let Some(link) = self.mirror.links.get_mut(device) {
                let known = (link.namespace_access, link.peer_mac);
                let access = match pod.addresses {
                    Some(_) => NamespaceAccess::Readable,
                    None => NamespaceAccess::Unreadable,
                };
                link.namespace_access = access;
                let is_newer = !finished.is_outdated(&StateKey::PodLink(pod.peer));
                let mac = pod.mac.filter(|_| is_newer).or(link.peer_mac);
                self.mirror.links.set_peer_mac(device, mac);
                if known != (access, mac) {
                    self.mark_link_dirty(device);
                    self.recheck_device_claims(device, None, at);
                }
            }
            let Some(addresses) = pod.addresses else {
                continue;
            };
            self.reads
                .schedule
                .namespace_read(device, finished.started());
            let owner = Owner::Peer(pod.peer);
            if pod.is_truncated {
                self.refused(ReadTarget::Device(device), BoundKind::Addresses);
            } else {
                let present = addresses.iter().map(|info| (owner, info.id())).collect();
                self.remove_absent_addresses(finished, &[owner], &present, at);
            }
            for info in addresses {
                if !finished.is_outdated(&StateKey::Assignment(owner, info.id())) {
                    self.pod_address(pod.peer, info, at, false);
                }
            }
            if pod.is_missing_internal {
                self.drops.claims += 1;
                self.refused(ReadTarget::Device(device), BoundKind::InternalAddresses);
            }
            self.merge_internal(pod.peer, pod.internal, at);
            read.push(device);
        }
        read
    }

    /// What is found on these devices from now on appeared after they were read.
    fn mark_read(&mut self, devices: &[IfIndex]) {
        for device in devices {
            if let Some(link) = self.mirror.links.get_mut(*device) {
                link.awaits_first_read = false;
                link.internal_changed = None;
            }
        }
    }

    /// Removes the addresses of these owners that a snapshot does not contain.
    fn remove_absent_addresses(
        &mut self,
        finished: &FinishedSnapshot,
        owners: &[Owner],
        present: &HashSet<(Owner, AssignmentId)>,
        at: Timestamp,
    ) {
        let listed: HashSet<_> = present.iter().map(|(o, id)| (*o, id.address)).collect();
        for owner in owners.iter().copied() {
            for address in self.mirror.facts.overflowed_assignments(owner) {
                if !finished.is_outdated(&StateKey::Address(owner, address))
                    && self.mirror.facts.forget_overflow(owner, address)
                    && !listed.contains(&(owner, address))
                {
                    self.address_withdrawn(owner, address, at, Some(finished));
                }
            }
            for gone in self.mirror.facts.assignments(owner) {
                if !present.contains(&(owner, gone)) && !is_outdated(finished, owner, gone) {
                    self.address_gone(owner, gone, at, Some(finished));
                }
            }
        }
    }

    fn merge_host(
        &mut self,
        finished: &FinishedSnapshot,
        host: &[(IfIndex, AssignedAddress)],
        is_truncated: bool,
        at: Timestamp,
    ) {
        if !is_truncated {
            let assignment =
                |(link, info): &(IfIndex, AssignedAddress)| (Owner::Link(*link), info.id());
            let present = host.iter().map(assignment).collect();
            let links = self.mirror.facts.links_with_addresses();
            self.remove_absent_addresses(finished, &links, &present, at);
        }
        for (ifindex, info) in host {
            if !is_outdated(finished, Owner::Link(*ifindex), info.id()) {
                self.host_address(*ifindex, *info, at, false);
            }
        }
    }

    fn merge_neighbours(
        &mut self,
        finished: &FinishedSnapshot,
        of: &[IfIndex],
        neighbours: &[Neighbour],
        at: Timestamp,
    ) {
        let present: HashSet<_> = neighbours.iter().map(|n| (n.ifindex, n.address)).collect();
        let is_outdated = |i, a| {
            finished.is_outdated(&StateKey::Neighbour(i, a))
                || finished.is_outdated(&StateKey::LinkIdentity(i))
        };
        for ifindex in of {
            for address in self.mirror.facts.owned_by(Owner::Link(*ifindex)) {
                if !present.contains(&(*ifindex, address)) && !is_outdated(*ifindex, address) {
                    self.neighbour_gone(*ifindex, address, None);
                }
            }
        }
        for neighbour in neighbours {
            if !is_outdated(neighbour.ifindex, neighbour.address) {
                self.neighbour(*neighbour, at, false);
            }
        }
    }

    fn merge_fdb(&mut self, finished: &FinishedSnapshot, entries: &[FdbEntry], is_truncated: bool) {
        let key = |e: &FdbEntry| (e.bridge, e.mac, e.vlan);
        let present: HashSet<_> = entries.iter().map(key).collect();
        // A live update of a link is newer than the snapshot: the port may be of another bridge by
        // now.
        let of_another: HashSet<_> = entries
            .iter()
            .map(|e| (e.port, e.bridge))
            .filter(|(port, bridge)| {
                finished.is_outdated(&StateKey::Link(*port))
                    && self.mirror.links.bridge_of(*port) != Some(*bridge)
            })
            .collect();
        let is_outdated = |e: &FdbEntry| {
            finished.is_outdated(&StateKey::from(e))
                || finished.is_outdated(&StateKey::LinkIdentity(e.bridge))
                || finished.is_outdated(&StateKey::LinkIdentity(e.port))
                || finished.is_outdated(&StateKey::PortFdb(e.port))
                || of_another.contains(&(e.port, e.bridge))
        };
        let known = self.mirror.fdb.entries();
        let gone: Vec<_> = known
            .filter(|e| !is_truncated && !present.contains(&key(e)) && !is_outdated(e))
            .collect();
        for entry in gone {
            self.fdb_gone(entry);
        }
        for entry in entries {
            if !is_outdated(entry) {
                self.fdb(*entry);
            }
        }
    }

    fn merge_routes(&mut self, finished: &FinishedSnapshot, routes: &[Route], is_truncated: bool) {
        let present: HashSet<_> = routes.iter().collect();
        let is_outdated = |r: &Route| {
            finished.is_outdated(&StateKey::from(r))
                || finished.is_outdated(&StateKey::LinkRoutes(r.ifindex))
                || finished.is_outdated(&StateKey::LinkIdentity(r.ifindex))
        };
        let known = self.mirror.routes.iter();
        let gone: Vec<_> = known
            .filter(|r| !is_truncated && !present.contains(r) && !is_outdated(r))
            .copied()
            .collect();
        for route in gone {
            self.route_gone(&route);
        }
        for route in routes {
            if !is_outdated(route) {
                self.route(*route, Some(RoutePlace::Last));
            }
        }
    }
}
